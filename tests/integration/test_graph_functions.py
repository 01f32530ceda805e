"""Nodes and routers that are functions of a worker: what they are given, what they may answer, what survives them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from tests.support.graph_server import GraphServer, graph_server
from tests.support.running_worker import running_worker, until_connected
from tests.support.store_databases import DATABASES

from agenttx import END, START, Command, GraphBuilder, NodeRetry, Send
from agenttx.graph import Subgraph
from agenttx.graph_results import Continue, End, Route
from agenttx.worker import Worker, tool
from agenttx_server.engine.attempt_history import attempts_of_step
from agenttx_server.engine.records import TransactionId
from agenttx_server.graphs.runs.records import RunStatus
from agenttx_server.graphs.runs.requests import RunRefused

CALLS: list[str] = []


@tool("note.book", effects="transactional")
async def book(ctx: Any, entry: str) -> dict[str, Any]:
    """Book, and say so."""
    CALLS.append(entry)
    await ctx.store.put(f"booked/{entry}", len(CALLS))
    return {"entry": entry}


@pytest.fixture(params=DATABASES)
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[GraphServer]:
    CALLS.clear()
    with DATABASES[request.param](tmp_path) as address:
        async with graph_server(address, launch_wait=0.1) as served:
            yield served


@pytest.fixture
async def lone(tmp_path: Path) -> AsyncIterator[GraphServer]:
    CALLS.clear()
    async with graph_server(f"sqlite:///{tmp_path / 'agenttx.db'}", launch_wait=0.1) as served:
        yield served


async def test_a_node_interrupted_after_its_second_step_does_not_call_the_first_two_again(
    server: GraphServer,
):
    async def agent(state, ctx):
        first = await ctx.step("note.book", {"entry": "seat"})
        second = await ctx.step("note.book", {"entry": "meal"})
        allowed = await ctx.interrupt({"approve": [first["entry"], second["entry"]]})
        third = await ctx.step("note.book", {"entry": "bag"})
        return {"log": [first["entry"], second["entry"], third["entry"], allowed]}

    trip = GraphBuilder("trip").channel("log", reducer="append").node("agent", agent).edge(START, "agent")
    server.add(trip)
    async with running_worker(server.address, tools=[book], graphs=[trip]):
        asked = await server.start("trip")
        assert asked.run.status is RunStatus.INTERRUPTED
        assert [item.payload for item in asked.interrupts] == ['{"approve":["seat","meal"]}']
        assert CALLS == ["seat", "meal"]

        done = await server.resume(True)

    assert done.run.status is RunStatus.COMPLETED
    assert done.state["log"] == ["seat", "meal", "bag", True]
    assert CALLS == ["seat", "meal", "bag"]


@tool("note.plain", effects="read_only")
def plain(ctx: Any, entry: str) -> str:
    """Answer on a thread."""
    return entry


@pytest.mark.parametrize("blocks", [False, True], ids=["coroutines", "threads"])
async def test_more_nodes_than_a_worker_takes_call_tools_of_that_very_worker(lone: GraphServer, blocks: bool):
    """None of their calls gets a place while all places are the nodes', which wait for their calls."""

    def split(state):
        return Command(goto=[Send("leaf", number) for number in range(6)])

    async def leaf(state, ctx):
        return {"log": [(await ctx.step("note.book", {"entry": str(ctx.arg)}))["entry"]]}

    def blocking(state, ctx):
        return {"log": [ctx.step("note.plain", {"entry": str(ctx.arg)})]}

    wide = GraphBuilder("wide").channel("log", reducer="append").node("split", split, destinations=["leaf"])
    wide.node("leaf", blocking if blocks else leaf).edge(START, "split")
    lone.add(wide)
    async with (
        asyncio.timeout(20),
        running_worker(lone.address, tools=[book, plain], graphs=[wide], concurrency=2),
    ):
        outcome = await lone.start("wide")
    assert (outcome.run.status, outcome.state["log"]) == (RunStatus.COMPLETED, [*"012345"])


