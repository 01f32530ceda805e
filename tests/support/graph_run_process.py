"""A server's life with one graph over one database, as a process that tests kill.

Run as ``python -m tests.support.graph_run_process DATABASE_URL [trip|healing|nested|approval|waiting]``: it goes on with what the one before left, starts the
run if nobody did, and prints how that ended, as JSON. Where it dies is told by `AGENTTX_FAILPOINTS`; calls of
nodes and effects of the tool go to the log that `CRASH_WORLD_LOG` names.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Collection, Sequence
from types import SimpleNamespace

from tests.support import crash_tools
from tests.support.engine_harness import RecordingSink
from tests.support.graph_definitions import SUM, definition

from agenttx_server import failpoints
from agenttx_server.engine import hints
from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.ports import SubStepCall, ToolContext, ToolFailure
from agenttx_server.engine.records import ServerId
from agenttx_server.engine.services import EngineServices, EngineSettings
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.graphs.catalog import KnownGraphs
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.compiler import compile_graph
from agenttx_server.graphs.definition import (
    Channel,
    FailurePolicy,
    FunctionBinding,
    GraphPolicy,
    SubgraphBinding,
    ToolBinding,
)
from agenttx_server.graphs.node_results import INTERRUPT
from agenttx_server.graphs.runs.engine_transactions import EngineTransactions
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.ports import RunFilter
from agenttx_server.graphs.runs.records import CommitPolicy, Durability
from agenttx_server.graphs.runs.requests import ResumeRequest, RunLimits, RunRefused, StartRequest
from agenttx_server.graphs.runs.rolled_back import RolledBackRuns
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator
from agenttx_server.graphs.runs.step_port import FunctionReport
from agenttx_server.store import open_store
from agenttx_server.system_ports import SystemClock, SystemIds
from agenttx_server.tools import ToolRegistry, load_tools

DURABILITY_VARIABLE = "GRAPH_RUN_DURABILITY"
COMMIT_VARIABLE = "GRAPH_RUN_COMMIT"


def start_request() -> StartRequest:
    """The run that is asked for, as durable as the environment says."""
    limits = RunLimits(
        durability=Durability(os.environ.get(DURABILITY_VARIABLE, "SYNC")),
        commit=CommitPolicy(os.environ.get(COMMIT_VARIABLE, "COMPLETION")),
    )
    return StartRequest("g", "", "thread", {"value": 0}, (), limits, request_id="start", fingerprint="start")


def trip() -> CompiledGraph:
    """Two nodes side by side, one of them a booking; then two more."""
    book = ToolBinding("crash.book", {"entry": "seat", "seconds": 0.02}, {"booked": "${result.entry}"})
    functions = {name: {"binding": FunctionBinding(name)} for name in ("a", "b", "c")}
    made = definition(
        "START->a, START->book, a->b, book->b, b->c",
        channels=(*SUM, Channel("booked")),
        nodes={**functions, "book": {"binding": book}},
    )
    graph = compile_graph(made).graph
    assert graph is not None
    return graph


def nested() -> CompiledGraph:
    """The same as a trip, but for its first node, inside a node."""
    book = ToolBinding("crash.book", {"entry": "seat", "seconds": 0.02}, {"booked": "${result.entry}"})
    channels = (*SUM, Channel("booked"))
    inside = definition(
        "START->b, START->book, [b, book]|>c",
        channels=channels,
        name="inside",
        nodes={
            "b": {"binding": FunctionBinding("b")},
            "c": {"binding": FunctionBinding("c")},
            "book": {"binding": book},
        },
    )
    child = compile_graph(inside).graph
    assert child is not None
    made = definition(
        "START->a, a->child",
        channels=channels,
        nodes={"a": {"binding": FunctionBinding("a")}, "child": {"binding": SubgraphBinding("inside")}},
    )
    graph = compile_graph(made, KnownGraphs({"inside": (child,)})).graph
    assert graph is not None
    return graph


def healing() -> CompiledGraph:
    """The first node chooses, wrongly until it is told; a booking; the last one finds out."""
    book = ToolBinding("crash.book", {"entry": "seat", "seconds": 0.02}, {"booked": "${result.entry}"})
    made = definition(
        "START->a, a->choose, choose->book, book->last",
        channels=(*SUM, Channel("booked"), Channel("customer")),
        policy=GraphPolicy(on_failure=FailurePolicy.ROLLBACK),
        nodes={
            "a": {"binding": FunctionBinding("a")},
            "choose": {"binding": FunctionBinding("choose")},
            "book": {"binding": book},
            "last": {"binding": FunctionBinding("last"), "reads": ("customer",)},
        },
    )
    graph = compile_graph(made).graph
    assert graph is not None
    return graph


def approval() -> CompiledGraph:
    """A node that books and then asks; it is answered at once. One more behind it."""
    made = definition(
        "START->a, a->ask, ask->b",
        channels=(*SUM, Channel("booked")),
        nodes={name: {"binding": FunctionBinding(name)} for name in ("a", "ask", "b")},
    )
    graph = compile_graph(made).graph
    assert graph is not None
    return graph


def waiting() -> CompiledGraph:
    """A node that books and then asks, beside a node and a graph that asks too; a join behind all of them."""
    channels = (*SUM, Channel("booked"))
    functions = {name: {"binding": FunctionBinding(name)} for name in ("a", "ask", "b")}
    inside = definition(
        "START->c, c->wonder",
        channels=channels,
        name="inside",
        nodes={name: {"binding": FunctionBinding(name)} for name in ("c", "wonder")},
    )
    child = compile_graph(inside).graph
    assert child is not None
    made = definition(
        "START->a, START->ask, START->child, [a, ask, child]|>b",
        channels=channels,
        nodes={**functions, "child": {"binding": SubgraphBinding("inside")}},
    )
    graph = compile_graph(made, KnownGraphs({"inside": (child,)})).graph
    assert graph is not None
    return graph


class Nodes:
    """The catalog and the nodes' functions: each adds one, and logs that it was called."""

    def __init__(self, graph: CompiledGraph) -> None:
        self._graph = graph

    async def load(self, owner: str, name: str, version: str) -> CompiledGraph | None:
        return self._graph

    async def missing(self, functions: Collection[str]) -> Sequence[str]:
        return ()

    def is_hosted(self, function: str) -> bool:
        return True

    async def until_hosted(self, function: str) -> None:
        return

    async def call(
        self,
        function: str,
        arguments: str,
        context: ToolContext | None,
        report: FunctionReport | None = None,
        idle_seconds: float | None = None,
    ) -> str:
        about = SimpleNamespace(transaction_id="", step_id=0, attempt=0, idempotency_key="")
        crash_tools.log_line(about, "called", function)
        told = json.loads(arguments)
        if function == "choose":
            return canonical({"customer": "anna" if told["constraints"] else "nobody"})
        if function == "ask":
            assert context is not None
            seat = SubStepCall("crash.book", canonical({"entry": "seat", "seconds": 0.02}))
            booked = json.loads(await context.make(seat))["entry"]
            answers = told.get("answers", ())
            if not answers:
                return canonical({INTERRUPT: "may I?"})
            return canonical({"value": answers[0]["value"], "booked": booked})
        if function == "wonder":
            answers = told.get("answers", ())
            return canonical({"value": answers[0]["value"]} if answers else {INTERRUPT: "and I?"})
        if function == "last" and told["state"]["customer"] == "nobody":
            raise ToolFailure("foreign_key_violation", "customer 'nobody' is not there", ("customer",))
        return canonical({"value": 1})


