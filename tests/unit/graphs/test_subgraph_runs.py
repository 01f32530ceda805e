"""Graphs inside nodes of others: state in and out, commands for the parent, questions, failures. On a real engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.graph_definitions import APP, SUM, send
from tests.support.graph_runs import Call, GraphRuns, adds, embedding, goto, inner, logs
from tests.support.scripted_tools import raise_error
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.json_values import canonical, load
from agenttx_server.engine.ports import ToolFailure
from agenttx_server.graphs.definition import (
    CachePolicy,
    Channel,
    FailurePolicy,
    GraphPolicy,
    NodeRetryPolicy,
    ToolBinding,
)
from agenttx_server.graphs.node_results import COMMAND
from agenttx_server.graphs.runs.ports import RunFilter
from agenttx_server.graphs.runs.records import CheckpointSource, RunRecord, RunStatus
from agenttx_server.graphs.runs.requests import RunRefused, StateUpdate
from agenttx_server.graphs.runs.run_reading import RunReading
from agenttx_server.graphs.runs.thread_reading import ThreadReading

DONE, FAILED, INTERRUPTED = RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.INTERRUPTED
INPUT, LOOP = CheckpointSource.INPUT, CheckpointSource.LOOP


def fails(times: int, then: Any) -> Any:
    """A node that fails some times first."""
    left = [times]

    async def flaky(call: Call) -> Any:
        if left[0]:
            left[0] -= 1
            raise ToolFailure("invalid_value", "not yet")
        return then

    return flaky


def asks(payload: Any, then: Any = None) -> Any:
    """A node that asks, and answers what ``then`` makes of the answer."""

    async def asking(call: Call) -> Any:
        answer = call.interrupt(payload)
        return {"value": answer} if then is None else then(call, answer)

    return asking


# --- state in and out ---------------------------------------------------------------------------------


@virtual_time
async def test_g1_a_shared_child_works_on_the_parents_channels() -> None:
    child = inner("child", "START->add", {"add": adds(10)}, channels=SUM)
    runs = GraphRuns(
        "START->pre, pre->child",
        {"pre": adds(1)},
        channels=SUM,
        nodes={"child": embedding("child")},
        embeds=[child],
    )

    outcome = await runs.start({"value": 0})

    assert (outcome.run.status, outcome.state) == (DONE, {"value": 11})
    assert runs.calls == ["pre", "child.add"]
    assert outcome.run.total_supersteps == 2


@virtual_time
async def test_g2_an_adapter_maps_what_goes_in_and_what_comes_out() -> None:
    async def scored(call: Call) -> Any:
        assert call.state == {"points": 5}
        return {"points": 10}

    child = inner("child", "START->score", {"score": scored}, channels=(Channel("points", reducer="add"),))
    runs = GraphRuns(
        "START->child",
        {},
        channels=(Channel("name"), Channel("score")),
        nodes={"child": embedding("child", input={"points": "score"}, output={"score": "points"})},
        embeds=[child],
    )

    outcome = await runs.start({"name": "alice", "score": 5})

    assert outcome.state == {"name": "alice", "score": 15}


@virtual_time
async def test_g15_what_a_child_appends_is_not_doubled() -> None:
    async def p(call: Call) -> Any:
        return {"log": ["p"]}

    async def c1(call: Call) -> Any:
        assert call.state["log"] == ["in", "p"]
        return {"log": ["c1"]}

    child = inner("child", "START->c1", {"c1": c1}, channels=APP)
    runs = GraphRuns(
        "START->p, p->child", {"p": p}, channels=APP, nodes={"child": embedding("child")}, embeds=[child]
    )

    assert (await runs.start({"log": ["in"]})).state == {"log": ["in", "p", "c1"]}


@virtual_time
async def test_a_child_has_supersteps_routers_and_joins_of_its_own() -> None:
    async def route(call: Call) -> Any:
        return {"log": ["a"], "route": "x"}

    channels = (*APP, Channel("route"))
    child = inner(
        "child",
        "START->a, a?->{x: b, y: END}, b->c, b->d, [c, d]|>e",
        {"a": route, "b": logs("b"), "c": logs("c"), "d": logs("d"), "e": logs("e")},
        channels=channels,
    )
    runs = GraphRuns(
        "START->child", {}, channels=channels, nodes={"child": embedding("child")}, embeds=[child]
    )

    outcome = await runs.start({"log": []})

    assert outcome.state["log"] == ["a", "b", "c", "d", "e"]
    assert outcome.run.total_supersteps == 1


@virtual_time
async def test_a_send_tells_the_child_its_argument() -> None:
    async def told(call: Call) -> Any:
        return {"log": [call.arg]}

    async def fan(call: Call) -> Any:
        return goto(send("child", 3), send("child", 1))

    child = inner("child", "START->first, first->second", {"first": told, "second": logs("s")}, channels=APP)
    runs = GraphRuns(
        "START->fan, fan=>[child]",
        {"fan": fan},
        channels=APP,
        nodes={"child": embedding("child")},
        embeds=[child],
    )

    assert (await runs.start({"log": []})).state["log"] == [3, "s", 1, "s"]


def nested(depth: int, *, limit: int | None = None) -> Any:
    """Graphs in one another, the innermost of which adds ten; and the outermost's name."""
    made = inner("level0", "START->add", {"add": adds(10)}, channels=SUM)
    for level in range(1, depth):
        name = f"level{level - 1}"
        made = inner(
            f"level{level}", "START->in", {}, channels=SUM, nodes={"in": embedding(name)}, embeds=[made]
        )
    return made


