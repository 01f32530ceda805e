"""Graph definitions: from their messages and back. ``definition_to(definition_from(m))`` says the same as m."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from google.protobuf import duration_pb2
from google.protobuf.message import Message

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.message_conversion.request_reader import RequestReader
from agenttx_server.engine.json_values import MISSING, JsonValue, ValueRefused, canonical, parse
from agenttx_server.graphs.definition import (
    Binding,
    CachePolicy,
    Channel,
    ConditionalEdge,
    Edge,
    ExpressionRouter,
    FailurePolicy,
    FunctionBinding,
    FunctionRouter,
    GraphDefinition,
    GraphPolicy,
    JoinPolicy,
    Node,
    NodeRetryPolicy,
    NothingBinding,
    PathRouter,
    Route,
    Router,
    SubgraphBinding,
    SubgraphMode,
    ToolBinding,
    WaitingEdge,
)

__all__ = ["definition_from", "definition_to"]

T = TypeVar("T")

_JOIN_POLICIES: Mapping[int, JoinPolicy] = {
    pb.JOIN_POLICY_UNSPECIFIED: JoinPolicy.ALL,
    pb.JOIN_POLICY_ALL: JoinPolicy.ALL,
    pb.JOIN_POLICY_ANY: JoinPolicy.ANY,
    pb.JOIN_POLICY_N_OF: JoinPolicy.N_OF,
    pb.JOIN_POLICY_SKIP_UNREACHABLE: JoinPolicy.SKIP_UNREACHABLE,
}
_MODES: Mapping[int, SubgraphMode] = {
    pb.SUBGRAPH_MODE_UNSPECIFIED: SubgraphMode.SHARED,
    pb.SUBGRAPH_MODE_SHARED: SubgraphMode.SHARED,
    pb.SUBGRAPH_MODE_ADAPTER: SubgraphMode.ADAPTER,
}
_FAILURES: Mapping[int, FailurePolicy] = {
    pb.GRAPH_FAILURE_POLICY_UNSPECIFIED: FailurePolicy.STOP,
    pb.GRAPH_FAILURE_POLICY_STOP: FailurePolicy.STOP,
    pb.GRAPH_FAILURE_POLICY_ROLLBACK: FailurePolicy.ROLLBACK,
}
_CHECKPOINTS: Mapping[int, bool] = {
    pb.CHECKPOINT_POLICY_UNSPECIFIED: True,
    pb.CHECKPOINT_POLICY_ON: True,
    pb.CHECKPOINT_POLICY_OFF: False,
}


# --- from the wire ------------------------------------------------------------------------


def definition_from(message: pb.GraphDefinition, reader: RequestReader, place: str) -> GraphDefinition:
    """Read a definition; what can't be read is noted by the reader under ``place``, and left out."""
    return _DefinitionReader(reader, place).read(message)