async def test_a_graph_inside_a_node_waits_and_goes_on_with_its_tools_called_once(server: GraphServer):
    async def seat(state, ctx):
        return {"log": [(await ctx.step("note.book", {"entry": "seat"}))["entry"]]}

    async def ask(state, ctx):
        return {"log": [await ctx.interrupt("a meal too?")]}

    async def meal(state, ctx):
        return {"log": [(await ctx.step("note.book", {"entry": "meal"}))["entry"]]}

    inside = (
        GraphBuilder("booking")
        .channel("log", reducer="append")
        .node("seat", seat)
        .node("ask", ask)
        .node("meal", meal)
        .edge(START, "seat")
        .edge(START, "ask")
        .edge("ask", "meal")
    )
    trip = GraphBuilder("trip-with-booking").channel("log", reducer="append")
    trip.node("booking", Subgraph("booking")).edge(START, "booking")
    server.add(inside)
    server.add(trip)
    async with running_worker(server.address, tools=[book], graphs=[inside, trip]):
        asked = await server.start("trip-with-booking", {"log": []})
        assert [(item.node, item.namespace) for item in asked.interrupts] == [("ask", "booking#1.0")]

        done = await server.resume("yes")

    assert done.run.status is RunStatus.COMPLETED
    assert done.state["log"] == ["seat", "yes", "meal"]
    assert CALLS == ["seat", "meal"]
    kept = await server.store.runs.list_embedded("t", "booking#1.0", None, 10)
    assert [item.state for item in kept] == [
        '{"log":["seat","yes","meal"]}',
        '{"log":["seat","yes"]}',
        '{"log":[]}',
    ]


async def test_a_node_inside_a_node_waits_for_its_worker(lone: GraphServer):
    async def ask(state, ctx):
        return {"log": [await ctx.interrupt("a meal too?")]}

    inside = GraphBuilder("asking").channel("log", reducer="append").node("ask", ask).edge(START, "ask")
    trip = GraphBuilder("trip-with-asking").channel("log", reducer="append")
    trip.node("asking", Subgraph("asking")).edge(START, "asking")
    lone.add(inside)
    lone.add(trip)
    async with running_worker(lone.address, graphs=[inside]):
        asked = await lone.start("trip-with-asking", {"log": []})
    resumed = asyncio.ensure_future(lone.resume("yes"))
    async with asyncio.timeout(20):
        while (run := lone.runs.run_here(asked.run.run_id)) is None or run.status is not RunStatus.WAITING:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        async with running_worker(lone.address, graphs=[inside]):
            done = await resumed
    assert (done.run.status, done.state["log"]) == (RunStatus.COMPLETED, ["yes"])


async def test_a_plain_function_runs_on_a_thread_with_the_same_ctx(server: GraphServer):
    def agent(state, ctx):
        assert threading.current_thread().name.startswith("agenttx-worker")
        ctx.step("note.book", {"entry": "seat"})
        answer = ctx.interrupt("go on?")
        ctx.emit("went", {"answer": answer})
        ctx.heartbeat()
        return {"value": state["value"] + answer, "left": ctx.remaining_steps}

    graph = GraphBuilder("plain").channel("value").channel("left").node("agent", agent).edge(START, "agent")
    server.add(graph)
    async with running_worker(server.address, tools=[book], graphs=[graph]):
        await server.start("plain", {"value": 10})
        done = await server.resume(5)

    assert done.state == {"value": 15, "left": 49}
    assert CALLS == ["seat"]
    custom = [event for event in await server.events(done.run.run_id) if event.kind == "custom"]
    assert [(event.node, event.payload) for event in custom] == [
        ("agent", '{"data":{"answer":5},"name":"went"}')
    ]


async def test_i10_a_node_that_asks_twice_is_answered_in_order(server: GraphServer):
    async def asks(state, ctx):
        first = await ctx.interrupt("one")
        second = await ctx.interrupt("two")
        return {"text": f"{first} {second}"}

    graph = (
        GraphBuilder("twice").channel("text", reducer="add", default="").node("ask", asks).edge(START, "ask")
    )
    server.add(graph)
    async with running_worker(server.address, graphs=[graph]):
        await server.start("twice", {"text": "DE"})
        again = await server.resume("answer 1", update={"text": " foofoo "})
        assert [item.payload for item in again.interrupts] == ['"two"']
        done = await server.resume("answer 2")

    assert done.state["text"] == "DE foofoo answer 1 answer 2"


async def test_i11_a_node_asks_until_the_answer_is_valid(lone: GraphServer):
    async def age(state, ctx):
        question = "how old are you?"
        while True:
            answer = await ctx.interrupt(question)
            if answer >= 18:
                return {"age": answer}
            question = "invalid response"

    graph = GraphBuilder("age").channel("age").node("ask", age).edge(START, "ask")
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        outcome = await lone.start("age")
        asked = []
        for answer in (13, 15, 19):
            asked += [(item.ordinal, item.payload) for item in outcome.interrupts]
            outcome = await lone.resume(answer)

    assert asked == [(0, '"how old are you?"'), (1, '"invalid response"'), (2, '"invalid response"')]
    assert outcome.state["age"] == 19


