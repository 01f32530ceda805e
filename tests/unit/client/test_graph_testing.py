"""The stand-ins and checks of agenttx.testing.graphs do what they say, and fail where they should."""

from types import SimpleNamespace

import pytest

from agenttx import START, Command, GraphBuilder, Send
from agenttx.testing.graphs import (
    Asked,
    assert_history,
    assert_visited,
    failing,
    interrupting,
    run_node,
    scripted,
    snapshot,
)
from agenttx.worker import SubStepFailed, tool


@tool("t.double", effects="read_only")
async def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


async def test_a_node_is_run_with_its_steps_and_asks_until_it_is_answered():
    async def agent(state, ctx):
        found = await ctx.step("t.double", {"number": state["number"]})
        allowed = await ctx.interrupt({"take": found})
        ctx.emit("decided", allowed)
        return {"log": [found, allowed, ctx.arg, ctx.remaining_steps, list(ctx.constraints)]}

    asked = await run_node(agent, {"number": 4, "other": 1}, steps={"t.double": double})
    assert (asked.is_waiting, asked.question, asked.reads) == (True, {"take": 8}, ("number",))

    done = await run_node(
        agent,
        {"number": 4},
        arg="a",
        constraints=["be kind"],
        remaining_steps=3,
        answers=[True],
        journal=asked.steps,
    )
    assert done.result == {"log": [8, True, "a", 3, ["be kind"]]}
    assert done.events == [("decided", True)]
    assert not done.is_waiting


async def test_a_plain_node_is_run_on_a_thread_and_its_failed_step_is_told():
    def agent(state, ctx):
        return {"value": ctx.step("t.missing")}

    with pytest.raises(SubStepFailed):
        await run_node(agent)
    kept = await run_node(agent, keep_error=True)
    assert isinstance(kept.error, SubStepFailed)


async def test_commands_and_sends_come_out_in_the_form_that_the_server_reads():
    moved = await run_node(lambda state: Command(update={"a": 1}, goto=["b", Send("c", 2)]))

    assert moved.result == {"__command__": {"goto": ["b", {"node": "c", "arg": 2}], "update": {"a": 1}}}


async def test_scripted_nodes_act_their_script():
    node = scripted({"v": 1}, lambda state: {"v": state["v"] + 1}, ValueError("third"))

    assert (await run_node(node, {"v": 1})).result == {"v": 1}
    assert (await run_node(node, {"v": 5}, arg="x")).result == {"v": 6}
    for _ in range(2):
        with pytest.raises(ValueError, match="third"):
            await run_node(node, {"v": 0})
    assert node.runs == 4
    assert node.args == [None, "x", None, None]
    with pytest.raises(ValueError, match="at least one"):
        scripted()


async def test_failing_and_interrupting_nodes():
    flaky = failing(ConnectionError("away"), {"v": 1}, times=2)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await run_node(flaky)
    assert (await run_node(flaky)).result == {"v": 1}

    assert (await run_node(interrupting("?", "answer"), answers=["yes"])).result == {"answer": "yes"}
    twice = scripted(Asked("?", lambda answer: {"v": answer * 2}))
    assert (await run_node(twice)).question == "?"
    assert (await run_node(twice, answers=[4])).result == {"v": 8}


def outcome(**fields):
    values = {
        "status": "COMPLETED",
        "state": {"b": 1, "a": [2]},
        "visited_nodes": ("x", "y"),
        "supersteps": 2,
        "next_nodes": (),
        "interrupts": (),
        "error": None,
        "run_id": "never shown",
    }
    return SimpleNamespace(**(values | fields))


def test_visits_and_histories_are_compared():
    assert_visited(outcome(), ["x", "y"])
    with pytest.raises(AssertionError, match="visited"):
        assert_visited(outcome(), ["y", "x"])
    history = [outcome(state={"v": 3, "w": 0}), outcome(state={"v": 1})]
    assert_history(history, [{"v": 3}, {"v": 1}])
    with pytest.raises(AssertionError, match="history"):
        assert_history(history, [{"v": 3}, {"v": 2}])
    with pytest.raises(AssertionError, match="2 checkpoints"):
        assert_history(history, [{"v": 3}])


def test_snapshots_are_the_same_each_time():
    def graph(*names):
        builder = GraphBuilder("g").channel("v")
        for name in names:
            builder.node(name, lambda: None)
        return builder.edge(START, "a").edge("a", "b")

    assert snapshot(graph("a", "b")) == snapshot(graph("b", "a"))
    assert '"function_name": "g/a"' in snapshot(graph("a", "b"))
    shown = snapshot(outcome(interrupts=[SimpleNamespace(node="x", payload="?", interrupt_id="i")]))
    assert '"visited": [\n    "x",\n    "y"\n  ]' in shown
    assert "never shown" not in shown