@virtual_time
async def test_graphs_are_embedded_twenty_five_deep_and_no_deeper() -> None:
    deepest = nested(24)
    name = deepest.graph.name
    runs = GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding(name)}, embeds=[deepest])

    assert (await runs.start({"value": 1})).state == {"value": 11}
    with pytest.raises(AssertionError, match="LIMIT_OUT_OF_RANGE"):
        GraphRuns(
            "START->child", {}, channels=SUM, nodes={"child": embedding("level24")}, embeds=[nested(25)]
        )


# --- commands for the parent --------------------------------------------------------------------------


@virtual_time
async def test_r11_a_command_for_the_parent_ends_the_child_and_goes_where_it_says() -> None:
    async def commands(call: Call) -> Any:
        return {"log": ["b_child_state"]}, {COMMAND: {"goto": "node_b_parent", "graph": "PARENT"}}

    async def listed(call: Call) -> Any:
        return list(await commands(call))

    child = inner(
        "child", "START->c, START->d, d->e", {"c": listed, "d": logs("d"), "e": logs("e")}, channels=APP
    )
    runs = GraphRuns(
        "START->child, child->other, node_b_parent",
        {"other": logs("other"), "node_b_parent": logs("node_b_parent")},
        channels=APP,
        nodes={"child": embedding("child")},
        policy=GraphPolicy(allow_unreachable=True),
        embeds=[child],
    )

    outcome = await runs.start({"log": ["init_state"]})

    assert outcome.state["log"] == ["init_state", "b_child_state", "d", "node_b_parent"]
    assert "other" not in runs.calls
    assert "child.e" not in runs.calls


@virtual_time
async def test_a_command_for_the_parent_may_update_it_and_go_nowhere() -> None:
    async def commands(call: Call) -> Any:
        return {COMMAND: {"update": {"log": ["up"]}, "graph": "PARENT"}}

    child = inner("child", "START->c", {"c": commands}, channels=APP)
    runs = GraphRuns(
        "START->child, child->other",
        {"other": logs("other")},
        channels=APP,
        nodes={"child": embedding("child")},
        embeds=[child],
    )

    assert (await runs.start({"log": []})).state["log"] == ["up"]


# --- questions ----------------------------------------------------------------------------------------


