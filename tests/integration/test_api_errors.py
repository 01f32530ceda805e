"""Errors over real gRPC: the code, the reason, every bad field, and never more than fits."""

import contextlib
import json

import grpc
import grpc.aio
import pytest
from tests.support.calls import begin, commit, get, refused, step, step_request, wait_until_executing
from tests.support.running_server import running_server

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.agenttx_servicer import AgentTxServicer

NOWHERE = "0190a000-0000-7000-8000-000000000000"
SERVICE = pb.DESCRIPTOR.services_by_name["AgentTxService"]
NOT_SERVED = [method for method in SERVICE.methods if not hasattr(AgentTxServicer, method.name)]


@pytest.fixture
async def server():
    async with running_server(tools="tests.support.sample_tools") as running:
        yield running


@pytest.fixture
def stub(server):
    return server.stub


def test_what_is_not_served_is_what_the_contract_says():
    assert NOT_SERVED == []


@pytest.mark.parametrize("path", ["/agenttx.v1.AgentTxService/Nothing", "/no.Such/Thing"])
async def test_a_method_that_does_not_exist_says_so(server, path):
    unary = await refused(server.channel.unary_unary(path)(b""))
    stream = server.channel.stream_stream(path)()
    streamed = await refused(stream.read())

    assert unary.code is streamed.code is grpc.StatusCode.UNIMPLEMENTED
    assert unary.reason == "NOT_SUPPORTED_YET"


async def test_what_a_transaction_was_begun_with_is_told_by_reads(stub):
    request = pb.BeginTransactionRequest(
        agent_id="a",
        isolation=pb.ISOLATION_SERIALIZABLE,
        crash_policy=pb.CRASH_POLICY_ABORT,
        policy=pb.RollbackPolicy(
            on_conflict=pb.ON_CONFLICT_REWIND, on_undo_failure=pb.ON_UNDO_FAILURE_CONTINUE
        ),
    )
    request.deadline.seconds = 50
    request.idle_timeout.seconds = 40

    begun = await stub.BeginTransaction(request)
    told = await stub.GetTransaction(pb.GetTransactionRequest(transaction_id=begun.transaction_id))

    assert (told.isolation, told.crash_policy) == (request.isolation, request.crash_policy)
    assert (told.policy.on_conflict, told.policy.on_undo_failure) == (
        pb.ON_CONFLICT_REWIND,
        pb.ON_UNDO_FAILURE_CONTINUE,
    )
    assert told.deadline_at.ToMicroseconds() - told.created_at.ToMicroseconds() == 50_000_000
    assert told.idle_timeout.seconds == 40


@pytest.mark.parametrize(
    ("method", "request_type", "fields"),
    [
        ("ExecuteStep", pb.ExecuteStepRequest, {"step_id": 1, "tool_name": "kv.put"}),
        ("Rewind", pb.RewindRequest, {"to_step": 1}),
        ("CommitTransaction", pb.CommitTransactionRequest, {}),
        ("RollbackTransaction", pb.RollbackTransactionRequest, {}),
        ("GetTransaction", pb.GetTransactionRequest, {}),
        ("ListSteps", pb.ListStepsRequest, {}),
        ("GetDependencyGraph", pb.GetDependencyGraphRequest, {}),
        ("FindRootCause", pb.FindRootCauseRequest, {"step_id": 1, "key": "k"}),
        ("WatchTransaction", pb.WatchTransactionRequest, {}),
    ],
)
@pytest.mark.parametrize("transaction_id", [NOWHERE, "not even an id", "'; DROP TABLE transactions; --"])
async def test_an_unknown_transaction_is_not_found(stub, method, request_type, fields, transaction_id):
    call = getattr(stub, method)(request_type(transaction_id=transaction_id, **fields))

    refusal = await refused(call.read() if method == "WatchTransaction" else call)

    assert refusal.code is grpc.StatusCode.NOT_FOUND
    assert refusal.reason == "TRANSACTION_NOT_FOUND"


async def test_a_step_out_of_order_names_the_expected_one(stub):
    transaction = await begin(stub)

    refusal = await refused(step(stub, transaction, 5, "sample.echo", {"value": 1}))

    assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
    assert refusal.reason == "STEP_OUT_OF_ORDER"
    assert refusal.metadata["expected_step"] == "1"


async def test_a_stale_generation_is_told(stub):
    transaction = await begin(stub)
    await step(stub, transaction, 1, "sample.echo", {"value": 1})
    await stub.Rewind(pb.RewindRequest(transaction_id=transaction, to_step=1))

    refusal = await refused(step(stub, transaction, 1, "sample.echo", {"value": 1}, generation=1))

    assert refusal.reason == "STALE_GENERATION"


async def test_an_ended_transaction_takes_nothing_and_says_how_it_ended(stub):
    transaction = await begin(stub)
    await commit(stub, transaction)

    refusal = await refused(step(stub, transaction, 1, "sample.echo", {"value": 1}))

    assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
    assert refusal.reason == "TRANSACTION_ENDED"
    assert refusal.metadata["status"] == "COMMITTED"


