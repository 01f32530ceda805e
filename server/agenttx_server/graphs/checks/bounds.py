"""Limits: LIMIT_OUT_OF_RANGE, and INTERRUPT_WITHOUT_CHECKPOINTS."""

from __future__ import annotations

import math
from collections.abc import Iterator

from agenttx_server.engine.json_values import ValueRefused, canonical
from agenttx_server.graphs import limits
from agenttx_server.graphs.checks.conditionals import FUNCTION_NAME
from agenttx_server.graphs.definition import (
    FunctionBinding,
    GraphDefinition,
    GraphPolicy,
    Node,
    NodeRetryPolicy,
    ToolBinding,
)
from agenttx_server.graphs.findings import Finding, found
from agenttx_server.graphs.templates import output_path

__all__ = ["check_bounds"]


def check_bounds(graph: GraphDefinition) -> Iterator[Finding]:
    """Check every limit of the graph."""
    for what, count, most in (
        ("nodes", len(graph.nodes), limits.MAX_NODES),
        ("channels", len(graph.channels), limits.MAX_CHANNELS),
        ("edges", len(graph.edges), limits.MAX_EDGES),
        ("waiting edges", len(graph.waiting_edges), limits.MAX_WAITING_EDGES),
        ("members of joins", sum(len(edge.members) for edge in graph.waiting_edges), limits.MAX_EDGES),
        ("conditional edges", len(graph.conditional_edges), limits.MAX_CONDITIONAL_EDGES),
    ):
        if count > most:
            yield _out("graph", f"a graph has at most {most} {what}, not {count}")
    if len(graph.description.encode("utf-8", "replace")) > limits.MAX_TEXT_BYTES:
        yield _out("graph", f"a description has at most {limits.MAX_TEXT_BYTES} bytes")
    if "\0" in graph.description:
        yield found("INVALID_NAME", "graph", "a description can't hold U+0000")
    yield from _check_policy(graph.policy)
    for node in graph.nodes:
        yield from _check_node(node)


def _check_policy(policy: GraphPolicy) -> Iterator[Finding]:
    for name, value, most in (
        ("recursion_limit", policy.recursion_limit, limits.MAX_RECURSION_LIMIT),
        ("max_total_steps", policy.max_total_steps, limits.MAX_TOTAL_STEPS),
        ("max_concurrency", policy.max_concurrency, limits.MAX_CONCURRENCY),
    ):
        yield from _check_range("policy", name, value, most)
    if (policy.interrupt_before or policy.interrupt_after) and not policy.checkpoints:
        yield found(
            "INTERRUPT_WITHOUT_CHECKPOINTS",
            "policy",
            "the graph stops at nodes, but keeps nothing to go on from",
        )


def _check_node(node: Node) -> Iterator[Finding]:
    where = f"node {node.name}"
    yield from _check_range(where, "max_visits", node.max_visits, limits.MAX_VISITS)
    yield from _check_range(where, "run_timeout", node.run_timeout_us, limits.MAX_TIMEOUT_US)
    yield from _check_range(where, "idle_timeout", node.idle_timeout_us, limits.MAX_TIMEOUT_US)
    if len(node.label.encode("utf-8", "replace")) > limits.MAX_TEXT_BYTES:
        yield _out(where, f"a label has at most {limits.MAX_TEXT_BYTES} bytes")
    if node.cache is not None:
        yield from _check_range(where, "cache.ttl", node.cache.ttl_us, 100 * limits.MAX_TIMEOUT_US)
    if node.retry is not None:
        yield from _check_retry(node.retry, where)
    yield from _check_binding(node, where)


def _check_retry(retry: NodeRetryPolicy, where: str) -> Iterator[Finding]:
    yield from _check_range(where, "retry.max_attempts", retry.max_attempts, limits.MAX_RETRY_ATTEMPTS)
    if not 0 <= retry.initial_interval_us <= limits.MAX_TIMEOUT_US:
        yield _out(where, "retry.initial_interval is from 0 to a week")
    if not 0 <= retry.max_interval_us <= limits.MAX_TIMEOUT_US:
        yield _out(where, "retry.max_interval is from 0 to a week")
    if not (math.isfinite(retry.backoff_factor) and 1 <= retry.backoff_factor <= 100):
        yield _out(where, "retry.backoff_factor is from 1 to 100")


def _check_binding(node: Node, where: str) -> Iterator[Finding]:
    match node.binding:
        case None:
            yield found("UNBOUND", where, f"node '{node.name}' has nothing to run")
        case FunctionBinding(function) if not FUNCTION_NAME.fullmatch(function):
            yield found("INVALID_NAME", where, "the function has no name that workers can offer")
        case ToolBinding() as tool:
            if not 0 < len(tool.tool.encode("utf-8", "replace")) <= limits.MAX_NAME_LENGTH:
                yield found("INVALID_NAME", where, "a tool's name has 1 to 128 bytes")
            try:
                size = len(canonical(dict(tool.arguments)).encode())
            except ValueRefused as error:
                yield found("EXPRESSION_INVALID", f"{where}, arguments", str(error))
            else:
                if size > limits.MAX_ARGUMENTS_BYTES:
                    yield _out(where, f"arguments have at most {limits.MAX_ARGUMENTS_BYTES} bytes")
            for channel, template in tool.output.items():
                if output_path(template) is None:
                    yield found(
                        "EXPRESSION_INVALID", f"{where}, output {channel}", "is ${result} or ${result.path}"
                    )
        case _:
            pass


def _check_range(where: str, name: str, value: int | None, most: int) -> Iterator[Finding]:
    if value is not None and not 1 <= value <= most:
        yield _out(where, f"{name} is from 1 to {most}, not {value}")


def _out(where: str, message: str) -> Finding:
    return found("LIMIT_OUT_OF_RANGE", where, message)