def gated(**nodes: Any) -> GraphRuns:
    child = inner(
        "child", "START->before, before->gate, gate->after",
        {"before": adds(1), "gate": asks("go on?"), "after": adds(2)}, channels=SUM,
    )  # fmt: skip
    return GraphRuns(
        "START->child, START->beside",
        {"beside": adds(100)},
        channels=SUM,
        nodes={"child": embedding("child")},
        embeds=[child],
    )


@virtual_time
async def test_g6_a_child_that_asks_interrupts_its_parent() -> None:
    runs = gated()

    outcome = await runs.start({"value": 0})

    assert outcome.run.status is INTERRUPTED
    (question,) = outcome.interrupts
    assert (question.node, question.namespace, question.payload) == ("gate", "child#1.0", '"go on?"')
    assert question.run_id == outcome.run.run_id
    # What finished beside it is seen; of the child nothing is, until it is through.
    assert outcome.state == {"value": 100}
    assert list(outcome.next_nodes) == ["child"]
    assert (await runs.kinds(outcome.run.run_id)).count("interrupt.emitted") == 1


@virtual_time
async def test_g7_answered_it_goes_on_where_it_was() -> None:
    runs = gated()
    await runs.start({"value": 0})

    outcome = await runs.resume("t", 7)

    assert (outcome.run.status, outcome.state) == (DONE, {"value": 110})
    assert runs.calls.count("child.before") == runs.calls.count("beside") == 1
    assert runs.calls.count("child.gate") == 2


@virtual_time
async def test_g7_also_on_the_next_server() -> None:
    runs = gated()
    await runs.start({"value": 0})
    await runs.crash()

    outcome = await runs.resume("t", 7)

    assert (outcome.run.status, outcome.state) == (DONE, {"value": 110})
    assert runs.calls.count("child.before") == 1


def by_sends(count: int) -> GraphRuns:
    async def fan(call: Call) -> Any:
        return goto(*(send("child", number) for number in range(count)))

    def ask(call: Call) -> Any:
        return {"log": [call.interrupt(f"which {call.arg}?")]}

    async def asking(call: Call) -> Any:
        return ask(call)

    child = inner(
        "child", "START->before, before=>[ask]", {"before": _passes_on, "ask": asking}, channels=APP
    )
    return GraphRuns(
        "START->fan, fan=>[child]",
        {"fan": fan},
        channels=APP,
        nodes={"child": embedding("child")},
        embeds=[child],
    )


async def _passes_on(call: Call) -> Any:
    return goto(send("ask", call.arg))


@virtual_time
async def test_i14_five_children_by_sends_are_answered_at_once() -> None:
    runs = by_sends(5)
    asked = await runs.start({"log": []})
    assert len(asked.interrupts) == 5
    assert sorted(item.namespace for item in asked.interrupts) == [f"child#2.{n}" for n in range(5)]

    answers = {item.interrupt_id: item.payload.strip('"') for item in reversed(asked.interrupts)}
    outcome = await runs.resume("t", **answers)

    assert outcome.run.status is DONE
    assert outcome.state["log"] == [f"which {number}?" for number in range(5)]
    assert runs.calls.count("child.before") == 5


@virtual_time
async def test_i15_two_children_are_answered_one_by_one() -> None:
    runs = by_sends(2)
    first = await runs.start({"log": []})
    answers = {item.namespace: item.interrupt_id for item in first.interrupts}

    second = await runs.resume("t", **{answers["child#2.1"]: "later"})
    assert second.run.status is INTERRUPTED
    assert [item.namespace for item in second.interrupts] == ["child#2.0"]
    # The other one is not disturbed.
    assert runs.calls.count("child.ask") == 3

    third = await runs.resume("t", "sooner")
    assert (third.run.status, third.run.invocation) == (DONE, 3)
    assert third.state["log"] == ["sooner", "later"]
    assert runs.calls.count("child.before") == 2