async def test_every_bad_field_of_a_begin_is_named(stub):
    refusal = await refused(
        stub.BeginTransaction(
            pb.BeginTransactionRequest(
                agent_id="a" * 257,
                metadata={"k": "v" * 1025},
                policy=pb.RollbackPolicy(max_local_depth=17, replay_budget_factor=float("nan")),
                request_id="r" * 129,
            )
        )
    )

    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.reason == "INVALID_REQUEST"
    assert set(refusal.violations) == {
        "agent_id",
        "metadata[k]",
        "policy.max_local_depth",
        "policy.replay_budget_factor",
        "request_id",
    }


async def test_a_message_that_does_not_parse_is_the_callers_mistake(server):
    call = server.channel.unary_unary(f"/{SERVICE.full_name}/GetTransaction")

    corrupt = await refused(call(b"\xff\xff\xff"))
    not_utf8 = await refused(call(b"\x0a\x02\xff\xfe"))

    for refusal in (corrupt, not_utf8):
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refusal.reason == "INVALID_REQUEST"
        assert "DecodeError" not in refusal.message


async def test_a_token_that_was_not_given_out_is_refused(stub):
    transaction = await begin(stub)
    for call in (
        stub.ListTransactions(pb.ListTransactionsRequest(page_token="mine")),
        stub.ListSteps(pb.ListStepsRequest(transaction_id=transaction, page_token="mine")),
        stub.ScanState(pb.ScanStateRequest(page_token="mine")),
    ):
        refusal = await refused(call)
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert set(refusal.violations) == {"page_token"}


async def test_a_fault_of_ours_is_told_by_an_id_only(server, monkeypatch):
    def break_down():
        raise KeyError("password=hunter2")

    monkeypatch.setattr(server.server.coordinator, "describe_tools", break_down)

    refusal = await refused(server.stub.ListTools(pb.ListToolsRequest()))

    assert refusal.code is grpc.StatusCode.INTERNAL
    assert refusal.reason == "INTERNAL_ERROR"
    assert refusal.metadata["error_id"] in refusal.message
    assert "hunter2" not in refusal.message


# --- sizes ------------------------------------------------------------------------------------


