"""More agents than a server can serve: some are refused and told when to come again, nobody loses anything, and then all is well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.calls import refused, wait_until_executing
from tests.support.running_server import RunningServer, running_server

import agenttx
from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.interceptors import Shedding

AGENTS = 80
STEPS = 2
LONGEST_WAIT_SECONDS = 1.0
STANDS_STILL_SECONDS = 0.02


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the server comes to by itself; the test's own time bounds it."""
    while not condition():  # noqa: ASYNC110 - nobody would set an event
        await asyncio.sleep(0.001)


def shedding_of(server: RunningServer) -> Shedding:
    return server.server.api.admission.shedding


@asynccontextmanager
async def busy_processor() -> AsyncIterator[None]:
    """The loop stands still again and again: as if each step cost more than it does."""

    async def stand_still() -> None:
        while True:
            time.sleep(STANDS_STILL_SECONDS)  # noqa: ASYNC251 - it is what this does
            await asyncio.sleep(0.002)

    task = asyncio.create_task(stand_still())
    try:
        yield
    finally:
        task.cancel()


def behind(server: RunningServer) -> asyncio.Task[None]:
    """Make the server believe that it is behind, from now on until it has refused a step."""
    shedding = shedding_of(server)
    others = []

    def pretend() -> None:
        shedding._limit, shedding._calm_for, shedding._learn_again = 40.0, 0.0, float("inf")
        while shedding.in_hand < 400:
            others.append(shedding.enter("others"))

    async def keep_pretending() -> None:
        while not shedding.refused["step"]:
            pretend()
            await asyncio.sleep(0.01)
        for stay in others:
            stay.end()

    pretend()
    return asyncio.create_task(keep_pretending())


async def work(stub, seen) -> str:
    """An agent that speaks gRPC itself: it sends a refused call again when it was told to, or sooner."""

    async def call(method, request):
        while True:
            try:
                return await method(request, timeout=60)
            except grpc.aio.AioRpcError as error:
                refusal = await refused(_raising(error))
                assert refusal.reason == "OVERLOADED", refusal
                seen.append(refusal.retry_after_seconds)
                await asyncio.sleep(min(refusal.retry_after_seconds, LONGEST_WAIT_SECONDS))

    begun = await call(stub.BeginTransaction, pb.BeginTransactionRequest(agent_id="many"))
    for step in range(1, STEPS + 1):
        answer = await call(
            stub.ExecuteStep,
            pb.ExecuteStepRequest(
                transaction_id=begun.transaction_id,
                step_id=step,
                tool_name="kv.put",
                arguments_json=f'{{"key":"{begun.transaction_id}","value":{step}}}',
                request_id=f"{begun.transaction_id}-{step}",
            ),
        )
        assert answer.status == pb.STEP_STATUS_SUCCESS
    # Never refused.
    await stub.CommitTransaction(
        pb.CommitTransactionRequest(transaction_id=begun.transaction_id, request_id="commit"), timeout=60
    )
    return str(begun.transaction_id)


async def _raising(error):
    raise error


async def test_under_overload_some_are_refused_and_nothing_is_lost_and_then_all_is_well() -> None:
    async with asyncio.timeout(180), running_server(overload_step_seconds=0.02) as server:
        seen: list[float] = []
        health = health_pb2_grpc.HealthStub(server.channel)
        async with asyncio.TaskGroup() as group, busy_processor():
            agents = [group.create_task(work(server.stub, seen)) for _ in range(AGENTS)]
            await until(lambda: bool(seen))
            checked = await health.Check(health_pb2.HealthCheckRequest(), timeout=30)
            assert checked.status == health_pb2.HealthCheckResponse.SERVING
            await server.stub.ListTransactions(pb.ListTransactionsRequest(), timeout=30)
        assert all(wait > 0 for wait in seen)
        for agent in agents:
            steps = await server.stub.ListSteps(pb.ListStepsRequest(transaction_id=agent.result()))
            assert [step.step_id for step in steps.attempts] == list(range(1, STEPS + 1))
            entry = await server.stub.GetState(pb.GetStateRequest(key=agent.result()))
            assert entry.entry.value_json == str(STEPS)
        shedding = shedding_of(server)
        assert shedding.refused["step"] + shedding.refused["beginning"] == len(seen)
        await until(lambda: not shedding.limit)
        assert shedding.in_hand == 0
        await work(server.stub, again := [])
        assert not again