class _DefinitionReader:
    def __init__(self, reader: RequestReader, place: str) -> None:
        self._reader = reader
        self._place = place

    def read(self, message: pb.GraphDefinition) -> GraphDefinition:
        return GraphDefinition(
            name=message.name,
            description=message.description,
            nodes=tuple(self._node(node, f"nodes[{i}]") for i, node in enumerate(message.nodes)),
            channels=tuple(self._channel(item, f"channels[{i}]") for i, item in enumerate(message.channels)),
            edges=tuple(Edge(edge.source, edge.target) for edge in message.edges),
            waiting_edges=tuple(
                WaitingEdge(
                    tuple(edge.members),
                    edge.target,
                    self._choice(f"waiting_edges[{i}].policy", _JOIN_POLICIES, edge.policy, JoinPolicy.ALL),
                    edge.count,
                )
                for i, edge in enumerate(message.waiting_edges)
            ),
            conditional_edges=tuple(
                self._conditional(edge, f"conditional_edges[{i}]")
                for i, edge in enumerate(message.conditional_edges)
            ),
            policy=self._policy(message.policy),
        )

    def _node(self, node: pb.GraphNode, where: str) -> Node:
        return Node(
            name=node.name,
            binding=self._binding(node, where),
            reads=tuple(node.reads),
            writes=tuple(node.writes),
            retry=self._retry(node.retry, f"{where}.retry") if node.HasField("retry") else None,
            run_timeout_us=self._duration(node, "run_timeout", where),
            idle_timeout_us=self._duration(node, "idle_timeout", where),
            error_handler=node.error_handler or None,
            cache=CachePolicy(
                tuple(node.cache.key_channels), self._duration(node.cache, "ttl", f"{where}.cache")
            )
            if node.HasField("cache")
            else None,
            max_visits=node.max_visits or None,
            deferred=node.deferred,
            destinations=tuple(node.commands.destinations) if node.HasField("commands") else None,
            label=node.label,
        )

    def _binding(self, node: pb.GraphNode, where: str) -> Binding | None:
        match node.WhichOneof("binding"):
            case "tool":
                arguments = self._json(f"{where}.tool.arguments_json", node.tool.arguments_json or "{}")
                if not isinstance(arguments, dict):
                    self._refuse(f"{where}.tool.arguments_json", "is no JSON object")
                    arguments = {}
                return ToolBinding(node.tool.tool_name, arguments, dict(node.tool.output))
            case "function":
                return FunctionBinding(node.function.function_name)
            case "subgraph":
                subgraph = node.subgraph
                return SubgraphBinding(
                    subgraph.graph,
                    subgraph.version,
                    self._choice(f"{where}.subgraph.mode", _MODES, subgraph.mode, SubgraphMode.SHARED),
                    dict(subgraph.input),
                    dict(subgraph.output),
                    subgraph.state_key,
                )
            case "none":
                return NothingBinding()
            case _:
                return None

    def _retry(self, retry: pb.NodeRetryPolicy, where: str) -> NodeRetryPolicy:
        defaults = NodeRetryPolicy(1)
        initial = self._duration(retry, "initial_interval", where)
        longest = self._duration(retry, "max_interval", where)
        return NodeRetryPolicy(
            retry.max_attempts,
            defaults.initial_interval_us if initial is None else initial,
            retry.backoff_factor or defaults.backoff_factor,
            defaults.max_interval_us if longest is None else longest,
            tuple(retry.categories),
        )

    def _channel(self, channel: pb.GraphChannel, where: str) -> Channel:
        default = channel.default_json
        return Channel(
            channel.name,
            channel.reducer or "overwrite",
            channel.reducer_version,
            channel.type or "any",
            self._json(f"{where}.default_json", default) if default else MISSING,
            channel.scalars,
            channel.ignore_unknown_removals,
        )

    def _conditional(self, edge: pb.ConditionalEdge, where: str) -> ConditionalEdge:
        routers: Mapping[str | None, Router] = {
            "expression": ExpressionRouter(edge.expression),
            "path": PathRouter(edge.path),
            "function_name": FunctionRouter(edge.function_name),
        }
        kind = edge.WhichOneof("router")
        if kind is None:
            self._refuse(where, "has no router; set expression, path or function_name")
        router = routers.get(kind, PathRouter(""))
        routes = tuple(Route(route.label, route.target) for route in edge.routes)
        return ConditionalEdge(edge.source, router, routes, tuple(edge.labels))

    def _policy(self, policy: pb.GraphPolicy) -> GraphPolicy:
        return GraphPolicy(
            self._choice("policy.checkpoints", _CHECKPOINTS, policy.checkpoints, True),
            self._choice("policy.on_failure", _FAILURES, policy.on_failure, FailurePolicy.STOP),
            policy.recursion_limit or None,
            policy.max_total_steps or None,
            policy.max_concurrency or None,
            policy.allow_unreachable,
            tuple(policy.interrupt_before),
            tuple(policy.interrupt_after),
        )

    def _json(self, field: str, text: str) -> JsonValue:
        try:
            return parse(text)
        except ValueRefused as error:
            self._refuse(field, str(error))
            return None

    def _duration(self, message: Message, field: str, where: str) -> int | None:
        return self._reader.duration(message, field, shown=f"{self._place}.{where}.{field}")

    def _choice(self, field: str, words: Mapping[int, T], number: int, default: T) -> T:
        if number not in words:
            self._refuse(field, f"is {number}, which is no value of its enumeration")
        return words.get(number, default)

    def _refuse(self, field: str, description: str) -> None:
        self._reader.refuse(f"{self._place}.{field}", description)


# --- to the wire --------------------------------------------------------------------------