@virtual_time
async def test_two_nodes_of_a_child_ask_and_a_third_has_finished() -> None:
    child = inner(
        "child",
        "START->x, START->y, START->z",
        {"x": asks("x"), "y": asks("y"), "z": adds(1000)},
        channels=SUM,
    )
    runs = GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child])
    first = await runs.start({"value": 0})
    ids = {item.node: item.interrupt_id for item in first.interrupts}

    second = await runs.resume("t", **{ids["y"]: 20})
    assert [item.node for item in second.interrupts] == ["x"]
    assert [item.interrupt_id for item in second.interrupts] == [ids["x"]]
    assert runs.calls.count("child.y") == 2, "it goes on at once, whoever else waits"
    third = await runs.resume("t", 1)

    assert (third.run.status, third.state) == (DONE, {"value": 1021})
    assert runs.calls.count("child.z") == 1
    assert runs.calls.count("child.x") == runs.calls.count("child.y") == 2


@virtual_time
async def test_a_question_two_graphs_deep_has_the_whole_namespace() -> None:
    innermost = inner("innermost", "START->gate", {"gate": asks("deep?")}, channels=SUM)
    child = inner(
        "child", "START->in", {}, channels=SUM, nodes={"in": embedding("innermost")}, embeds=[innermost]
    )
    runs = GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child])

    asked = await runs.start({"value": 1})
    assert [item.namespace for item in asked.interrupts] == ["child#1.0/in#1.0"]

    assert (await runs.resume("t", 5)).state == {"value": 6}


@virtual_time
async def test_r12_the_root_has_no_parent_to_command() -> None:
    async def commands(call: Call) -> Any:
        return {COMMAND: {"goto": "a", "graph": "PARENT"}}

    runs = GraphRuns("START->a", {"a": commands}, channels=SUM)
    outcome = await runs.start({"value": 0})
    assert outcome.run.error is not None
    assert outcome.run.error.reason == "NO_PARENT_GRAPH"


# --- failures -----------------------------------------------------------------------------------------


@virtual_time
async def test_a_failure_inside_says_where_and_is_retried_without_what_finished() -> None:
    child = inner(
        "child",
        "START->ok, ok->bad, ok->beside",
        {"ok": adds(1), "bad": fails(1, {"value": 10}), "beside": adds(100)},
        channels=SUM,
    )
    runs = GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child])

    failed = await runs.start({"value": 0})

    error = failed.run.error
    assert failed.run.status is FAILED
    assert error is not None
    assert (error.reason, error.node, error.namespace, error.category) == (
        "NODE_FAILED",
        "bad",
        "child#1.0",
        "invalid_value",
    )
    assert error.hint == "Hint: not yet. Correct the value and retry."
    assert "graph 'child'" in error.message

    done = await runs.retry()
    assert (done.run.status, done.state) == (DONE, {"value": 111})
    assert runs.calls == ["child.ok", "child.bad", "child.beside", "child.bad"]


@virtual_time
async def test_a_childs_nodes_have_their_retry_policies() -> None:
    child = inner(
        "child", "START->bad, bad->end", {"bad": fails(2, {"value": 1}), "end": asks("?")}, channels=SUM,
        nodes={"bad": {"retry": NodeRetryPolicy(3, initial_interval_us=1000)}},
    )  # fmt: skip
    runs = GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child])

    outcome = await runs.start({"value": 0})

    assert outcome.run.status is INTERRUPTED
    outcome = await runs.resume("t", 5)
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 6})
    assert runs.calls.count("child.bad") == 3, "it has finished, though at its third attempt"


@virtual_time
async def test_the_embedding_nodes_error_handler_stands_in_for_the_child() -> None:
    async def handler(call: Call) -> Any:
        assert (call.arg["node"], call.arg["hint"]) == (
            "child",
            "Hint: not yet. Correct the value and retry.",
        )
        return {"value": 3}

    child = inner("child", "START->bad", {"bad": fails(9, None)}, channels=SUM)
    runs = GraphRuns(
        "START->child, handler", {"handler": handler}, channels=SUM,
        nodes={"child": embedding("child") | {"error_handler": "handler"}}, embeds=[child],
    )  # fmt: skip

    outcome = await runs.start({"value": 0})

    assert (outcome.run.status, outcome.state) == (DONE, {"value": 3})