async def test_i20_nothing_that_a_node_would_write_is_there_before_it_returns(lone: GraphServer):
    async def asks(state, ctx):
        seen = [state["value"]]
        await ctx.interrupt("one")
        seen.append(state["value"])
        await ctx.interrupt("two")
        return {"value": 7, "seen": [*seen, state["value"]]}

    graph = GraphBuilder("still").channel("value").channel("seen").node("ask", asks).edge(START, "ask")
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        values = [(await lone.start("still", {"value": 1})).state["value"]]
        values.append((await lone.resume("a")).state["value"])
        done = await lone.resume("b")

    assert values == [1, 1]
    assert done.state == {"value": 7, "seen": [1, 1, 1]}


async def test_i22_a_stop_before_a_node_is_gone_on_from_by_a_retry_alone(lone: GraphServer):
    def adds(name: str):
        return lambda: {"text": f"|{name}"}

    graph = (
        GraphBuilder("stop")
        .channel("text", reducer="add")
        .node("node1", adds("node-1"))
        .node("node2", adds("node-2"))
        .edge(START, "node1")
        .edge("node1", "node2")
        .interrupt(before=["node1"])
    )
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        await lone.start("stop", {"text": "abc"})
        with pytest.raises(RunRefused) as refused:
            await lone.resume("anything")
        done = await lone.retry()

    assert refused.value.reason == "NOTHING_TO_RESUME"
    assert done.state["text"] == "abc|node-1|node-2"


async def test_a_node_that_asks_something_else_than_the_first_time_fails(server: GraphServer):
    asked = iter(["first", "second"])

    async def fickle(state, ctx):
        try:
            return {"value": await ctx.interrupt(next(asked))}
        except Exception:
            return {"value": "it went on all the same"}

    graph = GraphBuilder("fickle").channel("value").node("ask", fickle).edge(START, "ask")
    server.add(graph)
    async with running_worker(server.address, graphs=[graph]):
        await server.start("fickle")
        failed = await server.resume("yes")

    assert failed.run.status is RunStatus.FAILED
    assert failed.run.error is not None
    assert failed.run.error.reason == "NON_DETERMINISTIC_INTERRUPT"
    assert "question 1" in failed.run.error.hint


async def test_the_signal_of_a_question_passes_what_handles_errors(lone: GraphServer):
    async def careless(state, ctx):
        try:
            answer = await ctx.interrupt("?")
        except Exception:
            answer = "swallowed"
        return {"value": answer}

    graph = GraphBuilder("careless").channel("value").node("ask", careless).edge(START, "ask")
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        assert (await lone.start("careless")).run.status is RunStatus.INTERRUPTED
        assert (await lone.resume("told")).state["value"] == "told"


