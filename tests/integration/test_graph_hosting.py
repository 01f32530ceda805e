"""Functions hosted by a client that registered their graph, and nodes that go on at another server."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.support.graph_server import graph_server
from tests.support.running_worker import running_worker
from tests.support.store_databases import DATABASES

from agenttx import START, AsyncClient, Client, GraphBuilder
from agenttx.worker import ToolDefinitionError, tool
from agenttx_server.graphs.runs.records import RunStatus


def where(name: str) -> GraphBuilder:
    """A graph that says on which thread its node ran."""
    return (
        GraphBuilder(name)
        .channel("thread")
        .node("n", lambda: {"thread": threading.current_thread().name})
        .edge(START, "n")
    )


async def test_a_client_hosts_the_functions_of_what_it_registers_until_it_closes(tmp_path: Path):
    graph = where("hosted")
    async with graph_server(f"sqlite:///{tmp_path / 'agenttx.db'}") as server:
        server.add(graph)
        client = Client(server.address)
        kept = await asyncio.to_thread(client.graphs.register, graph)
        first = await server.start("hosted", thread="one")
        # Once more, as a program that was changed does: the newer builder's functions are called.
        await asyncio.to_thread(client.graphs.register, where("hosted"))
        second = await server.start("hosted", thread="two")
        await asyncio.to_thread(client.close)

        assert not server.workers.hosts("hosted/n")

    assert kept.graph.name == "hosted"
    assert [first.run.status, second.run.status] == [RunStatus.COMPLETED] * 2
    assert str(first.state["thread"]).startswith("agenttx-worker")


async def test_an_asynchronous_client_hosts_in_its_own_loop(tmp_path: Path):
    loops = []

    async def node():
        loops.append(asyncio.get_running_loop())
        return {"v": 1}

    graph = GraphBuilder("own").channel("v").node("n", node).edge(START, "n")
    async with graph_server(f"sqlite:///{tmp_path / 'agenttx.db'}") as server:
        server.add(graph)
        async with AsyncClient(server.address) as client:
            await client.graphs.register(graph)
            done = await server.start("own")
        assert not server.workers.hosts("own/n")

    assert done.state["v"] == 1
    assert loops == [asyncio.get_running_loop()]


async def test_what_can_not_be_called_as_a_node_is_refused_when_it_is_hosted(tmp_path: Path):
    graph = GraphBuilder("odd").channel("v").node("n", lambda a, b, c: {}).edge(START, "n")
    async with (
        graph_server(f"sqlite:///{tmp_path / 'agenttx.db'}") as server,
        AsyncClient(server.address) as client,
    ):
        with pytest.raises(ToolDefinitionError, match="needs a, b, c"):
            await client.graphs.register(graph)
        await client.graphs.register(graph, host=False)


@pytest.mark.parametrize("database", DATABASES)
async def test_a_question_is_answered_at_another_server_and_steps_are_not_made_again(
    database: str, tmp_path: Path
):
    made = []

    @tool("note.book", effects="transactional")
    def book(entry: str) -> str:
        """Book, and say so."""
        made.append(entry)
        return entry

    def agent(state, ctx):
        seat = ctx.step("note.book", {"entry": "seat"})
        return {"log": [seat, ctx.interrupt("and a meal?"), ctx.step("note.book", {"entry": "meal"})]}

    graph = GraphBuilder("trip").channel("log", reducer="append").node("agent", agent).edge(START, "agent")
    with DATABASES[database](tmp_path) as address:
        async with graph_server(address) as first:
            first.add(graph)
            async with running_worker(first.address, tools=[book], graphs=[graph]):
                await first.start("trip")
        async with graph_server(address) as second:
            second.add(graph)
            async with running_worker(second.address, tools=[book], graphs=[graph]):
                done = await second.resume("yes")

    assert done.run.status is RunStatus.COMPLETED, done.run.error
    assert done.state["log"] == ["seat", "yes", "meal"]
    assert made == ["seat", "meal"]