@virtual_time
async def test_a_fold_error_inside_starts_no_rollback_and_stops_the_run() -> None:
    channels = (Channel("hello"),)
    child = inner(
        "child", "START->a, START->b", {"a": _writes("hello", 1), "b": _writes("hello", 2)}, channels=channels
    )
    runs = GraphRuns(
        "START->child", {}, channels=channels, nodes={"child": embedding("child")}, embeds=[child],
        policy=GraphPolicy(on_failure=FailurePolicy.ROLLBACK),
    )  # fmt: skip

    outcome = await runs.start({"hello": 0})

    assert outcome.run.error is not None
    assert (outcome.run.error.reason, outcome.run.error.namespace) == ("CONCURRENT_UPDATE", "child#1.0")
    assert "rollback.decided" not in await runs.kinds(outcome.run.run_id)

    # It isn't stuck: somebody says what the node gives.
    await runs.update(StateUpdate("child", {"hello": 9}))
    (last,) = (await runs.checkpoints())[-1:]
    assert await runs.state_at(last) == {"hello": 9}
    done = await runs.retry()
    assert (done.run.status, done.state) == (DONE, {"hello": 9})


def _writes(channel: str, value: Any) -> Any:
    async def writing(call: Call) -> Any:
        return {channel: value}

    return writing


@virtual_time
async def test_a_failure_inside_is_traced_to_a_superstep_of_the_root() -> None:
    async def choose(call: Call) -> Any:
        return {"customer": "anna" if call.constraints else "nobody"}

    async def use(call: Call) -> Any:
        if call.state["customer"] == "nobody":
            raise ToolFailure("foreign_key_violation", "customer 'nobody' is not there", ("customer",))
        return {"value": 1}

    channels = (*SUM, Channel("customer"))
    child = inner(
        "child", "START->use", {"use": use}, channels=channels, nodes={"use": {"reads": ("customer",)}}
    )
    runs = GraphRuns(
        "START->pre, pre->choose, choose->child", {"pre": adds(1), "choose": choose}, channels=channels,
        nodes={"child": embedding("child")}, embeds=[child], policy=GraphPolicy(on_failure=FailurePolicy.ROLLBACK),
    )  # fmt: skip

    outcome = await runs.start({"value": 0})

    assert (outcome.run.status, outcome.state) == (DONE, {"value": 2, "customer": "anna"})
    assert runs.calls == ["pre", "choose", "child.use", "choose", "child.use"]


@virtual_time
async def test_a_tool_inside_that_fails_is_traced_by_what_it_was_given() -> None:
    async def choose(call: Call) -> Any:
        return {"customer": "customer-17" if call.constraints else "customer-16"}

    channels = (*SUM, Channel("customer"))
    use = {"binding": ToolBinding("note", {"customer": "${state.customer}", "output": {"value": 1}})}
    child = inner("child", "START->a, a->use", {"a": adds(1)}, nodes={"use": use}, channels=channels)
    runs = GraphRuns(
        "START->choose, choose->between, between->child", {"choose": choose, "between": adds(1)}, channels=channels,
        nodes={"child": embedding("child")}, embeds=[child], policy=GraphPolicy(on_failure=FailurePolicy.ROLLBACK),
    )  # fmt: skip
    missing = ToolFailure("foreign_key_violation", "customer 'customer-16' is not there", ("customer",))
    runs.engine.tools.next("note", raise_error(missing))

    outcome = await runs.start({"value": 0})

    assert (outcome.run.status, outcome.state) == (DONE, {"value": 3, "customer": "customer-17"})
    decided = [e for e in await runs.events(outcome.run.run_id) if e.kind == "rollback.decided"]
    assert [load(event.payload)["to_superstep"] for event in decided] == [1]  # type: ignore[index,call-overload]


# --- limits -------------------------------------------------------------------------------------------


