"""Defining a graph: `GraphBuilder` and what its nodes and edges are made of.

    builder = (
        GraphBuilder("support")
        .channel("messages", reducer="messages")
        .node("agent", agent)
        .node("tools", tools)
        .edge(START, "agent")
        .conditional("agent", route, {"tool": "tools", "final": END})
        .edge("tools", "agent")
    )
    client.graphs.register(builder)

The server checks the whole when it is validated or registered; a builder only refuses what it can't write down.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Self, TypeAlias

from agenttx.errors import InvalidValue
from agenttx.message_conversion import duration
from agenttx.sendable_text import sends_text
from agenttx.v1 import graph_pb2 as pb
from agenttx.values import encode_arguments, encode_json

__all__ = [
    "END",
    "NOTHING",
    "START",
    "CachePolicy",
    "Function",
    "GraphBuilder",
    "NodeRetry",
    "Path",
    "Subgraph",
    "ToolCall",
]

START: Final = "__start__"
"""Where a graph begins: a source of edges."""
END: Final = "__end__"
"""Where a path ends: a target of edges, routes and commands."""

_MISSING: Final = object()
_NOT_IN_FUNCTION_NAMES = re.compile(r"[^A-Za-z0-9_.:@-]")

NodeFunction: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A node that is a call of a tool.

    Attributes:
        tool: The tool's name.
        arguments: Its arguments; texts may hold `${state.path}`, `${arg.path}` and `${constraints}`.
        output: Channel → `${result}` or `${result.path}`. Empty: the output is the update.
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    output: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Function:
    """A node, or a router, that is a function of some worker, by the name under which it is offered there."""

    name: str


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A node that is another registered graph.

    Attributes:
        graph: Its name.
        version: Its version; empty for the newest when the embedding graph is registered.
        input: Its channel → our channel. With `input` or `output` it has a state of its own (ADAPTER), else it works on
            ours (SHARED).
        output: Our channel → its channel.
        state_key: Keeps its state between activations under this key.
    """

    graph: str
    version: str = ""
    input: Mapping[str, str] = field(default_factory=dict)
    output: Mapping[str, str] = field(default_factory=dict)
    state_key: str = ""


@dataclass(frozen=True, slots=True)
class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()
"""A node that runs nothing: it joins or routes."""


@dataclass(frozen=True, slots=True)
class Path:
    """A router: a dotted path into the state, to a string or a bool."""

    path: str


