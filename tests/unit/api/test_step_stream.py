"""A stream of steps takes the next one only when it has answered the one before."""

import asyncio

import grpc.aio
import pytest

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.access.identity import ANONYMOUS
from agenttx_server.api.answer_sizes import AnswerSizes
from agenttx_server.api.drain_signal import DrainSignal
from agenttx_server.api.interceptors import CallClass, Method, RpcCall
from agenttx_server.api.step_stream import StepStream
from agenttx_server.engine.errors import Unavailable
from agenttx_server.engine.requests import StepAnswer, StepStatus


class SlowCoordinator:
    """Answers a step when it is told to."""

    def __init__(self):
        self.asked = []
        self.go_on = asyncio.Semaphore(0)

    async def execute_step(self, request):
        self.asked.append(request.step_id)
        await self.go_on.acquire()
        return StepAnswer(StepStatus.SUCCESS, request.step_id + 1, 1, 1, output="1")


class Connection:
    """A client that has sent so many steps; counts what is read and written."""

    def __init__(self, steps):
        self.steps = [
            pb.ExecuteStepsRequest(
                step=pb.ExecuteStepRequest(transaction_id="t", step_id=number, generation=1)
            )
            for number in range(1, steps + 1)
        ]
        self.reads = 0
        self.written = []

    async def read(self):
        await asyncio.sleep(0)
        if self.reads == len(self.steps):
            return grpc.aio.EOF
        self.reads += 1
        return self.steps[self.reads - 1]

    async def write(self, message):
        self.written.append(message)


async def settle():
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
def coordinator():
    return SlowCoordinator()


def anonymous_call(method):
    call = RpcCall(method, None)
    call.identity = ANONYMOUS
    return call


def stream(coordinator, drain, call=None):
    method = Method("/s/ExecuteSteps", "ExecuteSteps", CallClass.STREAM, is_stream=True)
    return StepStream(coordinator, drain, call or anonymous_call(method), AnswerSizes(1000, 10_000))


async def test_a_step_is_read_when_the_one_before_is_answered(coordinator):
    connection = Connection(3)
    serving = asyncio.create_task(stream(coordinator, DrainSignal()).serve(connection))

    for number in (1, 2, 3):
        await settle()
        assert (connection.reads, coordinator.asked[-1], len(connection.written)) == (
            number,
            number,
            number - 1,
        )
        coordinator.go_on.release()
    await serving

    assert len(connection.written) == 3


async def test_draining_lets_the_step_under_way_be_answered_and_reads_no_more(coordinator):
    connection = Connection(3)
    drain = DrainSignal()
    serving = asyncio.create_task(stream(coordinator, drain).serve(connection))
    await settle()

    drain.begin_drain()
    await settle()
    assert not serving.done()
    coordinator.go_on.release()
    with pytest.raises(Unavailable, match="request_id"):
        await serving

    assert len(connection.written) == 1
    assert connection.reads == 1


async def test_draining_ends_a_stream_that_waits_for_its_client(coordinator):
    class Silent(Connection):
        async def read(self):
            await asyncio.Event().wait()

    drain = DrainSignal()
    serving = asyncio.create_task(stream(coordinator, drain).serve(Silent(0)))
    await settle()
    drain.begin_drain()

    with pytest.raises(Unavailable):
        await serving
    assert serving.cancelling() == 0


async def test_a_caller_that_leaves_while_the_server_drains_is_cancelled_and_not_answered(coordinator):
    class Silent(Connection):
        async def read(self):
            await asyncio.Event().wait()

    drain = DrainSignal()
    serving = asyncio.create_task(stream(coordinator, drain).serve(Silent(0)))
    await settle()
    drain.begin_drain()
    serving.cancel()

    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_a_fault_of_ours_ends_the_stream_and_is_not_an_answer(coordinator):
    async def break_down(request):
        raise KeyError("secret")

    coordinator.execute_step = break_down
    connection = Connection(2)

    with pytest.raises(KeyError):
        await stream(coordinator, DrainSignal()).serve(connection)
    assert connection.written == []


async def test_a_stream_tells_its_transaction_and_steps_to_the_log(coordinator):
    connection = Connection(2)
    method = Method("/s/ExecuteSteps", "ExecuteSteps", CallClass.STREAM, is_stream=True)
    call = anonymous_call(method)
    coordinator.go_on.release()
    coordinator.go_on.release()

    await stream(coordinator, DrainSignal(), call).serve(connection)

    assert call.facts == {"transaction": "t", "steps": 2}