@virtual_time
async def test_a_child_has_a_recursion_limit_of_its_own() -> None:
    child = inner(
        "child",
        "START->loop, loop->loop",
        {"loop": logs("l")},
        channels=APP,
        policy=GraphPolicy(recursion_limit=3),
    )
    runs = GraphRuns("START->child", {}, channels=APP, nodes={"child": embedding("child")}, embeds=[child])

    outcome = await runs.start({"log": []})

    assert outcome.run.error is not None
    assert (outcome.run.error.reason, outcome.run.error.namespace) == ("RECURSION_LIMIT", "child#1.0")
    assert runs.calls == ["child.loop"] * 3


@virtual_time
async def test_a_child_has_its_parents_deadline() -> None:
    async def slow(call: Call) -> Any:
        await asyncio.sleep(0.04)
        return {"value": 1}

    child = inner("child", "START->a, a->b", {"a": slow, "b": slow}, channels=SUM)
    runs = GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child])

    outcome = await runs.start({"value": 0}, deadline_us=20_000)
    assert outcome.run.error is not None
    assert outcome.run.error.reason == "RUN_DEADLINE"
    assert runs.calls == ["child.a"]

    done = await runs.retry()
    assert (done.run.status, done.state) == (DONE, {"value": 2})
    assert runs.calls == ["child.a", "child.b"]


@virtual_time
async def test_a_child_may_take_longer_than_a_step() -> None:
    async def slow(call: Call) -> Any:
        await asyncio.sleep(20)
        return {"value": 1}

    child = inner("child", "START->a, a->b, b->c", {"a": slow, "b": slow, "c": slow}, channels=SUM)
    runs = GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child])

    assert (await runs.start({"value": 0})).state == {"value": 3}


@virtual_time
@pytest.mark.parametrize("crashes", [False, True])
async def test_an_embedded_graph_stops_before_and_after_its_nodes(crashes: bool) -> None:
    child = inner(
        "child",
        "START->a, a->b, b->c",
        {"a": adds(1), "b": adds(10), "c": adds(100)},
        channels=SUM,
        policy=GraphPolicy(interrupt_before=("a",), interrupt_after=("b", "c")),
    )
    runs = GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child])

    outcome = await runs.start({"value": 0})
    called: list[list[str]] = []
    for _ in range(5):
        if outcome.run.status is not INTERRUPTED:
            break
        called.append(list(runs.calls))
        assert outcome.interrupts == ()
        (record,) = await _children(runs)
        assert record.status is INTERRUPTED
        if crashes:
            await runs.crash()
        outcome = await runs.retry()

    assert (outcome.run.status, outcome.state) == (DONE, {"value": 111})
    assert called == [[], ["child.a", "child.b"]]
    assert runs.calls == ["child.a", "child.b", "child.c"]
    with pytest.raises(RunRefused) as refused:
        await runs.start({"value": 0}, thread="")
    assert refused.value.reason == "INTERRUPT_WITHOUT_CHECKPOINTS"


@virtual_time
async def test_what_embedded_graphs_cannot_do_yet_is_refused_by_name() -> None:
    cached = {"a": {"cache": CachePolicy(("value",))}}
    child = inner("child", "START->a", {"a": adds(1)}, channels=SUM, nodes=cached)
    runs = GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child])

    with pytest.raises(RunRefused) as refused:
        await runs.start({"value": 0})
    assert refused.value.reason == "NOT_SUPPORTED_YET"


# --- what is kept -------------------------------------------------------------------------------------


async def _children(runs: GraphRuns) -> list[RunRecord]:
    page = await runs.store.list_runs(RunFilter(include_children=True), "", 100)
    return sorted((run for run in page.runs if run.parent_run_id), key=lambda run: run.namespace)


