"""A graph as its author writes it: names, bindings, channels, edges. Nothing is checked here.

Nodes, channels and conditional edges are kept in order of their names, so that two definitions that
differ in nothing but that order are equal. The order of direct and waiting edges is kept: it
numbers the tasks of a superstep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Final, TypeAlias

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import MISSING, JsonValue, Missing

__all__ = [
    "END",
    "EVERY_NODE",
    "START",
    "Binding",
    "CachePolicy",
    "Channel",
    "ConditionalEdge",
    "Edge",
    "ExpressionRouter",
    "FailurePolicy",
    "FunctionBinding",
    "FunctionRouter",
    "GraphDefinition",
    "GraphPolicy",
    "JoinPolicy",
    "Node",
    "NodeRetryPolicy",
    "NothingBinding",
    "PathRouter",
    "Route",
    "Router",
    "Routing",
    "SubgraphBinding",
    "SubgraphMode",
    "ToolBinding",
    "WaitingEdge",
]

START: Final = "__start__"
END: Final = "__end__"
EVERY_NODE: Final = "*"
"""In ``interrupt_before`` and ``interrupt_after``: all nodes."""


class JoinPolicy(StrEnum):
    """When a join fires: :mod:`.joins` has the exact rules."""

    ALL = "all"
    ANY = "any"
    N_OF = "n_of"
    SKIP_UNREACHABLE = "skip_unreachable"


class SubgraphMode(StrEnum):
    """Whether an embedded graph works on the embedding one's channels or on its own."""

    SHARED = "shared"
    ADAPTER = "adapter"


class FailurePolicy(StrEnum):
    """What a failed node means: the run stops, or the rollback controller decides."""

    STOP = "stop"
    ROLLBACK = "rollback"


class Routing(StrEnum):
    """How a node says what comes after it. A node with none ends its path."""

    NONE = "none"
    STATIC = "static"
    CONDITIONAL = "conditional"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class ToolBinding:
    """A node that is a tool call.

    Attributes:
        tool: its name.
        arguments: a JSON object whose texts may hold ``${state.path}``, ``${arg.path}``, ``${constraints}``.
        output: channel → ``${result}`` or ``${result.path}``; empty: the output is the update.
    """

    tool: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)
    output: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FunctionBinding:
    """A node that is a function of a worker, under the name that workers offer it by."""

    function: str


@dataclass(frozen=True, slots=True)
class SubgraphBinding:
    """A node that is another graph. ``input``: its channel → ours; ``output``: our channel → its.

    ``version`` is empty until the graph is compiled. With a ``state_key`` it keeps its state.
    """

    graph: str
    version: str = ""
    mode: SubgraphMode = SubgraphMode.SHARED
    input: Mapping[str, str] = field(default_factory=dict)
    output: Mapping[str, str] = field(default_factory=dict)
    state_key: str = ""


@dataclass(frozen=True, slots=True)
class NothingBinding:
    """A node that runs nothing: it joins or routes."""


Binding: TypeAlias = ToolBinding | FunctionBinding | SubgraphBinding | NothingBinding


@dataclass(frozen=True, slots=True)
class NodeRetryPolicy:
    """How failed attempts are repeated. Times in microseconds; no ``categories`` means all."""

    max_attempts: int
    initial_interval_us: int = 500_000
    backoff_factor: float = 2.0
    max_interval_us: int = 128_000_000
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Results kept by the values of ``key_channels``, for ``ttl_us`` (None: for ever)."""

    key_channels: tuple[str, ...]
    ttl_us: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node. ``destinations`` is None where it doesn't route by commands, empty where it may go anywhere."""

    name: str
    binding: Binding | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    retry: NodeRetryPolicy | None = None
    run_timeout_us: int | None = None
    idle_timeout_us: int | None = None
    error_handler: str | None = None
    cache: CachePolicy | None = None
    max_visits: int | None = None
    deferred: bool = False
    destinations: tuple[str, ...] | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Channel:
    """A field of the state; ``default`` is MISSING where it starts without a value."""

    name: str
    reducer: str = "overwrite"
    reducer_version: str = ""
    type: str = "any"
    default: JsonValue | Missing = MISSING
    scalars: bool = False
    ignore_unknown_removals: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """When ``source`` has run, ``target`` runs next."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class WaitingEdge:
    """A join: ``target`` runs when the ``members`` came; ``count`` of them under N_OF."""

    members: tuple[str, ...]
    target: str
    policy: JoinPolicy = JoinPolicy.ALL
    count: int = 0


@dataclass(frozen=True, slots=True)
class ExpressionRouter:
    """CEL over ``state`` and ``result``, giving a string or a bool."""

    expression: str


@dataclass(frozen=True, slots=True)
class PathRouter:
    """A dotted path into the state, to a string or a bool."""

    path: str


@dataclass(frozen=True, slots=True)
class FunctionRouter:
    """A function of a worker: state → a label, a Send, or a list of those."""

    function: str


Router: TypeAlias = ExpressionRouter | PathRouter | FunctionRouter


@dataclass(frozen=True, slots=True)
class Route:
    """A row of a route table. A bool's labels are ``true`` and ``false``."""

    label: str
    target: str


@dataclass(frozen=True, slots=True)
class ConditionalEdge:
    """What a router says decides. ``labels``: all that it is declared to give; empty: not declared."""

    source: str
    router: Router
    routes: tuple[Route, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphPolicy:
    """Limits and manners of a graph's runs; a limit of None is the server's default."""

    checkpoints: bool = True
    on_failure: FailurePolicy = FailurePolicy.STOP
    recursion_limit: int | None = None
    max_total_steps: int | None = None
    max_concurrency: int | None = None
    allow_unreachable: bool = False
    interrupt_before: tuple[str, ...] = ()
    interrupt_after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphDefinition:
    """A whole graph."""

    name: str
    nodes: tuple[Node, ...]
    channels: tuple[Channel, ...] = ()
    edges: tuple[Edge, ...] = ()
    waiting_edges: tuple[WaitingEdge, ...] = ()
    conditional_edges: tuple[ConditionalEdge, ...] = ()
    policy: GraphPolicy = GraphPolicy()
    description: str = ""

    def __post_init__(self) -> None:
        # Stable: what bears one name twice, which the compiler refuses, stays as it was written.
        object.__setattr__(self, "nodes", tuple(sorted(self.nodes, key=lambda node: node.name)))
        object.__setattr__(self, "channels", tuple(sorted(self.channels, key=lambda channel: channel.name)))
        by_source = tuple(sorted(self.conditional_edges, key=lambda edge: edge.source))
        object.__setattr__(self, "conditional_edges", by_source)
        # Edges of one source keep their order, which counts; those of different ones have none. START's come first.
        edges = sorted(self.edges, key=lambda edge: (edge.source != START, edge.source))
        object.__setattr__(self, "edges", tuple(edges))

    def with_nodes(self, nodes: tuple[Node, ...]) -> GraphDefinition:
        """The same graph with other nodes."""
        return replace(self, nodes=nodes)
