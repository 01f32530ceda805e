"""Runs streamed and followed from the SDK, in either client: every event once, over lost connections too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.client_kinds import QUICK
from tests.support.cutting_proxy import CuttingProxy
from tests.support.running_server import ServerProcess, server_process

import agenttx
from agenttx import (
    END,
    START,
    Command,
    EventMode,
    GraphBuilder,
    GraphEventKind,
    NotFound,
    RunStatus,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "graphs" / "streaming.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("streams")) as running:
        yield running


def counting(name: str) -> GraphBuilder:
    """Counts up to 5, then asks a person."""

    def count(state: Any) -> Command:
        return Command(update={"n": 1}, goto="ask" if state["n"] == 4 else "count")

    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.emit("asking", {"n": state["n"]})
        return {"n": ctx.interrupt("how many more?")}

    builder = GraphBuilder(name).channel("n", reducer="add").node("ask", ask)
    builder.node("count", count, destinations=["count", "ask", END])
    return builder.edge(START, "count")


def port_of(server: ServerProcess) -> int:
    return int(server.address.rpartition(":")[2])


def test_a_run_is_streamed_and_its_events_followed_over_lost_connections(server: ServerProcess) -> None:
    with agenttx.Client(server.address) as client, CuttingProxy(port_of(server)) as proxy:
        client.graphs.register(counting("counting"))
        with agenttx.Client(proxy.address, retry=QUICK) as distant:
            graph = distant.graphs.get("counting")
            with graph.stream({"n": 0}, thread="c", modes=[EventMode.DEBUG]) as stream:
                assert (stream.run_id, stream.outcome) == ("", None)
                events = []
                for event in stream:
                    events.append(event)
                    assert event.run_id == stream.run_id
                    if len(events) % 7 == 3:
                        proxy.cut_all()
            assert [event.offset for event in events] == list(range(len(events)))
            assert events[-1].kind is GraphEventKind.RUN_INTERRUPTED
            assert events[-1].kind.ends_invocation
            outcome = stream.outcome
            assert outcome is not None
            assert (outcome.status, outcome.run_id, outcome.state) == (
                RunStatus.INTERRUPTED,
                stream.run_id,
                {"n": 5},
            )
            assert events[0].payload["trigger"] == "start"
            assert events[0].occurred_at is not None

            following = distant.graphs.events(run=stream.run_id, from_offset=4)
            seen = [next(following) for _ in range(5)]
            proxy.cut_all()
            graph.resume("c", 10)
            seen += following
            journal = list(graph.events(run=stream.run_id))
            assert seen == journal[4:]
            assert journal[: len(events)] == events
            assert journal[-1].payload["state"] == {"n": 15}
            assert [event.kind for event in graph.events(run=stream.run_id, kinds=["custom"])] == [
                "custom"
            ] * 2
            none = graph.stream({"n": 4}, thread="other", modes="MESSAGES")
            assert list(none) == []
            assert none.outcome is not None


def test_what_is_refused_is_raised_and_nothing_is_asked_for_that_is_no_mode(server: ServerProcess) -> None:
    with agenttx.Client(server.address) as client:
        graph = client.graphs.register(counting("refusing"))
        with pytest.raises(NotFound):
            next(client.graphs.events(run="nobody"))
        with pytest.raises(agenttx.InvalidValue, match="none of VALUES"):
            graph.stream({}, modes="EVERYTHING")
        with pytest.raises(agenttx.InvalidValue):
            next(graph.events(kinds=["run.started", "run.stopped"]))
        with pytest.raises(agenttx.PreconditionFailed) as refused:
            next(graph.stream({"nix": 1}, thread="r"))
        assert refused.value.reason == "UNKNOWN_CHANNEL"


async def test_the_asynchronous_client_streams_and_follows_the_same(server: ServerProcess) -> None:
    with CuttingProxy(port_of(server)) as proxy:
        async with (
            agenttx.AsyncClient(server.address) as client,
            agenttx.AsyncClient(proxy.address, retry=QUICK) as distant,
            asyncio.timeout(60),
        ):
            here = await client.graphs.register(counting("asynchronous"))
            graph = await distant.graphs.get("asynchronous")
            live = aiter(graph.events(thread="a", modes=["UPDATES", "INTERRUPTS"], from_sequence=1))
            first = asyncio.ensure_future(anext(live))
            async with graph.stream({"n": 0}, thread="a", modes=["VALUES"]) as stream:
                events = []
                async for event in stream:
                    events.append(event)
                    if len(events) == 3:
                        proxy.cut_all()
            states = [event.payload["state"]["n"] for event in events if "state" in event.payload]
            assert states == [0, 1, 2, 3, 4, 5]
            assert stream.outcome is not None
            assert stream.outcome.status is RunStatus.INTERRUPTED
            await here.resume("a", 1)

            followed = [await first]
            while followed[-1].kind is not GraphEventKind.RUN_COMPLETED:
                followed.append(await anext(live))
            journal = [event async for event in distant.graphs.events(run=stream.run_id)]
            wanted = [
                event
                for event in journal
                if event.kind.partition(".")[0] in ("run", "interrupt") or event.kind == "state.updated"
            ]
            assert followed == wanted
            assert [event async for event in graph.events(run=stream.run_id, from_offset=9)] == journal[9:]


def test_a_stream_goes_on_over_the_death_of_its_server(tmp_path: Path) -> None:
    """SIGKILL in the middle of a run: the next server goes on with the run, and the stream with its events."""
    chain = GraphBuilder("chain").channel("log", reducer="append", scalars=True)
    for number in range(30):
        put = agenttx.ToolCall("kv.put", {"key": f"k{number}", "value": 1}, output={"log": "${result.key}"})
        chain.node(f"n{number}", put).edge(f"n{number - 1}" if number else START, f"n{number}")
    with server_process(tmp_path) as server:
        listen = server.address
        with agenttx.Client(listen, retry=QUICK) as client:
            client.graphs.register(chain)
            graph = client.graphs.get("chain")
            stream = graph.stream({}, thread="t", modes="DEBUG")
            offsets = [next(stream).offset for _ in range(5)]
            server.kill()
            with server_process(tmp_path, listen=listen):
                offsets += [event.offset for event in stream]
                assert stream.outcome is not None
                assert stream.outcome.status is RunStatus.COMPLETED
                assert stream.outcome.state == {"log": [f"k{number}" for number in range(30)]}
                assert offsets == list(range(stream.outcome.last_offset + 1))
                journal = [event.offset for event in graph.events(run=stream.run_id)]
                assert journal == offsets


def test_the_page_does_what_it_says(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.setenv("AGENTTX_ADDRESS", server.address)
    exec(code, {})
    told = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    kinds = ["run.started", "state.updated", "run.interrupted"]
    assert [line[1] for line in told[:3]] == kinds
    assert told[1][2] == "plan {'log': ['planned']}"
    assert told[3] == ["INTERRUPTED"]
    assert [line[1] for line in told[4:]] == ["run.started", "state.updated", "run.completed"]
    assert told[5][2] == "{'log': ['12A']}"