class Verdict(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"


async def test_r5_a_router_is_a_function_of_the_folded_state(server: GraphServer):
    def decide(state) -> Verdict:
        return Verdict.APPROVE if state["value"] > 0 else Verdict.REJECT

    graph = (
        GraphBuilder("verdict")
        .channel("value")
        .node("look", lambda state: {"value": state["value"]})
        .node("yes", lambda: {"value": 100})
        .node("no", lambda: {"value": -1})
        .edge(START, "look")
        .conditional("look", decide, {"approve": "yes", "reject": "no"})
    )
    server.add(graph)
    async with running_worker(server.address, graphs=[graph]):
        approved = await server.start("verdict", {"value": 5}, "five")
        rejected = await server.start("verdict", {"value": -3}, "three")

    assert (approved.state["value"], rejected.state["value"]) == (100, -1)


async def test_a_router_may_send_and_a_failed_one_leaves_a_way_on(lone: GraphServer):
    broken = [True]

    def spread(state):
        if broken:
            raise RuntimeError("the index is away")
        return [Send("work", number) for number in state["numbers"]]

    graph = (
        GraphBuilder("spread")
        .channel("numbers")
        .channel("sum", reducer="add")
        .node("list", lambda: {"numbers": [10, 20, 30]})
        .node("work", lambda state, ctx: {"sum": ctx.arg})
        .edge(START, "list")
        .conditional("list", spread, ["work"])
    )
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        failed = await lone.start("spread")
        broken.clear()
        done = await lone.retry()

    assert failed.run.status is RunStatus.FAILED
    assert failed.state["numbers"] == [10, 20, 30]
    assert done.state["sum"] == 60


async def test_results_in_words(lone: GraphServer):
    graph = (
        GraphBuilder("words")
        .channel("log", reducer="append")
        .node("first", lambda: Continue({"log": ["first"]}))
        .node("second", lambda: Route("third", {"log": ["second"]}), destinations=["third", "never"])
        .node("third", lambda: End({"log": ["third"]}), destinations=[END])
        .node("never", lambda: Command({"log": ["never"]}))
        .edge(START, "first")
        .edge("first", "second")
    )
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        done = await lone.start("words")

    assert done.run.status is RunStatus.COMPLETED, done.run.error
    assert done.state["log"] == ["first", "second", "third"]


async def test_a_node_depends_on_the_steps_that_wrote_what_it_read(server: GraphServer):
    async def reader(state, ctx):
        await ctx.step("note.book", {"entry": state["left"]})
        return {"out": state.get("left")}

    graph = (
        GraphBuilder("edges")
        .channel("left")
        .channel("right")
        .channel("out")
        .node("l", lambda: {"left": "L"})
        .node("r", lambda: {"right": "R"})
        .node("reader", reader)
        .edge(START, "l", "r")
        .join(["l", "r"], "reader")
    )
    server.add(graph)
    async with running_worker(server.address, tools=[book], graphs=[graph]):
        done = await server.start("edges")

    attempts = await attempts_of_step(server.store, TransactionId(done.run.transaction_id), 3)
    edges = [(edge.from_step, edge.source_key) for item in attempts for edge in item.edges]
    assert edges == [(1, "left")]


async def test_a_node_that_declares_its_reads_sees_those_alone(lone: GraphServer):
    graph = (
        GraphBuilder("narrow")
        .channel("a", default=1)
        .channel("b", default=2)
        .channel("out")
        .node("n", lambda state: {"out": sorted(state)}, reads=["a"])
        .edge(START, "n")
    )
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        assert (await lone.start("narrow")).state["out"] == ["a"]


async def test_x35_x36_what_a_node_may_not_and_may_return(lone: GraphServer):
    wrong = GraphBuilder("wrong").channel("v").node("n", lambda: "text").edge(START, "n")
    nothing = GraphBuilder("nothing").channel("v").node("n", lambda: None).edge(START, "n")
    for graph in (wrong, nothing):
        lone.add(graph)
    async with running_worker(lone.address, graphs=[wrong, nothing]):
        failed = await lone.start("wrong", thread="w")
        done = await lone.start("nothing", thread="n")

    assert failed.run.status is RunStatus.FAILED
    assert "a node answers an object" in str(failed.run.error)
    assert done.run.status is RunStatus.COMPLETED


async def test_a_failing_node_is_retried_by_its_policy_and_its_error_is_a_hint(lone: GraphServer):
    tried = []

    def flaky(state, ctx):
        tried.append(ctx.attempt)
        if len(tried) < 3:
            raise ConnectionError("connection refused by search.internal")
        return {"value": state["value"] + 1}

    graph = GraphBuilder("flaky").channel("value").node("n", flaky, retry=4).edge(START, "n")
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        done = await lone.start("flaky", {"value": 10})

    assert done.state["value"] == 11
    kinds = [event.kind for event in await lone.events(done.run.run_id)]
    assert kinds.count("node.retry_scheduled") == 2


async def test_f14_an_error_handler_is_told_what_failed_and_goes_on(lone: GraphServer):
    def breaks(state, ctx):
        raise ValueError("field 'amount' is negative")

    def handles(state, ctx):
        return Command(update={"log": [ctx.arg["node"], "amount" in str(ctx.arg)]}, goto="after")

    graph = (
        GraphBuilder("handled")
        .channel("log", reducer="append")
        .node("breaks", breaks, retry=2, error_handler="handles")
        .node("handles", handles, destinations=["after"])
        .node("after", lambda: {"log": ["after"]})
        .edge(START, "breaks")
    )
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        done = await lone.start("handled")

    assert done.run.status is RunStatus.COMPLETED, done.run.error
    assert done.state["log"] == ["breaks", True, "after"]


async def test_a_graph_whose_functions_nobody_ever_hosted_is_not_started(lone: GraphServer):
    graph = GraphBuilder("orphan").channel("v").node("n", lambda: {"v": 1}).edge(START, "n")
    lone.add(graph)

    with pytest.raises(RunRefused) as refused:
        await lone.start("orphan")

    assert refused.value.reason == "UNBOUND"
    assert refused.value.metadata == {"node": "n", "function": "orphan/n"}


async def test_a_run_whose_worker_is_away_waits_and_goes_on_when_one_comes(server: GraphServer):
    graph = GraphBuilder("away").channel("v").node("n", lambda: {"v": 1}).edge(START, "n")
    server.add(graph)
    async with running_worker(server.address, graphs=[graph]):
        pass

    running = asyncio.create_task(server.start("away"))
    await _until_waiting(server)
    async with running_worker(server.address, graphs=[graph]):
        done = await running

    assert done.run.status is RunStatus.COMPLETED
    assert done.state["v"] == 1


async def test_a_node_whose_worker_was_lost_waits_for_another_one_and_has_not_failed(lone: GraphServer):
    begun = asyncio.Event()

    async def node():
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(60)
        return {"v": 1}

    graph = GraphBuilder("lost").channel("v").node("n", node, run_timeout=5).edge(START, "n")
    lone.add(graph)
    worker = Worker(lone.address, graphs=[graph])
    serving = asyncio.create_task(worker.serve())
    await until_connected(worker)
    running = asyncio.create_task(lone.start("lost"))
    await begun.wait()
    serving.cancel()
    await asyncio.wait((serving,))

    await _until_waiting(lone)
    async with running_worker(lone.address, graphs=[graph]):
        done = await running

    assert done.run.status is RunStatus.COMPLETED, done.run.error
    assert "node.failed" not in [event.kind for event in await lone.events(done.run.run_id)]


async def test_a_run_that_waits_for_a_worker_can_be_cancelled(lone: GraphServer):
    graph = GraphBuilder("away").channel("v").node("n", lambda: {"v": 1}).edge(START, "n")
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        pass
    running = asyncio.create_task(lone.start("away"))
    run = await _until_waiting(lone)

    await lone.runs.cancel(run.run_id, "enough")

    assert (await running).run.status is RunStatus.CANCELLED


async def test_f30_a_node_sees_that_its_run_is_cancelled(lone: GraphServer):
    begun, seen = asyncio.Event(), []

    async def long(state, ctx):
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append(ctx.is_cancelled)
            raise

    graph = (
        GraphBuilder("long")
        .channel("v")
        .node("long", long)
        .node("second", lambda: seen.append("second"))
        .edge(START, "long")
        .edge("long", "second")
    )
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        running = asyncio.create_task(lone.start("long"))
        await begun.wait()
        run = _live(lone)
        assert run is not None
        await lone.runs.cancel(run.run_id, "enough")
        outcome = await running

    assert outcome.run.status is RunStatus.CANCELLED
    assert seen == [True]


async def test_f10_a_node_that_takes_too_long_fails_with_node_timeout(lone: GraphServer):
    async def slow():
        await asyncio.sleep(30)

    graph = GraphBuilder("slow").channel("v").node("n", slow, run_timeout=0.05).edge(START, "n")
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        failed = await lone.start("slow")

    assert failed.run.error is not None
    assert failed.run.error.reason == "NODE_TIMEOUT"


async def _until_waiting(server: GraphServer) -> Any:
    async with asyncio.timeout(30):
        while (run := _live(server)) is None or run.status is not RunStatus.WAITING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return run


def _live(server: GraphServer) -> Any:
    carried = list(server.runs._carrier._carried.values())
    return carried[0].invocation.run if carried and carried[0].invocation is not None else None


async def test_a_node_without_progress_has_timed_out_and_is_tried_again(lone: GraphServer):
    tried: list[int] = []

    async def hangs(state, ctx):
        tried.append(len(tried) + 1)
        ctx.heartbeat()
        if len(tried) < 3:
            await asyncio.sleep(3600)
        return {"value": len(tried)}

    graph = GraphBuilder("idle").channel("value")
    graph.node("hangs", hangs, idle_timeout=0.05, retry=NodeRetry(max_attempts=2, initial_interval=0.001))
    graph.edge(START, "hangs")
    lone.add(graph)
    async with running_worker(lone.address, graphs=[graph]):
        outcome = await lone.start("idle")
        assert outcome.run.error is not None
        assert (outcome.run.status, outcome.run.error.reason) == (RunStatus.FAILED, "NODE_TIMEOUT")
        assert (outcome.run.error.category, tried) == ("timeout", [1, 2])
        assert "no progress" in outcome.run.error.hint
        done = await lone.retry()
    assert (done.run.status, done.state["value"]) == (RunStatus.COMPLETED, 3)
