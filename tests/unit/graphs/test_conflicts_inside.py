"""Nodes of an embedded graph that run side by side and touch one key of the store: it comes out as in the order of its tasks.

As for nodes of the root graph: the later one loses, is undone, and runs again seeing what lower ones wrote.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.graph_definitions import APP
from tests.support.graph_runs import Call, Function, GraphRuns, Inner, embedding, inner
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.json_values import canonical, load
from agenttx_server.graphs.runs.records import RunStatus


async def call_tool(call: Call, name: str, **arguments: Any) -> Any:
    assert call.context is not None
    return load(await call.context.step(name, canonical(arguments)))


async def read(call: Call, key: str) -> Any:
    return (await call_tool(call, "lookup", get=[key]))["read"][key]


def counts(name: str, pause: float = 0.0) -> Function:
    """A node that reads a counter, thinks, and writes it back one higher."""

    async def count(call: Call) -> Any:
        before = await read(call, "kv/count")
        await asyncio.sleep(pause)
        await call_tool(call, "note", put={"kv/count": (before or 0) + 1})
        return {"log": [f"{name}{(before or 0) + 1}"]}

    return count


def within(child: Inner, depth: int = 1) -> GraphRuns:
    """The graph in a node of another, perhaps in a node of that one."""
    for level in range(depth - 1):
        child = inner(
            f"around{level}",
            "START->sub",
            {},
            nodes={"sub": embedding(child.graph.name)},
            embeds=[child],
            channels=APP,
        )
    nodes = {"sub": embedding(child.graph.name)}
    return GraphRuns("START->sub", {}, channels=APP, nodes=nodes, embeds=[child])


def three(pauses: tuple[float, float, float] = (3, 2, 1)) -> dict[str, Function]:
    return {name: counts(name, pause) for name, pause in zip("abc", pauses, strict=True)}


async def committed(runs: GraphRuns, key: str) -> Any:
    return (await runs.engine.state(key))[key]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("pauses", [(3, 2, 1), (1, 2, 3), (2, 2, 2)])
def test_siblings_inside_come_out_in_task_order(pauses: tuple[float, float, float], depth: int) -> None:
    @virtual_time
    async def scenario() -> None:
        child = inner("child", "START->a, START->b, START->c", three(pauses), channels=APP)
        runs = within(child, depth)
        outcome = await runs.start({"log": []})
        assert outcome.run.status is RunStatus.COMPLETED
        assert outcome.state == {"log": ["a1", "b2", "c3"]}
        assert await committed(runs, "kv/count") == 3
        # Who lost ran again, and the lowest never did.
        assert runs.calls.count("child.a") == 1
        await runs.engine.assert_memory_equals_store()

    scenario()


@virtual_time
async def test_the_root_and_an_embedded_graph_give_the_same() -> None:
    graphs = "START->a, START->b, START->c"
    plain = GraphRuns(graphs, three(), channels=APP)
    embedded = within(inner("child", graphs, three(), channels=APP))
    for runs in (plain, embedded):
        outcome = await runs.start({"log": []})
        assert outcome.state == {"log": ["a1", "b2", "c3"]}
        assert await committed(runs, "kv/count") == 3


@virtual_time
async def test_nodes_that_touch_different_keys_run_once_and_see_nothing_of_one_another() -> None:
    def writes(name: str) -> Function:
        async def node(call: Call) -> Any:
            await call_tool(call, "note", put={f"kv/{name}": name})
            return {"log": [name]}

        return node

    runs = within(inner("child", "START->a, START->b", {n: writes(n) for n in "ab"}, channels=APP))
    assert (await runs.start({"log": []})).state == {"log": ["a", "b"]}
    assert runs.calls == ["child.a", "child.b"]
    assert await runs.engine.state("kv/a", "kv/b") == {"kv/a": "a", "kv/b": "b"}


@virtual_time
async def test_what_the_loser_did_outside_is_undone_before_it_runs_again() -> None:
    async def books(call: Call) -> Any:
        seen = await read(call, "kv/count")
        await call_tool(call, "book", effect=f"room after {seen}")
        return {"log": [f"booked {seen}"]}

    child = inner("child", "START->a, START->b", {"a": counts("a", 2), "b": books}, channels=APP)
    runs = within(child)
    assert (await runs.start({"log": []})).state == {"log": ["a1", "booked 1"]}
    assert runs.engine.tools.effects == ["room after 1"]
    assert runs.engine.tools.undo_order == ["room after None"]


@virtual_time
async def test_a_loser_that_nothing_takes_back_stops_the_run_with_a_way_on() -> None:
    async def pays(call: Call) -> Any:
        seen = await read(call, "kv/count")
        await call_tool(call, "pay", effect="paid")
        return {"log": [f"paid {seen}"]}

    child = inner("child", "START->a, START->b", {"a": counts("a", 2), "b": pays}, channels=APP)
    runs = within(child)
    outcome = await runs.start({"log": []})
    assert outcome.run.status is RunStatus.FAILED
    assert outcome.run.error is not None
    assert outcome.run.error.reason == "IRREVERSIBLE_STEP"
    assert "kv/count" in outcome.run.error.message
    assert runs.engine.tools.effects == ["paid"]


@pytest.mark.parametrize("dies_at", range(1, 14))
def test_a_server_that_dies_anywhere_leads_to_the_same(dies_at: int) -> None:
    @virtual_time
    async def scenario() -> None:
        runs = within(inner("child", "START->a, START->b, START->c", three(), channels=APP))
        work = asyncio.ensure_future(runs.start({"log": []}))
        await asyncio.sleep(dies_at / 2)
        if not work.done():
            await runs.crash()
            work.cancel()
            await runs.recover()
        run = await runs.store.load_run("run-000001")
        assert run is not None
        assert run.status is RunStatus.COMPLETED
        assert (await runs.runs.outcome("run-000001")).state == {"log": ["a1", "b2", "c3"]}
        assert await committed(runs, "kv/count") == 3

    scenario()