@virtual_time
async def test_g4_one_child_under_two_nodes_has_two_records() -> None:
    child = inner("child", "START->add", {"add": adds(10)}, channels=SUM)
    runs = GraphRuns(
        "START->branch_a, START->branch_b",
        {},
        channels=SUM,
        nodes={"branch_a": embedding("child"), "branch_b": embedding("child")},
        embeds=[child],
    )

    outcome = await runs.start({"value": 0})

    assert outcome.state == {"value": 20}
    records = await _children(runs)
    assert sorted(run.namespace for run in records) == ["branch_a#1.0", "branch_b#1.1"]
    assert len({run.run_id for run in records}) == 2
    assert {(run.status, run.thread_id, run.graph) for run in records} == {(DONE, "t", "child")}
    assert (
        {run.root_run_id for run in records} == {run.parent_run_id for run in records} == {outcome.run.run_id}
    )
    assert [run.run_id for run in (await runs.store.list_runs(RunFilter(), "", 10)).runs] == [
        outcome.run.run_id
    ]


@virtual_time
async def test_g5_a_child_has_checkpoints_under_its_parents_thread() -> None:
    child = inner("child", "START->add", {"add": adds(10)}, channels=SUM)
    runs = GraphRuns("START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child])
    outcome = await runs.start({"value": 0})

    newest, first = await runs.store.list_embedded("t", "child#1.0", None, 10)

    assert (newest.state, newest.work, newest.source, newest.superstep) == ('{"value":10}', "{}", LOOP, 1)
    assert (first.state, first.source, first.superstep, first.parent) == ('{"value":0}', INPUT, 0, None)
    assert newest.parent_id == first.checkpoint_id
    # The root's are numbered without them.
    assert [item.number for item in await runs.checkpoints()] == [0, 1]
    thread = await runs.store.load_thread("t")
    assert thread is not None
    reading = ThreadReading(runs.store, runs, RunReading(runs.store, runs.runs))
    view = await reading.embedded_state("anonymous", "t", "child#1.0", "", include_pending=True)
    assert (view.state, list(view.next), view.is_head) == ({"value": 10}, [], True)
    at_first = await reading.embedded_state(
        "anonymous", "t", "child#1.0", first.checkpoint_id, include_pending=True
    )
    assert (at_first.state, [task.node for task in at_first.next]) == ({"value": 0}, ["add"])
    listed = await reading.embedded_checkpoints(
        "anonymous", "t", "child#1.0", frozenset(), "", 1, with_state=True
    )
    assert [item.record.number for item in listed.checkpoints] == [1]
    rest = await reading.embedded_checkpoints(
        "anonymous", "t", "child#1.0", frozenset(), listed.next_cursor, 10, with_state=False
    )
    assert [item.record.number for item in rest.checkpoints] == [0]
    with pytest.raises(RunRefused) as refused:
        await reading.embedded_state("anonymous", "t", "child#9.9", "", include_pending=True)
    assert refused.value.reason == "CHECKPOINT_NOT_FOUND"
    with pytest.raises(RunRefused) as refused:
        await reading.embedded_state("somebody", "t", "child#1.0", "", include_pending=True)
    assert refused.value.reason == "THREAD_NOT_FOUND"
    assert outcome.run.status is DONE


@virtual_time
async def test_g9_children_in_sequence_are_two_runs_of_one_root() -> None:
    child = inner("child", "START->add", {"add": adds(10)}, channels=SUM)
    runs = GraphRuns(
        "START->a, a->b",
        {},
        channels=SUM,
        nodes={"a": embedding("child"), "b": embedding("child")},
        embeds=[child],
    )

    outcome = await runs.start({"value": 0})

    assert outcome.state == {"value": 20}
    records = await _children(runs)
    assert [run.namespace for run in records] == ["a#1.0", "b#2.0"]
    assert {run.root_run_id for run in records} == {outcome.run.run_id}
    assert len({run.run_id for run in records}) == 2


@virtual_time
async def test_g10_a_checkpoint_names_its_children_with_their_nodes() -> None:
    child = inner("child", "START->add", {"add": adds(10)}, channels=SUM)
    runs = GraphRuns(
        "START->a, a->b",
        {},
        channels=SUM,
        nodes={"a": embedding("child"), "b": embedding("child")},
        embeds=[child],
    )
    await runs.start({"value": 0})

    records = {run.namespace: run.run_id for run in await _children(runs)}
    kept = [
        [(c.node, c.namespace, c.run_id, c.checkpoint) for c in item.children]
        for item in await runs.checkpoints()
    ]

    assert kept == [[], [("a", "a#1.0", records["a#1.0"], 1)], [("b", "b#2.0", records["b#2.0"], 1)]]


@virtual_time
@pytest.mark.parametrize("off", ["thread", "parent", "child"])
async def test_g14_without_persistence_there_are_no_child_checkpoints(off: str) -> None:
    none, policy = GraphPolicy(checkpoints=False), GraphPolicy()
    child = inner(
        "child", "START->add", {"add": adds(10)}, channels=SUM, policy=none if off == "child" else policy
    )
    runs = GraphRuns(
        "START->child", {}, channels=SUM, nodes={"child": embedding("child")}, embeds=[child],
        policy=none if off == "parent" else policy,
    )  # fmt: skip

    outcome = await runs.start({"value": 0}, thread="" if off == "thread" else "t")

    assert outcome.state == {"value": 10}
    assert not runs.database.extra.get("graph_embedded_checkpoints")
    assert [run.status for run in await _children(runs)] == [DONE]


@virtual_time
async def test_the_journals_of_both_tell_what_happened() -> None:
    runs = gated()
    waits = await runs.start({"value": 0})
    (child,) = await _children(runs)
    assert (child.status, child.active_nodes, child.superstep) == (INTERRUPTED, ("gate",), 2)
    reading = RunReading(runs.store, runs.runs)
    view = await reading.run("anonymous", child.run_id)
    assert [item.node for item in view.interrupts] == ["gate"]
    assert view.checkpoint_id == (await runs.store.list_embedded("t", "child#1.0", None, 1))[0].checkpoint_id

    done = await runs.resume("t", 7)

    (child,) = await _children(runs)
    assert child.status is DONE
    events = await runs.events(child.run_id)
    assert [event.offset for event in events] == list(range(len(events)))
    assert {(event.namespace, event.graph, event.root_run_id) for event in events} == {
        ("child#1.0", "child", done.run.run_id)
    }
    task = ["task.scheduled", "node.started", "node.completed", "state.updated"]
    ends = ["route.selected", "checkpoint.saved", "superstep.completed"]
    assert [event.kind for event in events] == [
        "run.started",
        "superstep.started", *task, *ends,
        "superstep.started", "task.scheduled", "node.started", "interrupt.emitted", "run.interrupted",
        "run.started", "node.started", "node.completed", "state.updated", *ends,
        "superstep.started", *task, *ends, "run.completed",
    ]  # fmt: skip
    own = await runs.events(waits.run.run_id)
    assert [event.kind for event in own if event.kind.startswith("subgraph.")] == [
        "subgraph.started",
        "subgraph.completed",
    ]


@virtual_time
async def test_what_a_node_wrote_by_a_call_is_seen_by_later_ones_though_its_step_was_started_again() -> None:
    async def writes(call: Call) -> Any:
        assert call.context is not None
        await call.context.step("note", canonical({"put": {"kv/a": 1}}))
        return {"log": ["writes"]}

    async def asks(call: Call) -> Any:
        assert call.context is not None
        call.interrupt("?")
        found: Any = load(await call.context.step("lookup", canonical({"get": ["kv/a"]})))
        return {"log": [f"read {found['read']['kv/a']}"]}

    child = inner("child", "START->w, w->x", {"w": writes, "x": asks}, channels=APP)
    runs = GraphRuns("START->sub", {}, channels=APP, nodes={"sub": embedding("child")}, embeds=[child])
    await runs.start({"log": []})
    await runs.crash()
    outcome = await runs.resume("t", "yes")
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"log": ["writes", "read 1"]})
