"""C35, the half about subgraphs: a run that starts at a checkpoint of a graph inside a node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.graph_definitions import APP
from tests.support.graph_runs import Call, GraphRuns, embedding, inner, logs
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.graphs.definition import ConditionalEdge, FunctionRouter, Route, ToolBinding
from agenttx_server.graphs.runs.records import Durability, EmbeddedCheckpoint, RunStatus
from agenttx_server.graphs.runs.requests import RunRefused

DONE, INTERRUPTED = RunStatus.COMPLETED, RunStatus.INTERRUPTED


async def asks(call: Call) -> Any:
    return {"log": [f"two:{call.interrupt('and?')}"]}


def nested(two: Any = asks, mode: str = "SHARED", **child: Any) -> GraphRuns:
    """A node; three nodes in one, the second of which asks; a node. A tool acts in the first one of the three."""
    book = ToolBinding("book", {"effect": "seat", "output": {"log": ["book"]}})
    graph = inner(
        "child",
        "START->one, START->book, [one, book]|>two",
        {"one": logs("one"), "two": two, "three": logs("three"), "route": _on},
        nodes={"book": {"binding": book}},
        conditional=(ConditionalEdge("two", FunctionRouter("child.route"), (Route("on", "three"),)),),
        channels=APP,
        **child,
    )
    maps = {"input": {}, "output": {"log": "log"}} if mode == "ADAPTER" else {}
    return GraphRuns(
        "START->pre, pre->sub, sub->post",
        {"pre": logs("pre"), "post": logs("post")},
        channels=APP,
        nodes={"sub": embedding("child", **maps)},
        embeds=[graph],
    )


async def _on(call: Call) -> Any:
    return "on"


async def inside(runs: GraphRuns, superstep: int, namespace: str = "sub#2.0") -> EmbeddedCheckpoint:
    """A checkpoint of the graph inside."""
    kept = await runs.store.list_embedded("t", namespace, None, 100)
    return next(item for item in kept if item.superstep == superstep)


async def finished(runs: GraphRuns) -> None:
    assert (await runs.start({"log": []})).run.status is INTERRUPTED
    done = await runs.resume("t", "old")
    assert (done.run.status, done.state["log"][-2:]) == (DONE, ["three", "post"])


@pytest.mark.parametrize("mode", ["SHARED", "ADAPTER"])
@virtual_time
async def test_c35_a_fork_inside_a_subgraph_starts_at_the_chosen_node_and_asks_anew(mode: str) -> None:
    runs = nested(mode=mode)
    await finished(runs)
    old = [await runs.state_at(item) for item in await runs.checkpoints()]
    kept = await runs.store.list_embedded("t", "sub#2.0", None, 100)
    before = list(runs.calls)

    forked = await runs.start(at=(await inside(runs, 1)).checkpoint_id)
    assert forked.run.status is INTERRUPTED
    assert [item.payload for item in forked.interrupts] == ['"and?"']
    assert runs.calls[len(before) :] == ["child.two"], "at the second node, and its old answer is not used"
    done = await runs.resume("t", "new")
    assert (done.run.status, done.state) == (
        DONE, {"log": ["pre", "one", "book", "two:new", "three", "post"]},
    )  # fmt: skip
    assert runs.calls[len(before) :] == ["child.two", "child.two", "child.three", "post"]
    assert runs.engine.tools.effects == ["seat"], "what acted before the chosen node is not done again"
    checkpoints = await runs.checkpoints()
    assert [await runs.state_at(item) for item in checkpoints[: len(old)]] == old
    assert await runs.store.list_embedded("t", "sub#2.0", None, 100) == kept, "the old branch is as it was"
    fresh = await runs.store.list_embedded("t", "sub#4.0", None, 100)
    assert [item.superstep for item in fresh] == [3, 2, 1, 0]


@virtual_time
async def test_c35_at_its_first_checkpoint_it_begins_anew_and_at_a_later_one_what_asked_stands() -> None:
    runs = nested()
    await finished(runs)
    count = len(runs.calls)
    done = await runs.start(at=(await inside(runs, 2)).checkpoint_id)
    assert (done.run.status, runs.calls[count:]) == (DONE, ["child.three", "post"])
    assert done.state == {"log": ["pre", "one", "book", "two:old", "three", "post"]}
    count = len(runs.calls)
    again = await runs.start(at=(await inside(runs, 0)).checkpoint_id)
    assert (again.run.status, runs.calls[count:]) == (INTERRUPTED, ["child.one", "child.two"])


def test_c35_a_server_may_die_at_any_write_of_such_a_branch() -> None:
    @virtual_time
    async def scenario(number: int) -> bool:
        runs = nested()
        await finished(runs)
        at = (await inside(runs, 1)).checkpoint_id
        count = len(runs.calls)
        runs.engine.memory.hold_write(runs.engine.memory.write_count + number)
        work = asyncio.ensure_future(runs.start(at=at))
        await asyncio.wait({work}, timeout=1000)
        stuck = not work.done()
        await runs.crash()
        work.cancel()
        await runs.recover()
        thread = await runs.store.load_thread("t")
        assert thread is not None
        if thread.run_id == "run-000001":
            await runs.start(at=at)
        done = await runs.resume("t", "new")
        assert done.state == {"log": ["pre", "one", "book", "two:new", "three", "post"]}, number
        assert "child.one" not in runs.calls[count:], number
        assert runs.engine.tools.effects == ["seat"], number
        return stuck

    number = 1
    while scenario(number):
        number += 1
    assert number > 4


@virtual_time
async def test_where_no_run_can_start_inside_a_node_is_said() -> None:
    runs = nested()
    await runs.start({"log": []})
    at = (await inside(runs, 1)).checkpoint_id

    async def refused(**asked: Any) -> str:
        with pytest.raises(RunRefused) as error:
            await runs.start(**asked)
        return error.value.reason

    assert await refused(at=at) == "ILLEGAL_TRANSITION", "the run that led there waits"
    await runs.resume("t", "old")
    assert await refused(given={"log": ["x"]}, at=at) == "INVALID_REQUEST"
    assert await refused(at=at[:-1] + ("0" if at[-1] != "0" else "1")) == "CHECKPOINT_NOT_FOUND"
    runs = nested()
    assert (await runs.start({"log": []}, durability=Durability.EXIT)).run.status is INTERRUPTED
    await runs.resume("t", "old")
    assert await refused(at=(await inside(runs, 1)).checkpoint_id) == "NOT_SUPPORTED_YET"


@virtual_time
async def test_nodes_that_handlers_stood_in_for_are_not_taken_for_answered() -> None:
    async def bad(call: Call) -> Any:
        raise ToolFailure("invalid_value", "no")

    graph = inner(
        "child",
        "START->bad, handler->two",
        {"bad": bad, "handler": logs("handler"), "two": logs("two")},
        nodes={"bad": {"error_handler": "handler"}},
        channels=APP,
    )
    runs = GraphRuns("START->sub", {}, channels=APP, nodes={"sub": embedding("child")}, embeds=[graph])
    assert (await runs.start({"log": []})).run.status is DONE
    with pytest.raises(RunRefused) as refused:
        await runs.start(at=(await inside(runs, 1, "sub#1.0")).checkpoint_id)
    assert refused.value.reason == "CHECKPOINT_NOT_FOUND"
