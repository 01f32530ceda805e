"""Runs of small graphs on a real engine over the store in memory, in virtual time.

    runs = GraphRuns("START->a, a->b", {"a": adds(1), "b": adds(2)}, channels=SUM)
    outcome = await runs.start({"value": 0}, thread="t")

A node's function gets a :class:`Call` and answers as a worker would. :meth:`GraphRuns.crash` kills the server and
starts the next one over what is durable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.support.engine_harness import Engine, SequentialIds
from tests.support.graph_definitions import definition, goto
from tests.support.memory_run_store import RUN_TABLES, MemoryRunStore
from tests.support.memory_store import MemoryDatabase

from agenttx_server.engine.json_values import canonical, load
from agenttx_server.engine.ports import ToolContext
from agenttx_server.graphs.catalog import KnownGraphs
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.compiler import compile_graph
from agenttx_server.graphs.definition import (
    Channel,
    ConditionalEdge,
    FunctionBinding,
    GraphPolicy,
    SubgraphBinding,
    SubgraphMode,
)
from agenttx_server.graphs.node_results import INTERRUPT, Target
from agenttx_server.graphs.reducers import ReducerRegistry
from agenttx_server.graphs.runs.engine_transactions import EngineTransactions
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.position import position_at
from agenttx_server.graphs.runs.records import CheckpointRecord, EventRecord, InterruptRecord, RunError
from agenttx_server.graphs.runs.requests import (
    Amendment,
    InputPolicy,
    ResumeRequest,
    RetryRequest,
    RunLimits,
    RunOutcome,
    StartRequest,
    StateUpdate,
    UpdateRequest,
)
from agenttx_server.graphs.runs.rolled_back import RolledBackRuns
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator
from agenttx_server.graphs.runs.state_editor import EditedState
from agenttx_server.graphs.runs.step_port import FunctionReport, StepTurn

__all__ = ["Call", "GraphRuns", "Inner", "adds", "embedding", "goto", "inner", "logs"]


class Asks(Exception):
    """Leaves a node's function with a question."""

    def __init__(self, payload: Any) -> None:
        super().__init__("asks")
        self.payload = payload


class Call:
    """What a node's function is told."""

    def __init__(self, told: Mapping[str, Any], context: ToolContext | None) -> None:
        self.state: dict[str, Any] = told["state"]
        self.arg = told.get("arg")
        self.has_arg = "arg" in told
        self.constraints = told.get("constraints")
        self.context = context
        self._answers = list(told.get("answers", ()))
        self._asked = 0

    def interrupt(self, payload: Any) -> Any:
        """Ask; the answer when the node is started again."""
        self._asked += 1
        if self._asked > len(self._answers):
            raise Asks(payload)
        return self._answers[self._asked - 1]["value"]


Function = Callable[[Call], Awaitable[Any]]


def adds(number: int) -> Function:
    """A node that adds to ``value``."""

    async def add(call: Call) -> Any:
        return {"value": number}

    return add


def logs(name: str) -> Function:
    """A node that appends its name."""

    async def log(call: Call) -> Any:
        return {"log": [name]}

    return log


@dataclass(frozen=True)
class Inner:
    """A graph to be embedded, with the functions of its nodes, and of those that it embeds."""

    graph: CompiledGraph
    functions: Mapping[str, Function]


def inner(
    name: str,
    text: str,
    functions: Mapping[str, Function],
    *,
    nodes: Mapping[str, Mapping[str, Any]] | None = None,
    embeds: Sequence[Inner] = (),
    conditional: Sequence[ConditionalEdge] = (),
    **options: Any,
) -> Inner:
    """Compile a graph that is to be embedded. Its functions are known by their nodes' names, ``name.node``."""
    fields = {node: dict(given) for node, given in (nodes or {}).items()}
    for node in functions:
        fields.setdefault(node, {}).setdefault("binding", FunctionBinding(f"{name}.{node}"))
    made = definition(text, nodes=fields, name=name, **options)
    made = replace(made, conditional_edges=(*made.conditional_edges, *conditional))
    compilation = compile_graph(made, _known(embeds))
    assert compilation.graph is not None, compilation.errors
    own = {f"{name}.{node}": function for node, function in functions.items()}
    for item in embeds:
        own |= item.functions
    return Inner(compilation.graph, own)


