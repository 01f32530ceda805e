"""A definition as JSON and back: the form that is exported, hashed and kept.

``from_json(to_json(g)) == g``. Only what differs from its default is written, so a field added later
changes no old version's hash. START's edges are ``entry``, in order; ``finish_nodes`` and
``findings`` are for readers and are not read back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agenttx_server.engine.json_values import MISSING, JsonValue, ValueRefused, canonical, parse
from agenttx_server.graphs.definition import (
    END,
    START,
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
    Routing,
    SubgraphBinding,
    SubgraphMode,
    ToolBinding,
    WaitingEdge,
)
from agenttx_server.graphs.errors import DefinitionRefused
from agenttx_server.graphs.findings import Finding
from agenttx_server.graphs.json_reading import Fields

__all__ = ["finish_nodes", "from_json", "routing_of", "to_content", "to_json"]

MAX_TEXT_BYTES: Final = 1 << 20


def to_json(graph: GraphDefinition, findings: Sequence[Finding] = ()) -> str:
    """Write a definition as canonical JSON."""
    content = to_content(graph)
    content["finish_nodes"] = list(finish_nodes(graph))
    content["findings"] = [
        {
            "code": finding.code,
            "where": finding.where,
            "message": finding.message,
            "severity": finding.severity.value,
        }
        for finding in findings
    ]
    return canonical(content)


def to_content(graph: GraphDefinition) -> dict[str, Any]:
    """What makes a graph the one it is, as a JSON object."""
    routing = routing_of(graph)
    return {
        "name": graph.name,
        **_set(description=graph.description),
        "nodes": [_node(node, routing[node.name]) for node in graph.nodes],
        "channels": [_channel(channel) for channel in graph.channels],
        "entry": [edge.target for edge in graph.edges if edge.source == START],
        "edges": [
            {"source": edge.source, "target": edge.target} for edge in graph.edges if edge.source != START
        ],
        "waiting_edges": [
            {
                "members": list(edge.members),
                "target": edge.target,
                "policy": edge.policy.value,
                **_set(count=edge.count),
            }
            for edge in graph.waiting_edges
        ],
        "conditional_edges": [_conditional(edge) for edge in graph.conditional_edges],
        "policy": _policy(graph.policy),
    }


def finish_nodes(graph: GraphDefinition) -> tuple[str, ...]:
    """The nodes at which a path ends: with an edge to END, or with no way on."""
    ending = {edge.source for edge in graph.edges if edge.target == END}
    routing = routing_of(graph)
    return tuple(
        node.name for node in graph.nodes if node.name in ending or routing[node.name] is Routing.NONE
    )


def routing_of(graph: GraphDefinition) -> dict[str, Routing]:
    """How each node routes; of several ways, which the compiler refuses, the first here."""
    static = {edge.source for edge in graph.edges} | {
        member for edge in graph.waiting_edges for member in edge.members
    }
    conditional = {edge.source for edge in graph.conditional_edges}
    commanding = {node.name for node in graph.nodes if node.destinations is not None}
    kinds = ((commanding, Routing.COMMAND), (conditional, Routing.CONDITIONAL), (static, Routing.STATIC))
    return {
        node.name: next((routing for names, routing in kinds if node.name in names), Routing.NONE)
        for node in graph.nodes
    }


def from_json(text: str) -> GraphDefinition:
    """Read a definition.

    Raises:
        DefinitionRefused: with the place; unknown fields are refused too.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise DefinitionRefused("", f"longer than {MAX_TEXT_BYTES} bytes")
    try:
        value = parse(text)
    except ValueRefused as error:
        raise DefinitionRefused("", f"not a graph: {error}") from None
    return _read_graph(Fields(value, ""))


# --- writing ------------------------------------------------------------------------------


def _set(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, "", False, 0, (), [], {})}


def _node(node: Node, routing: Routing) -> dict[str, Any]:
    return {
        "name": node.name,
        "routing": routing.value,
        **_binding(node.binding),
        **_set(
            reads=list(node.reads),
            writes=list(node.writes),
            retry=None if node.retry is None else _retry(node.retry),
            run_timeout_us=node.run_timeout_us,
            idle_timeout_us=node.idle_timeout_us,
            error_handler=node.error_handler,
            max_visits=node.max_visits,
            deferred=node.deferred,
            label=node.label,
        ),
        **(
            {}
            if node.cache is None
            else {"cache": {"key_channels": list(node.cache.key_channels), **_set(ttl_us=node.cache.ttl_us)}}
        ),
        **({} if node.destinations is None else {"destinations": list(node.destinations)}),
    }


