"""The shape of a definition as rustworkx sees it: reachability, cycles, dominators.

Indices never leave this module; what it answers is sets of names, to be sorted before anybody sees
them. Edges to nodes that don't exist are left out: other checks name them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from functools import cached_property

import rustworkx

from agenttx_server.graphs.definition import END, START, FunctionRouter, GraphDefinition

__all__ = ["Topology"]


class Topology:
    """Ways between the nodes of a graph, START and END among them."""

    def __init__(self, graph: GraphDefinition) -> None:
        self._graph = graph
        self.names = tuple(sorted({node.name for node in graph.nodes}))
        self._places = frozenset((*self.names, START, END))
        self.handlers = self._grouped(
            (node.name, node.error_handler) for node in graph.nodes if node.error_handler is not None
        )

    @cached_property
    def direct(self) -> Mapping[str, tuple[str, ...]]:
        """Targets of direct edges by source, in order."""
        return self._grouped((edge.source, edge.target) for edge in self._graph.edges)

    @cached_property
    def waiting(self) -> Mapping[str, tuple[str, ...]]:
        """Targets of joins by member."""
        return self._grouped(
            (member, edge.target) for edge in self._graph.waiting_edges for member in edge.members
        )

    @cached_property
    def routes(self) -> Mapping[str, tuple[str, ...]]:
        """Targets of conditional edges by source."""
        return self._grouped(
            (edge.source, route.target) for edge in self._graph.conditional_edges for route in edge.routes
        )

    @cached_property
    def commands(self) -> Mapping[str, tuple[str, ...]]:
        """Declared destinations of commands by node."""
        return self._grouped(
            (node.name, target) for node in self._graph.nodes for target in node.destinations or ()
        )

    @cached_property
    def opaque(self) -> frozenset[str]:
        """Nodes that may lead anywhere: commands without destinations, functions that may answer Sends."""
        return frozenset(
            (
                *(node.name for node in self._graph.nodes if node.destinations == ()),
                *(
                    edge.source
                    for edge in self._graph.conditional_edges
                    if isinstance(edge.router, FunctionRouter) and edge.source in self._places
                ),
            )
        )

    @cached_property
    def commanding(self) -> frozenset[str]:
        """Nodes that route by commands: without a goto they end their path."""
        return frozenset(node.name for node in self._graph.nodes if node.destinations is not None)

    @cached_property
    def ending(self) -> frozenset[str]:
        """Nodes without any routing: their path ends there."""
        return frozenset(
            name
            for name in self.names
            if not self.declared(name) and name not in self.commanding and name not in self.opaque
        )

    def declared(self, name: str) -> frozenset[str]:
        """Where a node is declared to lead, whatever the kind of edge."""
        kinds = (self.direct, self.waiting, self.routes, self.commands)
        return frozenset(target for kind in kinds for target in kind.get(name, ()))

    def parallel_targets(self, name: str) -> tuple[str, ...]:
        """The nodes that a node may make active at the same time; more than one where it forks."""
        if name in self.routes:
            return ()
        together = (*self.direct.get(name, ()), *self.commands.get(name, ()))
        return tuple(target for target in together if target != END)

    @cached_property
    def reachable(self) -> frozenset[str]:
        """The nodes that something leads to from START."""
        return self._from(START, self._whole) | {START}

    @cached_property
    def finishing(self) -> frozenset[str]:
        """The nodes from which a path can come to its end."""
        ends = {END} | self.ending | self.commanding | self.opaque
        backwards = self._forward.copy()
        # All of them lead to END here, so that one search backwards from it finds what comes to any.
        end = self._index[END]
        backwards.add_edges_from_no_data([(self._index[name], end) for name in sorted(ends - {END})])
        backwards.reverse()
        return self._from(END, backwards) | {END}

    @cached_property
    def endless_cycles(self) -> tuple[tuple[str, ...], ...]:
        """Cycles that nothing leads out of, each with its nodes in order of name."""
        cycles = []
        for component in rustworkx.strongly_connected_components(self._forward):
            names = {self._forward[index] for index in component}
            leads_to = frozenset().union(*(self.declared(name) for name in names))
            is_cycle = len(names) > 1 or names <= leads_to
            if is_cycle and leads_to <= names and not names & (self.opaque | self.commanding):
                cycles.append(tuple(sorted(names)))
        return tuple(sorted(cycles))

    def common_dominators(self, names: Iterable[str]) -> frozenset[str]:
        """The nodes that every way from START to each of these passes; START at least."""
        common: frozenset[str] | None = None
        for name in names:
            above = self._dominators(name)
            common = above if common is None else common & above
        return (common or frozenset()) | {START}

    @cached_property
    def last_first(self) -> tuple[str, ...]:
        """All nodes, START at the end; each behind what it leads to, cycles aside."""
        components = rustworkx.strongly_connected_components(self._forward)
        # Components come in reverse topological order.
        return tuple(self._forward[index] for component in components for index in sorted(component))

    def distances(self, start: str, stops: frozenset[str]) -> dict[str, int]:
        """The fewest supersteps from a node to each other over direct edges, routes and commands.

        Ways end at ``stops``, and don't go on behind them.
        """
        found = {start: 0}
        pending = deque([start])
        while pending:
            name = pending.popleft()
            if name in stops and name != start:
                continue
            for kind in (self.direct, self.routes, self.commands):
                for target in kind.get(name, ()):
                    if target not in found and target != END:
                        found[target] = found[name] + 1
                        pending.append(target)
        return found

    # --- with rustworkx -------------------------------------------------------------------

    @cached_property
    def _forward(self) -> rustworkx.PyDiGraph[str, None]:
        """Where nodes lead when they don't fail."""
        return self._digraph(
            (name, target) for name in (START, *self.names) for target in self.declared(name)
        )

    @cached_property
    def _whole(self) -> rustworkx.PyDiGraph[str, None]:
        """Where nodes may lead, error handlers and undeclared ways among it."""
        anywhere = ((name, target) for name in self.opaque for target in self.names)
        whole = self._forward.copy()
        index = self._index
        handled = ((name, handler) for name, handlers in self.handlers.items() for handler in handlers)
        whole.add_edges_from_no_data(sorted({(index[a], index[b]) for a, b in (*handled, *anywhere)}))
        return whole

    @cached_property
    def _index(self) -> Mapping[str, int]:
        return {name: index for index, name in enumerate((START, END, *self.names))}

    @cached_property
    def _immediate_dominators(self) -> Mapping[str, str]:
        found = rustworkx.immediate_dominators(self._whole, self._index[START])
        return {self._whole[node]: self._whole[above] for node, above in found.items()}

    def _dominators(self, name: str) -> frozenset[str]:
        above = set()
        while name != START and name in self._immediate_dominators:
            name = self._immediate_dominators[name]
            above.add(name)
        return frozenset(above)

    def _digraph(self, edges: Iterable[tuple[str, str]]) -> rustworkx.PyDiGraph[str, None]:
        digraph: rustworkx.PyDiGraph[str, None] = rustworkx.PyDiGraph(multigraph=False)
        digraph.add_nodes_from((START, END, *self.names))
        digraph.add_edges_from_no_data(sorted({(self._index[a], self._index[b]) for a, b in edges}))
        return digraph

    def _from(self, name: str, digraph: rustworkx.PyDiGraph[str, None]) -> frozenset[str]:
        return frozenset(digraph[index] for index in rustworkx.descendants(digraph, self._index[name]))

    def _grouped(self, pairs: Iterable[tuple[str, str]]) -> Mapping[str, tuple[str, ...]]:
        grouped: dict[str, list[str]] = {}
        for source, target in pairs:
            if source in self._places and target in self._places:
                grouped.setdefault(source, []).append(target)
        return {source: tuple(targets) for source, targets in grouped.items()}
