"""Conditional edges: tables, labels, expressions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from agenttx_server.expressions import ExpressionInvalid, Result, compile_expression
from agenttx_server.graphs.compiled_graph import ROUTER_VARIABLES
from agenttx_server.graphs.definition import (
    END,
    START,
    ConditionalEdge,
    ExpressionRouter,
    FunctionRouter,
    GraphDefinition,
    PathRouter,
)
from agenttx_server.graphs.findings import Finding, found
from agenttx_server.graphs.limits import MAX_LABEL_BYTES, MAX_ROUTES

__all__ = ["FUNCTION_NAME", "check_conditionals"]

PATH: Final = re.compile(r"[^.\s][^.]*(?:\.[^.]+)*")
FUNCTION_NAME: Final = re.compile(r"[A-Za-z0-9_.:/@-]{1,128}")


def check_conditionals(graph: GraphDefinition) -> Iterator[Finding]:
    """Check every conditional edge."""
    names = {node.name for node in graph.nodes}
    channels = {channel.name for channel in graph.channels}
    for edge in graph.conditional_edges:
        where = f"conditional {edge.source}"
        if edge.source == START:
            yield found("EDGE_SOURCE_MISSING", where, "START has direct edges only")
        elif edge.source == END:
            yield found("END_AS_SOURCE", where, "nothing comes after END")
        elif edge.source not in names:
            yield found("EDGE_SOURCE_MISSING", where, f"there is no node '{edge.source}'")
        yield from _check_table(edge, where, names)
        yield from _check_router(edge, where, channels)


def _check_table(edge: ConditionalEdge, where: str, names: set[str]) -> Iterator[Finding]:
    if not edge.routes and not (isinstance(edge.router, FunctionRouter) and not edge.labels):
        yield found("ROUTE_TABLE_EMPTY", where, "the table has no routes")
    if len(edge.routes) > MAX_ROUTES:
        yield found("LIMIT_OUT_OF_RANGE", where, f"a table has at most {MAX_ROUTES} routes")
    for label, count in Counter(route.label for route in edge.routes).items():
        if count > 1:
            yield found(
                "DUPLICATE_ROUTE_LABEL", f"{where}, route {label}", f"label '{label}' has {count} routes"
            )
        if len(label.encode("utf-8", "replace")) > MAX_LABEL_BYTES:
            yield found(
                "LIMIT_OUT_OF_RANGE",
                f"{where}, route {label[:20]}…",
                f"a label has at most {MAX_LABEL_BYTES} bytes",
            )
    for route in edge.routes:
        if route.target == START:
            yield found("START_AS_TARGET", f"{where}, route {route.label}", "nothing leads back to START")
        elif route.target != END and route.target not in names:
            yield found(
                "ROUTE_TARGET_MISSING", f"{where}, route {route.label}", f"there is no node '{route.target}'"
            )
    labels = {route.label for route in edge.routes}
    for label in dict.fromkeys(edge.labels):
        if label not in labels:
            yield found("ROUTE_LABEL_MISSING", where, f"the router may give '{label}', which has no route")


def _check_router(edge: ConditionalEdge, where: str, channels: set[str]) -> Iterator[Finding]:
    match edge.router:
        case ExpressionRouter(expression):
            try:
                compile_expression(expression, ROUTER_VARIABLES, Result.LABEL)
            except ExpressionInvalid as error:
                yield found("EXPRESSION_INVALID", where, str(error))
        case PathRouter(path):
            if not PATH.fullmatch(path):
                yield found("EXPRESSION_INVALID", where, "the path is no dotted path into the state")
            elif path.partition(".")[0] not in channels and path not in channels:
                yield found(
                    "EXPRESSION_INVALID",
                    where,
                    f"the path begins with '{path.partition('.')[0]}', which is no channel",
                )
        case FunctionRouter(function):
            if not FUNCTION_NAME.fullmatch(function):
                yield found("INVALID_NAME", where, "the router's function has no name that workers can offer")
