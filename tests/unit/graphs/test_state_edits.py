"""UpdateState: the state is edited as if nodes had answered so, also while a superstep is open. On a real engine."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.graph_definitions import APP, OW, SUM, goto, send
from tests.support.graph_runs import Call, GraphRuns, adds, logs
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.graphs.definition import Channel, GraphPolicy
from agenttx_server.graphs.errors import GraphError
from agenttx_server.graphs.node_results import Target
from agenttx_server.graphs.runs.position import position_at
from agenttx_server.graphs.runs.records import RunStatus
from agenttx_server.graphs.runs.requests import RunRefused, StateUpdate

DONE, FAILED, INTERRUPTED = RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.INTERRUPTED
UNREACHABLE = GraphPolicy(allow_unreachable=True)


def answers(answer: Any) -> Any:
    async def answering(call: Call) -> Any:
        return answer

    return answering


def fails_once(then: Any) -> Any:
    left = [1]

    async def flaky(call: Call) -> Any:
        if left[0]:
            left[0] -= 1
            raise ToolFailure("invalid_value", "not yet")
        return then

    return flaky


def asks_then_adds(number: int) -> Any:
    async def ask(call: Call) -> Any:
        call.interrupt("?")
        return {"value": number}

    return ask


def chain() -> GraphRuns:
    return GraphRuns("START->a, a->b", {"a": adds(1), "b": adds(1)}, channels=SUM)


async def history(runs: GraphRuns, thread: str = "t") -> list[tuple[Any, list[str], int]]:
    """Values, next nodes and superstep of each checkpoint, the oldest first."""
    page = await runs.store.list_checkpoints(thread, frozenset(), "", 1000)
    found = []
    for checkpoint in reversed(page.checkpoints):
        position = await position_at(runs.store, checkpoint)
        nodes = [item.node for item in position.work.activations]
        found.append((dict(position.state), nodes, checkpoint.superstep))
    return found


@virtual_time
async def test_f4_an_edit_behind_a_failure_is_there_when_the_node_is_retried() -> None:
    runs = GraphRuns("START->flaky", {"flaky": fails_once({"value": 1})}, channels=SUM)
    assert (await runs.start({"value": 0})).run.status is FAILED
    edited = await runs.update(StateUpdate(update={"value": 40}))
    assert (edited.position.state, runs.next_of(edited)) == ({"value": 40}, ["flaky"])
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 41})
    assert await runs.sources() == ["INPUT", "UPDATE", "LOOP"]


@virtual_time
async def test_c6_an_edit_of_a_finished_thread_goes_through_the_reducers() -> None:
    async def double(call: Call) -> Any:
        return {"value": call.state["value"], "log": [f"+{call.state['value']}"]}

    runs = GraphRuns(
        "START->inc, inc->double",
        {"inc": answers({"value": 1, "log": ["+1"]}), "double": double},
        channels=(*SUM, *APP),
    )
    await runs.start({"value": 0})
    edited = await runs.update(StateUpdate(update={"value": 10, "log": ["+10"]}))
    assert edited.position.state == {"value": 12, "log": ["+1", "+1", "+10"]}
    assert (edited.checkpoint.source.value, runs.next_of(edited)) == ("UPDATE", [])
    assert (edited.run.status, edited.thread.transaction_id) == (DONE, "")
    assert edited.thread.committed_head == edited.thread.head
    assert await runs.kinds(edited.run.run_id) == ["run.started", "checkpoint.saved", "run.completed"]


@virtual_time
async def test_c8_an_edit_as_a_node_leads_where_that_node_leads() -> None:
    runs = chain()
    await runs.start({"value": 0})
    edited = await runs.update(StateUpdate("a", {"value": 5}))
    assert (edited.position.state, runs.next_of(edited)) == ({"value": 7}, ["b"])
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state, runs.calls) == (DONE, {"value": 8}, ["a", "b", "b"])
    assert outcome.run.run_id == edited.run.run_id


@virtual_time
async def test_c9_an_edit_as_a_node_that_routes_by_commands_says_where_it_goes() -> None:
    runs = GraphRuns("START->a, a=>[b]", {"a": answers(goto("b")), "b": adds(1)}, channels=SUM)
    await runs.start({"value": 0})
    with pytest.raises(RunRefused) as refused:
        await runs.update(StateUpdate("a", {"value": 1}))
    assert refused.value.reason == "MISSING_ROUTE"
    edited = await runs.update(StateUpdate("a", {"value": 1}, (Target("b"),)))
    assert runs.next_of(edited) == ["b"]


@virtual_time
async def test_c10_each_superstep_of_an_edit_is_a_checkpoint() -> None:
    runs = GraphRuns("START->a", {"a": answers(None)}, channels=OW)
    await runs.start({"value": 0})
    before = len(await runs.sources())
    edited = await runs.update(StateUpdate(update={"value": 10}), StateUpdate(update={"value": 100}))
    assert (edited.position.state, len(await runs.sources())) == ({"value": 100}, before + 2)
    for empty in ((), ((),)):
        with pytest.raises(RunRefused) as refused:
            await runs.update(*empty)
        assert refused.value.reason == "INVALID_REQUEST"


def addends() -> GraphRuns:
    return GraphRuns(
        "START->super, super=>[b,c], b->x, x->y",
        {
            "super": answers(goto("b", "c")),
            "b": adds(1),
            "c": asks_then_adds(2),
            "x": adds(20),
            "y": adds(40),
        },
        channels=SUM,
    )


@virtual_time
async def test_c13_an_edit_as_a_successor_stands_for_it_and_the_question_stays() -> None:
    runs = addends()
    outcome = await runs.start({"value": 0})
    assert (outcome.run.status, outcome.state) == (INTERRUPTED, {"value": 1})
    (asked,) = await runs.pending()
    edited = await runs.update(StateUpdate("x", {"value": 10}))
    assert (edited.position.state, sorted(runs.next_of(edited))) == ({"value": 11}, ["c", "y"])
    assert [item.interrupt_id for item in await runs.pending()] == [asked.interrupt_id]
    outcome = await runs.resume("t", "go on")
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 53})
    assert (runs.calls.count("c"), runs.calls.count("x"), runs.calls.count("b")) == (2, 0, 1)
    kinds = await runs.kinds(outcome.run.run_id)
    assert kinds.count("interrupt.emitted") == 1
    scheduled = [e.node for e in await runs.events(outcome.run.run_id) if e.kind == "task.scheduled"]
    assert scheduled.count("c") == 1


@virtual_time
async def test_c14_an_edit_as_the_node_that_asks_withdraws_its_question() -> None:
    runs = addends()
    await runs.start({"value": 0})
    edited = await runs.update(StateUpdate("c", {"value": 10}))
    assert (runs.next_of(edited), await runs.pending()) == (["x"], [])
    assert "interrupt.withdrawn" in await runs.kinds(edited.run.run_id)
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 71})


@virtual_time
async def test_c15_an_edit_counts_as_an_arrival_and_the_join_waits_for_the_other() -> None:
    runs = GraphRuns(
        "START->b, START->c, [b, c]|>merge",
        {"b": adds(1), "c": asks_then_adds(2), "merge": adds(100)},
        channels=SUM,
    )
    await runs.start({"value": 0})
    edited = await runs.update(StateUpdate("b", {"value": 10}))
    assert runs.next_of(edited) == ["c"]
    outcome = await runs.resume("t", None)
    assert (outcome.run.status, outcome.state, runs.calls.count("merge")) == (DONE, {"value": 113}, 1)


@virtual_time
async def test_c16_sends_that_are_pending_keep_their_arguments_and_ids() -> None:
    async def worker(call: Call) -> Any:
        return {"log": [f"{call.interrupt('?')}:{call.arg}"]}

    runs = GraphRuns(
        "START->w, side->tail", {"w": worker, "side": logs("side"), "tail": logs("tail")},
        channels=APP, policy=UNREACHABLE,
    )  # fmt: skip
    first = await runs.start(goto=[Target("w", n) for n in (1, 2, 3)])
    before = [task.task_id for task in await runs.store.load_tasks(first.run.run_id, 1)]
    asked = [item.interrupt_id for item in await runs.pending()]
    edited = await runs.update(StateUpdate("side", {"log": ["s"]}))
    next_work = edited.position.work.activations
    assert [(item.node, item.arg) for item in next_work][:3] == [("w", 1), ("w", 2), ("w", 3)]
    assert runs.next_of(edited) == ["w", "w", "w", "tail"]
    assert sorted(item.interrupt_id for item in await runs.pending()) == sorted(asked)
    outcome = await runs.resume("t", **dict.fromkeys(asked, "x"))
    assert outcome.state == {"log": ["s", "x:1", "x:2", "x:3", "tail"]}
    assert [task.task_id for task in await runs.store.load_tasks(first.run.run_id, 2)][:3] == before


@virtual_time
async def test_c23_an_edit_makes_a_thread_as_input_would() -> None:
    runs = chain()
    with pytest.raises(RunRefused) as refused:
        await runs.update(StateUpdate(update={"value": 5}))
    assert refused.value.reason == "THREAD_NOT_FOUND"
    edited = await runs.update(StateUpdate(update={"value": 5}), graph=runs.graph.name)
    assert (edited.checkpoint.superstep, runs.next_of(edited)) == (0, ["a"])
    assert edited.run.status is RunStatus.DRAINED
    assert (await runs.retry()).state == {"value": 7}


@virtual_time
async def test_c24_supersteps_given_together_are_as_given_one_by_one() -> None:
    runs = GraphRuns("START->a, START->b", {"a": adds(1), "b": adds(1)}, channels=SUM)
    name = runs.graph.name
    lists = [(StateUpdate("__start__"),), (StateUpdate("a", {"value": 3}), StateUpdate("b", {"value": 4}))]
    together = await runs.update(*lists, thread="one", graph=name)
    for item in lists:
        await runs.update(item, thread="two", graph=name)
    assert len(await runs.sources("one")) == 2
    assert await history(runs, "one") == await history(runs, "two")
    assert (together.position.state, together.run.status) == ({"value": 7}, DONE)


@virtual_time
async def test_c25_an_edit_can_give_again_what_two_turns_did() -> None:
    runs = chain()
    await runs.start({"value": 0})
    await runs.start({"value": 10})
    turn = [StateUpdate("a", {"value": 1}), StateUpdate("b", {"value": 1})]
    await runs.update(
        StateUpdate("__start__", {"value": 0}), *turn, StateUpdate("__start__", {"value": 10}), *turn,
        thread="again", graph=runs.graph.name,
    )  # fmt: skip
    assert await history(runs, "again") == await history(runs, "t")


@virtual_time
async def test_a_thread_that_a_result_blocks_is_freed_by_editing_that_result() -> None:
    runs = GraphRuns(
        "START->a, START->b, b->c", {"a": answers({"value": 1}), "b": answers({"value": 2}), "c": logs("c")},
        channels=(*OW, *APP),
    )  # fmt: skip
    outcome = await runs.start({"value": 0})
    assert outcome.run.status is FAILED
    of_b = (await runs.store.load_tasks(outcome.run.run_id, 1))[1].task_id
    with pytest.raises(GraphError) as refused:
        await runs.update(StateUpdate("a", {"log": ["x"]}))
    assert refused.value.reason == "CONCURRENT_UPDATE"
    edited = await runs.update(StateUpdate("b", {"log": ["b"]}, task_id=of_b))
    assert (edited.position.state, runs.next_of(edited)) == ({"value": 1, "log": ["b"]}, ["c"])
    assert (await runs.retry()).state == {"value": 1, "log": ["b", "c"]}


@virtual_time
async def test_a_join_that_starves_is_met_by_an_edit_as_the_missing_member() -> None:
    runs = GraphRuns(
        "START->condition, START->c, condition?->{go: a, skip: END}, [a, c]|>m",
        {"condition": answers({"route": "skip"}), "c": logs("c"), "a": logs("a"), "m": logs("m")},
        channels=(*APP, Channel("route")),
    )
    outcome = await runs.start()
    assert outcome.run.error is not None
    assert outcome.run.error.reason == "STARVED_JOIN"
    # Going on alone doesn't pass it over.
    outcome = await runs.retry()
    assert outcome.run.error is not None
    assert (outcome.run.status, outcome.run.error.reason) == (FAILED, "STARVED_JOIN")
    edited = await runs.update(StateUpdate("a", {"log": ["stood in"]}))
    assert runs.next_of(edited) == ["m"]
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state["log"]) == (DONE, ["c", "stood in", "m"])


@virtual_time
async def test_an_edit_as_the_end_gives_up_all_that_is_pending() -> None:
    runs = addends()
    await runs.start({"value": 0})
    edited = await runs.update(StateUpdate("__end__", {"value": 5}))
    assert (edited.position.state, runs.next_of(edited), await runs.pending()) == ({"value": 6}, [], [])
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 6})


@virtual_time
async def test_calls_of_a_node_that_waits_are_not_made_again_after_an_edit() -> None:
    async def ask(call: Call) -> Any:
        assert call.context is not None
        await call.context.step("book", '{"effect":"room"}')
        return {"log": [call.interrupt("?")]}

    runs = GraphRuns("START->ask, START->b", {"ask": ask, "b": logs("b")}, channels=APP)
    await runs.start()
    await runs.update(StateUpdate(update={"log": ["edit"]}))
    outcome = await runs.resume("t", "yes")
    assert (outcome.run.status, outcome.state) == (DONE, {"log": ["b", "edit", "yes"]})
    assert runs.engine.tools.effects == ["room"]


@virtual_time
async def test_after_an_edit_and_a_crash_the_unfinished_tasks_go_on_as_they_are() -> None:
    runs = addends()
    await runs.start({"value": 0})
    await runs.update(StateUpdate("x", {"value": 10}))
    await runs.crash()
    outcome = await runs.resume("t", 1)
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 53})


@pytest.mark.parametrize(
    ("updates", "reason"),
    [
        ([StateUpdate("nowhere")], "INVALID_REQUEST"),
        ([StateUpdate("a"), StateUpdate("a")], "INVALID_REQUEST"),
        ([StateUpdate("a"), StateUpdate("")], "INVALID_REQUEST"),
        ([StateUpdate("a", task_id="t-none")], "INVALID_REQUEST"),
        ([StateUpdate("", {"nope": 1})], "UNKNOWN_CHANNEL"),
        ([StateUpdate("", goto=(Target("nowhere"),))], "UNKNOWN_TARGET"),
        ([StateUpdate("a", goto=(Target("b"),))], "UNDECLARED_COMMAND"),
    ],
    ids=["node", "twice", "nobody", "task", "channel", "target", "goto"],
)
def test_an_edit_that_cant_be_made_changes_nothing(updates: list[StateUpdate], reason: str) -> None:
    @virtual_time
    async def scenario() -> None:
        runs = chain()
        await runs.start({"value": 0})
        with pytest.raises(GraphError) as refused:
            await runs.update(updates)
        assert refused.value.reason == reason
        assert len(await runs.sources()) == 3

    scenario()


@virtual_time
async def test_an_edit_sent_again_is_made_once() -> None:
    runs = chain()
    await runs.start({"value": 0})
    for _ in range(2):
        edited = await runs.update(StateUpdate(update={"value": 10}), request_id="q", fingerprint="f")
        assert edited.position.state == {"value": 12}
    with pytest.raises(RunRefused) as refused:
        await runs.update(StateUpdate(update={"value": 1}), request_id="q", fingerprint="other")
    assert refused.value.reason == "REQUEST_ID_REUSED"


@virtual_time
async def test_an_edit_of_sends_names_the_task() -> None:
    async def worker(call: Call) -> Any:
        return {"log": [call.interrupt("?")]}

    runs = GraphRuns(
        "START->d, d=>[w]", {"d": answers(goto(send("w", 1), send("w", 2))), "w": worker}, channels=APP
    )
    outcome = await runs.start()
    tasks = await runs.store.load_tasks(outcome.run.run_id, 2)
    edited = await runs.update(StateUpdate("w", {"log": ["two"]}, task_id=tasks[1].task_id))
    assert [item.arg for item in edited.position.work.activations] == [1]
    assert (await runs.resume("t", "one")).state == {"log": ["two", "one"]}
