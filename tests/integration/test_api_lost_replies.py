"""A reply that is lost costs nothing: the same request again gets the same answer, and nothing runs twice."""

import asyncio
import contextlib
import json

import grpc
import grpc.aio
import pytest
from tests.support.calls import begin, commit, get, refused, step, step_request
from tests.support.cutting_proxy import CuttingProxy
from tests.support.running_server import CHANNEL_OPTIONS, running_server

from agenttx.v1 import transaction_pb2 as pb


@pytest.fixture
async def server():
    async with running_server(tools="tests.support.sample_tools") as running:
        yield running


@pytest.fixture
async def proxied(server):
    """A way to the server on which replies can be lost."""
    with CuttingProxy(int(server.address.rpartition(":")[2])) as proxy:
        options = (
            *CHANNEL_OPTIONS,
            ("grpc.initial_reconnect_backoff_ms", 20),
            ("grpc.max_reconnect_backoff_ms", 50),
        )
        async with grpc.aio.insecure_channel(proxy.address, options=options) as channel:
            yield proxy, channel


def method(channel, name, request):
    """Return a call that gives the reply's bytes as they came."""
    return channel.unary_unary(
        f"/agenttx.v1.AgentTxService/{name}", request_serializer=type(request).SerializeToString
    )


async def lose_replies(proxied, name, request, times):
    proxy, channel = proxied
    call = method(channel, name, request)
    for _ in range(times):
        proxy.cut_replies(request.request_id.encode())
        is_cut = False
        while not is_cut:  # A call that meets the connection's end is lost before it is sent.
            lost = await refused(call(request, wait_for_ready=True, timeout=30))
            assert lost.code is grpc.StatusCode.UNAVAILABLE
            is_cut = await asyncio.to_thread(proxy.wait_for_cuts, 0.5)


def without_replay_mark(raw):
    response = pb.ExecuteStepResponse.FromString(raw)
    response.ClearField("replayed")
    return response


async def test_a_step_whose_replies_are_lost_runs_once(server, proxied):
    transaction = await begin(server.stub)
    request = step_request(transaction, 1, "sample.inc", {"key": "n"}, request_id="request-c01")

    await lose_replies(proxied, "ExecuteStep", request, times=5)
    replies = [await method(server.channel, "ExecuteStep", request)(request) for _ in range(3)]

    assert len(set(replies)) == 1  # byte by byte
    answer = pb.ExecuteStepResponse.FromString(replies[0])
    assert answer.replayed
    assert json.loads(answer.output_json)["number"] == 1
    graph = await server.stub.GetDependencyGraph(pb.GetDependencyGraphRequest(transaction_id=transaction))
    assert [(node.step_id, node.attempt) for node in graph.nodes] == [(1, 1)]
    other = await step(server.stub, transaction, 2, "sample.inc", {"key": "n"})
    assert json.loads(other.output_json)["number"] == 2


async def test_a_recorded_answer_differs_in_its_mark_only(server):
    transaction = await begin(server.stub)
    request = step_request(
        transaction, 1, "sample.fail", {"message": "KeyError: 'user_id'"}, request_id="request-1"
    )

    first = await method(server.channel, "ExecuteStep", request)(request)
    again = await method(server.channel, "ExecuteStep", request)(request)

    assert not pb.ExecuteStepResponse.FromString(first).replayed
    assert pb.ExecuteStepResponse.FromString(again).replayed
    assert without_replay_mark(first) == without_replay_mark(again)


async def test_a_request_id_used_for_another_request_is_refused_and_nothing_runs(server):
    transaction = await begin(server.stub)
    await step(server.stub, transaction, 1, "sample.echo", {"value": {"v": 1, "w": 2}}, request_id="r1")

    other = await refused(
        step(server.stub, transaction, 1, "sample.echo", {"value": {"v": 2, "w": 2}}, request_id="r1")
    )
    reordered = await step(
        server.stub, transaction, 1, "sample.echo", {"value": {"w": 2, "v": 1}}, request_id="r1"
    )

    assert other.code is grpc.StatusCode.INVALID_ARGUMENT
    assert other.reason == "REQUEST_ID_REUSED"
    assert other.metadata["recorded"] in other.message
    assert other.metadata["received"] in other.message
    assert other.metadata["recorded"] != other.metadata["received"]
    assert reordered.replayed
    assert (await get(server.stub, transaction)).next_step_id == 2


async def test_a_begin_whose_reply_is_lost_opens_one_transaction(server, proxied):
    request = pb.BeginTransactionRequest(agent_id="a", request_id="request-begin")

    await lose_replies(proxied, "BeginTransaction", request, times=3)
    begun = await server.stub.BeginTransaction(request)

    listed = await server.stub.ListTransactions(pb.ListTransactionsRequest())
    assert [summary.transaction_id for summary in listed.transactions] == [begun.transaction_id]


async def test_a_commit_whose_replies_are_lost_is_one_commit(server, proxied):
    transaction = await begin(server.stub)
    await step(server.stub, transaction, 1, "effect.stage", {"channel": "mail", "payload": {"n": 1}})
    request = pb.CommitTransactionRequest(transaction_id=transaction, request_id="request-c54")

    await lose_replies(proxied, "CommitTransaction", request, times=3)
    replies = {await method(server.channel, "CommitTransaction", request)(request) for _ in range(3)}

    assert len(replies) == 1
    (reply,) = replies
    assert pb.CommitTransactionResponse.FromString(reply).effects_dispatched == 1
    assert len(server.settings.outbox_file.read_text().splitlines()) == 1
    for call in (
        step(server.stub, transaction, 2, "sample.echo", {"value": 1}, request_id="new-1"),
        server.stub.Rewind(pb.RewindRequest(transaction_id=transaction, to_step=1, request_id="new-2")),
        commit(server.stub, transaction, request_id="new-3"),
    ):
        refusal = await refused(call)
        assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
        assert refusal.reason == "TRANSACTION_ENDED"
        assert "COMMITTED" in refusal.message


@pytest.mark.parametrize("name", ["Rewind", "RollbackTransaction"])
async def test_a_rewind_whose_replies_are_lost_is_one_rewind(server, proxied, name):
    transaction = await begin(server.stub)
    for number in (1, 2):
        await step(server.stub, transaction, number, "sample.inc", {"key": "n"})
    kind = pb.RewindRequest if name == "Rewind" else pb.RollbackTransactionRequest
    request = kind(transaction_id=transaction, to_step=1, request_id="request-rewind")

    await lose_replies(proxied, name, request, times=2)
    replies = {await method(server.channel, name, request)(request) for _ in range(2)}

    assert len(replies) == 1
    assert (await get(server.stub, transaction)).generation == 2


async def test_a_retry_while_the_step_still_runs_waits_for_it(server, tmp_path):
    transaction = await begin(server.stub)
    gate = tmp_path / "gate"
    request = step_request(
        transaction, 1, "sample.wait_for_file", {"path": str(gate), "value": 1}, request_id="r1"
    )
    for _ in range(3):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await server.stub.ExecuteStep(request, timeout=0.1)
    gate.touch()

    answer = await server.stub.ExecuteStep(request)

    attempts = (await server.stub.ListSteps(pb.ListStepsRequest(transaction_id=transaction))).attempts
    assert answer.output_json == "1"
    assert [(attempt.attempt, attempt.tries) for attempt in attempts] == [(1, 1)]
