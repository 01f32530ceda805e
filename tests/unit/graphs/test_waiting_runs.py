"""A run that waits longer than its wait_timeout is rolled back by the servers' periodic work. In virtual time."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from tests.support.graph_definitions import SUM
from tests.support.graph_runs import Call, GraphRuns, adds
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.graphs.definition import ToolBinding
from agenttx_server.graphs.runs.ports import RunChange
from agenttx_server.graphs.runs.records import RunStatus, ThreadRecord
from agenttx_server.graphs.runs.requests import ResumeRequest, RunLimits, RunOutcome, RunRefused
from agenttx_server.graphs.runs.rolled_back import RolledBackRuns
from agenttx_server.graphs.runs.waiting_runs import WaitingRuns

TEN_SECONDS = 10_000_000


async def _asks(call: Call) -> Any:
    return {"value": call.interrupt("how much?")}


async def _fails(call: Call) -> Any:
    raise ToolFailure("invalid_value", "no")


async def _slow(call: Call) -> Any:
    await asyncio.sleep(1)
    return {"value": 100}


def booking(last: Any = _asks) -> GraphRuns:
    """Act outside; then what the test is about; then add 1."""
    act = ToolBinding("book", {"effect": "seat", "output": {"value": 10}})
    return GraphRuns(
        "START->act, act->last, last->b",
        {"last": last, "b": adds(1)},
        channels=SUM,
        nodes={"act": {"binding": act}},
    )


def waiting(runs: GraphRuns) -> WaitingRuns:
    return WaitingRuns(runs.store, runs.runs.rewinds, runs.engine.clock)


async def begun(runs: GraphRuns, ends: RunStatus, **limits: Any) -> str:
    """A run that has ended its invocation this way."""
    work = asyncio.ensure_future(runs.start({"value": 0}, **limits))
    if ends in (RunStatus.CANCELLED, RunStatus.DRAINED):
        await asyncio.sleep(0.5)
        stop = runs.runs.drain if ends is RunStatus.DRAINED else None
        assert await (stop("run-000001") if stop else runs.runs.cancel("run-000001", "enough"))
    outcome = await work
    assert (outcome.run.status, runs.engine.tools.effects) == (ends, ["seat"])
    return outcome.run.run_id


@pytest.mark.parametrize(
    ("last", "ends", "left"),
    [
        (_asks, RunStatus.INTERRUPTED, RunStatus.CANCELLED),
        (_fails, RunStatus.FAILED, RunStatus.FAILED),
        (_slow, RunStatus.CANCELLED, RunStatus.CANCELLED),
        (_slow, RunStatus.DRAINED, RunStatus.CANCELLED),
    ],
    ids=["interrupted", "failed", "cancelled", "drained"],
)
def test_what_waits_too_long_is_rolled_back(last: Any, ends: RunStatus, left: RunStatus) -> None:
    @virtual_time
    async def scenario() -> None:
        runs = booking(last)
        run_id = await begun(runs, ends, wait_timeout_us=TEN_SECONDS)
        await asyncio.sleep(9.9)
        assert await waiting(runs).end_overdue() == []
        assert runs.engine.tools.effects == ["seat"]
        await asyncio.sleep(0.1)
        assert await waiting(runs).end_overdue() == [run_id]
        assert runs.engine.tools.effects == []
        run = await runs.store.load_run(run_id)
        thread = await runs.store.load_thread("t")
        assert run is not None
        assert thread is not None
        assert (run.status, run.transaction_id, run.waits_until, thread.head) == (left, "", None, None)
        assert await runs.pending() == []
        if ends is not left:
            events = await runs.events(run_id)
            assert events[-1].kind == "run.cancelled"
            assert "wait_timeout" in events[-1].payload
        assert await waiting(runs).end_overdue() == []
        # It begins again as any run that was rolled back, and may wait as long as before.
        runs.functions["last"] = _asks
        assert (await runs.retry()).run.status is RunStatus.INTERRUPTED
        await asyncio.sleep(10)
        assert await waiting(runs).end_overdue() == [run_id]

    scenario()


@virtual_time
async def test_a_run_waits_for_ever_unless_it_is_told_otherwise() -> None:
    runs = booking()
    await begun(runs, RunStatus.INTERRUPTED)
    await asyncio.sleep(10_000_000)
    assert await waiting(runs).end_overdue() == []
    assert (await runs.resume("t", 5)).state == {"value": 16}


@virtual_time
async def test_who_goes_on_in_time_may_change_how_long_it_waits() -> None:
    runs = booking(_fails)
    run_id = await begun(runs, RunStatus.FAILED, wait_timeout_us=TEN_SECONDS)
    await asyncio.sleep(6)
    await runs.retry()
    await asyncio.sleep(6)
    assert await waiting(runs).end_overdue() == [], "the time begins anew"
    await runs.retry(wait_timeout_us=0)
    await asyncio.sleep(1000)
    assert await waiting(runs).end_overdue() == []
    await runs.retry(wait_timeout_us=1)
    await asyncio.sleep(1)
    assert await waiting(runs).end_overdue() == [run_id]


@virtual_time
async def test_the_next_server_ends_the_wait_and_two_at_once_end_it_once() -> None:
    runs = booking()
    run_id = await begun(runs, RunStatus.INTERRUPTED, wait_timeout_us=TEN_SECONDS)
    await runs.crash()
    await runs.recover()
    await asyncio.sleep(10)
    ended = await asyncio.gather(*(waiting(runs).end_overdue() for _ in range(2)))
    assert sorted(ended) in ([[], [run_id]], [[run_id], [run_id]])
    assert runs.engine.tools.effects == []
    assert (await runs.kinds(run_id)).count("run.cancelled") == 1


@virtual_time
async def test_one_that_was_gone_on_with_meanwhile_is_left_alone() -> None:
    runs = booking()
    run_id = await begun(runs, RunStatus.INTERRUPTED, wait_timeout_us=TEN_SECONDS)
    await asyncio.sleep(10)
    (overdue,) = await runs.store.list_overdue(runs.engine.clock.now(), (-1, ""), 10)
    assert overdue.run_id == run_id
    runs.functions["b"] = _fails
    await runs.resume("t", 5, limits=RunLimits())
    assert not await runs.runs.rewinds.roll_back_overdue(run_id, runs.engine.clock.now())
    assert runs.engine.tools.effects == ["seat"]


@virtual_time
async def test_one_that_another_server_goes_on_with_while_it_is_rolled_back_is_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = booking()
    run_id = await begun(runs, RunStatus.INTERRUPTED)
    other, undo = runs._coordinator(), runs.engine.tools.undo
    resumed: list[asyncio.Future[RunOutcome]] = []

    async def undo_beside(*arguments: Any) -> Any:
        request = ResumeRequest("t", 5, has_value=True)
        assert (await other.resume(request, wait=False)).run.status is RunStatus.RUNNING
        resumed.append(asyncio.ensure_future(other.wait_for(run_id)))
        return await undo(*arguments)

    runs.engine.tools.undo = undo_beside  # type: ignore[method-assign]
    cancelled = await runs.runs.cancel_and_roll_back(run_id, "enough")
    (answer,) = resumed
    for run in (cancelled, (await answer).run):
        assert (run.status, run.error, run.transaction_id) == (RunStatus.CANCELLED, None, "")
    assert (await runs.events(run_id))[-1].kind == "run.cancelled"
    assert (runs.engine.tools.effects, runs.calls.count("b")) == ([], 0)
    assert (await runs.retry()).run.status is RunStatus.INTERRUPTED
    # Who loses a race is told so: that is no fault of the server.
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@virtual_time
async def test_what_undo_holds_holds_up_no_other() -> None:
    runs = booking()
    await runs.start({"value": 0}, "held", wait_timeout_us=TEN_SECONDS)
    await asyncio.sleep(1)
    second = await runs.start({"value": 0}, "free", wait_timeout_us=TEN_SECONDS)
    await asyncio.sleep(9)
    runs.engine.tools.break_undo("seat")
    assert await waiting(runs).end_overdue() == []
    runs.engine.tools.break_undo("seat", 0)
    tried = len(runs.engine.tools.undone)
    await asyncio.sleep(1000)
    assert await waiting(runs).end_overdue() == [second.run.run_id]
    assert len(runs.engine.tools.undone) == tried + 1, "what is held is left to whoever settles it"


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_a_wait_is_ended_wherever_the_server_that_ends_it_is_killed(behind: bool) -> None:
    @virtual_time
    async def scenario(number: int) -> bool:
        runs = booking()
        run_id = await begun(runs, RunStatus.INTERRUPTED, wait_timeout_us=TEN_SECONDS)
        await asyncio.sleep(10)
        first = runs.engine.memory.write_count
        if behind:

            def kill(made: int, write_set: Any) -> None:
                if made == first + number:
                    runs.engine.memory.kill()

            runs.engine.memory._on_write = kill
        else:
            runs.engine.memory.hold_write(first + number)
        work = asyncio.ensure_future(waiting(runs).end_overdue())
        await asyncio.wait({work}, timeout=1000)
        stuck = not work.done()
        await runs.crash()
        work.cancel()
        await runs.recover()
        await waiting(runs).end_overdue()
        run = await runs.store.load_run(run_id)
        assert run is not None
        assert (run.status, run.transaction_id, runs.engine.tools.effects) == (RunStatus.CANCELLED, "", [])
        assert (await runs.kinds(run_id)).count("run.cancelled") == 1
        assert (await runs.retry()).run.status is RunStatus.INTERRUPTED
        return stuck

    number = 1
    while scenario(number):
        number += 1
    assert number > 2


@virtual_time
async def test_a_rollback_leaves_a_thread_as_another_server_made_it_in_that_moment() -> None:
    runs = booking()
    run_id = await begun(runs, RunStatus.INTERRUPTED)
    owner = runs.engine.coordinator._services.run_owner
    assert isinstance(owner, RolledBackRuns)
    load_thread = owner._store.load_thread
    meanwhile: list[ThreadRecord] = []

    async def moved_once_read(thread_id: str) -> ThreadRecord | None:
        read = await load_thread(thread_id)
        assert read is not None
        if not meanwhile:
            meanwhile.append(replace(read, updated_at=read.updated_at + 1, next_number=read.next_number + 5))
            await runs.store.write(RunChange(threads=meanwhile))
        return read

    owner._store.load_thread = moved_once_read  # type: ignore[method-assign]
    with pytest.raises(RunRefused, match="another run"):
        await runs.runs.cancel_and_roll_back(run_id, "no")
    await asyncio.sleep(10)
    run, thread = await runs.store.load_run(run_id), await runs.store.load_thread("t")
    assert run is not None
    assert thread is not None
    assert (run.status, runs.engine.tools.effects) == (RunStatus.CANCELLED, [])
    assert (thread.transaction_id, thread.next_number) == ("", meanwhile[0].next_number)