@dataclass(frozen=True, slots=True)
class NodeRetry:
    """How failed attempts of a node are repeated.

    Attributes:
        max_attempts: Attempts in all, 1 to 100.
        initial_interval: Time before the second one, in seconds or as timedelta.
        backoff_factor: What it is multiplied by for each further one.
        max_interval: The longest such time, in seconds or as timedelta.
        categories: Categories of errors that are repeated; empty for all.
    """

    max_attempts: int
    initial_interval: float | timedelta = 0.5
    backoff_factor: float = 2.0
    max_interval: float | timedelta = 128.0
    categories: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Keeps the results of a node by the values of channels, for a time in seconds or as timedelta; None for ever."""

    key_channels: Sequence[str]
    ttl: float | timedelta | None = None


Binding: TypeAlias = NodeFunction | ToolCall | Function | Subgraph | _Nothing


class GraphBuilder:
    """Collects a graph. Every method returns the builder.

    Args:
        name: The graph's name, 1 to 128 characters, none of `: | / #`.
        description: What it is for.
    """

    @sends_text
    def __init__(self, name: str, description: str = "") -> None:
        self.name: Final = name
        self._graph = pb.GraphDefinition(name=name, description=description)
        self._functions: dict[str, NodeFunction | None] = {}

    @property
    def functions(self) -> Mapping[str, NodeFunction | None]:
        """The functions that workers host for this graph, by the names that it uses; None where none is bound yet."""
        return dict(self._functions)

    @sends_text
    def channel(
        self,
        name: str,
        *,
        reducer: str = "overwrite",
        reducer_version: str = "",
        type: str = "any",
        default: Any = _MISSING,
        scalars: bool = False,
        ignore_unknown_removals: bool = False,
    ) -> Self:
        """Declare a field of the state.

        Args:
            name: Its name.
            reducer: How an update is combined with what is there: overwrite, any_value, append, add, min, max, union,
                messages, ephemeral, untracked, or a server's own.
            reducer_version: Version of a server's own reducer; empty for the newest.
            type: any, null, boolean, integer, number, string, array or object.
            default: The value it starts with.
            scalars: Append and union take single values too.
            ignore_unknown_removals: Messages that are not there may be removed.
        """
        self._graph.channels.add(
            name=name,
            reducer=reducer,
            reducer_version=reducer_version,
            type=type,
            default_json="" if default is _MISSING else encode_json(default),
            scalars=scalars,
            ignore_unknown_removals=ignore_unknown_removals,
        )
        return self

    @sends_text
    def node(
        self,
        name: str,
        runs: Binding | None = None,
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        retry: NodeRetry | int | None = None,
        run_timeout: float | timedelta | None = None,
        idle_timeout: float | timedelta | None = None,
        error_handler: str = "",
        cache: CachePolicy | None = None,
        max_visits: int = 0,
        deferred: bool = False,
        destinations: Iterable[str] | None = None,
        label: str = "",
    ) -> Self:
        """Add a node.

        Args:
            name: Its name.
            runs: A function, which this process can host; a `ToolCall`, `Function`, `Subgraph` or `NOTHING`. None: a
                function of the node's name that is bound later, with `bind`, or hosted elsewhere.
            reads: Channels that it reads, for the dependency graph.
            writes: Channels that it may write.
            retry: How its failures are repeated; a number is that of all attempts.
            run_timeout: How long an attempt may take, in seconds or as timedelta.
            idle_timeout: How long it may take between two signs of progress, in seconds or as timedelta.
            error_handler: The node that stands in for it when it failed.
            cache: Keeps its results.
            max_visits: How many times it may run in one run; 0 is no limit.
            deferred: It waits until no other work is left.
            destinations: Set: it routes by commands, to these nodes; empty: to any.
            label: What drawings show.
        """
        node = self._graph.nodes.add(
            name=name,
            reads=list(reads),
            writes=list(writes),
            run_timeout=duration("run_timeout", run_timeout),
            idle_timeout=duration("idle_timeout", idle_timeout),
            error_handler=error_handler,
            max_visits=max_visits,
            deferred=deferred,
            label=label,
        )
        self._bind_message(node, runs)
        if retry is not None:
            policy = NodeRetry(retry) if isinstance(retry, int) else retry
            node.retry.CopyFrom(
                pb.NodeRetryPolicy(
                    max_attempts=policy.max_attempts,
                    initial_interval=duration("initial_interval", policy.initial_interval),
                    backoff_factor=policy.backoff_factor,
                    max_interval=duration("max_interval", policy.max_interval),
                    categories=policy.categories,
                )
            )
        if cache is not None:
            node.cache.CopyFrom(
                pb.NodeCachePolicy(key_channels=cache.key_channels, ttl=duration("ttl", cache.ttl))
            )
        if destinations is not None:
            node.commands.SetInParent()
            node.commands.destinations.extend(destinations)
        return self

    def bind(self, node: str, function: NodeFunction) -> Self:
        """Bind a function to a node that was added without one.

        Raises:
            InvalidValue: there is no such node, or it runs something else.
        """
        for added in self._graph.nodes:
            if added.name == node and added.WhichOneof("binding") == "function":
                self._functions[added.function.function_name] = function
                return self
        raise InvalidValue(f"no node {node!r} waits for a function", path="node", rule="unknown_node")

    @sends_text
    def edge(self, source: str, *targets: str) -> Self:
        """Add edges from a node, or START, to nodes that run next. Their order is that of their tasks."""
        for target in targets:
            self._graph.edges.add(source=source, target=target)
        return self

    @sends_text
    def conditional(
        self,
        source: str,
        router: NodeFunction | Function | Path | str,
        routes: Mapping[str | bool, str] | Iterable[str] = (),
        *,
        labels: Iterable[str] | type[StrEnum] | None = None,
    ) -> Self:
        """Have a router decide what comes after a node.

        Args:
            source: The node.
            router: A CEL expression over `state` and `result`, as text; a `Path` into the state; or a function of
                the state that answers a label, a `Send` or a list of those.
            routes: Label → node or END; or the names of nodes that are labels themselves.
            labels: All labels that the router gives; each needs a route then. A function that is annotated to return
                a StrEnum says it by that.
        """
        edge = self._graph.conditional_edges.add(source=source)
        match router:
            case str():
                edge.expression = router
            case Path(path):
                edge.path = path
            case Function(name):
                edge.function_name = name
                self._functions.setdefault(name, None)
            case _:
                edge.function_name = self._function_name(f"{source}.route", router)
                labels = labels if labels is not None else _labels_of(router)
        table = routes if isinstance(routes, Mapping) else {name: name for name in routes}
        for label, target in table.items():
            text = ("true" if label else "false") if isinstance(label, bool) else str(label)
            edge.routes.add(label=text, target=target)
        if labels is not None:
            edge.labels.extend(str(label) for label in labels)
        return self

    @sends_text
    def join(self, members: Iterable[str], target: str, policy: str = "ALL", *, count: int = 0) -> Self:
        """Have a node wait for others.

        Args:
            members: The nodes waited for.
            target: The node that runs then.
            policy: ALL, ANY, N_OF or SKIP_UNREACHABLE.
            count: How many, under N_OF.

        Raises:
            InvalidValue: the policy is none of these.
        """
        self._graph.waiting_edges.add(
            members=list(members),
            target=target,
            policy=_word("policy", pb.JoinPolicy, "JOIN_POLICY_", policy),
            count=count,
        )
        return self

    @sends_text
    def interrupt(self, *, before: Iterable[str] = (), after: Iterable[str] = ()) -> Self:
        """Have runs stop before or after nodes; `"*"` is every one."""
        self._graph.policy.interrupt_before.extend([before] if isinstance(before, str) else before)
        self._graph.policy.interrupt_after.extend([after] if isinstance(after, str) else after)
        return self

    @sends_text
    def policy(
        self,
        *,
        checkpoints: bool = True,
        on_failure: str = "STOP",
        recursion_limit: int = 0,
        max_total_steps: int = 0,
        max_concurrency: int = 0,
        allow_unreachable: bool = False,
    ) -> Self:
        """Set limits and manners of runs.

        Args:
            checkpoints: Whether checkpoints are kept.
            on_failure: What a failed node means: STOP, or ROLLBACK to the superstep of the root cause.
            recursion_limit: Supersteps of one invocation; 0 for the default, 50.
            max_total_steps: Supersteps of a whole run; 0 for the default, 1,000.
            max_concurrency: Nodes at work at the same time; 0 for the server's default.
            allow_unreachable: Nodes that nothing leads to are no error.

        Raises:
            InvalidValue: `on_failure` is neither.
        """
        policy = self._graph.policy
        policy.checkpoints = pb.CHECKPOINT_POLICY_ON if checkpoints else pb.CHECKPOINT_POLICY_OFF
        policy.on_failure = _word("on_failure", pb.GraphFailurePolicy, "GRAPH_FAILURE_POLICY_", on_failure)
        policy.recursion_limit = recursion_limit
        policy.max_total_steps = max_total_steps
        policy.max_concurrency = max_concurrency
        policy.allow_unreachable = allow_unreachable
        return self

    def definition(self) -> pb.GraphDefinition:
        """Return the graph as a message, a copy: what is added later doesn't change it."""
        copy = pb.GraphDefinition()
        copy.CopyFrom(self._graph)
        return copy

    def _bind_message(self, node: pb.GraphNode, runs: Binding | None) -> None:
        match runs:
            case ToolCall():
                node.tool.tool_name = runs.tool
                node.tool.arguments_json = encode_arguments(runs.arguments) if runs.arguments else ""
                node.tool.output.update(runs.output)
            case Function():
                node.function.function_name = runs.name
                self._functions.setdefault(runs.name, None)
            case Subgraph():
                mapped = bool(runs.input or runs.output)
                node.subgraph.CopyFrom(
                    pb.SubgraphBinding(
                        graph=runs.graph,
                        version=runs.version,
                        mode=pb.SUBGRAPH_MODE_ADAPTER if mapped else pb.SUBGRAPH_MODE_SHARED,
                        input=runs.input,
                        output=runs.output,
                        state_key=runs.state_key,
                    )
                )
            case _Nothing():
                node.none.SetInParent()
            case _:
                node.function.function_name = self._function_name(node.name, runs)

    def _function_name(self, place: str, function: NodeFunction | None) -> str:
        name = "/".join(_NOT_IN_FUNCTION_NAMES.sub("_", part) for part in (self.name, place))[:128]
        if name in self._functions and self._functions[name] is not function:
            raise InvalidValue(
                f"another function is named {name!r} already; give this one a name of its own with Function(name)",
                path="node",
                rule="duplicate_name",
            )
        self._functions[name] = function
        return name


def _labels_of(function: NodeFunction) -> type[StrEnum] | None:
    try:
        declared = typing.get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):
        # Annotations that can't be resolved here declare nothing.
        return None
    return declared if isinstance(declared, type) and issubclass(declared, StrEnum) else None


def _word(name: str, enumeration: Any, prefix: str, word: str) -> Any:
    # By a name with a lone surrogate the descriptor can't even be asked.
    value = enumeration.DESCRIPTOR.values_by_name.get(f"{prefix}{word.upper()}") if word.isascii() else None
    if value is None or value.number == 0:
        words = ", ".join(
            known.removeprefix(prefix)
            for known in enumeration.DESCRIPTOR.values_by_name
            if not known.endswith("_UNSPECIFIED")
        )
        raise InvalidValue(f"{word!r} is none of {words}", path=name, rule="not_a_choice")
    return value.number
