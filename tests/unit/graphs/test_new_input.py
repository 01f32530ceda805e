"""New input on threads: in the transaction that a run left open, with RESET, while another run is under way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.graph_definitions import APP, OW, SUM
from tests.support.graph_runs import Call, GraphRuns, adds
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import TransactionId
from agenttx_server.graphs.definition import Channel, ToolBinding
from agenttx_server.graphs.errors import GraphError
from agenttx_server.graphs.node_results import Target
from agenttx_server.graphs.runs.records import RunStatus
from agenttx_server.graphs.runs.requests import RunRefused, StartRequest, StateUpdate

DONE, FAILED, INTERRUPTED = RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.INTERRUPTED
TEXT = (Channel("text", reducer="add"),)


async def _asks(call: Call) -> Any:
    return {"text": call.interrupt("?")}


def again_and_bad() -> GraphRuns:
    async def agent(call: Call) -> Any:
        await asyncio.sleep(1)
        return {"text": " again"}

    return GraphRuns("START->agent, START->bad", {"agent": agent, "bad": _asks}, channels=TEXT)


@virtual_time
async def test_c33_f27_new_input_is_refused_while_a_question_is_pending() -> None:
    runs = again_and_bad()
    outcome = await runs.start({"text": "world"})
    assert (outcome.run.status, outcome.state, len(outcome.interrupts)) == (
        INTERRUPTED, {"text": "world again"}, 1,
    )  # fmt: skip
    with pytest.raises(RunRefused) as refused:
        await runs.start({"text": "!"})
    assert refused.value.reason == "INTERRUPT_PENDING"
    assert runs.calls.count("agent") == 1
    outcome = await runs.resume("t", " okay")
    assert (outcome.run.status, outcome.state) == (DONE, {"text": "world again okay"})


@virtual_time
async def test_c33_new_input_that_discards_questions_goes_on_in_the_open_transaction() -> None:
    note = ToolBinding("note", {"put": {"kv/a": 1}, "output": {}})
    runs = GraphRuns(
        "START->note, START->bad", {"bad": _asks}, channels=TEXT, nodes={"note": {"binding": note}}
    )
    first = await runs.start({"text": "world"})
    second = await runs.start({"text": " and you"}, discard=True)
    assert (second.run.status, second.state) == (INTERRUPTED, {"text": "world and you"})
    assert second.run.run_id != first.run.run_id
    assert second.run.transaction_id == first.run.transaction_id
    left = await runs.store.load_run(first.run.run_id)
    assert left is not None
    assert (left.status, left.ended_at is not None) == (RunStatus.CANCELLED, True)
    assert (await runs.kinds(first.run.run_id))[-1] == "interrupt.withdrawn"
    assert [item.run_id for item in await runs.pending()] == [second.run.run_id]
    assert await runs.engine.committed("kv/a") is None
    outcome = await runs.resume("t", "!")
    assert (outcome.run.status, outcome.state) == (DONE, {"text": "world and you!"})
    assert await runs.engine.committed("kv/a") == 1
    record = await runs.engine.store.load_record(TransactionId(second.run.transaction_id))
    assert record is not None
    assert record.run_id == second.run.run_id


@virtual_time
async def test_new_input_on_a_failed_run_keeps_what_finished_and_is_rolled_back_with_it() -> None:
    failing = [1]

    async def flaky(call: Call) -> Any:
        if failing:
            raise ToolFailure("invalid_value", "no")
        return {"value": 10}

    runs = GraphRuns("START->ok, START->flaky", {"ok": adds(1), "flaky": flaky}, channels=SUM)
    await runs.start({"value": 0})
    failing.clear()
    outcome = await runs.start({"value": 100})
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 112})
    assert await runs.sources() == ["INPUT", "INPUT", "LOOP"]


@virtual_time
async def test_after_a_crash_right_behind_new_input_the_new_run_goes_on() -> None:
    runs = GraphRuns("START->bad", {"bad": _asks}, channels=TEXT)
    await runs.start({"text": "a"})
    asked = asyncio.Event()

    async def hangs(call: Call) -> Any:
        asked.set()
        await asyncio.sleep(600)

    runs.functions["bad"] = hangs
    under_way = asyncio.ensure_future(runs.start({"text": "b"}, discard=True))
    await asked.wait()
    runs.functions["bad"] = _asks
    await runs.crash()
    await asyncio.gather(under_way, return_exceptions=True)
    await runs.recover()
    assert (await runs.resume("t", "c")).state == {"text": "abc"}


@virtual_time
async def test_a_reset_rolls_back_what_is_open_and_begins_anew() -> None:
    book = ToolBinding("book", {"effect": "room", "output": {}})
    runs = GraphRuns(
        "START->book, book->bad", {"bad": _asks}, channels=(*TEXT, Channel("extra")),
        nodes={"book": {"binding": book}},
    )  # fmt: skip
    await runs.start({"text": "old", "extra": 1})
    with pytest.raises(RunRefused) as refused:
        await runs.start({"text": "new"}, reset=True)
    assert refused.value.reason == "INTERRUPT_PENDING"
    outcome = await runs.start({"text": "new"}, reset=True, discard=True)
    assert (outcome.run.status, outcome.state) == (INTERRUPTED, {"text": "new"})
    assert runs.engine.tools.effects == ["room"]
    checkpoints = await runs.checkpoints()
    assert [item.rolled_back for item in checkpoints] == [True, True, False, False]
    assert checkpoints[2].parent is None
    assert (await runs.resume("t", "!")).state == {"text": "new!"}


@virtual_time
async def test_a_reset_of_a_finished_thread_leaves_its_history() -> None:
    runs = GraphRuns("START->a", {"a": adds(1)}, channels=SUM)
    await runs.start({"value": 5})
    assert (await runs.start({"value": 0}, reset=True)).state == {"value": 1}
    assert [await runs.state_at(item) for item in await runs.checkpoints()] == [
        {"value": 5}, {"value": 6}, {"value": 0}, {"value": 1},
    ]  # fmt: skip


@virtual_time
async def test_c34_runs_that_queue_have_their_turns_in_order() -> None:
    async def slow(call: Call) -> Any:
        await asyncio.sleep(2)
        return {"log": ["ran"]}

    runs = GraphRuns("START->slow", {"slow": slow}, channels=APP)
    first = asyncio.ensure_future(runs.start({"log": ["1"]}))
    await asyncio.sleep(0.1)
    with pytest.raises(RunRefused) as refused:
        await runs.start({"log": ["refused"]})
    assert refused.value.reason == "THREAD_BUSY"
    queued = [asyncio.ensure_future(runs.start({"log": [str(n)]}, queue=True)) for n in (2, 3)]
    await asyncio.gather(first, *queued)
    assert queued[1].result().state == {"log": ["1", "ran", "2", "ran", "3", "ran"]}
    assert len(runs.runs._queues) == 0


@virtual_time
async def test_what_is_queued_behind_a_question_is_refused_when_its_turn_comes() -> None:
    async def slow(call: Call) -> Any:
        await asyncio.sleep(2)
        return {"text": call.interrupt("?")}

    runs = GraphRuns("START->slow", {"slow": slow}, channels=TEXT)
    first = asyncio.ensure_future(runs.start({"text": "a"}))
    await asyncio.sleep(0.1)
    with pytest.raises(RunRefused) as refused:
        await runs.start({"text": "b"}, queue=True)
    assert refused.value.reason == "INTERRUPT_PENDING"
    assert (await first).run.status is INTERRUPTED


@virtual_time
async def test_a_run_that_was_rolled_back_starts_again_with_its_input() -> None:
    tool = ToolBinding("note", {"read": ["kv/a"], "put": {"kv/a": 1}, "output": {}})

    async def slow(call: Call) -> Any:
        await asyncio.sleep(1)
        return {"value": 1}

    runs = GraphRuns("START->put, put->slow", {"slow": slow}, channels=SUM, nodes={"put": {"binding": tool}})
    under_way = asyncio.ensure_future(runs.start({"value": 7}))
    await asyncio.sleep(0.1)
    await runs.engine.begin()
    await runs.engine.step(1, "note", {"put": {"kv/a": 2}})
    await runs.engine.commit()
    lost = await under_way
    assert lost.run.error is not None
    assert lost.run.error.reason == "COMMIT_CONFLICT"
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 8})
    assert outcome.run.run_id == lost.run.run_id
    assert outcome.run.transaction_id != lost.run.transaction_id
    events = await runs.events(outcome.run.run_id)
    assert [event.offset for event in events] == list(range(len(events)))


@virtual_time
async def test_edges_of_a_later_transaction_name_its_own_steps_alone() -> None:
    look = ToolBinding("lookup", {"output": {"value": 5}})
    use = ToolBinding("note", {"put": {"kv/x": "${state.value}"}, "output": {}})
    runs = GraphRuns(
        "START->first, first->use",
        {},
        channels=OW,
        nodes={"first": {"binding": look}, "use": {"binding": use}},
    )
    await runs.start()

    # The value is there from a step of the transaction before: no step of this one gave it.
    outcome = await runs.start(goto=[Target("use")])
    page = await runs.engine.store.list_attempts(TransactionId(outcome.run.transaction_id), "", 10, 1 << 20)
    assert [attempt.edges for attempt in page.attempts] == [()]


@virtual_time
async def test_new_input_that_cant_be_folded_changes_nothing() -> None:
    runs = again_and_bad()
    await runs.start({"text": "world"})
    with pytest.raises(GraphError):
        await runs.start({"nope": 1}, discard=True)
    assert (await runs.resume("t", " okay")).state == {"text": "world again okay"}


@virtual_time
@pytest.mark.parametrize("what", ["queue", "start", "edit"])
async def test_a_run_that_ends_while_a_request_looks_at_its_thread_is_not_gone_on_in(what: str) -> None:
    gate = asyncio.Event()

    async def wait(call: Call) -> Any:
        await gate.wait()
        return {"log": ["ran"]}

    runs = GraphRuns("START->a", {"a": wait}, channels=APP)
    under_way = await runs.runs.start(StartRequest(runs.graph.name, "", "t", {"log": ["1"]}), wait=False)
    load_run = runs.store.load_run

    async def as_it_ends(run_id: str) -> Any:
        # Between the request's look at the thread and that at its run.
        runs.store.load_run = load_run  # type: ignore[method-assign]
        gate.set()
        await runs.runs.wait_for(under_way.run.run_id)
        return await load_run(run_id)

    runs.store.load_run = as_it_ends  # type: ignore[method-assign]
    if what == "queue":
        second = await runs.start({"log": ["2"]}, queue=True)
        assert (second.run.status, second.state) == (RunStatus.COMPLETED, {"log": ["1", "ran", "2", "ran"]})
        return
    request = (
        runs.start({"log": ["2"]}) if what == "start" else runs.update(StateUpdate(update={"log": ["e"]}))
    )
    with pytest.raises(RunRefused) as refused:
        await request
    assert refused.value.reason == "THREAD_BUSY"
    assert (await runs.start({"log": ["3"]})).state == {"log": ["1", "ran", "3", "ran"]}