def _known(embeds: Sequence[Inner]) -> KnownGraphs:
    return KnownGraphs({item.graph.name: (item.graph,) for item in embeds})


def _inside(graph: CompiledGraph) -> dict[str, CompiledGraph]:
    found: dict[str, CompiledGraph] = {}
    for child in graph.subgraphs.values():
        found |= {child.name: child} | _inside(child)
    return found


def embedding(name: str, **fields: Any) -> dict[str, Any]:
    """The fields of a node that is another graph: SHARED, or ADAPTER where ``input`` or ``output`` are given."""
    mode = SubgraphMode.ADAPTER if "input" in fields or "output" in fields else SubgraphMode.SHARED
    return {"binding": SubgraphBinding(name, mode=mode, **fields)}


class GraphRuns:
    """A server with one graph, and those that it embeds. ``calls`` are the functions that were called, in order."""

    def __init__(
        self,
        text: str,
        functions: Mapping[str, Function],
        *,
        channels: Sequence[Channel] = (),
        policy: GraphPolicy | None = None,
        nodes: Mapping[str, Mapping[str, Any]] | None = None,
        conditional: Sequence[ConditionalEdge] = (),
        embeds: Sequence[Inner] = (),
        reducers: ReducerRegistry | None = None,
        step_turn: StepTurn = lambda owner: None,
        check_stored: Callable[[str], None] = lambda owner: None,
    ) -> None:
        fields = {name: dict(given) for name, given in (nodes or {}).items()}
        for name in functions:
            fields.setdefault(name, {}).setdefault("binding", FunctionBinding(name))
        made = definition(text, channels=channels, policy=policy, nodes=fields)
        made = replace(made, conditional_edges=(*made.conditional_edges, *conditional))
        compilation = compile_graph(made, _known(embeds), reducers)
        assert compilation.graph is not None, compilation.errors
        self.graph: CompiledGraph = compilation.graph
        self.older: dict[str, CompiledGraph] = {}
        self.functions = dict(functions)
        for item in embeds:
            self.functions |= item.functions
        self.calls: list[str] = []
        self.in_flight = self.most_in_flight = 0
        self.database = MemoryDatabase()
        self.store = MemoryRunStore(self.database)
        self.engine = Engine(
            database=self.database, run_owner=RolledBackRuns(self.store), extra_tables=RUN_TABLES
        )
        self._ids = SequentialIds("run")
        self._lives = 0
        self._step_turn, self._check_stored = step_turn, check_stored
        self.runs = self._coordinator()

    def _coordinator(self) -> RunCoordinator:
        """A coordinator of a new life of the server; on a database that others serve too it holds the engine's lease."""
        self._lives += 1
        parts = RunParts(
            self.store,
            EngineTransactions(self.engine.coordinator, self._check_stored),
            self,
            self.engine.clock,
            step_turn=self._step_turn,
        )
        engine, life = self.engine, self._lives
        shared = engine.store.is_shared
        return RunCoordinator(
            parts, self, self._ids, lambda: engine.coordinator.server_id if shared else f"runs-{life}"
        )

    # --- ports --------------------------------------------------------------------------------

    async def load(self, owner: str, name: str, version: str) -> CompiledGraph | None:
        if name == self.graph.name and version in ("", self.graph.version):
            return self.graph
        if name == self.graph.name:
            return self.older.get(version)
        return _inside(self.graph).get(name)

    def register(self, text: str, functions: Mapping[str, Function], **fields: Any) -> None:
        """Make another version the newest."""
        self.older[self.graph.version] = self.graph
        nodes = {name: {"binding": FunctionBinding(name)} for name in functions}
        graph = compile_graph(definition(text, nodes=nodes, **fields)).graph
        assert graph is not None
        self.graph = graph
        self.functions |= functions

    async def missing(self, functions: Collection[str]) -> Sequence[str]:
        return [function for function in functions if function not in self.functions]

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
        told: Any = load(arguments)
        if context is not None:
            self.calls.append(function)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return canonical(await self.functions[function](Call({"state": {}, **told}, context)))
        except Asks as asks:
            return canonical({INTERRUPT: asks.payload})
        finally:
            self.in_flight -= 1

    # --- requests -----------------------------------------------------------------------------

    async def start(
        self,
        given: Mapping[str, Any] | None = None,
        thread: str = "t",
        *,
        goto: Sequence[Target] = (),
        at: str = "",
        reset: bool = False,
        discard: bool = False,
        queue: bool = False,
        **limits: Any,
    ) -> RunOutcome:
        """Start a run, perhaps at a checkpoint, and wait for it."""
        request = StartRequest(
            self.graph.name,
            "",
            thread,
            given,
            tuple(goto),
            RunLimits(**limits),
            checkpoint_id=at,
            input_policy=InputPolicy.RESET if reset else InputPolicy.MERGE,
            discards_interrupts=discard,
            queues=queue,
        )
        return await self.runs.start(request)

    async def resume(
        self,
        thread: str = "t",
        *value: Any,
        update: Mapping[str, Any] | None = None,
        goto: Sequence[Target] = (),
        limits: RunLimits | None = None,
        **values: Any,
    ) -> RunOutcome:
        """Answer, with one value or by id, and wait."""
        one = {"value": value[0], "has_value": True} if value else {"values": values}
        changed = Amendment(update, tuple(goto))
        request = ResumeRequest(thread, **one, limits=limits or RunLimits(), amendment=changed)  # type: ignore[arg-type]
        return await self.runs.resume(request)

    async def retry(
        self,
        thread: str = "t",
        *,
        update: Mapping[str, Any] | None = None,
        goto: Sequence[Target] = (),
        discard: Sequence[str] = (),
        **limits: Any,
    ) -> RunOutcome:
        """Go on, and wait."""
        changed = Amendment(update, tuple(goto), tuple(discard))
        return await self.runs.retry(RetryRequest(thread, RunLimits(**limits), changed))

    async def update(
        self, *supersteps: StateUpdate | Sequence[StateUpdate], thread: str = "t", **fields: Any
    ) -> EditedState:
        """Edit the state; one update is a superstep of its own."""
        lists = tuple((item,) if isinstance(item, StateUpdate) else tuple(item) for item in supersteps)
        return await self.runs.states.update(UpdateRequest(thread, lists, **fields))

    def next_of(self, edited: EditedState) -> list[str]:
        """The nodes that come next after an edit."""
        return [item.node for item in edited.position.work.activations]

    async def crash(self) -> None:
        """Kill the server and start the next one; what was live is gone on with when it recovers."""
        running = self.runs._tasks._running
        await self.engine.crash()
        for task in list(running):
            task.cancel()
        self.runs = self._coordinator()

    async def recover(self) -> None:
        """Have the server go on with what the one before left, and wait for it."""
        await self.engine.coordinator.start()
        await self.runs.recover(self.engine.clock.now())
        assert await self.runs.stop(600.0) == 0

    # --- what is kept -------------------------------------------------------------------------

    async def events(self, run_id: str) -> list[EventRecord]:
        """The journal of a run."""
        return list(await self.store.list_events(run_id, 0, 10_000))

    async def kinds(self, run_id: str) -> list[str]:
        """The kinds of its events."""
        return [event.kind for event in await self.events(run_id)]

    async def pending(self, thread: str = "t") -> list[InterruptRecord]:
        """What a thread waits for."""
        return list(await self.store.list_interrupts(thread))

    async def checkpoints(self, thread: str = "t") -> list[CheckpointRecord]:
        """The checkpoints of a thread on all branches, the oldest first."""
        page = await self.store.list_checkpoints(thread, frozenset(), "", 1000)
        return list(page.checkpoints)[::-1]

    async def state_at(self, checkpoint: CheckpointRecord) -> dict[str, Any]:
        """What a checkpoint holds."""
        return dict((await position_at(self.store, checkpoint)).state)

    async def sources(self, thread: str = "t") -> list[str]:
        """How the checkpoints of a thread came to be, the oldest first."""
        page = await self.store.list_checkpoints(thread, frozenset(), "", 1000)
        return [checkpoint.source.value for checkpoint in page.checkpoints][::-1]


def without_metadata(error: RunError | None) -> RunError | None:
    """An error without what its reason names besides."""
    return None if error is None else replace(error, metadata=())
