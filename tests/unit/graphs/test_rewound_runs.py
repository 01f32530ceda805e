"""RewindRun takes a thread's open transaction back to a checkpoint, CancelRun(rollback) whole; RetryRun goes on from there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.graph_definitions import SUM
from tests.support.graph_runs import Call, GraphRuns, adds
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.errors import PreconditionFailed
from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import TransactionId
from agenttx_server.graphs.definition import ToolBinding
from agenttx_server.graphs.runs.records import RunStatus, checkpoint_id
from agenttx_server.graphs.runs.requests import ResumeRequest, RunRefused, StateUpdate
from agenttx_server.graphs.runs.run_rewinder import RewindRunRequest


def asking(tool: str = "book") -> GraphRuns:
    """Add 1; act outside; ask."""

    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("how much?")}

    act = ToolBinding(tool, {"effect": "seat", "output": {"value": 10}})
    return GraphRuns(
        "START->a, a->act, act->ask",
        {"a": adds(1), "ask": ask},
        channels=SUM,
        nodes={"act": {"binding": act}},
    )


def _to(number: int, **fields: Any) -> RewindRunRequest:
    return RewindRunRequest("t", checkpoint_id("t", number), **fields)


@virtual_time
async def test_a_rewind_undoes_what_came_behind_the_checkpoint_and_a_retry_runs_it_again() -> None:
    runs = asking()
    first = await runs.start({"value": 0})
    (question,) = first.interrupts
    dry = await runs.runs.rewinds.rewind(_to(1, dry_run=True))
    assert (dry.undone.steps, dry.undone.compensations) == (2, 1)
    assert dry.withdrawn_interrupt_ids == (question.interrupt_id,)
    assert runs.engine.tools.effects == ["seat"], "nothing was changed"
    assert len(await runs.pending()) == 1

    done = await runs.runs.rewinds.rewind(_to(1))
    assert (done.undone.steps, done.undone.compensations, done.undone.held) == (2, 1, False)
    assert done.withdrawn_interrupt_ids == (question.interrupt_id,)
    assert runs.engine.tools.effects == []
    assert await runs.pending() == []
    stands = await runs.runs.stored_outcome(done.run)
    assert (stands.state, list(stands.next_nodes)) == ({"value": 1}, ["act"])
    assert stands.checkpoint_id == checkpoint_id("t", 1)
    assert (await runs.kinds(done.run.run_id))[-2:] == ["interrupt.withdrawn", "checkpoint.restored"]

    again = await runs.retry()
    assert again.run.status is RunStatus.INTERRUPTED
    assert again.interrupts[0].interrupt_id != question.interrupt_id, "superstep numbers go on growing"
    assert runs.calls == ["a", "ask", "ask"]
    final = await runs.resume("t", 5)
    assert (final.run.status, final.state, final.run.total_supersteps) == (
        RunStatus.COMPLETED, {"value": 16}, 3,
    )  # fmt: skip


@virtual_time
async def test_a_rewind_goes_to_this_very_checkpoint_and_edits_behind_it_are_undone() -> None:
    runs = asking()
    await runs.start({"value": 0})
    await runs.runs.rewinds.rewind(_to(1))
    edited = (await runs.update(StateUpdate(update={"value": 100}))).checkpoint.number
    assert (await runs.retry()).state == {"value": 111}
    kept = await runs.runs.rewinds.rewind(_to(edited))
    assert (await runs.runs.stored_outcome(kept.run)).state == {"value": 101}
    back = await runs.runs.rewinds.rewind(_to(1))
    assert back.undone.steps == 0
    assert (await runs.runs.stored_outcome(back.run)).state == {"value": 1}
    await runs.retry()
    assert (await runs.resume("t", 5)).state == {"value": 16}


@virtual_time
async def test_what_can_not_be_rewound_is_refused_and_stays() -> None:
    runs = asking("pay")
    first = await runs.start({"value": 0})
    for request, reason in (
        (RewindRunRequest("nobody", checkpoint_id("nobody", 0)), "THREAD_NOT_FOUND"),
        (RewindRunRequest("t", "c-1-wrong"), "CHECKPOINT_NOT_FOUND"),
        (_to(9), "CHECKPOINT_NOT_FOUND"),
    ):
        with pytest.raises(RunRefused) as refused:
            await runs.runs.rewinds.rewind(request)
        assert refused.value.reason == reason
    with pytest.raises(PreconditionFailed) as pivot:
        await runs.runs.rewinds.rewind(_to(1))
    assert pivot.value.reason == "IRREVERSIBLE_STEP"
    assert len(await runs.pending()) == 1
    done = await runs.runs.rewinds.rewind(_to(1, accept_irreversible=True))
    assert (await runs.runs.stored_outcome(done.run)).state == {"value": 1}
    await runs.retry()
    assert (await runs.resume("t", 0)).run.status is RunStatus.COMPLETED
    with pytest.raises(RunRefused) as refused:
        await runs.runs.rewinds.rewind(_to(1))
    assert refused.value.reason == "ILLEGAL_TRANSITION"
    with pytest.raises(RunRefused) as refused:
        await runs.runs.rewinds.roll_back(first.run.run_id, "")
    assert refused.value.reason == "ILLEGAL_TRANSITION"


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_a_rewind_outlives_its_server(behind: bool) -> None:
    @virtual_time
    async def scenario(number: int) -> bool:
        runs = asking()
        await runs.start({"value": 0})
        first = runs.engine.memory.write_count
        if behind:

            def kill(made: int, write_set: Any) -> None:
                if made == first + number:
                    runs.engine.memory.kill()

            runs.engine.memory._on_write = kill
        else:
            runs.engine.memory.hold_write(first + number)
        work = asyncio.ensure_future(runs.runs.rewinds.rewind(_to(1)))
        await asyncio.wait({work}, timeout=1000)
        stuck = not work.done()
        await runs.crash()
        work.cancel()
        await runs.recover()
        await runs.runs.rewinds.rewind(_to(1))
        await runs.retry()
        outcome = await runs.resume("t", 5)
        assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 16})
        assert runs.engine.tools.effects == ["seat"]
        return stuck

    number = 1
    while scenario(number):
        number += 1
    assert number > 3


@virtual_time
async def test_a_run_that_waits_is_rolled_back_and_begins_again() -> None:
    runs = asking()
    first = await runs.start({"value": 0})
    run = await runs.runs.cancel_and_roll_back(first.run.run_id, "not wanted")
    assert (run.status, run.transaction_id) == (RunStatus.CANCELLED, "")
    assert runs.engine.tools.effects == []
    assert await runs.pending() == []
    assert (await runs.kinds(run.run_id))[-2:] == ["interrupt.withdrawn", "run.cancelled"]
    assert await runs.runs.cancel_and_roll_back(first.run.run_id, "again") == run, "once is enough"

    again = await runs.retry()
    assert (again.run.run_id, again.run.status, again.state) == (
        run.run_id, RunStatus.INTERRUPTED, {"value": 11},
    )  # fmt: skip
    assert runs.engine.tools.effects == ["seat"]
    final = await runs.resume("t", 1)
    assert (final.run.status, final.state, final.run.total_supersteps) == (
        RunStatus.COMPLETED, {"value": 12}, 3,
    )  # fmt: skip
    events = await runs.events(run.run_id)
    assert [event.offset for event in events] == list(range(len(events)))


@virtual_time
async def test_a_run_under_way_is_stopped_and_rolled_back() -> None:
    async def slow(call: Call) -> Any:
        await asyncio.sleep(1000)

    act = ToolBinding("book", {"effect": "seat", "output": {"value": 10}})
    runs = GraphRuns("START->act, act->slow", {"slow": slow}, channels=SUM, nodes={"act": {"binding": act}})
    work = asyncio.ensure_future(runs.start({"value": 0}))
    await asyncio.sleep(5)
    assert runs.engine.tools.effects == ["seat"]
    run = await runs.runs.cancel_and_roll_back("run-000001", "enough")
    assert (await work).run.status is RunStatus.CANCELLED
    assert (run.status, run.transaction_id) == (RunStatus.CANCELLED, "")
    assert runs.engine.tools.effects == []
    assert asyncio.get_running_loop().time() < 100
    assert (await runs.kinds(run.run_id)).count("run.cancelled") == 1


@virtual_time
async def test_a_conflict_at_commit_leaves_a_run_that_can_begin_again() -> None:
    note = ToolBinding("note", {"put": {"kv/k": 1}, "output": {"value": 5}})
    runs = GraphRuns("START->note", {}, channels=SUM, nodes={"note": {"binding": note}})
    runs.engine.memory.refuse_commits_with("kv/k")
    outcome = await runs.start({"value": 1})
    assert outcome.run.error is not None
    assert outcome.run.error.reason == "COMMIT_CONFLICT"
    runs.engine.memory.refuse_commits_with(None)
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 6})


@virtual_time
async def test_a_rollback_that_undo_holds_says_so_and_is_made_once_that_is_settled() -> None:
    runs = asking()
    first = await runs.start({"value": 0})
    runs.engine.tools.break_undo("seat", 100)
    with pytest.raises(RunRefused) as refused:
        await runs.runs.rewinds.roll_back(first.run.run_id, "")
    assert refused.value.reason == "ROLLBACK_INCOMPLETE"
    runs.engine.tools.break_undo("seat", 0)
    await runs.engine.resolve_undo(1, transaction_id=TransactionId(first.run.transaction_id))
    assert (await runs.runs.rewinds.roll_back(first.run.run_id, "")).status is RunStatus.CANCELLED


@virtual_time
async def test_a_failed_run_that_is_rolled_back_keeps_its_error() -> None:
    async def fails(call: Call) -> Any:
        raise ToolFailure("invalid_value", "no")

    runs = GraphRuns("START->a, a->b", {"a": adds(1), "b": fails}, channels=SUM)
    first = await runs.start({"value": 0})
    run = await runs.runs.rewinds.roll_back(first.run.run_id, "")
    assert (run.status, run.error) == (RunStatus.FAILED, first.run.error)


@virtual_time
async def test_a_rewind_writes_nothing_over_the_run_that_another_server_goes_on_with() -> None:
    """Its number of the next event was taken back: nothing of it could be written any more, nor undone."""
    runs = asking()
    run_id = (await runs.start({"value": 0})).run.run_id
    other, load, resumed = runs._coordinator(), runs.store.load_checkpoint, asyncio.Event()

    async def load_beside(thread_id: str, number: int) -> Any:
        if not resumed.is_set():
            resumed.set()
            await other.resume(ResumeRequest("t", 5, has_value=True), wait=False)
        return await load(thread_id, number)

    runs.store.load_checkpoint = load_beside  # type: ignore[method-assign]
    with pytest.raises(RunRefused) as refused:
        await runs.runs.rewinds.rewind(_to(1))
    assert (refused.value.reason, resumed.is_set()) == ("THREAD_BUSY", True)
    outcome = await asyncio.wait_for(other.wait_for(run_id), 60)
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 16})
    offsets = [event.offset for event in await runs.events(run_id)]
    assert offsets == list(range(len(offsets)))
