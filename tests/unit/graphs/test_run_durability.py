"""Boundaries of a run that are durable later, or have no checkpoint: nothing that finished is lost, or run again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.graph_definitions import APP, SUM
from tests.support.graph_runs import Call, GraphRuns, adds
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import TransactionId
from agenttx_server.graphs.definition import Channel, FailurePolicy, GraphPolicy, ToolBinding
from agenttx_server.graphs.runs.records import Durability, RunStatus, checkpoint_id
from agenttx_server.graphs.runs.requests import RunRefused
from agenttx_server.graphs.runs.run_rewinder import RewindRunRequest

EXIT = Durability.EXIT
CHAIN = "START->a, a->b, b->c"


def chain(**functions: Any) -> GraphRuns:
    """Add 1, 2 and 4."""
    return GraphRuns(CHAIN, {"a": adds(1), "b": adds(2), "c": adds(4), **functions}, channels=SUM)


async def supersteps(runs: GraphRuns) -> list[int]:
    """The supersteps whose boundaries have a checkpoint, in their order."""
    return [checkpoint.superstep for checkpoint in await runs.checkpoints()]


@virtual_time
async def test_c3_of_a_run_that_completes_the_last_boundary_alone_has_a_checkpoint() -> None:
    runs = chain()
    outcome = await runs.start({"value": 0}, durability=EXIT)
    assert (outcome.run.status, outcome.state, list(outcome.visited)) == (
        RunStatus.COMPLETED, {"value": 7}, ["a", "b", "c"],
    )  # fmt: skip
    given, last = await runs.checkpoints()
    assert (given.superstep, last.superstep, last.parent, last.work) == (0, 3, given.number, "{}")
    assert await runs.state_at(last) == {"value": 7}
    assert [node for _, node, _ in last.completed] == ["a", "b", "c"]
    assert (await runs.kinds(outcome.run.run_id)).count("checkpoint.saved") == 2


@virtual_time
async def test_a_run_that_waits_has_a_checkpoint_of_where_it_does_and_goes_on_from_it() -> None:
    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("how much?")}

    runs = chain(c=ask)
    waits = await runs.start({"value": 0}, durability=EXIT)
    assert (waits.run.status, waits.state, list(waits.next_nodes)) == (
        RunStatus.INTERRUPTED, {"value": 3}, ["c"],
    )  # fmt: skip
    _, head = await runs.checkpoints()
    assert (head.superstep, head.total_supersteps, await runs.state_at(head)) == (2, 2, {"value": 3})
    assert waits.checkpoint_id == head.checkpoint_id
    done = await runs.resume("t", 10)
    assert (done.state, await supersteps(runs)) == ({"value": 13}, [0, 2, 3])
    assert runs.calls == ["a", "b", "c", "c"]


@virtual_time
async def test_a_server_that_dies_leaves_no_checkpoint_and_the_next_one_folds_the_answers_again() -> None:
    async def slow(call: Call) -> Any:
        await asyncio.sleep(10)
        return {"value": 4}

    asked: list[str] = []

    async def route(call: Call) -> Any:
        asked.append("route")
        return "on" if len(asked) == 1 else "elsewhere"

    runs = GraphRuns(
        "START->a, START->twin, a?f:route->{on: slow, elsewhere: END}, twin->slow, slow->last",
        {"a": adds(1), "twin": adds(2), "slow": slow, "last": adds(8), "route": route},
        channels=SUM,
    )
    work = asyncio.ensure_future(runs.start({"value": 0}, durability=EXIT))
    await asyncio.sleep(5)
    thread = await runs.store.load_thread("t")
    assert thread is not None
    assert (thread.head, thread.unkept) == (0, 1)
    stands = await runs.runs.outcome("run-000001")
    assert (stands.state, list(stands.next_nodes)) == ({"value": 3}, ["slow"])
    await runs.crash()
    work.cancel()
    run = await runs.store.load_run("run-000001")
    assert run is not None
    stored = await runs.runs.stored_outcome(run)
    assert (stored.state, list(stored.next_nodes)) == ({"value": 3}, ["slow"]), "it can be read meanwhile"
    await runs.recover()
    run = await runs.store.load_run("run-000001")
    assert run is not None
    assert (run.status, run.total_supersteps) == (RunStatus.COMPLETED, 3)
    assert (await runs.runs.stored_outcome(run)).state == {"value": 15}
    assert runs.calls == ["a", "twin", "slow", "slow", "last"]
    assert asked == ["route"], "what a router said is kept as well"
    assert await supersteps(runs) == [0, 3]


@virtual_time
async def test_a_run_that_fails_keeps_the_boundary_before_and_can_be_taken_back_to_its_input() -> None:
    fails = [True]

    async def flaky(call: Call) -> Any:
        if fails:
            raise ToolFailure("invalid_value", "not yet")
        return {"value": 4}

    runs = chain(c=flaky)
    failed = await runs.start({"value": 0}, durability=EXIT)
    assert (failed.run.status, failed.state) == (RunStatus.FAILED, {"value": 3})
    assert await supersteps(runs) == [0, 2]
    back = await runs.runs.rewinds.rewind(RewindRunRequest("t", checkpoint_id("t", 0)))
    assert (back.undone.steps, back.run.total_supersteps) == (3, 0)
    fails.clear()
    done = await runs.retry()
    assert (done.state, runs.calls) == ({"value": 7}, ["a", "b", "c", "a", "b", "c"])
    assert [item.rolled_back for item in await runs.checkpoints()] == [False, True, False]


@virtual_time
async def test_undo_that_takes_the_open_superstep_back_leaves_those_before_it() -> None:
    book = ToolBinding("book", {"effect": "seat", "put": {"kv/k": 2}, "output": {"value": 10}})
    note = ToolBinding("note", {"put": {"kv/k": 1}, "output": {"value": 20}})
    runs = GraphRuns(
        "START->a, a->b, b->note, b->book",
        {"a": adds(1), "b": adds(2)},
        channels=SUM,
        nodes={"note": {"binding": note}, "book": {"binding": book}, "b": {"max_visits": 1}},
    )
    runs.engine.tools.break_undo("seat", 100)
    held = await runs.start({"value": 0}, durability=EXIT)
    assert held.run.error is not None
    assert (held.run.status, held.run.error.reason) == (RunStatus.FAILED, "ROLLBACK_INCOMPLETE")
    runs.engine.tools.break_undo("seat", 0)
    await runs.engine.resolve_undo(1, transaction_id=TransactionId(held.run.transaction_id))
    done = await runs.retry()
    assert (done.run.status, done.state) == (RunStatus.COMPLETED, {"value": 33})
    assert runs.calls == ["a", "b"], "the supersteps before stand"
    assert done.run.total_supersteps == 3


@virtual_time
async def test_rollbacks_need_checkpoints_and_are_refused_beside_exit() -> None:
    healing = GraphPolicy(on_failure=FailurePolicy.ROLLBACK)
    runs = GraphRuns("START->a", {"a": adds(1)}, channels=SUM, policy=healing)
    with pytest.raises(RunRefused) as refused:
        await runs.start({"value": 0}, durability=EXIT)
    assert refused.value.reason == "INVALID_REQUEST"
    assert await runs.store.load_thread("t") is None


@virtual_time
async def test_a_fault_of_the_server_behind_boundaries_without_checkpoints_is_got_over_by_a_retry() -> None:
    breaks = [True]

    async def faulty(call: Call) -> Any:
        return {"value": 4}

    runs = chain(c=faulty)
    notes = runs.store.rows

    def rows(change: Any) -> Any:
        if breaks and any(task.node == "c" and task.attempts for task in change.tasks):
            raise RuntimeError("a bug")
        return notes(change)

    runs.store.rows = rows  # type: ignore[method-assign]
    failed = await runs.start({"value": 0}, durability=EXIT)
    assert failed.run.error is not None
    assert (failed.run.status, failed.run.error.reason) == (RunStatus.FAILED, "INTERNAL_ERROR")
    assert failed.state == {"value": 3}
    breaks.clear()
    done = await runs.retry(update={"value": 100})
    assert (done.run.status, done.state) == (RunStatus.COMPLETED, {"value": 107})
    assert runs.calls == ["a", "b", "c", "c"]


@virtual_time
async def test_lists_that_grow_are_written_once_and_read_whole() -> None:
    async def log(call: Call) -> Any:
        return {"log": [f"saw {len(call.state['log'])}"]}

    runs = GraphRuns(CHAIN, {"a": log, "b": log, "c": log}, channels=APP)
    await runs.start({"log": ["given"]}, durability=EXIT)
    _, last = await runs.checkpoints()
    assert await runs.state_at(last) == {"log": ["given", "saw 1", "saw 2", "saw 3"]}
    assert len(await runs.store.all_values("t")) == 2


# --- ASYNC ------------------------------------------------------------------------------------------------


def _boundary_of(runs: GraphRuns) -> Any:
    """Hold the boundary behind the first superstep: the second write of a run, behind its begin."""
    return runs.engine.memory.hold_write(2)


@virtual_time
async def test_with_async_what_acts_outside_waits_until_the_boundary_before_it_is_durable() -> None:
    book = ToolBinding("book", {"effect": "seat", "output": {"value": 10}})
    runs = GraphRuns(
        "START->a, a->book, a->b", {"a": adds(1), "b": adds(2)}, channels=SUM, nodes={"book": {"binding": book}}
    )  # fmt: skip
    gate = _boundary_of(runs)
    work = asyncio.ensure_future(runs.start({"value": 0}, durability=Durability.ASYNC))
    await gate.reached()
    await asyncio.sleep(100)
    assert (runs.calls, runs.engine.tools.effects) == (["a", "b"], [])
    gate.open()
    done = await work
    assert (done.state, runs.engine.tools.effects) == ({"value": 13}, ["seat"])


@virtual_time
async def test_with_async_a_server_that_dies_before_a_boundary_loses_pure_work_alone() -> None:
    runs = chain()
    gate = _boundary_of(runs)
    work = asyncio.ensure_future(runs.start({"value": 0}, durability=Durability.ASYNC))
    await gate.reached()
    await asyncio.sleep(1)
    assert runs.calls == ["a", "b"]
    await runs.crash()
    work.cancel()
    await runs.recover()
    run = await runs.store.load_run("run-000001")
    assert run is not None
    outcome = await runs.runs.stored_outcome(run)
    assert (run.status, outcome.state, list(outcome.visited)) == (
        RunStatus.COMPLETED, {"value": 7}, ["a", "b", "c"],
    )  # fmt: skip
    assert runs.calls == ["a", "b", "a", "b", "c"]
    assert await supersteps(runs) == [0, 1, 2, 3]


@pytest.mark.parametrize("applied", [False, True])
@virtual_time
async def test_with_async_a_boundary_whose_write_fails_is_made_again_and_told_once(applied: bool) -> None:
    async def slow(call: Call) -> Any:
        await asyncio.sleep(1)
        return {"value": 2}

    runs = GraphRuns(
        CHAIN, {"a": adds(1), "b": slow, "c": adds(4)}, channels=(*SUM, Channel("note", reducer="untracked"))
    )  # fmt: skip
    runs.engine.memory.fail_write(2, applied=applied)
    done = await runs.start({"value": 0, "note": "kept in memory"}, durability=Durability.ASYNC)
    assert (done.run.status, done.state, list(done.visited)) == (
        RunStatus.COMPLETED, {"value": 7}, ["a", "b", "c"],
    )  # fmt: skip
    assert runs.calls == (["a", "b", "b", "c"] if applied else ["a", "b", "a", "b", "c"])
    events = await runs.events(done.run.run_id)
    assert [event.offset for event in events] == list(range(len(events)))
    assert await supersteps(runs) == [0, 1, 2, 3]


@virtual_time
async def test_with_async_a_node_sees_what_the_one_before_wrote_to_the_store() -> None:
    put = ToolBinding("note", {"put": {"kv/k": 5}, "output": {"value": 1}})
    get = ToolBinding("note", {"read": ["kv/k"], "output": {"value": 2}})
    runs = GraphRuns(
        "START->put, put->get", {}, channels=SUM, nodes={"put": {"binding": put}, "get": {"binding": get}}
    )
    gate = _boundary_of(runs)
    work = asyncio.ensure_future(runs.start({"value": 0}, durability=Durability.ASYNC))
    await gate.reached()
    await asyncio.sleep(1)
    assert runs.engine.tools.count("note") == 1, "it waits for what it may read"
    gate.open()
    assert (await work).run.status is RunStatus.COMPLETED
