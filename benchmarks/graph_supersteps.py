"""What a durable superstep costs, beside LangGraph with its savers and durability "sync".

    python -m benchmarks.graph_supersteps [--postgres URL]

Prints one JSON object, in microseconds a superstep unless something else is said:

- ``one_node``: a run of a single node that does nothing, on a new thread, start to commit.
- ``fan_out``: a superstep of 100 such nodes side by side: their whole run, START and commit with it.
- ``chain``: a run of 200 supersteps of one node that adds 1, a superstep; ``first`` and ``last`` are those of its first and
  last fifty: what grows with a thread's length shows there.
- ``…_processor``: the processor time of this process for the same, which what else the machine does moves less; PostgreSQL's
  own comes on top.

Ours are the scheduler and the store in this process, as theirs are: neither goes over the network to itself. Both write
a file of SQLite with ``synchronous = FULL``, or to the same PostgreSQL. The two are measured in turns, with the garbage
collector as the server sets it. LangGraph and its
savers are the extra ``peers``; where they aren't installed, ours are measured alone.
"""

from __future__ import annotations

import asyncio
import operator
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypedDict

from agenttx_server import main as server_main
from agenttx_server.engine import hints
from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.ports import ToolContext
from agenttx_server.engine.records import EffectRecord, ServerId
from agenttx_server.engine.services import EngineServices, EngineSettings
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.compiler import compile_graph
from agenttx_server.graphs.definition import (
    START,
    Channel,
    ConditionalEdge,
    Edge,
    ExpressionRouter,
    FunctionBinding,
    GraphDefinition,
    GraphPolicy,
    Node,
    Route,
)
from agenttx_server.graphs.runs.engine_transactions import EngineTransactions
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.requests import RunLimits, StartRequest
from agenttx_server.graphs.runs.rolled_back import RolledBackRuns
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator
from agenttx_server.graphs.runs.step_port import FunctionReport
from agenttx_server.store import open_store
from agenttx_server.system_ports import SystemClock, SystemIds
from agenttx_server.tools import ToolRegistry
from benchmarks.measuring import parser, report, summary

WIDTH = 100
LENGTH = 200
PART = 50

Run = Callable[[str, str], Awaitable[None]]
"""Runs one of the graphs ("one_node", "fan_out", "chain") on a thread; nodes note when they are called."""


class Calls:
    """When the nodes of the chain were called, in seconds."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def note(self) -> None:
        self.at.append(time.perf_counter())


# --- ours ---------------------------------------------------------------------------------------


def definitions() -> dict[str, GraphDefinition]:
    """The three graphs."""
    value = Channel("value", type="integer", reducer="add", default=0)

    def node(name: str) -> Node:
        return Node(name, FunctionBinding(name))

    wide = [f"n{number}" for number in range(WIDTH)]
    router = ExpressionRouter(f"state.value < {LENGTH}")
    again = (Route("true", "step"), Route("false", "__end__"))
    return {
        "one_node": GraphDefinition(
            "one_node", nodes=(node("a"),), channels=(value,), edges=(Edge(START, "a"),)
        ),
        "fan_out": GraphDefinition(
            "fan_out",
            nodes=tuple(map(node, wide)),
            channels=(value,),
            edges=tuple(Edge(START, name) for name in wide),
            policy=GraphPolicy(max_concurrency=WIDTH),
        ),
        "chain": GraphDefinition(
            "chain",
            nodes=(node("step"),),
            channels=(value,),
            edges=(Edge(START, "step"),),
            conditional_edges=(ConditionalEdge("step", router, again),),
        ),
    }


class Nodes:
    """The catalog and the nodes' functions."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._graphs: dict[str, CompiledGraph] = {}
        for name, definition in definitions().items():
            graph = compile_graph(definition).graph
            assert graph is not None, compile_graph(definition).errors
            self._graphs[name] = graph

    async def load(self, owner: str, name: str, version: str) -> CompiledGraph | None:
        return self._graphs.get(name)

    async def missing(self, functions: Sequence[str]) -> Sequence[str]:
        return ()

    def is_hosted(self, function: str) -> bool:
        return True

    async def until_hosted(self, function: str) -> None:
        return None

    async def call(
        self,
        function: str,
        arguments: str,
        context: ToolContext | None,
        report: FunctionReport | None = None,
        idle_seconds: float | None = None,
    ) -> str:
        if function != "step":
            return "null"
        self._calls.note()
        return canonical({"value": 1})


class NoSink:
    """No effect leaves: the nodes have none."""

    async def deliver(self, effect: EffectRecord) -> None:
        raise AssertionError("nothing was staged")


@asynccontextmanager
async def ours(url: str, calls: Calls) -> AsyncIterator[Run]:
    """A scheduler over a database."""
    nodes = Nodes(calls)
    async with open_store(url) as store:
        clock, ids = SystemClock(), SystemIds()
        services = EngineServices(
            store=store,
            tools=ToolRegistry(()),
            sink=NoSink(),
            clock=clock,
            ids=ids,
            clean=hints.clean,
            server_id=ServerId(ids.new_id()),
            limits=Limits(),
            settings=EngineSettings(),
            run_owner=RolledBackRuns(store.runs),
        )
        coordinator = TransactionCoordinator(services)
        await coordinator.start()
        parts = RunParts(store.runs, EngineTransactions(coordinator), nodes, clock)
        runs = RunCoordinator(parts, nodes, ids, lambda: services.server_id)

        async def run(graph: str, thread: str) -> None:
            limits = RunLimits(recursion_limit=LENGTH + 10)
            outcome = await runs.start(StartRequest(graph, "", thread, {"value": 0}, limits=limits))
            assert outcome.run.status.value == "COMPLETED", outcome.run.error

        try:
            yield run
        finally:
            await coordinator.stop()


