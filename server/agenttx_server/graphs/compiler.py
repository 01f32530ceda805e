"""From a definition to a graph that runs, or to everything that is wrong with it, at once."""

from __future__ import annotations

from collections.abc import Iterable

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.graphs.catalog import Catalog, KnownGraphs
from agenttx_server.graphs.checks.bounds import check_bounds
from agenttx_server.graphs.checks.channels import check_channels, reducers_of
from agenttx_server.graphs.checks.conditionals import check_conditionals
from agenttx_server.graphs.checks.edges import check_edges, check_joins, check_routing
from agenttx_server.graphs.checks.names import check_names
from agenttx_server.graphs.checks.shape import check_shape
from agenttx_server.graphs.checks.subgraphs import check_subgraphs, subgraphs_of
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import GraphDefinition, SubgraphBinding
from agenttx_server.graphs.findings import Finding, Severity, errors_in
from agenttx_server.graphs.reducers import ReducerRegistry

__all__ = ["Compilation", "compile_graph"]


@dataclass(frozen=True, slots=True)
class Compilation:
    """What became of a definition: ``graph`` is None where a finding is an error. Errors come first."""

    findings: tuple[Finding, ...]
    graph: CompiledGraph | None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that refuse the graph."""
        return errors_in(self.findings)


def compile_graph(
    definition: GraphDefinition, catalog: Catalog | None = None, reducers: ReducerRegistry | None = None
) -> Compilation:
    """Check a definition whole and index it. Pure: the same definition gives the same findings in the same order.

    Args:
        definition: the graph.
        catalog: the registered graphs that it may embed; none without it.
        reducers: the server's reducers; the built-in ones without it.
    """
    catalog = catalog or KnownGraphs()
    registry = reducers or ReducerRegistry()
    known = reducers_of(definition, registry)
    checks: tuple[Iterable[Finding], ...] = (
        check_names(definition),
        check_bounds(definition),
        check_edges(definition),
        check_joins(definition),
        check_routing(definition),
        check_conditionals(definition),
        check_channels(definition, registry),
        check_subgraphs(definition, catalog),
    )
    findings = list(dict.fromkeys(finding for check in checks for finding in check))
    if not any(finding.code == "LIMIT_OUT_OF_RANGE" and finding.where == "graph" for finding in findings):
        # A graph far too large is refused for that; its shape is not looked at.
        findings += dict.fromkeys(check_shape(definition, known))
    ordered = tuple(sorted(findings, key=lambda finding: finding.severity is Severity.WARNING))
    if errors_in(ordered):
        return Compilation(ordered, None)
    subgraphs = subgraphs_of(definition, catalog)
    pinned = _pinned(definition, subgraphs, registry)
    return Compilation(ordered, CompiledGraph(pinned, known, subgraphs))


def _pinned(
    definition: GraphDefinition, subgraphs: dict[str, CompiledGraph], registry: ReducerRegistry
) -> GraphDefinition:
    nodes = tuple(
        replace(node, binding=replace(node.binding, version=subgraphs[node.name].version))
        if isinstance(node.binding, SubgraphBinding)
        else node
        for node in definition.nodes
    )
    channels = []
    for channel in definition.channels:
        reducer = registry.find(channel.reducer, channel.reducer_version)
        channels.append(replace(channel, reducer_version=reducer.version if reducer else ""))
    return replace(definition, nodes=nodes, channels=tuple(channels))
