"""StreamRun and SubscribeEvents over real gRPC: nothing lost, nothing repeated, no run held up."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import CHANNEL_OPTIONS, running_server, server_process

import agenttx
from agenttx import START, GraphBuilder, NodeRetry, ToolCall
from agenttx.graph import Subgraph
from agenttx.v1 import graph_pb2 as pb
from agenttx.v1 import graph_pb2_grpc
from agenttx_server.graphs.runs.ports import RunChange
from agenttx_server.graphs.runs.records import EventRecord, RunRecord, RunStatus
from agenttx_server.store import open_store

MIB = 1 << 20
ENDS = {
    pb.GRAPH_EVENT_KIND_RUN_COMPLETED,
    pb.GRAPH_EVENT_KIND_RUN_FAILED,
    pb.GRAPH_EVENT_KIND_RUN_INTERRUPTED,
}


class Served:
    """A server, a client of it and its raw stub."""

    def __init__(self, address: str, client: agenttx.AsyncClient, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.client = client
        self.stub = graph_pb2_grpc.GraphServiceStub(channel)

    def subscribe(self, run_id: str = "", **fields: Any) -> Any:
        return self.stub.SubscribeEvents(pb.SubscribeEventsRequest(run_id=run_id, **fields))

    async def journal(self, run_id: str) -> list[pb.GraphEvent]:
        """All events that a run has now."""
        run = (await self.stub.GetRun(pb.GetRunRequest(run_id=run_id))).run
        return await read(self.subscribe(run_id), run.last_offset + 1)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Served]:
    async with running_server(**settings) as server, connected(server.address) as served:
        yield served
        # Streams that are still open are told of the end first.
        await server.server.drain()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Served]:
    # A window that doesn't grow: who reads nothing is waited for after 64 KiB.
    options = (*CHANNEL_OPTIONS, ("grpc.http2.bdp_probe", 0))
    async with (
        agenttx.AsyncClient(address) as client,
        grpc.aio.insecure_channel(address, options=options) as channel,
    ):
        yield Served(address, client, channel)


async def read(stream: Any, count: int) -> list[pb.GraphEvent]:
    """Read so many events and leave."""
    events = []
    async with asyncio.timeout(30):
        while len(events) < count:
            message = await stream.read()
            assert message is not grpc.aio.EOF, f"the stream ended after {len(events)} events"
            events.append(message.event)
    stream.cancel()
    return events


async def rest(stream: Any) -> list[Any]:
    """Read all messages up to the end."""
    messages = []
    async with asyncio.timeout(60):
        while (message := await stream.read()) is not grpc.aio.EOF:
            messages.append(message)
    return messages


async def refusal(call: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """The code, the reason and the metadata with which a call ends."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    status = rpc_status.from_call(refused.value)
    info = error_details_pb2.ErrorInfo()
    assert status is not None
    assert status.details[0].Unpack(info)
    return refused.value.code(), info.reason, dict(info.metadata)


def keeping(name: str = "keeping") -> GraphBuilder:
    """Keep a value, then say so."""
    put = ToolCall("kv.put", {"key": "kept", "value": "${state.value}"}, output={"wrote": "${result.key}"})
    builder = GraphBuilder(name).channel("value").channel("wrote").channel("seen")
    builder.node("put", put)
    builder.node("get", ToolCall("kv.get", {"key": "kept"}, output={"seen": "${result.value}"}))
    return builder.edge(START, "put").edge("put", "get")


def start_of(graph: str, thread: str = "t", given: Any = None, **fields: Any) -> pb.StartRunRequest:
    text = json.dumps({"value": 5} if given is None else given)
    return pb.StartRunRequest(graph=graph, thread_id=thread, input_json=text, **fields)


