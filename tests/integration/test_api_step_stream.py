"""ExecuteSteps: in order, one transaction a stream, refusals as answers, nothing lost."""

import asyncio
import json

import grpc
import grpc.aio
import pytest
from google.rpc import status_pb2
from tests.support.calls import begin, get, refusal_of, step, step_request, wait_until_executing
from tests.support.running_server import running_server

from agenttx.v1 import transaction_pb2 as pb


@pytest.fixture
async def stub():
    async with running_server(tools="tests.support.sample_tools") as running:
        yield running.stub


def echo(transaction, step_id, value, generation=1, **fields):
    request = step_request(
        transaction, step_id, "sample.echo", {"value": value}, generation=generation, **fields
    )
    return pb.ExecuteStepsRequest(step=request)


def refusal(message):
    assert message.WhichOneof("result") == "error"
    error = message.error
    code = next(code for code in grpc.StatusCode if code.value[0] == error.code)
    return refusal_of(code, error.message, error.details)


async def answers_to(stub, *messages):
    """Send everything at once, close, and return all that comes back."""
    return [answer async for answer in stub.ExecuteSteps(iter(messages))]


async def test_steps_sent_ahead_are_answered_in_order(stub):
    transaction = await begin(stub)

    answers = await answers_to(stub, *(echo(transaction, number, number) for number in range(1, 51)))

    assert [answer.response.output_json for answer in answers] == [str(number) for number in range(1, 51)]
    assert [answer.response.next_step_id for answer in answers] == list(range(2, 52))


async def test_a_client_may_wait_for_each_answer(stub):
    transaction = await begin(stub)
    stream = stub.ExecuteSteps()
    for number in range(1, 4):
        await stream.write(echo(transaction, number, number))
        assert (await stream.read()).response.output_json == str(number)
    await stream.done_writing()

    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def test_a_stream_without_steps_ends_well(stub):
    assert await answers_to(stub) == []


async def test_a_refused_step_is_answered_in_its_place_and_the_stream_goes_on(stub):
    transaction = await begin(stub)

    answers = await answers_to(
        stub, echo(transaction, 1, "a"), echo(transaction, 7, "b"), echo(transaction, 2, "c")
    )

    assert answers[0].response.output_json == '"a"'
    out_of_order = refusal(answers[1])
    assert out_of_order.code is grpc.StatusCode.FAILED_PRECONDITION
    assert (out_of_order.reason, out_of_order.metadata["expected_step"]) == ("STEP_OUT_OF_ORDER", "2")
    assert answers[2].response.output_json == '"c"'


async def test_an_error_on_the_wire_equals_a_google_rpc_status(stub):
    transaction = await begin(stub)
    (answer,) = await answers_to(stub, echo(transaction, 7, "b"))

    status = status_pb2.Status.FromString(answer.error.SerializeToString())

    assert status.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert status.SerializeToString(deterministic=True) == answer.error.SerializeToString(deterministic=True)


async def test_steps_sent_behind_a_failure_are_refused_as_stale(stub):
    transaction = await begin(stub)
    failing = step_request(transaction, 2, "sample.fail", {"message": "boom"}, generation=1)

    answers = await answers_to(
        stub, echo(transaction, 1, "a"), pb.ExecuteStepsRequest(step=failing), echo(transaction, 3, "b")
    )

    assert answers[1].response.status == pb.STEP_STATUS_ROLLBACK_TRIGGERED
    assert refusal(answers[2]).reason in ("STALE_GENERATION", "STEP_OUT_OF_ORDER")
    assert (await get(stub, transaction)).next_step_id == answers[1].response.next_step_id


async def test_a_step_without_a_generation_is_refused_by_name(stub):
    transaction = await begin(stub)
    without = pb.ExecuteStepsRequest(step=step_request(transaction, 1, "sample.echo", {"value": 1}))

    answers = await answers_to(stub, without, echo(transaction, 1, "a"))

    assert set(refusal(answers[0]).violations) == {"generation"}
    assert answers[1].response.status == pb.STEP_STATUS_SUCCESS


async def test_a_stream_carries_one_transaction(stub):
    first, second = await begin(stub), await begin(stub)

    answers = await answers_to(stub, echo(first, 1, "a"), echo(second, 1, "b"), echo(first, 2, "c"))

    other = refusal(answers[1])
    assert other.code is grpc.StatusCode.INVALID_ARGUMENT
    assert first in other.violations["transaction_id"]
    assert answers[2].response.output_json == '"c"'
    assert (await get(stub, second)).next_step_id == 1


async def test_everything_wrong_with_a_step_is_named(stub):
    transaction = await begin(stub)
    message = echo(transaction, 1, "a")
    message.step.arguments["value"] = 1
    message.step.timeout.seconds = -1
    message.step.ClearField("generation")

    (answer,) = await answers_to(stub, message)

    assert set(refusal(answer).violations) == {"generation", "arguments", "timeout"}


async def test_an_empty_message_is_a_refused_step(stub):
    (answer,) = await answers_to(stub, pb.ExecuteStepsRequest())

    assert "transaction_id" in refusal(answer).violations


async def test_a_repeated_request_on_a_stream_is_answered_as_recorded(stub):
    transaction = await begin(stub)
    once = await step(stub, transaction, 1, "sample.inc", {"key": "n"}, request_id="r1", generation=1)
    again = step_request(transaction, 1, "sample.inc", {"key": "n"}, request_id="r1", generation=1)

    (answer,) = await answers_to(stub, pb.ExecuteStepsRequest(step=again))

    assert answer.response.replayed
    assert answer.response.output_json == once.output_json


async def test_a_client_that_goes_away_loses_nothing(stub, tmp_path):
    transaction = await begin(stub)
    gate = tmp_path / "gate"
    waiting = step_request(
        transaction,
        1,
        "sample.wait_for_file",
        {"path": str(gate), "value": "done"},
        request_id="r1",
        generation=1,
    )
    stream = stub.ExecuteSteps()
    await stream.write(pb.ExecuteStepsRequest(step=waiting))
    await wait_until_executing(stub, transaction)
    stream.cancel()
    gate.touch()

    answer = await stub.ExecuteStep(waiting)

    assert json.loads(answer.output_json) == "done"
    assert (await get(stub, transaction)).next_step_id == 2


async def test_a_message_that_does_not_parse_ends_the_stream():
    async with running_server() as server:
        raw = server.channel.stream_stream("/agenttx.v1.AgentTxService/ExecuteSteps")()
        await raw.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await raw.read()

    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_draining_server_answers_what_runs_and_ends_the_stream(tmp_path):
    gate = tmp_path / "gate"
    async with running_server(tools="tests.support.sample_tools") as server:
        transaction = await begin(server.stub)
        waiting = step_request(
            transaction, 1, "sample.wait_for_file", {"path": str(gate), "value": "done"}, generation=1
        )
        busy, idle = server.stub.ExecuteSteps(), server.stub.ExecuteSteps()
        await busy.write(pb.ExecuteStepsRequest(step=waiting))
        await idle.write(pb.ExecuteStepsRequest())
        await idle.read()
        await wait_until_executing(server.stub, transaction)
        await busy.write(echo(transaction, 2, "behind"))

        draining = asyncio.create_task(server.server.drain())
        with pytest.raises(grpc.aio.AioRpcError) as ended_idle:
            await idle.read()
        gate.touch()
        answer = await busy.read()
        with pytest.raises(grpc.aio.AioRpcError) as ended_busy:
            await busy.read()
        assert await draining == 0

    assert answer.response.output_json == '"done"'
    for ended in (ended_idle, ended_busy):
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in ended.value.details()
