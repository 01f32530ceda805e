"""A graph's function that makes no progress for its idle timeout has failed. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.fake_tool_context import FakeTransaction
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import HintCategory
from agenttx_server.graphs.runs.step_port import FunctionReport
from agenttx_server.tools.hosted_functions import HostedFunctions
from agenttx_server.tools.remote_workers import RemoteWorkers, WorkerSettings
from agenttx_server.worker_messages import (
    CancelCall,
    Command,
    ContextAnswer,
    FunctionCall,
    Get,
    MakeStep,
    Offer,
    Succeeded,
)

IDLE_SECONDS = 2.0


class Worker:
    """Hosts ``f`` and says what a test has it say."""

    def __init__(self, workers: RemoteWorkers, concurrency: int = 1) -> None:
        self.sent: list[Command] = []
        offer = Offer("w", "test", (), (), concurrency, ("f",))
        self.link = workers.connect(offer, self.sent.append)

    @property
    def call_id(self) -> int:
        """The newest call."""
        return [told for told in self.sent if isinstance(told, FunctionCall)][-1].call_id

    def cancelled(self) -> list[int]:
        """The calls that it was asked to stop."""
        return [told.call_id for told in self.sent if isinstance(told, CancelCall)]

    def ends(self) -> None:
        self.link.finished(self.call_id, Succeeded("1"))


def hub() -> RemoteWorkers:
    return RemoteWorkers(WorkerSettings(silence_limit_seconds=10_000))


def start(
    workers: RemoteWorkers, report: FunctionReport | None = None, context: Any = None
) -> asyncio.Task[str]:
    functions = HostedFunctions(workers)
    given = context or FakeTransaction().context()
    return asyncio.ensure_future(functions.call("f", "{}", given, report or FunctionReport(), IDLE_SECONDS))


def now() -> float:
    return asyncio.get_running_loop().time()


@virtual_time
async def test_a_function_that_shows_no_progress_has_timed_out() -> None:
    worker = Worker(workers := hub())
    report = FunctionReport()
    call = start(workers, report)
    with pytest.raises(ToolFailure) as failed:
        await call
    assert failed.value.category is HintCategory.TIMEOUT
    assert "no progress for 2 s" in failed.value.message
    assert (report.fault, now()) == ("NODE_TIMEOUT", IDLE_SECONDS)
    assert worker.cancelled() == [worker.call_id]
    # Its place is taken until it has ended; what it says then is of no use.
    again = start(workers)
    await asyncio.sleep(1)
    assert not again.done()
    worker.ends()
    await asyncio.sleep(0)
    worker.ends()
    assert await again == "1"


@pytest.mark.parametrize("sign", ["heartbeat", "progress", "emit", "request"])
def test_every_sign_of_progress_begins_the_time_anew(sign: str) -> None:
    @virtual_time
    async def scenario() -> None:
        worker = Worker(workers := hub())
        call = start(workers)
        await asyncio.sleep(0)
        for number in range(5):
            await asyncio.sleep(1.9)
            match sign:
                case "heartbeat":
                    worker.link.progressed(worker.call_id, -1.0, "")
                case "progress":
                    worker.link.progressed(worker.call_id, number / 5, "")
                case "emit":
                    worker.link.emitted(worker.call_id, "e", "1")
                case "request":
                    worker.link.asked(worker.call_id, number, Get("k"))
        with pytest.raises(ToolFailure):
            await call
        assert now() == pytest.approx(5 * 1.9 + IDLE_SECONDS)

    scenario()


@virtual_time
async def test_a_function_is_not_idle_while_its_sub_step_runs() -> None:
    class Slow:
        seconds_left = 10_000.0
        transaction_id, agent_id, step_id, attempt, idempotency_key, fence = "t", "a", 1, 1, "k", 0

        def check_begin(self) -> None:
            """It always may."""

        async def step(self, tool_name: str, arguments: str, timeout_us: int | None) -> str:
            await asyncio.sleep(100)
            return "7"

    worker = Worker(workers := hub())
    call = start(workers, context=Slow())
    await asyncio.sleep(1)
    worker.link.asked(worker.call_id, 1, MakeStep("t", "{}", None))
    await asyncio.sleep(101)
    assert any(isinstance(told, ContextAnswer) for told in worker.sent)
    assert not call.done()
    with pytest.raises(ToolFailure):
        await call
    assert now() == pytest.approx(1 + 100 + IDLE_SECONDS)


@virtual_time
async def test_a_function_that_waits_for_a_worker_is_not_idle() -> None:
    worker = Worker(workers := hub())
    first = start(workers)
    second = start(workers)
    await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(1)
        worker.link.progressed(worker.call_id, -1.0, "")
    worker.ends()
    assert await first == "1"
    with pytest.raises(ToolFailure):
        await second
    assert now() == pytest.approx(3 + IDLE_SECONDS)


@virtual_time
async def test_what_ends_in_time_leaves_nothing_behind() -> None:
    worker = Worker(workers := hub())
    call = start(workers)
    await asyncio.sleep(1)
    worker.ends()
    assert await call == "1"
    await asyncio.sleep(100)
    assert worker.cancelled() == []
