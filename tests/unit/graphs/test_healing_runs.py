"""on_failure ROLLBACK: a run goes back to the superstep of the root cause, knows better, and finishes right."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.graph_definitions import SUM
from tests.support.graph_runs import Call, GraphRuns, adds
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import TransactionId
from agenttx_server.graphs.definition import Channel, FailurePolicy, FunctionBinding, GraphPolicy, ToolBinding
from agenttx_server.graphs.runs.records import RunRecord, RunStatus, TaskState
from agenttx_server.graphs.runs.requests import RunRefused, StartRequest

HEALS = GraphPolicy(on_failure=FailurePolicy.ROLLBACK)
CHANNELS = (Channel("customer"), Channel("seat"), Channel("notes", reducer="append"), Channel("order"))


def order() -> GraphRuns:
    """Choose a customer (wrongly, unless told better), beside a note; book a seat; order, which finds that out."""

    async def choose(call: Call) -> Any:
        told = [line for line in call.constraints or () if "customer" in line]
        return {"customer": "anna" if told else "nobody"}

    async def note(call: Call) -> Any:
        return {"notes": ["noted"]}

    async def place(call: Call) -> Any:
        if call.state["customer"] == "nobody":
            raise ToolFailure("foreign_key_violation", "customer 'nobody' is not in customers", ("customer",))
        return {"order": f"{call.state['customer']} {call.state['seat']}"}

    book = ToolBinding("book", {"effect": "seat", "output": {"seat": "12a"}})
    return GraphRuns(
        "START->first, first->note, first->choose, note->book, choose->book, book->place",
        {"first": adds(1), "choose": choose, "note": note, "place": place},
        channels=(*CHANNELS, *SUM),
        policy=HEALS,
        nodes={
            "book": {"binding": book},
            "place": {"binding": FunctionBinding("place"), "reads": ("customer", "seat")},
        },
    )


async def _told(runs: GraphRuns, run: RunRecord, kind: str) -> list[Any]:
    return [json.loads(item.payload) for item in await runs.events(run.run_id) if item.kind == kind]


@virtual_time
async def test_a_late_failure_goes_back_to_the_superstep_that_chose_wrongly() -> None:
    runs = order()
    outcome = await runs.start({"value": 0})
    assert outcome.run.status is RunStatus.COMPLETED, outcome.run.error
    assert outcome.state == {
        "customer": "anna", "seat": "12a", "notes": ["noted"], "order": "anna 12a", "value": 1,
    }  # fmt: skip
    # Back to the superstep with ``choose``, whole; not to the one before.
    assert runs.calls == ["first", "note", "choose", "place", "note", "choose", "place"]
    # The seat was given back, and booked again.
    assert [item.effect for item in runs.engine.tools.undone] == ["seat"]
    assert runs.engine.tools.effects == ["seat"]
    # Superstep numbers go on growing, what was undone is no longer counted.
    assert (outcome.run.superstep, outcome.run.total_supersteps) == (7, 4)
    (decided,) = await _told(runs, outcome.run, "rollback.decided")
    assert (decided["strategy"], decided["key"], decided["to_superstep"]) == (
        "DEPENDENCY_JUMP",
        "customer",
        2,
    )
    assert "customer" in decided["hint"]
    (restored,) = await _told(runs, outcome.run, "checkpoint.restored")
    assert restored["checkpoint_id"] == decided["checkpoint_id"]
    kinds = await runs.kinds(outcome.run.run_id)
    assert kinds.index("node.failed") < kinds.index("rollback.decided") < kinds.index("checkpoint.restored")
    assert kinds.count("run.completed") == 1
    events = await runs.events(outcome.run.run_id)
    assert [event.offset for event in events] == list(range(len(events)))
    page = await runs.store.list_checkpoints("t", frozenset(), "", 100)
    assert [item.rolled_back for item in page.checkpoints][::-1] == [False] * 2 + [True] * 2 + [False] * 3
    assert {task.state for task in await runs.store.load_tasks(outcome.run.run_id, 4)} == {TaskState.UNDONE}


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_a_run_heals_wherever_its_server_was_killed(behind: bool) -> None:
    @virtual_time
    async def scenario(number: int) -> bool:
        runs = order()
        if behind:

            def kill(made: int, write_set: Any) -> None:
                if made == number:
                    runs.engine.memory.kill()

            runs.engine.memory._on_write = kill
        else:
            runs.engine.memory.hold_write(number)
        request = StartRequest("g", "", "t", {"value": 0}, request_id="one")
        work = asyncio.ensure_future(runs.runs.start(request))
        await asyncio.wait({work}, timeout=1000)
        stuck = not work.done()
        await runs.crash()
        work.cancel()
        await runs.recover()
        outcome = await runs.runs.start(request)
        assert outcome.run.status is RunStatus.COMPLETED, (number, outcome.run.error)
        assert outcome.state["order"] == "anna 12a"
        assert outcome.state["notes"] == ["noted"]
        assert runs.engine.tools.effects == ["seat"]
        assert outcome.run.total_supersteps == 4
        events = await runs.events(outcome.run.run_id)
        assert [event.offset for event in events] == list(range(len(events)))
        kinds = [event.kind for event in events]
        assert kinds.count("rollback.decided") == 1
        assert kinds.count("run.completed") == 1
        return stuck

    number = 1
    while scenario(number):
        number += 1
    assert number > 15


@virtual_time
async def test_a_node_that_always_fails_ends_within_the_replay_budget_and_all_is_undone() -> None:
    async def never(call: Call) -> Any:
        raise ToolFailure("invalid_value", "amount is wrong", ("amount",))

    book = ToolBinding("book", {"effect": "seat", "output": {"value": 10}})
    runs = GraphRuns(
        "START->a, a->book, book->never",
        {"a": adds(1), "never": never},
        channels=SUM,
        policy=HEALS,
        nodes={"book": {"binding": book}},
    )
    outcome = await runs.start({"value": 0})
    run = outcome.run
    assert run.error is not None
    assert (run.status, run.error.reason, run.error.node) == (RunStatus.FAILED, "NODE_FAILED", "never")
    assert "abort_reason" in dict(run.error.metadata)
    assert (run.transaction_id, outcome.state) == ("", {})
    assert runs.engine.tools.effects == []
    decided = [item["strategy"] for item in await _told(runs, run, "rollback.decided")]
    assert decided[-1] == "ABORT"
    assert "GLOBAL_RESET" in decided
    # (max_global_resets + 1) * (budget + N), with N = 3 steps and c = 2.
    assert len(runs.calls) <= 2 * (2 * 3 * 2 + 3)
    kinds = await runs.kinds(run.run_id)
    assert kinds.count("run.failed") == 1
    # The thread is free, and begins anew.
    assert (await runs.start({"value": 0})).run.run_id != run.run_id


@virtual_time
async def test_a_recursion_limit_does_not_count_what_was_taken_back() -> None:
    assert (await order().start({"value": 0}, recursion_limit=4)).run.status is RunStatus.COMPLETED


@virtual_time
async def test_a_question_beside_a_failure_is_withdrawn_and_asked_again() -> None:
    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("sure?")}

    async def fails(call: Call) -> Any:
        if not call.constraints:
            raise ToolFailure("invalid_value", "value is wrong", ("value",))
        return {"value": 1}

    runs = GraphRuns("START->ask, START->fails", {"ask": ask, "fails": fails}, channels=SUM, policy=HEALS)
    outcome = await runs.start({"value": 0})
    assert outcome.run.status is RunStatus.INTERRUPTED
    kinds = await runs.kinds(outcome.run.run_id)
    assert kinds.count("interrupt.emitted") == 2
    assert kinds.count("interrupt.withdrawn") == 1
    assert len(await runs.pending()) == 1
    outcome = await runs.resume("t", 5)
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 6})


@virtual_time
async def test_undo_that_fails_holds_the_run_and_it_goes_on_from_the_root_cause_once_settled() -> None:
    runs = order()
    runs.engine.tools.break_undo("seat", 100)
    outcome = await runs.start({"value": 0})
    assert outcome.run.error is not None
    assert (outcome.run.status, outcome.run.error.reason) == (RunStatus.FAILED, "ROLLBACK_INCOMPLETE")
    runs.engine.tools.break_undo("seat", 0)
    await runs.engine.resolve_undo(1, transaction_id=TransactionId(outcome.run.transaction_id))
    outcome = await runs.retry()
    assert outcome.run.status is RunStatus.COMPLETED, outcome.run.error
    assert outcome.state["order"] == "anna 12a"
    assert runs.calls.count("first") == 1


@virtual_time
async def test_a_run_that_heals_needs_a_thread() -> None:
    with pytest.raises(RunRefused) as refused:
        await order().start({"value": 0}, thread="")
    assert refused.value.reason == "INVALID_REQUEST"
