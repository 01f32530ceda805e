"""Edges: sources, targets, duplicates, and one way of routing a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from agenttx_server.graphs.definition import END, EVERY_NODE, START, GraphDefinition, JoinPolicy
from agenttx_server.graphs.findings import Finding, found

__all__ = ["check_edges", "check_joins", "check_routing"]


def check_edges(graph: GraphDefinition) -> Iterator[Finding]:
    """Check direct edges, and that there is a way in."""
    names = {node.name for node in graph.nodes}
    if not names:
        yield found("EMPTY_GRAPH", "graph", "the graph has no nodes")
    elif not any(edge.source == START and edge.target != END for edge in graph.edges):
        yield found("MISSING_START", "graph", "no edge leads out of START")
    for edge in graph.edges:
        where = f"edge {edge.source} -> {edge.target}"
        if edge.source == START and edge.target == END:
            yield found("START_TO_END", where, "an edge from START to END runs nothing")
            continue
        if edge.source == END:
            yield found("END_AS_SOURCE", where, "nothing comes after END")
        elif edge.source != START and edge.source not in names:
            yield found("EDGE_SOURCE_MISSING", where, f"there is no node '{edge.source}'")
        if edge.target == START:
            yield found("START_AS_TARGET", where, "nothing leads back to START")
        elif edge.target != END and edge.target not in names:
            yield found("EDGE_TARGET_MISSING", where, f"there is no node '{edge.target}'")
    for edge, count in Counter(graph.edges).items():
        if count > 1:
            yield found(
                "DUPLICATE_EDGE",
                f"edge {edge.source} -> {edge.target}",
                f"the edge is declared {count} times",
            )
    for name in graph.policy.interrupt_before + graph.policy.interrupt_after:
        if name != EVERY_NODE and name not in names:
            yield found("INTERRUPT_NODE_MISSING", f"interrupt {name}", f"there is no node '{name}'")
    for node in graph.nodes:
        handler = node.error_handler
        if handler is None:
            continue
        where = f"node {node.name}, error_handler"
        if handler not in names:
            yield found("EDGE_TARGET_MISSING", where, f"there is no node '{handler}'")
        elif handler == node.name:
            yield found("EDGE_TARGET_MISSING", where, "a node can't be its own error handler")


def check_joins(graph: GraphDefinition) -> Iterator[Finding]:
    """Check waiting edges."""
    names = {node.name for node in graph.nodes}
    for edge in graph.waiting_edges:
        where = f"join {', '.join(edge.members)} -> {edge.target}"
        if not edge.members:
            yield found("BARRIER_MEMBER_MISSING", where, "a join waits for at least one node")
        for member in dict.fromkeys(edge.members):
            if member == END:
                yield found("END_AS_SOURCE", where, "nothing comes after END")
            elif member not in names:
                yield found("BARRIER_MEMBER_MISSING", where, f"there is no node '{member}' to wait for")
        if edge.target in edge.members:
            yield found("BARRIER_SELF", where, f"'{edge.target}' waits for itself")
        if edge.target == START:
            yield found("START_AS_TARGET", where, "nothing leads back to START")
        elif edge.target not in names:
            yield found("EDGE_TARGET_MISSING", where, f"there is no node '{edge.target}'")
        if len(set(edge.members)) < len(edge.members):
            yield found("DUPLICATE_EDGE", where, "a member is named twice")
        if edge.policy is JoinPolicy.N_OF and not 1 <= edge.count <= len(edge.members):
            yield found(
                "LIMIT_OUT_OF_RANGE",
                where,
                f"N_OF takes a count from 1 to {len(edge.members)}, not {edge.count}",
            )
        if edge.policy is not JoinPolicy.N_OF and edge.count:
            yield found("LIMIT_OUT_OF_RANGE", where, "only N_OF takes a count")
    for (target, members), count in Counter(
        (edge.target, frozenset(edge.members)) for edge in graph.waiting_edges
    ).items():
        if count > 1:
            where = f"join {', '.join(sorted(members))} -> {target}"
            yield found("DUPLICATE_EDGE", where, f"the join is declared {count} times")


def check_routing(graph: GraphDefinition) -> Iterator[Finding]:
    """Check that each node has one way of routing, and what commands may name."""
    names = {node.name for node in graph.nodes}
    static = {edge.source for edge in graph.edges} | {
        member for edge in graph.waiting_edges for member in edge.members
    }
    conditional = Counter(edge.source for edge in graph.conditional_edges)
    for node in graph.nodes:
        ways = [
            way
            for way, is_used in (
                ("edges", node.name in static),
                ("conditional edges", node.name in conditional),
                ("commands", node.destinations is not None),
            )
            if is_used
        ]
        if len(ways) > 1 or conditional[node.name] > 1:
            how = " and ".join(ways) if len(ways) > 1 else f"{conditional[node.name]} conditional edges"
            yield found(
                "MIXED_ROUTING",
                f"node {node.name}",
                f"node '{node.name}' routes by {how}; it may have one way only",
            )
        for destination in node.destinations or ():
            where = f"node {node.name}, destinations"
            if destination == START:
                yield found("START_AS_TARGET", where, "nothing leads back to START")
            elif destination != END and destination not in names:
                yield found("COMMAND_DEST_MISSING", where, f"there is no node '{destination}'")
        if node.destinations == ():
            yield found(
                "UNDECLARED_GOTO",
                f"node {node.name}",
                f"node '{node.name}' may go anywhere: it declares no destinations",
            )