# --- theirs -------------------------------------------------------------------------------------


class State(TypedDict):
    """The state of their graphs."""

    value: Annotated[int, operator.add]


@asynccontextmanager
async def theirs(database: str, calls: Calls) -> AsyncIterator[Run]:
    """LangGraph over a file of SQLite (a path), or PostgreSQL (an address)."""
    graph_module = import_module("langgraph.graph")
    first, last, new_graph = graph_module.START, graph_module.END, graph_module.StateGraph

    async def nothing(state: State) -> None:
        return None

    async def step(state: State) -> dict[str, int]:
        calls.note()
        return {"value": 1}

    def built(saver: Any) -> dict[str, Any]:
        one, wide, chain = (new_graph(State) for _ in range(3))
        one.add_node("a", nothing)
        one.add_edge(first, "a")
        for number in range(WIDTH):
            wide.add_node(f"n{number}", nothing)
            wide.add_edge(first, f"n{number}")
        chain.add_node("step", step)
        chain.add_edge(first, "step")
        chain.add_conditional_edges("step", lambda state: "step" if state["value"] < LENGTH else last)
        names = ("one_node", "fan_out", "chain")
        return {
            name: graph.compile(checkpointer=saver)
            for name, graph in zip(names, (one, wide, chain), strict=True)
        }

    async with _saver(database) as saver:
        graphs = built(saver)

        async def run(graph: str, thread: str) -> None:
            config = {"configurable": {"thread_id": thread}, "recursion_limit": LENGTH + 10}
            await graphs[graph].ainvoke({"value": 0}, config, durability="sync")

        yield run


@asynccontextmanager
async def _saver(database: str) -> AsyncIterator[Any]:
    if database.startswith("postgresql"):
        postgres = import_module("langgraph.checkpoint.postgres.aio")
        async with postgres.AsyncPostgresSaver.from_conn_string(database) as saver:
            await saver.setup()
            yield saver
        return
    sqlite = import_module("langgraph.checkpoint.sqlite.aio")
    async with sqlite.AsyncSqliteSaver.from_conn_string(database) as saver:
        await saver.setup()
        # As ours: theirs leaves NORMAL to WAL, which loses what a power cut finds unsynced.
        await saver.conn.execute("PRAGMA synchronous = FULL")
        yield saver


def _is_there(module: str) -> bool:
    return find_spec("langgraph") is not None and find_spec(module) is not None


# --- measuring ----------------------------------------------------------------------------------


async def measure(run: Run, calls: Calls, tag: str, rounds: int) -> dict[str, list[float]]:
    """Measure each graph on new threads; microseconds."""
    found: dict[str, list[float]] = {}

    async def timed(graph: str, thread: str, supersteps: int) -> None:
        began, used = time.perf_counter(), time.process_time()
        await run(graph, thread)
        for what, seconds in (
            (graph, time.perf_counter() - began),
            (f"{graph}_processor", time.process_time() - used),
        ):
            found.setdefault(what, []).append(seconds * 1e6 / supersteps)

    for number in range(rounds):
        for graph in ("one_node", "fan_out"):
            await timed(graph, f"{graph}-{tag}-{number}", 1)
    calls.at.clear()
    await timed("chain", f"chain-{tag}", LENGTH)
    steps = [(later - earlier) * 1e6 for earlier, later in zip(calls.at, calls.at[1:], strict=False)]
    found["chain_first"] = [statistics.median(steps[:PART])]
    found["chain_last"] = [statistics.median(steps[-PART:])]
    return found


async def compare(postgres: str, repetitions: int, rounds: int) -> dict[str, Any]:
    """Measure all that is there, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        makers: dict[str, Callable[[Calls], Any]] = {
            "sqlite": lambda calls: ours(f"sqlite:///{folder}/ours.db", calls)
        }
        if _is_there("langgraph.checkpoint.sqlite"):
            makers["langgraph_sqlite"] = lambda calls: theirs(str(Path(folder) / "theirs.db"), calls)
        if postgres:
            makers["postgresql"] = lambda calls: ours(postgres, calls)
            if _is_there("langgraph.checkpoint.postgres"):
                makers["langgraph_postgresql"] = lambda calls: theirs(postgres, calls)
        results: dict[str, dict[str, list[float]]] = {name: {} for name in makers}
        for repetition in range(repetitions + 1):
            for name, make in makers.items():
                calls = Calls()
                async with make(calls) as run:
                    found = await measure(run, calls, f"{time.time_ns()}", rounds)
                # The first time fills caches of statements and modules.
                for what, values in found.items() if repetition else ():
                    results[name].setdefault(what, []).append(statistics.median(values))
            if not repetition:
                server_main._calm_garbage_collector()
    return {
        name: {what: summary([round(value, 1) for value in values]) for what, values in found.items()}
        for name, found in results.items()
    }


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--postgres", default="", help="a database of PostgreSQL to measure over too")
    arguments = made.parse_args()
    repetitions, rounds = (1, 3) if arguments.quick else (arguments.repetitions, 20)
    report("graph_supersteps", asyncio.run(compare(arguments.postgres, repetitions, rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
