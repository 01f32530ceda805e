"""How durable the boundaries of a run are and when it commits, as a client chooses it: over real gRPC, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.support.running_server import running_server
from tests.support.store_databases import DATABASES

import agenttx
from agenttx import START, CommitPolicy, Durability, GraphBuilder, RunLimits, RunStatus, Subgraph
from agenttx.v1 import graph_pb2 as pb
from agenttx.v1 import graph_pb2_grpc


@asynccontextmanager
async def serving(database: str, folder: Path) -> AsyncIterator[tuple[agenttx.AsyncClient, str]]:
    """A server over a database, and a client of it."""
    with DATABASES[database](folder) as url:
        async with (
            running_server(database_url=url) as server,
            agenttx.AsyncClient(server.address) as client,
        ):
            yield client, server.address


def chain(*nodes: Any) -> GraphBuilder:
    """Nodes one behind the other, over a sum."""
    builder = GraphBuilder("chain").channel("value", reducer="add")
    before = START
    for number, node in enumerate(nodes):
        builder.node(f"n{number}", node)
        builder.edge(before, f"n{number}")
        before = f"n{number}"
    return builder


def adds(number: int) -> Any:
    """A node that adds."""

    def add(state: Any) -> dict[str, int]:
        return {"value": number}

    return add


async def records(graph: Any, thread: str) -> list[tuple[int, Any]]:
    """The supersteps of a thread's checkpoints and their values, the newest first."""
    return [(item.superstep, item.state["value"]) async for item in graph.history(thread)]


@pytest.mark.parametrize("database", DATABASES)
async def test_c3_with_exit_a_run_has_one_record_and_nothing_comes_next(
    database: str, tmp_path: Path
) -> None:
    async with asyncio.timeout(60), serving(database, tmp_path) as (client, address):
        graph = await client.graphs.register(chain(adds(1), adds(2)))
        done = await graph.run({"value": 0}, thread="t", limits=RunLimits(durability="EXIT"))
        assert (done.status, done.state, done.visited_nodes) == (
            RunStatus.COMPLETED, {"value": 3}, ("n0", "n1"),
        )  # fmt: skip
        assert await records(graph, "t") == [(2, 3), (0, 0)], "and the input's"
        assert (await graph.state("t")).next == ()
        async with grpc.aio.insecure_channel(address) as channel:
            stub = graph_pb2_grpc.GraphServiceStub(channel)
            run = (await stub.GetRun(pb.GetRunRequest(run_id=done.run_id))).run
        assert run.options.durability == pb.CHECKPOINT_DURABILITY_EXIT, "it is kept with the run"
        again = await graph.run({"value": 4}, thread="t", limits=RunLimits(durability=Durability.SYNC))
        assert (again.state, len(await records(graph, "t"))) == ({"value": 10}, 5)


async def test_rollbacks_and_checkpoints_left_out_are_refused_together_and_words_are_checked(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(60), serving("sqlite", tmp_path) as (client, _):
        builder = chain(adds(1)).policy(on_failure="ROLLBACK")
        graph = await client.graphs.register(builder)
        with pytest.raises(agenttx.InvalidArgument, match="durability EXIT"):
            await graph.run({"value": 0}, thread="t", limits=RunLimits(durability=Durability.EXIT))
        with pytest.raises(agenttx.InvalidValue, match="none of SYNC, ASYNC, EXIT"):
            await graph.run({"value": 0}, thread="t", limits=RunLimits(durability="SOON"))


def approval(called: list[str]) -> GraphBuilder:
    """A node that calls a tool and then asks, beside one that adds 1; another one behind it."""

    def ask(state: Any, ctx: Any) -> dict[str, int]:
        called.append("ask")
        ctx.step("kv.put", {"key": "request", "value": "may I?"})
        return {"value": ctx.interrupt({"question": "may I?"})}

    def side(state: Any) -> dict[str, int]:
        called.append("side")
        return {"value": 1}

    builder = GraphBuilder("approval").channel("value", reducer="add")
    builder.node("ask", ask).node("side", side).node("last", adds(1000))
    return builder.edge(START, "ask").edge(START, "side").edge("ask", "last")


@pytest.mark.parametrize("database", DATABASES)
async def test_a_run_that_commits_at_its_question_shows_what_it_did_and_is_never_taken_back_behind_it(
    database: str, tmp_path: Path
) -> None:
    called: list[str] = []
    limits = RunLimits(commit=CommitPolicy.INTERRUPT)
    async with asyncio.timeout(60), serving(database, tmp_path) as (client, _):
        graph = await client.graphs.register(approval(called))
        waits = await graph.run({"value": 0}, thread="t", limits=limits)
        assert (waits.status, waits.state, waits.next_nodes) == (
            RunStatus.INTERRUPTED, {"value": 1}, ("ask",),
        )  # fmt: skip
        assert (await client.get_state("request")).value == "may I?", "others see it while the run waits"
        with pytest.raises(agenttx.PreconditionFailed, match="open transaction"):
            await graph.rewind("t", waits.checkpoint_id)
        cancelled = await client.graphs.cancel(waits.run_id, rollback=True)
        assert cancelled.status is RunStatus.CANCELLED
        assert (await client.get_state("request")).value == "may I?"
        again = await graph.retry("t")
        assert (again.status, again.state) == (RunStatus.INTERRUPTED, {"value": 1})
        done = await graph.resume("t", 100)
        assert (done.status, done.state) == (RunStatus.COMPLETED, {"value": 1101})
        assert called == ["ask", "side", "ask", "ask"], "what had finished is not run again"
        with pytest.raises(agenttx.InvalidArgument, match="thread"):
            await graph.run({"value": 0}, limits=limits)


def _holding(asked: list[str]) -> tuple[GraphBuilder, GraphBuilder]:
    """A graph in a node of another: its second node asks."""

    def one(state: Any) -> dict[str, int]:
        asked.append("one")
        return {"value": 1}

    def two(state: Any, ctx: Any) -> dict[str, int]:
        asked.append("two")
        return {"value": ctx.interrupt("how much?")}

    inside = GraphBuilder("inside").channel("value", reducer="add").node("one", one).node("two", two)
    inside.edge(START, "one").edge("one", "two")
    around = GraphBuilder("around").channel("value", reducer="add").node("sub", Subgraph("inside"))
    return inside, around.edge(START, "sub")


@pytest.mark.parametrize("database", DATABASES)
async def test_c35_a_run_starts_at_the_second_node_of_a_graph_inside_a_node(
    database: str, tmp_path: Path
) -> None:
    called: list[str] = []
    async with asyncio.timeout(60), serving(database, tmp_path) as (client, _):
        inside, around = _holding(called)
        await client.graphs.register(inside)
        graph = await client.graphs.register(around)
        await graph.run({"value": 0}, thread="t")
        assert (await graph.resume("t", 10)).state == {"value": 11}
        kept = [item async for item in graph.history("t", namespace="sub#1.0")]
        at = next(item for item in kept if item.superstep == 1)
        called.clear()
        forked = await graph.run(thread="t", checkpoint=at.checkpoint_id)
        assert (forked.status, called) == (RunStatus.INTERRUPTED, ["two"]), "its old answer is not used"
        assert (await graph.resume("t", 100)).state == {"value": 101}
        assert called == ["two", "two"]
        assert [item async for item in graph.history("t", namespace="sub#1.0")] == kept