async def live(database_url: str, graph: CompiledGraph) -> None:
    """Open the store, recover, start the run unless it is there, print its outcome."""
    failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
    nodes = Nodes(graph)
    async with open_store(database_url) as store:
        ids, clock = SystemIds(), SystemClock()
        services = EngineServices(
            store=store,
            tools=ToolRegistry(load_tools("tests.support.crash_tools")),
            sink=RecordingSink(),
            clock=clock,
            ids=ids,
            clean=hints.clean,
            server_id=ServerId(ids.new_id()),
            limits=Limits(),
            settings=EngineSettings(),
            run_owner=RolledBackRuns(store.runs),
        )
        coordinator = TransactionCoordinator(services)
        parts = RunParts(store.runs, EngineTransactions(coordinator), nodes, clock)
        runs = RunCoordinator(parts, nodes, ids, lambda: services.server_id)
        await coordinator.start()
        await runs.recover(clock.now())
        assert await runs.stop(60.0) == 0
        try:
            outcome = await runs.start(start_request())
            # One question is answered at a time: between them the run waits, and is killed.
            for asked in sorted(outcome.interrupts, key=lambda item: item.node):
                name = f"answer {asked.node}"
                answer = ResumeRequest(
                    "thread", values={asked.interrupt_id: 1}, request_id=name, fingerprint=name
                )
                outcome = await runs.resume(answer)
        except RunRefused as refused:
            print(json.dumps({"refused": refused.reason}))
            return
        finally:
            await coordinator.stop()
        events = await store.runs.list_events(outcome.run.run_id, 0, 1000)
        kept_here = await store.runs.list_checkpoints("thread", frozenset(), "", 100)
        inside = await store.runs.list_runs(RunFilter(include_children=True), "", 10)
        children = [run for run in inside.runs if run.parent_run_id]
        kept = [
            item.superstep
            for run in children
            for item in await store.runs.list_embedded(run.thread_id, run.namespace, None, 10)
        ]
        print(
            json.dumps(
                {
                    "status": outcome.run.status.value,
                    "state": dict(outcome.state),
                    "offsets": [event.offset for event in events],
                    "kinds": [event.kind for event in events],
                    "children": [run.status.value for run in children],
                    "kept_inside": kept,
                    "kept": [item.superstep for item in kept_here.checkpoints],
                }
            )
        )


GRAPHS = {"trip": trip, "approval": approval, "healing": healing, "nested": nested, "waiting": waiting}

if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], GRAPHS[sys.argv[2] if len(sys.argv) > 2 else "trip"]()))