async def test_a_request_over_the_limit_is_refused_and_the_transaction_goes_on(server):
    transaction = await begin(server.stub)
    # Past the client's own limit too, which would stop it before it is sent.
    async with grpc.aio.insecure_channel(
        server.address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        large = channel.unary_unary(
            f"/{SERVICE.full_name}/ExecuteStep", request_serializer=pb.ExecuteStepRequest.SerializeToString
        )
        request = step_request(transaction, 1, "sample.echo", {"value": "x" * (9 << 20)})
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await large(request)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    answer = await step(server.stub, transaction, 1, "sample.echo", {"value": 1})
    assert answer.status == pb.STEP_STATUS_SUCCESS


async def test_a_field_over_its_limit_is_named_and_the_transaction_goes_on(stub):
    transaction = await begin(stub)

    refusal = await refused(
        step(
            stub,
            transaction,
            1,
            "sample.echo",
            {"value": "x" * (1 << 20)},
            raw_context="y" * ((1 << 20) + 1),
        )
    )

    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert set(refusal.violations) == {"arguments_json", "raw_context"}
    answer = await step(stub, transaction, 1, "sample.echo", {"value": 1})
    assert answer.status == pb.STEP_STATUS_SUCCESS


async def test_outputs_up_to_the_limit_come_back_and_larger_ones_fail_the_step_once(stub):
    transaction = await begin(stub)

    fits = await step(stub, transaction, 1, "sample.large", {"size": (4 << 20) - 100})
    too_large = await step(stub, transaction, 2, "sample.large", {"size": 20_000_000})

    assert fits.status == pb.STEP_STATUS_SUCCESS
    assert len(json.loads(fits.output_json)["text"]) == (4 << 20) - 100
    assert too_large.status == pb.STEP_STATUS_ROLLBACK_TRIGGERED
    assert too_large.error_category == "resource_exhausted"
    assert str(4 << 20) in too_large.clean_hint
    again = await step(stub, transaction, too_large.next_step_id, "sample.echo", {"value": 1})
    assert again.status == pb.STEP_STATUS_SUCCESS


async def all_pages(call, request, entries):
    """Read a list to its end as a client does that sets no limits; return what all pages hold."""
    found = []
    while True:
        page = await call(request)
        assert page.ByteSize() < 4 << 20 or len(getattr(page, entries)) == 1
        found += getattr(page, entries)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


async def test_a_history_with_large_steps_is_read_in_pages(stub):
    transaction = await begin(stub)
    sizes = [100, 3_900_000, 100, 4_000_000, 3_900_000, 100]
    for number, size in enumerate(sizes, start=1):
        await step(stub, transaction, number, "sample.large", {"size": size}, raw_context="c" * 1_000_000)

    attempts = await all_pages(stub.ListSteps, pb.ListStepsRequest(transaction_id=transaction), "attempts")

    assert [attempt.step_id for attempt in attempts] == [1, 2, 3, 4, 5, 6]
    assert [len(json.loads(attempt.output_json)["text"]) for attempt in attempts] == sizes


async def test_transactions_with_large_labels_are_listed_in_pages(stub):
    labels = {f"label{number}": "x" * 1024 for number in range(64)}
    opened = [await begin(stub, metadata=labels) for _ in range(150)]

    listed = await all_pages(
        stub.ListTransactions, pb.ListTransactionsRequest(page_size=1000), "transactions"
    )

    assert [summary.transaction_id for summary in listed] == opened[::-1]


async def test_large_state_is_scanned_in_pages(stub):
    transaction = await begin(stub)
    for number in range(1, 9):
        await step(stub, transaction, number, "kv.put", {"key": f"k{number}", "value": "x" * 1_000_000})
    await commit(stub, transaction)

    entries = await all_pages(stub.ScanState, pb.ScanStateRequest(), "entries")

    assert [entry.key for entry in entries] == [f"k{number}" for number in range(1, 9)]


@pytest.mark.parametrize(
    "message",
    [
        "Traceback (most recent call last):\n" + '  File "x.py", line 1, in f\n' * 3000 + "ValueError: boom",
        "é" * 6000,
    ],
    ids=["a long trace", "not ASCII"],
)
async def test_the_error_of_a_tool_is_short_in_the_answer_and_whole_in_the_history(stub, message):
    transaction = await begin(stub)

    answer = await step(stub, transaction, 1, "sample.fail", {"message": message})
    attempts = (await stub.ListSteps(pb.ListStepsRequest(transaction_id=transaction))).attempts

    assert len(answer.clean_hint) <= 240
    assert "\n" not in answer.clean_hint
    assert answer.ByteSize() < 4096
    assert attempts[0].raw_error[:1000] in message or message[:500] in attempts[0].raw_error
    assert len(attempts[0].raw_error.encode()) <= 64 << 10


async def test_the_largest_errors_still_arrive_with_their_code_and_details(stub):
    refusal = await refused(
        stub.BeginTransaction(
            pb.BeginTransactionRequest(
                agent_id="a", metadata={f"é{number}" * 40: "x" * 2000 for number in range(60)}
            )
        )
    )

    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.reason == "INVALID_REQUEST"
    assert len(refusal.message.encode()) < 2048
    assert "left out" in list(refusal.violations.values())[-1]


# --- deadlines --------------------------------------------------------------------------------


async def test_a_step_goes_on_when_its_callers_deadline_passes(stub, tmp_path):
    transaction = await begin(stub)
    gate = tmp_path / "gate"
    request = step_request(
        transaction, 1, "sample.wait_for_file", {"path": str(gate), "value": "done"}, request_id="r1"
    )

    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stub.ExecuteStep(request, timeout=0.3)
    running = await get(stub, transaction)
    gate.touch()
    answer = await stub.ExecuteStep(request, timeout=30)

    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert running.status == "EXECUTING"
    assert [step.step_id for step in running.running_steps] == [1]
    assert json.loads(answer.output_json) == "done"
    assert answer.next_step_id == 2


async def test_a_call_over_the_servers_limit_is_ended_and_its_step_goes_on(tmp_path):
    gate = tmp_path / "gate"
    async with running_server(tools="tests.support.sample_tools", call_limit_seconds=0.2) as server:
        transaction = await begin(server.stub)
        request = step_request(
            transaction, 1, "sample.wait_for_file", {"path": str(gate), "value": 1}, request_id="r1"
        )
        refusal = await refused(server.stub.ExecuteStep(request))
        gate.touch()
        answer = None
        while answer is None:  # A busy machine may need more than one limit's time to see the gate.
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await server.stub.ExecuteStep(request)

    assert refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert refusal.reason == "DEADLINE_EXCEEDED"
    assert answer.output_json == "1"


async def test_a_caller_that_cancels_stops_nothing(stub, tmp_path):
    transaction = await begin(stub)
    gate = tmp_path / "gate"
    request = step_request(
        transaction, 1, "sample.wait_for_file", {"path": str(gate), "value": 1}, request_id="r1"
    )
    call = stub.ExecuteStep(request)
    await wait_until_executing(stub, transaction)
    call.cancel()
    gate.touch()

    answer = await stub.ExecuteStep(request)
    assert answer.status == pb.STEP_STATUS_SUCCESS


async def test_more_calls_than_are_served_at_once_are_refused_with_advice(tmp_path):
    gate = tmp_path / "gate"
    async with running_server(tools="tests.support.sample_tools", max_concurrent_steps=1) as server:
        first, second = await begin(server.stub), await begin(server.stub)
        held = server.stub.ExecuteStep(
            step_request(first, 1, "sample.wait_for_file", {"path": str(gate), "value": 1})
        )
        await wait_until_executing(server.stub, first)

        refusal = await refused(step(server.stub, second, 1, "sample.echo", {"value": 1}))
        gate.touch()
        await held
        answer = await step(server.stub, second, 1, "sample.echo", {"value": 1})

    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal.reason == "OVERLOADED"
    assert refusal.retry_after_seconds == 1.0
    assert refusal.metadata["limit"] == "1"
    assert answer.status == pb.STEP_STATUS_SUCCESS