async def test_a_slow_tool_is_no_load(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("agenttx_server.api.interceptors.shedding.LONGEST_STAY_SECONDS", float("inf"))
    gate = tmp_path / "gate"
    async with (
        asyncio.timeout(60),
        running_server(tools="tests.support.sample_tools", overload_step_seconds=0.02) as server,
    ):
        begun = await server.stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="slow"))
        waiting = asyncio.ensure_future(
            server.stub.ExecuteStep(
                pb.ExecuteStepRequest(
                    transaction_id=begun.transaction_id,
                    step_id=1,
                    tool_name="sample.wait_for_file",
                    arguments_json=f'{{"path":"{gate}","value":1}}',
                )
            )
        )
        await wait_until_executing(server.stub, begun.transaction_id)
        assert shedding_of(server).in_hand == 0
        gate.touch()
        assert (await waiting).status == pb.STEP_STATUS_SUCCESS


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_sdk_waits_as_it_is_told_and_sends_the_step_again(streamed: bool) -> None:
    async with (
        asyncio.timeout(60),
        running_server(overload_step_seconds=0.02) as server,
        agenttx.AsyncClient(server.address) as client,
    ):
        async with client.transaction(agent_id="patient") as transaction:
            await transaction.step("kv.put", key="a", value=1)
            pretending = behind(server)
            if streamed:
                async with transaction.stream() as steps:
                    sent = [await steps.submit("kv.put", key="a", value=number) for number in (2, 3, 4)]
                    outcomes = [await one.result() for one in sent]
            else:
                outcomes = [await transaction.step("kv.put", key="a", value=2)]
        await pretending
        assert [outcome.step_id for outcome in outcomes] == [2, 3, 4][: len(outcomes)]
        assert shedding_of(server).refused["step"] >= 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_so_does_the_blocking_one(streamed: bool) -> None:
    async with asyncio.timeout(60), running_server(overload_step_seconds=0.02) as server:

        def work_through() -> list[int]:
            with (
                agenttx.Client(server.address) as client,
                client.transaction(agent_id="patient") as transaction,
            ):
                transaction.step("kv.put", key="a", value=1)
                loop.call_soon_threadsafe(lambda: started.set_result(behind(server)))
                if streamed:
                    with transaction.stream() as steps:
                        sent = [steps.submit("kv.put", key="a", value=number) for number in (2, 3, 4)]
                        return [one.result().step_id for one in sent]
                return [transaction.step("kv.put", key="a", value=2).step_id]

        loop = asyncio.get_running_loop()
        started: asyncio.Future[asyncio.Task[None]] = loop.create_future()
        steps = await asyncio.to_thread(work_through)
        await (await started)
        assert steps == [2, 3, 4][: len(steps)]
        assert shedding_of(server).refused["step"] >= 1


async def test_who_does_not_wait_is_told_the_refusal() -> None:
    """The wait is part of the time that a call has: one that hasn't got it is refused at once."""
    async with asyncio.timeout(60), running_server(overload_step_seconds=0.02) as server:
        retry = agenttx.RetryPolicy(overall_timeout_seconds=0.1)
        async with agenttx.AsyncClient(server.address, retry=retry) as client:
            transaction = await client.transaction(agent_id="impatient").begin()
            pretending = behind(server)
            with pytest.raises(agenttx.LimitExceeded) as told:
                await transaction.step("kv.put", key="a", value=1)
        await pretending
        assert told.value.reason == "OVERLOADED"
        assert told.value.retry_after_seconds
        assert told.value.attempts == 1


async def test_calls_that_wait_in_grpc_are_counted() -> None:
    async with asyncio.timeout(60), running_server() as server:
        shedding = shedding_of(server)
        # From a thread of its own, while the loop stands still.
        channel = grpc.insecure_channel(server.address)
        stub = health_pb2_grpc.HealthStub(channel)
        await asyncio.to_thread(stub.Check, health_pb2.HealthCheckRequest())
        shedding.count(idle=False)
        assert shedding.calls_waiting == 0
        calls = [stub.Check.future(health_pb2.HealthCheckRequest(), timeout=30) for _ in range(50)]
        until = time.monotonic() + 30
        while shedding.calls_waiting < 50 and time.monotonic() < until:
            time.sleep(0.01)  # noqa: ASYNC251 - nothing is accepted meanwhile
            shedding.count(idle=False)
        assert shedding.calls_waiting == 50
        await asyncio.gather(*(asyncio.to_thread(call.result) for call in calls))
        assert shedding.calls_waiting == 0
        channel.close()