def definition_to(graph: GraphDefinition) -> pb.GraphDefinition:
    """Write a definition."""
    return pb.GraphDefinition(
        name=graph.name,
        description=graph.description,
        nodes=[_node_to(node) for node in graph.nodes],
        channels=[_channel_to(channel) for channel in graph.channels],
        edges=[pb.GraphEdge(source=edge.source, target=edge.target) for edge in graph.edges],
        waiting_edges=[
            pb.WaitingEdge(
                members=edge.members,
                target=edge.target,
                policy=pb.JoinPolicy.Value(f"JOIN_POLICY_{edge.policy.name}"),
                count=edge.count,
            )
            for edge in graph.waiting_edges
        ],
        conditional_edges=[_conditional_to(edge) for edge in graph.conditional_edges],
        policy=_policy_to(graph.policy),
    )


def _node_to(node: Node) -> pb.GraphNode:
    message = pb.GraphNode(
        name=node.name,
        reads=node.reads,
        writes=node.writes,
        error_handler=node.error_handler or "",
        max_visits=node.max_visits or 0,
        deferred=node.deferred,
        label=node.label,
        run_timeout=_duration_to(node.run_timeout_us),
        idle_timeout=_duration_to(node.idle_timeout_us),
    )
    if node.retry is not None:
        message.retry.CopyFrom(
            pb.NodeRetryPolicy(
                max_attempts=node.retry.max_attempts,
                initial_interval=_duration_to(node.retry.initial_interval_us),
                backoff_factor=node.retry.backoff_factor,
                max_interval=_duration_to(node.retry.max_interval_us),
                categories=node.retry.categories,
            )
        )
    if node.cache is not None:
        message.cache.CopyFrom(
            pb.NodeCachePolicy(key_channels=node.cache.key_channels, ttl=_duration_to(node.cache.ttl_us))
        )
    if node.destinations is not None:
        message.commands.CopyFrom(pb.CommandRouting(destinations=node.destinations))
    _bind(message, node.binding)
    return message


def _bind(message: pb.GraphNode, binding: Binding | None) -> None:
    match binding:
        case ToolBinding():
            arguments = canonical(dict(binding.arguments)) if binding.arguments else ""
            message.tool.CopyFrom(
                pb.ToolBinding(tool_name=binding.tool, arguments_json=arguments, output=binding.output)
            )
        case FunctionBinding():
            message.function.CopyFrom(pb.FunctionBinding(function_name=binding.function))
        case SubgraphBinding():
            message.subgraph.CopyFrom(
                pb.SubgraphBinding(
                    graph=binding.graph,
                    version=binding.version,
                    mode=pb.SubgraphMode.Value(f"SUBGRAPH_MODE_{binding.mode.name}"),
                    input=binding.input,
                    output=binding.output,
                    state_key=binding.state_key,
                )
            )
        case NothingBinding():
            message.none.SetInParent()
        case None:
            pass


def _channel_to(channel: Channel) -> pb.GraphChannel:
    return pb.GraphChannel(
        name=channel.name,
        reducer=channel.reducer,
        reducer_version=channel.reducer_version,
        type=channel.type,
        default_json="" if channel.default is MISSING else canonical(channel.default),
        scalars=channel.scalars,
        ignore_unknown_removals=channel.ignore_unknown_removals,
    )


def _conditional_to(edge: ConditionalEdge) -> pb.ConditionalEdge:
    message = pb.ConditionalEdge(
        source=edge.source,
        routes=[pb.Route(label=route.label, target=route.target) for route in edge.routes],
        labels=edge.labels,
    )
    match edge.router:
        case ExpressionRouter(expression):
            message.expression = expression
        case PathRouter(path):
            message.path = path
        case FunctionRouter(function):
            message.function_name = function
    return message


def _policy_to(policy: GraphPolicy) -> pb.GraphPolicy:
    return pb.GraphPolicy(
        checkpoints=pb.CHECKPOINT_POLICY_ON if policy.checkpoints else pb.CHECKPOINT_POLICY_OFF,
        on_failure=pb.GraphFailurePolicy.Value(f"GRAPH_FAILURE_POLICY_{policy.on_failure.name}"),
        recursion_limit=policy.recursion_limit or 0,
        max_total_steps=policy.max_total_steps or 0,
        max_concurrency=policy.max_concurrency or 0,
        allow_unreachable=policy.allow_unreachable,
        interrupt_before=policy.interrupt_before,
        interrupt_after=policy.interrupt_after,
    )


def _duration_to(microseconds: int | None) -> duration_pb2.Duration | None:
    if microseconds is None:
        return None
    duration = duration_pb2.Duration()
    duration.FromMicroseconds(microseconds)
    return duration