class Flaky:
    """A graph that fails at first, asks a person, and makes an event when it is told to."""

    def __init__(self, failures: int = 2) -> None:
        self.failures = failures
        retry = NodeRetry(max_attempts=failures + 1, initial_interval=0.001)
        self.builder = (
            GraphBuilder("flaky")
            .channel("log", reducer="append")
            .node("work", self.work, retry=retry)
            .node("ask", self.ask)
            .node("end", self.end)
            .edge(START, "work")
            .edge("work", "ask")
            .edge("ask", "end")
        )

    def work(self, state: Any, ctx: Any) -> dict[str, Any]:
        if self.failures:
            self.failures -= 1
            raise ValueError("not yet")
        ctx.emit("half", {"done": 0.5})
        return {"log": ["worked"]}

    def ask(self, state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.interrupt("well?")]}

    def end(self, state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": ["ended"]}


def kinds(events: Sequence[pb.GraphEvent]) -> list[str]:
    prefix = "GRAPH_EVENT_KIND_"
    return [pb.GraphEventKind.Name(event.kind).removeprefix(prefix).lower() for event in events]


async def test_s1_a_run_is_streamed_and_its_journal_read_from_any_offset() -> None:
    async with serving() as served:
        await served.client.graphs.register(keeping())
        asked = pb.StreamRunRequest(
            start=start_of("keeping", request_id="r", wait=True), modes=[pb.EVENT_MODE_DEBUG]
        )
        messages = await rest(served.stub.StreamRun(asked))
        events, outcome = [message.event for message in messages[:-1]], messages[-1].outcome
        assert [event.offset for event in events] == list(range(len(events)))
        assert kinds(events)[0] == "run_started"
        assert json.loads(events[-1].payload_json)["supersteps"] == 2
        assert (outcome.status, outcome.visited_nodes) == (pb.RUN_STATUS_COMPLETED, ["put", "get"])
        again = (await served.stub.StartRun(asked.start)).outcome
        assert again == outcome, "the same request is the same run, streamed or not"

        for offset in (0, 2, len(events) - 1, len(events), len(events) + 5, 2**64 - 1):
            messages = await rest(served.subscribe(outcome.run_id, from_offset=offset))
            assert [message.event for message in messages] == events[offset:]
            asked.from_offset = offset
            messages = await rest(served.stub.StreamRun(asked))
            assert [message.event for message in messages[:-1]] == events[offset:]
            assert messages[-1].outcome == outcome

        missing, invalid = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
        for call, expected in (
            (served.subscribe("nobody"), (missing, "RUN_NOT_FOUND")),
            (served.subscribe(from_offset=1), (invalid, "INVALID_REQUEST")),
            (served.subscribe("r", from_sequence=1), (invalid, "INVALID_REQUEST")),
            (served.subscribe(kinds=[99]), (invalid, "INVALID_REQUEST")),
            (served.subscribe(modes=[0]), (invalid, "INVALID_REQUEST")),
            (served.subscribe("a\0b"), (invalid, "INVALID_REQUEST")),
            (
                served.stub.StreamRun(pb.StreamRunRequest(start=start_of("nobody"))),
                (missing, "GRAPH_NOT_FOUND"),
            ),
            (
                served.stub.StreamRun(pb.StreamRunRequest(start=start_of("keeping"), from_offset=1)),
                (invalid, "INVALID_REQUEST"),
            ),
        ):
            assert (await refusal(call.read()))[:2] == expected


@pytest.mark.parametrize("name", ["c36", "s9"])
async def test_c36_s9_events_are_followed_over_lost_connections_and_several_invocations(name: str) -> None:
    """C36: the connection is dropped after event 17 and after every third; a step is tried three times."""
    flaky = Flaky()
    async with serving() as served:
        graph = await served.client.graphs.register(flaky.builder)
        started = await graph.start({}, thread="t")
        drop_after = 17 if name == "c36" else 3

        async def follow(from_offset: int) -> list[pb.GraphEvent]:
            """Follow a live run over connections that last for few events each."""
            seen: list[pb.GraphEvent] = []
            while not seen or seen[-1].kind != pb.GRAPH_EVENT_KIND_RUN_COMPLETED:
                stream = served.subscribe(started.run_id, from_offset=from_offset + len(seen))
                async with asyncio.timeout(30):
                    for _ in range(drop_after):
                        message = await stream.read()
                        if message is grpc.aio.EOF:
                            break
                        seen.append(message.event)
                stream.cancel()
            return seen

        async with asyncio.TaskGroup() as group:
            following = [group.create_task(follow(offset)) for offset in (0, 5, 17)]
            stream = served.subscribe(started.run_id)
            async with asyncio.timeout(30):
                while (await stream.read()).event.kind not in ENDS:
                    pass
            outcome = await graph.resume("t", "yes")
        assert outcome.state == {"log": ["worked", "yes", "ended"]}
        events = [message.event for message in await rest(stream)]
        everything = await served.journal(started.run_id)
        assert everything[-len(events) :] == events
        for offset, task in zip((0, 5, 17), following, strict=True):
            assert task.result() == everything[offset:]
        assert [event.offset for event in everything] == list(range(len(everything)))
        tried = [
            (pb.GraphEventKind.Name(event.kind)[17:], json.loads(event.payload_json)["attempt"])
            for event in everything
            if event.node == "work" and "attempt" in event.payload_json
        ]
        assert tried == [
            ("NODE_STARTED", 1),
            ("NODE_RETRY_SCHEDULED", 1),
            ("NODE_STARTED", 2),
            ("NODE_RETRY_SCHEDULED", 2),
            ("NODE_STARTED", 3),
            ("NODE_COMPLETED", 3),
        ], "attempts are told apart"


async def test_c36_an_offset_that_was_purged_is_refused_with_the_oldest_that_is_kept(tmp_path: Path) -> None:
    async with serving(data_dir=tmp_path) as served:
        graph = await served.client.graphs.register(keeping())
        run_id = (await graph.run({"value": 1}, thread="t")).run_id
        everything = await served.journal(run_id)
        with closing(sqlite3.connect(tmp_path / "agenttx.db")) as database:
            # A row has several events.
            database.execute("DELETE FROM graph_events WHERE event_offset = 0")
            (oldest,) = database.execute("SELECT min(event_offset) FROM graph_events").fetchone()
            database.commit()
        assert 1 < oldest < len(everything)
        code, reason, told = await refusal(served.subscribe(run_id, from_offset=1).read())
        assert (code, reason, told["oldest_offset"]) == (
            grpc.StatusCode.OUT_OF_RANGE,
            "POSITION_PURGED",
            str(oldest),
        )
        kept = await rest(served.subscribe(run_id, from_offset=oldest))
        assert [message.event for message in kept] == everything[oldest:]
        with closing(sqlite3.connect(tmp_path / "agenttx.db")) as database:
            database.execute("DELETE FROM graph_events")
            database.commit()
        _, reason, told = await refusal(served.subscribe(run_id).read())
        assert (reason, told["oldest_offset"]) == ("POSITION_PURGED", str(len(everything)))


async def test_what_is_seen_is_what_modes_kinds_and_filters_say() -> None:
    async with serving() as served:
        graph = await served.client.graphs.register(Flaky(0).builder)
        run_id = (await graph.run({}, thread="t")).run_id
        await graph.resume("t", "yes")
        everything = await served.journal(run_id)
        of_run = [event for event in everything if "run_" in kinds([event])[0]]

        async def seen(**fields: Any) -> list[pb.GraphEvent]:
            return [message.event for message in await rest(served.subscribe(run_id, **fields))]

        def expected(*wanted: str) -> list[pb.GraphEvent]:
            return [event for event in everything if event in of_run or kinds([event])[0] in wanted]

        assert await seen() == await seen(modes=[pb.EVENT_MODE_DEBUG]) == everything
        assert await seen(modes=[pb.EVENT_MODE_UPDATES]) == expected("state_updated")
        interrupts = expected("interrupt_emitted", "interrupt_resumed")
        assert await seen(modes=[pb.EVENT_MODE_INTERRUPTS]) == interrupts
        both = [pb.EVENT_MODE_UPDATES, pb.EVENT_MODE_INTERRUPTS]
        assert len(await seen(modes=both)) == len(interrupts) + 3
        (custom,) = await seen(modes=[pb.EVENT_MODE_CUSTOM])
        assert json.loads(custom.payload_json) == {"name": "half", "data": {"done": 0.5}}
        wanted = [pb.GRAPH_EVENT_KIND_ROUTE_SELECTED]
        assert kinds(await seen(kinds=wanted, modes=both)) == ["route_selected"] * 3
        assert await seen(node="end") == [event for event in everything if event.node == "end"]
        assert await seen(namespace="elsewhere") == []
        assert await seen(graph="another") == []
        assert await seen(root_run_id=run_id, thread_id="t", graph="flaky") == everything

        values = await seen(modes=[pb.EVENT_MODE_VALUES])
        states = [
            (kinds([event])[0], json.loads(event.payload_json)["state"].get("log", []))
            for event in values
            if event not in of_run
        ]
        assert states == [
            ("checkpoint_saved", []),
            ("checkpoint_saved", ["worked"]),
            ("checkpoint_restored", ["worked"]),
            ("checkpoint_saved", ["worked", "yes"]),
            ("checkpoint_saved", ["worked", "yes", "ended"]),
        ]


async def test_events_of_many_runs_are_followed_by_sequence_from_a_moment_on() -> None:
    async with serving() as served:
        graph = await served.client.graphs.register(keeping())
        await served.client.graphs.register(keeping("other"))
        before = await graph.run({"value": 0}, thread="t")
        live = {
            "graph": served.subscribe(graph="keeping", modes=[pb.EVENT_MODE_UPDATES]),
            "thread": served.subscribe(thread_id="u"),
            "all": served.subscribe(),
        }
        for stream in live.values():
            await stream.initial_metadata()  # nothing is missed from here on
        runs = [await graph.run({"value": n}, thread="u") for n in range(2)]
        other = await (await served.client.graphs.get("other")).run({"value": 9}, thread="v")
        runs.append(await graph.run({"value": 3}, thread="t"))

        journals = {run.run_id: await served.journal(run.run_id) for run in (before, *runs, other)}
        ordered = sorted(
            (event for events in journals.values() for event in events), key=lambda event: event.sequence
        )
        after = [event for event in ordered if event.run_id != before.run_id]
        assert await read(live["all"], len(after)) == after
        on_u = [event for event in after if event.thread_id == "u"]
        assert await read(live["thread"], len(on_u)) == on_u
        updates = [
            event
            for event in after
            if event.graph == "keeping"
            and kinds([event])[0] in ("run_started", "state_updated", "run_completed")
        ]
        assert await read(live["graph"], len(updates)) == updates
        for event in ordered[:: len(ordered) // 7]:
            behind = [item for item in ordered if item.sequence >= event.sequence]
            assert await read(served.subscribe(from_sequence=event.sequence), len(behind)) == behind


async def test_a_stream_of_a_run_ends_with_its_invocation_however_that_ends() -> None:
    flaky = Flaky(0)
    async with serving() as served:
        graph = await served.client.graphs.register(flaky.builder)
        asked = pb.StreamRunRequest(start=start_of("flaky", given={}, request_id="r"))
        messages = await rest(served.stub.StreamRun(asked))
        outcome = messages[-1].outcome
        assert outcome.status == pb.RUN_STATUS_INTERRUPTED
        assert [item.payload_json for item in outcome.interrupts] == ['"well?"']
        told = kinds([message.event for message in messages[:-1]])
        assert told == ["run_started", "state_updated", "run_interrupted"]

        await graph.resume("t", "yes")
        again = await rest(served.stub.StreamRun(asked))
        assert again[:-1] == messages[:-1], "of the first invocation alone"
        assert again[-1].outcome.status == pb.RUN_STATUS_COMPLETED, "which is how far the run is"

        failing = GraphBuilder("failing").channel("value").node("put", ToolCall("kv.nothing", {}))
        await served.client.graphs.register(failing.edge(START, "put"))
        messages = await rest(
            served.stub.StreamRun(pb.StreamRunRequest(start=start_of("failing", thread="")))
        )
        assert messages[-1].outcome.status == pb.RUN_STATUS_FAILED
        assert kinds([message.event for message in messages[:-1]])[-1] == "run_failed"


async def test_a_client_that_goes_away_cancels_its_run_only_if_it_said_so() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def wait(state: Any, ctx: Any) -> dict[str, Any]:
        entered.set()
        await leave.wait()
        return {"value": 1}

    async with serving() as served:
        builder = GraphBuilder("waits").channel("value").node("wait", wait).edge(START, "wait")
        await served.client.graphs.register(builder)
        for thread, cancels in (("stays", False), ("goes", True)):
            start = start_of("waits", thread=thread, given={}, cancel_on_disconnect=cancels)
            stream = served.stub.StreamRun(pb.StreamRunRequest(start=start))
            async with asyncio.timeout(30):
                run_id = (await stream.read()).event.run_id
                await entered.wait()
                entered.clear()
                watching = served.subscribe(run_id, modes=[pb.EVENT_MODE_UPDATES])
                stream.cancel()
                if not cancels:
                    leave.set()
                messages = [await watching.read(), await watching.read()]
                if not cancels:
                    messages.append(await watching.read())
                    leave.clear()
                watching.cancel()
            ended = kinds([message.event for message in messages])[-1]
            assert ended == ("run_cancelled" if cancels else "run_completed")


async def test_a_draining_server_says_where_to_go_on_and_a_deleted_run_is_gone() -> None:
    async with running_server() as server, connected(server.address) as served:
        graph = await served.client.graphs.register(Flaky(0).builder)
        gone = await graph.run({}, thread="gone")
        waits = await graph.run({}, thread="t")
        streams = {run.run_id: served.subscribe(run.run_id, from_offset=2) for run in (gone, waits)}
        for run in (gone, waits):
            for _ in range(run.last_offset - 1):
                await streams[run.run_id].read()
        await served.client.graphs.cancel(gone.run_id, rollback=True)
        stream = streams[gone.run_id]
        assert await graph.delete_thread("gone")

        async def until_refused() -> None:
            async with asyncio.timeout(30):
                while await stream.read() is not grpc.aio.EOF:
                    pass

        assert (await refusal(until_refused()))[1] == "RUN_NOT_FOUND"

        stream = streams[waits.run_id]
        draining = asyncio.create_task(server.server.drain())
        with pytest.raises(grpc.aio.AioRpcError, match="go on from offset") as refused:
            await until_refused()
        await draining
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_run_that_heals_says_what_was_undone() -> None:
    def choose(state: Any, ctx: Any) -> dict[str, Any]:
        return {"key": "kept" if ctx.constraints else "nothing"}

    builder = GraphBuilder("heals").policy(on_failure="ROLLBACK").channel("key").channel("seen")
    builder.node("choose", choose)
    builder.node("get", ToolCall("kv.get", {"key": "${state.key}"}, output={"seen": "${result.value}"}))
    async with serving() as served:
        await (await served.client.graphs.register(keeping())).run({"value": 7}, thread="first")
        await served.client.graphs.register(builder.edge(START, "choose").edge("choose", "get"))
        asked = pb.StreamRunRequest(
            start=start_of("heals", given={}), modes=[pb.EVENT_MODE_UPDATES, pb.EVENT_MODE_VALUES]
        )
        messages = await rest(served.stub.StreamRun(asked))
    told = []
    for message in messages[:-1]:
        payload = json.loads(message.event.payload_json)
        told.append((kinds([message.event])[0], payload.get("update", payload.get("state"))))
    assert messages[-1].outcome.status == pb.RUN_STATUS_COMPLETED
    assert told == [
        ("run_started", None),
        ("checkpoint_saved", {}),
        ("state_updated", {"key": "nothing"}),
        ("checkpoint_saved", {"key": "nothing"}),
        ("rollback_decided", None),
        ("checkpoint_restored", {}),
        ("state_updated", {"key": "kept"}),
        ("checkpoint_saved", {"key": "kept"}),
        ("state_updated", {"seen": 7}),
        ("checkpoint_saved", {"key": "kept", "seen": 7}),
        ("run_completed", {"key": "kept", "seen": 7}),
    ]


async def test_embedded_graphs_are_followed_with_the_run_that_they_are_part_of() -> None:
    inner = GraphBuilder("inner").channel("wrote")
    inner.node("put", ToolCall("kv.put", {"key": "in", "value": 1}, output={"wrote": "${result.key}"}))
    outer = GraphBuilder("outer").channel("wrote").node("sub", Subgraph("inner")).edge(START, "sub")
    async with serving() as served:
        await served.client.graphs.register(inner.edge(START, "put"))
        graph = await served.client.graphs.register(outer)
        run = await graph.run({}, thread="t")
        other = await graph.run({}, thread="u")
        root = await served.journal(run.run_id)
        child_id = next(
            json.loads(event.payload_json)["child_run_id"]
            for event in root
            if kinds([event]) == ["subgraph_started"]
        )
        child = [message.event for message in await rest(served.subscribe(child_id))]
        assert {event.root_run_id for event in child} == {run.run_id} != {other.run_id}
        both = sorted([*root, *child], key=lambda event: event.sequence)
        of_root = served.subscribe(root_run_id=run.run_id, from_sequence=1)
        assert await read(of_root, len(both)) == both
        for namespace in (child[0].namespace, "sub"):
            inside = served.subscribe(root_run_id=run.run_id, namespace=namespace, from_sequence=1)
            assert await read(inside, len(child)) == child
        values = await rest(served.subscribe(child_id, modes=[pb.EVENT_MODE_VALUES]))
        states = [json.loads(message.event.payload_json).get("state") for message in values]
        assert states == [None, {"wrote": "in"}, {"wrote": "in"}], "of its checkpoint, and at its end"


async def test_what_is_emitted_inside_an_embedded_graph_is_told_live() -> None:
    leave = asyncio.Event()

    async def work(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.emit("inside", 1)
        await leave.wait()
        return {"value": 1}

    inner = GraphBuilder("inside").channel("value").node("work", work).edge(START, "work")
    outer = GraphBuilder("around").channel("value").node("sub", Subgraph("inside")).edge(START, "sub")
    async with serving() as served:
        await served.client.graphs.register(inner)
        graph = await served.client.graphs.register(outer)
        live = served.subscribe(thread_id="t", modes=[pb.EVENT_MODE_CUSTOM], live=True)
        await live.initial_metadata()
        running = asyncio.ensure_future(graph.run({}, thread="t"))
        async with asyncio.timeout(30):
            told = (await live.read()).event
            assert (told.HasField("offset"), told.namespace, told.node) == (False, "sub#1.0", "work")
            leave.set()
            kept = (await live.read()).event
            run = await running
        live.cancel()
    assert (kept.payload_json, kept.HasField("offset")) == (told.payload_json, True)
    assert (kept.run_id, kept.root_run_id) == (told.run_id, run.run_id)


async def test_a_checkpoint_that_was_pruned_is_told_without_its_state() -> None:
    async with serving() as served:
        graph = await served.client.graphs.register(keeping())
        run_id = (await graph.run({"value": 1}, thread="t")).run_id
        await graph.prune("t", keep_last=1)
        values = await rest(served.subscribe(run_id, modes=[pb.EVENT_MODE_VALUES]))
        told = [
            (kinds([message.event])[0], "state" in json.loads(message.event.payload_json))
            for message in values
        ]
        assert told == [
            ("run_started", False),
            ("checkpoint_saved", False),
            ("checkpoint_saved", False),
            ("checkpoint_saved", True),
            ("run_completed", True),
        ]


# --- clients that don't read ---------------------------------------------------------------------


async def seed(address: str, runs: Sequence[str], events: int, payload_bytes: int) -> None:
    """Write the journals of runs that have completed."""
    text = json.dumps({"data": "x" * payload_bytes})
    async with open_store(address) as store:
        for name in runs:
            record = RunRecord(
                name,
                "t",
                "g",
                "v1",
                RunStatus.COMPLETED,
                1,
                2,
                root_run_id=name,
                next_offset=events,
                last_event="run.completed",
            )
            for first in range(0, events, 2000):
                made = [
                    EventRecord(name, offset, "custom", 3, text, "t", name, "g")
                    for offset in range(first, min(first + 2000, events))
                ]
                await store.runs.write(RunChange(runs=[record], events=made))


def memory_of(process_id: int, figure: str) -> int:
    """VmRSS, the memory that a process has now, or VmHWM, the most that it had."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith(figure):
            return int(line.split()[1]) * 1024
    raise AssertionError(figure)


async def test_c37_s10_twenty_clients_that_read_nothing_cost_little_memory_and_lose_nothing(
    tmp_path: Path,
) -> None:
    """C37, S10: each is cut, told where it was, and reads the rest then; who reads is served meanwhile."""
    count = 1_000
    await seed(f"sqlite:///{tmp_path / 'agenttx.db'}", ["r"], count, 8_000)
    with server_process(tmp_path, stream_stall_seconds=0.5) as server:
        async with connected(server.address) as served:
            await read(served.subscribe("r"), 1)
            before = memory_of(server.process.pid, "VmRSS")
            stalled = [served.subscribe("r") for _ in range(20)]
            for stream in stalled:
                await stream.initial_metadata()
            # The log tells of each call as it ends: all twenty are cut.
            for _ in range(20):
                await asyncio.to_thread(_wait_for_cut, server)
            grown = memory_of(server.process.pid, "VmHWM") - before
            assert grown < 100 * MIB, f"{grown / MIB:.0f} MiB for 20 clients that read nothing"

            assert (await served.stub.GetRun(pb.GetRunRequest(run_id="r"))).run.run_id == "r"
            whole = await rest(served.subscribe("r"))
            assert [message.event.offset for message in whole] == list(range(count))
            for stream in stalled[:3]:
                seen: list[int] = []

                async def until_cut(stream: Any = stream, seen: list[int] = seen) -> None:
                    while True:
                        seen.append((await stream.read()).event.offset)

                async with asyncio.timeout(30):
                    code, reason, told = await refusal(until_cut())
                assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_CONSUMER")
                assert seen == list(range(len(seen)))
                assert int(told["last_offset"]) + 1 == int(told["from_offset"]) <= len(seen) < count
                more = await rest(served.subscribe("r", from_offset=len(seen)))
                assert [message.event.offset for message in more] == list(range(len(seen), count))
            for stream in stalled:
                stream.cancel()


def _wait_for_cut(server: Any) -> None:
    while server.wait_for_event("rpc")["code"] != "RESOURCE_EXHAUSTED":
        pass


async def test_an_event_that_no_message_has_room_for_is_told_without_its_keys(tmp_path: Path) -> None:
    await seed(f"sqlite:///{tmp_path / 'agenttx.db'}", ["r"], 3, 100_000)
    async with serving(data_dir=tmp_path, max_message_bytes=65_536) as served:
        messages = await rest(served.subscribe("r"))
    assert [json.loads(message.event.payload_json) for message in messages] == [
        {"omitted_bytes": 100_012}
    ] * 3


# --- several servers -----------------------------------------------------------------------------


async def test_what_one_server_writes_is_followed_on_another() -> None:
    with shared_cluster().database() as url:
        async with serving(database_url=url) as one, serving(database_url=url) as other:
            graph = await one.client.graphs.register(keeping())
            everywhere = other.subscribe(thread_id="t")
            await everywhere.initial_metadata()
            first = await graph.run({"value": 1}, thread="t")
            following = other.subscribe(first.run_id)
            journal = [message.event for message in await rest(following)]
            assert journal == await one.journal(first.run_id)
            second = await graph.run({"value": 2}, thread="t")
            journal += await one.journal(second.run_id)
            assert await read(everywhere, len(journal)) == journal


# --- live notices --------------------------------------------------------------------------------


async def test_what_a_node_emits_is_told_at_once_to_who_asks_for_it_and_again_when_it_has_ended() -> None:
    leave = asyncio.Event()

    async def work(state: Any, ctx: Any) -> dict[str, Any]:
        for number in range(3):
            ctx.emit("part", number)
        await leave.wait()
        return {"value": 1}

    async with serving() as served:
        builder = GraphBuilder("emits").channel("value").node("work", work).edge(START, "work")
        await served.client.graphs.register(builder)
        modes = [pb.EVENT_MODE_CUSTOM, pb.EVENT_MODE_UPDATES]
        asked = pb.StreamRunRequest(start=start_of("emits", given={}), modes=modes, live=True)
        stream = served.stub.StreamRun(asked)
        thread = served.subscribe(thread_id="t", modes=modes, live=True, from_sequence=1)
        quiet = served.subscribe(thread_id="t", modes=modes, from_sequence=1)
        async with asyncio.timeout(30):
            events = [(await stream.read()).event for _ in range(4)]
            assert [event.HasField("offset") for event in events] == [True, False, False, False]
            assert [json.loads(event.payload_json)["data"] for event in events[1:]] == [0, 1, 2]
            followed = [(await thread.read()).event]
            assert (kinds(followed), followed[0].HasField("sequence")) == (["run_started"], True)
            leave.set()
            messages = await rest(stream)
        events += [message.event for message in messages[:-1]]
        kept = [event for event in events if event.HasField("offset")]
        assert kinds(kept) == ["run_started", "custom", "custom", "custom", "state_updated", "run_completed"]
        assert await read(quiet, len(kept)) == kept, "who doesn't ask for notices gets none"
        async with asyncio.timeout(30):
            while followed[-1].kind != pb.GRAPH_EVENT_KIND_RUN_COMPLETED:
                followed.append((await thread.read()).event)
        thread.cancel()
        assert [event for event in followed if event.HasField("sequence")] == kept
