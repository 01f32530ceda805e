"""Graphs inside others when they are stopped, given up, taken along, killed, or the database fails under them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.graph_definitions import APP, SUM
from tests.support.graph_runs import Call, GraphRuns, adds, embedding, inner
from tests.support.run_faults import Faults
from tests.support.scripted_tools import raise_error
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ExtraRowsRefused, OutcomeUnknown, StoreUnavailable, ToolFailure
from agenttx_server.engine.records import AttemptState, StepResolution, TransactionId
from agenttx_server.engine.requests import ResolveStepRequest
from agenttx_server.graphs.definition import ToolBinding
from agenttx_server.graphs.runs.ports import RunFilter
from agenttx_server.graphs.runs.records import RunRecord, RunStatus
from agenttx_server.graphs.runs.requests import ResumeRequest, RunRefused, StartRequest, StateUpdate
from agenttx_server.graphs.runs.run_reading import RunReading
from agenttx_server.graphs.runs.run_rewinder import RewindRunRequest

DONE, DRAINED, FAILED, INTERRUPTED = (
    RunStatus.COMPLETED,
    RunStatus.DRAINED,
    RunStatus.FAILED,
    RunStatus.INTERRUPTED,
)


async def children(runs: GraphRuns) -> list[RunRecord]:
    page = await runs.store.list_runs(RunFilter(include_children=True), "", 100)
    return sorted(
        (run for run in page.runs if run.parent_run_id), key=lambda run: (run.namespace, run.run_id)
    )


def two_steps(first: Any) -> GraphRuns:
    """A child of two supersteps behind a node."""
    child = inner("child", "START->first, first->second", {"first": first, "second": adds(10)}, channels=SUM)
    return GraphRuns(
        "START->pre, pre->child, child->post",
        {"pre": adds(1), "post": adds(100)},
        channels=SUM,
        nodes={"child": embedding("child")},
        embeds=[child],
    )


@virtual_time
async def test_f19_a_drain_inside_a_child_stops_at_its_boundary() -> None:
    async def first(call: Call) -> Any:
        await runs.runs.drain("run-000001")
        return {"value": 2}

    runs = two_steps(first)
    stopped = await runs.start({"value": 0})
    assert (stopped.run.status, stopped.state) == (DRAINED, {"value": 1})
    assert [run.status for run in await children(runs)] == [DRAINED]
    assert list(stopped.next_nodes) == ["child"]

    done = await runs.retry()

    assert (done.run.status, done.state) == (DONE, {"value": 113})
    assert runs.calls == ["pre", "child.first", "child.second", "post"]
    assert [run.status for run in await children(runs)] == [DONE]


@virtual_time
async def test_f19_a_server_that_stops_hands_a_run_over_inside_a_child() -> None:
    async def first(call: Call) -> Any:
        runs.runs.begin_drain()
        return {"value": 2}

    runs = two_steps(first)
    await runs.runs.start(StartRequest("g", "", "t", {"value": 0}), wait=False)
    assert await runs.runs.stop(600.0) == 0
    run = await runs.store.load_run("run-000001")
    assert run is not None
    assert run.status is RunStatus.RUNNING, "another server goes on"

    await runs.crash()
    await runs.recover()

    run = await runs.store.load_run("run-000001")
    assert run is not None
    assert run.status is DONE
    assert (await runs.runs.stored_outcome(run)).state == {"value": 113}
    assert runs.calls == ["pre", "child.first", "child.second", "post"]


@virtual_time
async def test_a_run_without_a_thread_is_not_stopped_inside_a_child() -> None:
    async def first(call: Call) -> Any:
        runs.runs.begin_drain()
        return {"value": 2}

    runs = two_steps(first)
    outcome = await runs.start({"value": 0}, thread="")
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 113})


@virtual_time
async def test_a_cancelled_run_stops_its_children_and_goes_on_where_they_were() -> None:
    reached = asyncio.Event()

    async def waits(call: Call) -> Any:
        reached.set()
        if len(runs.calls) < 4:
            await asyncio.sleep(1000)
        return {"value": 5}

    child = inner("child", "START->first, first->long", {"first": adds(1), "long": waits}, channels=SUM)
    runs = GraphRuns(
        "START->child, START->beside",
        {"beside": adds(100)},
        channels=SUM,
        nodes={"child": embedding("child")},
        embeds=[child],
    )
    started = asyncio.ensure_future(runs.start({"value": 0}))
    await reached.wait()
    assert await runs.runs.cancel("run-000001", "enough")
    outcome = await started

    assert (outcome.run.status, outcome.state) == (RunStatus.CANCELLED, {"value": 100})
    (child_run,) = await children(runs)
    seen = await RunReading(runs.store, runs.runs).run("anonymous", child_run.run_id)
    assert seen.run.status is RunStatus.CANCELLED

    done = await runs.retry()
    assert (done.run.status, done.state) == (DONE, {"value": 106})
    assert runs.calls.count("child.first") == 1
    assert [run.status for run in await children(runs)] == [DONE]


@virtual_time
async def test_a_child_whose_result_is_discarded_begins_anew_as_another_run() -> None:
    calls = []

    async def first(call: Call) -> Any:
        calls.append("first")
        return {"value": len(calls)}

    async def fails_once(call: Call) -> Any:
        if len(runs.calls) < 4:
            raise ValueError("not yet")
        return {"value": 1000}

    child = inner("child", "START->first", {"first": first}, channels=SUM)
    runs = GraphRuns(
        "START->child, START->beside",
        {"beside": fails_once},
        channels=SUM,
        nodes={"child": embedding("child")},
        embeds=[child],
    )
    failed = await runs.start({"value": 0})
    assert failed.run.status is FAILED
    task = next(task for task in await runs.store.load_tasks(failed.run.run_id, 1) if task.node == "child")
    assert task.child is not None

    done = await runs.retry(discard=[task.task_id])
    done = done if done.run.status is DONE else await runs.retry()

    assert (done.run.status, done.state) == (DONE, {"value": 1002})
    both = await children(runs)
    assert len(both) == 2
    assert {run.namespace for run in both} == {"child#1.0"}
    kept = await runs.store.list_embedded("t", "child#1.0", None, 10)
    assert [(item.number, item.state) for item in kept] == [
        (3, '{"value":2}'), (2, '{"value":0}'), (1, '{"value":1}'), (0, '{"value":0}'),
    ]  # fmt: skip
    (named,) = (await runs.checkpoints())[-1].children
    assert (named.checkpoint, named.run_id) == (3, kept[0].run_id)


@virtual_time
async def test_a_child_that_waits_is_taken_along_when_its_superstep_is_ended_early() -> None:
    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("how much?")}

    child = inner("child", "START->first, first->ask", {"first": adds(1), "ask": ask}, channels=SUM)
    runs = GraphRuns(
        "START->child, START->beside, beside->after",
        {"beside": adds(100), "after": adds(1000)},
        channels=SUM,
        nodes={"child": embedding("child")},
        embeds=[child],
    )
    asked = await runs.start({"value": 0})
    assert asked.run.status is INTERRUPTED

    await runs.update(StateUpdate("", {"value": 10_000}))
    (pending,) = await runs.pending()
    assert pending.interrupt_id == asked.interrupts[0].interrupt_id
    again = await runs.resume("t", 7)

    assert (again.run.status, again.state) == (DONE, {"value": 11_108})
    assert runs.calls.count("child.first") == runs.calls.count("beside") == 1
    assert {run.namespace for run in await children(runs)} == {"child#1.0"}


@virtual_time
async def test_a_rewind_takes_back_what_a_child_did_and_asked() -> None:
    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("how much?")}

    tool = ToolBinding("book", {"effect": "seat", "output": {"value": 10}})
    child = inner(
        "child", "START->book, book->ask", {"ask": ask}, nodes={"book": {"binding": tool}}, channels=SUM
    )
    runs = GraphRuns(
        "START->pre, pre->child",
        {"pre": adds(1)},
        channels=SUM,
        nodes={"child": embedding("child")},
        embeds=[child],
    )
    asked = await runs.start({"value": 0})
    assert runs.engine.tools.effects == ["seat"]
    first = (await runs.checkpoints())[1]

    await runs.runs.rewinds.rewind(RewindRunRequest("t", first.checkpoint_id))

    assert await runs.pending() == []
    assert runs.engine.tools.effects == []
    kept = await runs.store.list_embedded("t", "child#2.0", None, 10)
    assert [(item.superstep, item.rolled_back) for item in kept] == [(1, True), (0, True)]
    again = await runs.retry()
    (question,) = again.interrupts
    assert question.namespace == "child#3.0"
    assert question.interrupt_id != asked.interrupts[0].interrupt_id
    done = await runs.resume("t", 5)
    assert (done.run.status, done.state) == (DONE, {"value": 16})
    assert runs.engine.tools.effects == ["seat"]


@virtual_time
async def test_checkpoints_inside_are_history_when_the_run_is_rolled_back() -> None:
    deep = inner("deep", "START->a", {"a": adds(1)}, channels=SUM)
    child = inner("child", "START->in", {}, nodes={"in": embedding("deep")}, channels=SUM, embeds=[deep])
    runs = GraphRuns(
        "START->child, child->ask",
        {"ask": _ask},
        channels=SUM,
        nodes={"child": embedding("child")},
        embeds=[child],
    )
    waits = await runs.start({"value": 0})
    inside = await runs.store.list_embedded("t", "child#1.0/in#1.0", None, 10)
    assert [item.rolled_back for item in inside] == [False, False]

    await runs.runs.rewinds.roll_back(waits.run.run_id, "enough")

    for namespace in ("child#1.0", "child#1.0/in#1.0"):
        kept = await runs.store.list_embedded("t", namespace, None, 10)
        assert [item.rolled_back for item in kept] == [True, True], namespace


async def _ask(call: Call) -> Any:
    return {"value": call.interrupt("how much?")}


@virtual_time
async def test_a_run_inside_another_is_stopped_with_the_whole() -> None:
    child = inner("child", "START->ask", {"ask": _ask}, channels=SUM)
    runs = GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child])
    await runs.start({"value": 0})
    (run,) = await children(runs)
    with pytest.raises(RunRefused) as refused:
        await RunReading(runs.store, runs.runs).root_record("anonymous", run.run_id)
    assert refused.value.reason == "ILLEGAL_TRANSITION"


@virtual_time
async def test_a_call_inside_that_is_in_doubt_says_so_until_a_person_resolves_it() -> None:
    pay = {"binding": ToolBinding("pay", {"output": {"value": 5}})}
    child = inner(
        "child", "START->a, a->pay, pay->b", {"a": adds(1), "b": adds(1)}, nodes={"pay": pay}, channels=SUM
    )
    runs = GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child])
    runs.engine.tools.next("pay", raise_error(OutcomeUnknown()))

    outcome = await runs.start({"value": 0})

    for _ in range(2):
        assert outcome.run.error is not None
        assert (outcome.run.status, outcome.run.error.reason) == (FAILED, "STEP_IN_DOUBT")
        outcome = await runs.retry()
    transaction = TransactionId(outcome.run.transaction_id)
    (doubtful,) = [
        item
        for item in (await runs.engine.memory.load_journal(transaction, 1)).sub_steps
        if item.state is AttemptState.IN_DOUBT
    ]
    await runs.engine.coordinator.resolve_step(
        ResolveStepRequest(
            transaction, 1, StepResolution.SUCCEEDED, '{"value":7}', sub_step=doubtful.sub_step
        )
    )
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 9})
    assert len(runs.engine.tools.calls) == 1
    assert runs.calls == ["child.a", "child.b"]


@virtual_time
async def test_a_child_that_loses_a_conflict_runs_again_as_another_run() -> None:
    def puts(value: int) -> dict[str, Any]:
        return {"binding": ToolBinding("note", {"put": {"kv/k": value}, "output": {"value": value}})}

    child = inner("child", "START->put, put->end", {"end": adds(100)}, nodes={"put": puts(2)}, channels=SUM)
    runs = GraphRuns(
        "START->note, START->child",
        {},
        channels=SUM,
        nodes={"note": puts(1), "child": embedding("child")},
        embeds=[child],
    )
    outcome = await runs.start({"value": 0})
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 103})
    assert (await runs.engine.memory.read_committed("kv/k")).value == "2"
    both = await children(runs)
    assert [run.status for run in both] == [DONE, DONE]
    (named,) = (await runs.checkpoints())[-1].children
    newest = (await runs.store.list_embedded("t", "child#1.1", None, 1))[0]
    assert (named.run_id, named.checkpoint) == (newest.run_id, newest.number)


@virtual_time
async def test_one_result_inside_is_not_given_up_and_the_way_out_is_said() -> None:
    async def bad(call: Call) -> Any:
        raise ToolFailure("invalid_value", "no")

    child = inner("child", "START->a, a->bad", {"a": adds(1), "bad": bad}, channels=SUM)
    runs = GraphRuns("START->sub", {}, channels=SUM, nodes={"sub": embedding("child")}, embeds=[child])
    await runs.start({"value": 0})
    (one,) = await children(runs)
    (inside,) = await runs.store.load_tasks(one.run_id, one.superstep)
    with pytest.raises(RunRefused) as refused:
        await runs.retry(discard=[inside.task_id])
    assert (refused.value.reason, refused.value.metadata["node"]) == ("NOT_SUPPORTED_YET", "sub")
    assert "discard that node's result" in refused.value.message
    with pytest.raises(RunRefused) as refused:
        await runs.retry(discard=["t-none"])
    assert refused.value.reason == "INVALID_REQUEST"


# --- whatever fails below ---------------------------------------------------------------------------


def trip() -> GraphRuns:
    """A booking beside a question, in a child; a child in that."""

    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("how much?"), "log": ["asked"]}

    async def logged(call: Call) -> Any:
        return {"value": 1, "log": ["deep"]}

    channels = (*SUM, *APP)
    tool = ToolBinding("book", {"effect": "seat", "output": {"value": 10}})
    deep = inner("deep", "START->a", {"a": logged}, channels=channels)
    child = inner(
        "child", "START->book, START->ask, [book, ask]|>deep", {"ask": ask}, channels=channels,
        nodes={"book": {"binding": tool}, "deep": embedding("deep")}, embeds=[deep],
    )  # fmt: skip
    return GraphRuns(
        "START->child, child->post",
        {"post": adds(100)},
        channels=channels,
        nodes={"child": embedding("child")},
        embeds=[child],
    )


PASSES = {
    "store": lambda: StoreUnavailable("the database is away"),
    "refused": lambda: ExtraRowsRefused("it is there already"),
    "bug": lambda: RuntimeError("a bug"),
}


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("kind", [*PASSES])
def test_a_run_finds_its_way_whatever_await_inside_a_child_fails(kind: str, behind: bool) -> None:
    @virtual_time
    async def scenario(number: int) -> bool:
        runs = trip()
        faults = Faults(runs)
        faults.at(number, PASSES[kind], behind=behind)
        run = await _carried_to_its_end(runs)
        faults.over()
        outcome = await runs.runs.stored_outcome(run)
        assert outcome.state == {"value": 113, "log": ["asked", "deep"]}, faults.fired
        assert runs.engine.tools.effects == ["seat"], faults.fired
        for item in await children(runs):
            events = await runs.events(item.run_id)
            assert [event.offset for event in events] == list(range(len(events))), faults.fired
            kinds = [event.kind for event in events]
            assert item.status is DONE, faults.fired
            assert kinds.count("run.completed") == 1, faults.fired
            kept = await runs.store.list_embedded("t", item.namespace, None, 10)
            assert [checkpoint.superstep for checkpoint in kept[::-1]] == list(range(len(kept))), faults.fired
        assert len(await children(runs)) == 2
        return bool(faults.fired)

    number = 0
    while scenario(number + 1):
        number += 1
    assert 30 < number < 90


async def _carried_to_its_end(runs: GraphRuns) -> RunRecord:
    """Start, answer, retry, as a client does that tries again whatever it is told."""
    for _ in range(12):
        thread = await runs.store.load_thread("t")
        try:
            if thread is None:
                work = runs.runs.start(StartRequest("g", "", "t", {"value": 0, "log": []}, request_id="one"))
                await asyncio.wait_for(work, 1000)
                continue
            await runs.runs.recover(runs.engine.clock.now())
            assert await runs.runs.stop(10_000.0) == 0, "it goes on for ever"
            run = await runs.store.load_run(thread.run_id)
            assert run is not None
            if run.status is DONE:
                return run
            if run.status is INTERRUPTED:
                await asyncio.wait_for(runs.runs.resume(ResumeRequest("t", 2, True)), 1000)
            else:
                assert run.error is not None, run.status
                await asyncio.wait_for(runs.retry(), 1000)
        except Exception as error:
            if type(error) is AssertionError:
                raise
    raise AssertionError("no way on")


# --- error handlers inside ----------------------------------------------------------------------------


def handled(*, asks: bool) -> GraphRuns:
    """A child whose first node books and fails for good; a handler stands in for it, and perhaps asks."""

    async def fails(call: Call) -> Any:
        assert call.context is not None
        await call.context.step("book", '{"effect":"seat","output":{}}')
        raise ToolFailure("invalid_value", "never")

    async def handler(call: Call) -> Any:
        assert (call.arg["node"], call.arg["category"]) == ("fails", "invalid_value")
        answer = call.interrupt("instead?") if asks else 5
        return {"value": answer}

    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("how much?")}

    child = inner(
        "child", "START->fails, START->beside, fails->ask, handler", {"fails": fails, "handler": handler,
        "beside": adds(10), "ask": ask}, nodes={"fails": {"error_handler": "handler"}}, channels=SUM,
    )  # fmt: skip
    return GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child])


@virtual_time
@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("asks", [False, True])
async def test_a_handler_inside_a_child_stands_in_for_its_node_whatever_comes(
    asks: bool, crashes: bool
) -> None:
    runs = handled(asks=asks)
    outcome = await runs.start({"value": 0})
    for answer in [5, 100] if asks else [100]:
        assert outcome.run.status is INTERRUPTED
        assert runs.engine.tools.effects == [], "what the failed node did is undone"
        if crashes:
            await runs.crash()
        outcome = await runs.resume("t", answer)

    assert (outcome.run.status, outcome.state) == (DONE, {"value": 115})
    assert runs.calls.count("child.fails") == 1
    assert runs.calls.count("child.handler") == (2 if asks else 1)
    (run,) = await children(runs)
    events = await runs.events(run.run_id)
    assert [event.kind for event in events].count("node.failed") == 1
    assert [event.offset for event in events] == list(range(len(events)))