def _binding(binding: Binding | None) -> dict[str, Any]:
    match binding:
        case None:
            return {}
        case ToolBinding():
            return {
                "tool": {
                    "name": binding.tool,
                    **_set(arguments=dict(binding.arguments), output=dict(binding.output)),
                }
            }
        case FunctionBinding():
            return {"function": binding.function}
        case SubgraphBinding():
            return {
                "subgraph": {
                    "graph": binding.graph,
                    "mode": binding.mode.value,
                    **_set(
                        version=binding.version,
                        input=dict(binding.input),
                        output=dict(binding.output),
                        state_key=binding.state_key,
                    ),
                }
            }
        case NothingBinding():
            return {"none": True}


def _retry(retry: NodeRetryPolicy) -> dict[str, Any]:
    return {
        "max_attempts": retry.max_attempts,
        "initial_interval_us": retry.initial_interval_us,
        "backoff_factor": retry.backoff_factor,
        "max_interval_us": retry.max_interval_us,
        **_set(categories=list(retry.categories)),
    }


def _channel(channel: Channel) -> dict[str, Any]:
    return {
        "name": channel.name,
        "reducer": channel.reducer,
        "type": channel.type,
        **_set(
            reducer_version=channel.reducer_version,
            scalars=channel.scalars,
            ignore_unknown_removals=channel.ignore_unknown_removals,
        ),
        **({} if channel.default is MISSING else {"default": channel.default}),
    }


def _conditional(edge: ConditionalEdge) -> dict[str, Any]:
    return {
        "source": edge.source,
        **_router(edge.router),
        "routes": [{"label": route.label, "target": route.target} for route in edge.routes],
        **_set(labels=list(edge.labels)),
    }


def _router(router: Router) -> dict[str, Any]:
    match router:
        case ExpressionRouter():
            return {"expression": router.expression}
        case PathRouter():
            return {"path": router.path}
        case FunctionRouter():
            return {"function": router.function}


def _policy(policy: GraphPolicy) -> dict[str, Any]:
    return {
        "checkpoints": policy.checkpoints,
        "on_failure": policy.on_failure.value,
        **_set(
            recursion_limit=policy.recursion_limit,
            max_total_steps=policy.max_total_steps,
            max_concurrency=policy.max_concurrency,
            allow_unreachable=policy.allow_unreachable,
            interrupt_before=list(policy.interrupt_before),
            interrupt_after=list(policy.interrupt_after),
        ),
    }


# --- reading ------------------------------------------------------------------------------


def _read_graph(fields: Fields) -> GraphDefinition:
    edges = [Edge(START, target) for target in fields.texts("entry")]
    edges += [Edge(item.text("source"), item.text("target")) for item in _closing(fields.objects("edges"))]
    policy = fields.object("policy")
    graph = GraphDefinition(
        name=fields.text("name"),
        description=fields.text("description", ""),
        nodes=tuple(_read_node(item) for item in _closing(fields.objects("nodes"))),
        channels=tuple(_read_channel(item) for item in _closing(fields.objects("channels"))),
        edges=tuple(edges),
        waiting_edges=tuple(
            WaitingEdge(
                members=item.texts("members"),
                target=item.text("target"),
                policy=item.choice("policy", JoinPolicy, JoinPolicy.ALL),
                count=item.count("count") or 0,
            )
            for item in _closing(fields.objects("waiting_edges"))
        ),
        conditional_edges=tuple(
            _read_conditional(item) for item in _closing(fields.objects("conditional_edges"))
        ),
        policy=GraphPolicy() if policy is None else _read_policy(policy),
    )
    fields.ignore("finish_nodes", "findings")
    fields.close()
    return graph


def _closing(items: Sequence[Fields]) -> Any:
    for item in items:
        yield item
        item.close()


