"""C26, C28, C29: boundaries that are durable while the next superstep runs; functions over real gRPC, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.graph_server import GraphServer, graph_server
from tests.support.running_worker import running_worker
from tests.support.store_databases import DATABASES

from agenttx import START, GraphBuilder
from agenttx_server.engine.ports import WriteReceipt, WriteSet
from agenttx_server.graphs.runs.records import Durability, RunStatus
from agenttx_server.graphs.runs.requests import RunLimits, RunOutcome, StartRequest


class SlowBoundaries:
    """The store, in front of which the first write of a boundary waits; ``stored`` are the supersteps of boundaries, in order."""

    def __init__(self, store: Any) -> None:
        self._submit = store.submit
        self.let_go = asyncio.Event()
        self.stored: list[int] = []
        store.write = self.write
        store.submit = lambda write_set: asyncio.ensure_future(self.write(write_set))

    async def write(self, write_set: WriteSet) -> WriteReceipt:
        kept = [row for rows in write_set.extra if rows.table == "graph_checkpoints" for row in rows.rows]
        is_boundary = bool(kept) and write_set.transaction.next_step_id > 1
        if is_boundary and not self.stored:
            await self.let_go.wait()
        receipt: WriteReceipt = await self._submit(write_set)
        if is_boundary:
            self.stored += [int(row[1] or 0) for row in kept]
        return receipt


def chain(*functions: Any) -> GraphBuilder:
    builder = GraphBuilder("chain").channel("value", reducer="add")
    before = START
    for function in functions:
        builder.node(function.__name__, function)
        builder.edge(before, function.__name__)
        before = function.__name__
    return builder


@asynccontextmanager
async def serving(database: str, folder: Path, builder: GraphBuilder) -> AsyncIterator[GraphServer]:
    with DATABASES[database](folder) as address:
        async with asyncio.timeout(60), graph_server(address) as server:
            server.add(builder)
            async with running_worker(server.address, graphs=[builder]):
                yield server


async def run(server: GraphServer, **limits: Any) -> RunOutcome:
    asked = RunLimits(durability=Durability.ASYNC, **limits)
    return await server.runs.start(StartRequest("chain", "", "t", {"value": 0}, limits=asked))


async def supersteps(server: GraphServer) -> list[tuple[int, int | None, int]]:
    """Number, parent and superstep of a thread's checkpoints, the oldest first."""
    page = await server.store.runs.list_checkpoints("t", frozenset(), "", 100)
    return [(item.number, item.parent, item.superstep) for item in page.checkpoints][::-1]


@pytest.mark.parametrize("database", DATABASES)
async def test_c26_the_next_node_starts_with_no_boundary_stored_and_the_chain_is_whole_at_the_end(
    database: str, tmp_path: Path
) -> None:
    async def a(state: Any) -> dict[str, int]:
        return {"value": 1}

    async def b(state: Any) -> dict[str, int]:
        seen.append((state["value"], list(slow.stored)))
        slow.let_go.set()  # that of the boundary behind a waits for this
        return {"value": 2}

    seen: list[Any] = []
    async with serving(database, tmp_path, chain(a, b)) as server:
        slow = SlowBoundaries(server.store)
        done = await run(server)
        assert seen == [(1, [])]
        assert (done.run.status, done.state, list(done.visited)) == (
            RunStatus.COMPLETED, {"value": 3}, ["a", "b"],
        )  # fmt: skip
        assert slow.stored == [1, 2]
        assert await supersteps(server) == [(0, None, 0), (1, 0, 1), (2, 1, 2)]


@pytest.mark.parametrize("database", DATABASES)
async def test_c28_all_boundaries_are_stored_before_the_end_is_answered_and_c29_in_their_order(
    database: str, tmp_path: Path
) -> None:
    async def loop(state: Any) -> dict[str, int]:
        if state["value"] == 1:
            slow.let_go.set()
        return {"value": 1}

    builder = chain(loop).edge("loop", "loop")
    async with serving(database, tmp_path, builder) as server:
        slow = SlowBoundaries(server.store)
        done = await run(server, recursion_limit=3)
        assert done.run.error is not None
        assert (done.run.error.reason, done.state) == ("RECURSION_LIMIT", {"value": 3})
        assert slow.stored == [1, 2, 3], "the first one took longer, and none passed it"
        assert await supersteps(server) == [(0, None, 0), (1, 0, 1), (2, 1, 2), (3, 2, 3)]
