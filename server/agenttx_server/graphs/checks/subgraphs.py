"""Embedded graphs: SUBGRAPH_MISSING, SUBGRAPH_CYCLE, SUBGRAPH_STATE_INCOMPATIBLE, CHANNEL_REDEFINED."""

from __future__ import annotations

from collections.abc import Iterator

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import MISSING
from agenttx_server.graphs.catalog import Catalog
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import Channel, GraphDefinition, Node, SubgraphBinding, SubgraphMode
from agenttx_server.graphs.findings import Finding, found
from agenttx_server.graphs.limits import MAX_SUBGRAPH_DEPTH

__all__ = ["check_subgraphs", "subgraphs_of"]


def subgraphs_of(graph: GraphDefinition, catalog: Catalog) -> dict[str, CompiledGraph]:
    """The graphs that are embedded and known, by node."""
    embedded: dict[str, CompiledGraph] = {}
    for node in graph.nodes:
        if isinstance(node.binding, SubgraphBinding):
            child = catalog.find(node.binding.graph, node.binding.version)
            if child is not None:
                embedded[node.name] = child
    return embedded


def check_subgraphs(graph: GraphDefinition, catalog: Catalog) -> Iterator[Finding]:
    """Check every embedded graph."""
    embedded = subgraphs_of(graph, catalog)
    keys: dict[tuple[str, str], str] = {}
    for node in graph.nodes:
        binding = node.binding
        if not isinstance(binding, SubgraphBinding):
            continue
        where = f"node {node.name}"
        if binding.graph == graph.name:
            yield found("SUBGRAPH_CYCLE", where, f"graph '{graph.name}' embeds itself")
            continue
        child = embedded.get(node.name)
        if child is None:
            version = f" in version {binding.version}" if binding.version else ""
            yield found("SUBGRAPH_MISSING", where, f"graph '{binding.graph}' is not registered{version}")
            continue
        if graph.name in _names_below(child):
            yield found("SUBGRAPH_CYCLE", where, f"graph '{graph.name}' embeds itself through '{child.name}'")
            continue
        if _depth(child) >= MAX_SUBGRAPH_DEPTH:
            yield found("LIMIT_OUT_OF_RANGE", where, f"graphs are embedded at most {MAX_SUBGRAPH_DEPTH} deep")
        yield from _check_state(graph, node, binding, child, where)
        if binding.state_key:
            other = keys.setdefault((binding.graph, binding.state_key), node.name)
            if other != node.name:
                yield found(
                    "SUBGRAPH_STATE_INCOMPATIBLE",
                    where,
                    f"'{node.name}' and '{other}' keep the state of one graph under one key",
                )


def _check_state(
    graph: GraphDefinition, node: Node, binding: SubgraphBinding, child: CompiledGraph, where: str
) -> Iterator[Finding]:
    ours = {channel.name: channel for channel in graph.channels}
    if binding.mode is SubgraphMode.SHARED:
        if binding.input or binding.output:
            yield found("SUBGRAPH_STATE_INCOMPATIBLE", where, "SHARED maps no channels; ADAPTER does")
        for name, channel in child.channels.items():
            if name not in ours:
                yield found(
                    "SUBGRAPH_STATE_INCOMPATIBLE",
                    where,
                    f"graph '{child.name}' works on channel '{name}', which is missing",
                )
            elif not _are_alike(ours[name], channel):
                yield found(
                    "CHANNEL_REDEFINED",
                    f"channel {name}",
                    f"graph '{child.name}' declares channel '{name}' differently",
                )
        return
    for inner, outer in binding.input.items():
        yield from _check_mapping(inner, child.name, child.channels.keys(), where)
        yield from _check_mapping(outer, graph.name, ours.keys(), where)
    for outer, inner in binding.output.items():
        yield from _check_mapping(inner, child.name, child.channels.keys(), where)
        yield from _check_mapping(outer, graph.name, ours.keys(), where)


def _check_mapping(name: str, graph: str, channels: object, where: str) -> Iterator[Finding]:
    if name not in channels:  # type: ignore[operator]
        yield found("SUBGRAPH_STATE_INCOMPATIBLE", where, f"graph '{graph}' has no channel '{name}'")


def _are_alike(ours: Channel, theirs: Channel) -> bool:
    # A default matters only where a state begins, which is in the embedding graph.
    ours = replace(ours, default=MISSING, reducer_version=ours.reducer_version or theirs.reducer_version)
    return ours == replace(theirs, default=MISSING)


def _names_below(graph: CompiledGraph) -> set[str]:
    names = {graph.name}
    for child in graph.subgraphs.values():
        names |= _names_below(child)
    return names


def _depth(graph: CompiledGraph) -> int:
    return 1 + max((_depth(child) for child in graph.subgraphs.values()), default=0)