def _read_node(fields: Fields) -> Node:
    fields.ignore("routing")
    retry, cache = fields.object("retry"), fields.object("cache")
    return Node(
        name=fields.text("name"),
        binding=_read_binding(fields),
        reads=fields.texts("reads"),
        writes=fields.texts("writes"),
        retry=None if retry is None else _read_retry(retry),
        run_timeout_us=fields.count("run_timeout_us"),
        idle_timeout_us=fields.count("idle_timeout_us"),
        error_handler=fields.text("error_handler", "") or None,
        cache=None if cache is None else _read_cache(cache),
        max_visits=fields.count("max_visits"),
        deferred=fields.flag("deferred"),
        destinations=fields.texts("destinations") if fields.has("destinations") else None,
        label=fields.text("label", ""),
    )


def _read_binding(fields: Fields) -> Binding | None:
    bindings: list[Binding] = []
    tool, subgraph = fields.object("tool"), fields.object("subgraph")
    if tool is not None:
        arguments = tool.value("arguments", {})
        if not isinstance(arguments, dict):
            raise DefinitionRefused(tool.place("arguments"), "is an object")
        bindings.append(ToolBinding(tool.text("name"), arguments, tool.mapping("output")))
        tool.close()
    if fields.has("function"):
        bindings.append(FunctionBinding(fields.text("function")))
    if subgraph is not None:
        bindings.append(
            SubgraphBinding(
                graph=subgraph.text("graph"),
                version=subgraph.text("version", ""),
                mode=subgraph.choice("mode", SubgraphMode, SubgraphMode.SHARED),
                input=subgraph.mapping("input"),
                output=subgraph.mapping("output"),
                state_key=subgraph.text("state_key", ""),
            )
        )
        subgraph.close()
    if fields.flag("none"):
        bindings.append(NothingBinding())
    if len(bindings) > 1:
        raise DefinitionRefused(fields.place(""), "has more than one of tool, function, subgraph and none")
    return bindings[0] if bindings else None


def _read_retry(fields: Fields) -> NodeRetryPolicy:
    defaults = NodeRetryPolicy(1)
    policy = NodeRetryPolicy(
        max_attempts=fields.count("max_attempts") or 0,
        initial_interval_us=fields.count("initial_interval_us", defaults.initial_interval_us) or 0,
        backoff_factor=fields.number("backoff_factor", defaults.backoff_factor),
        max_interval_us=fields.count("max_interval_us", defaults.max_interval_us) or 0,
        categories=fields.texts("categories"),
    )
    fields.close()
    return policy


def _read_cache(fields: Fields) -> CachePolicy:
    policy = CachePolicy(fields.texts("key_channels"), fields.count("ttl_us"))
    fields.close()
    return policy


def _read_channel(fields: Fields) -> Channel:
    default: JsonValue = fields.value("default", None)
    return Channel(
        name=fields.text("name"),
        reducer=fields.text("reducer", "overwrite"),
        reducer_version=fields.text("reducer_version", ""),
        type=fields.text("type", "any"),
        default=default if fields.has("default") else MISSING,
        scalars=fields.flag("scalars"),
        ignore_unknown_removals=fields.flag("ignore_unknown_removals"),
    )


def _read_conditional(fields: Fields) -> ConditionalEdge:
    kinds: Mapping[str, Any] = {
        "expression": ExpressionRouter,
        "path": PathRouter,
        "function": FunctionRouter,
    }
    routers: list[Router] = [kind(fields.text(name)) for name, kind in kinds.items() if fields.has(name)]
    if len(routers) != 1:
        raise DefinitionRefused(fields.place(""), "has exactly one of expression, path and function")
    routes = tuple(
        Route(item.text("label"), item.text("target")) for item in _closing(fields.objects("routes"))
    )
    return ConditionalEdge(fields.text("source"), routers[0], routes, fields.texts("labels"))


def _read_policy(fields: Fields) -> GraphPolicy:
    policy = GraphPolicy(
        checkpoints=fields.flag("checkpoints", default=True),
        on_failure=fields.choice("on_failure", FailurePolicy, FailurePolicy.STOP),
        recursion_limit=fields.count("recursion_limit"),
        max_total_steps=fields.count("max_total_steps"),
        max_concurrency=fields.count("max_concurrency"),
        allow_unreachable=fields.flag("allow_unreachable"),
        interrupt_before=fields.texts("interrupt_before"),
        interrupt_after=fields.texts("interrupt_after"),
    )
    fields.close()
    return policy
