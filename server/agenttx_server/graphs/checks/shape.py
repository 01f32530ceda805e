"""What the shape of a graph tells: unreachable nodes, dead ends, cycles, joins, parallel writers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations
from operator import and_, or_
from typing import Final

from agenttx_server.graphs.definition import END, START, GraphDefinition, JoinPolicy
from agenttx_server.graphs.findings import Finding, found
from agenttx_server.graphs.reducers import Reducer
from agenttx_server.graphs.topology import Topology

__all__ = ["check_shape"]

MOST_PAIRS: Final = 20_000
"""Pairs of nodes looked at for parallel writers; beyond them the warning may be missing."""

MOST_STEPS: Final = 50_000
"""Nodes looked at for ways of unequal length; beyond them the warning may be missing."""

MOST_ROUNDS: Final = 20
"""Rounds for what is certain to run; what cycles leave open after them counts as certain, and is no warning."""


def check_shape(graph: GraphDefinition, reducers: Mapping[str, Reducer]) -> Iterator[Finding]:
    """Check the whole."""
    shape = Topology(graph)
    if not any(edge.source == START for edge in graph.edges):
        # MISSING_START says it; all nodes would be unreachable.
        return
    unreachable = [name for name in shape.names if name not in shape.reachable]
    if not graph.policy.allow_unreachable:
        for name in unreachable:
            yield found("UNREACHABLE_NODE", f"node {name}", f"nothing leads to node '{name}'")
    yield from _check_ends(graph, shape)
    for cycle in shape.endless_cycles:
        yield found(
            "CYCLE_WITHOUT_EXIT", f"node {cycle[0]}", f"nothing leads out of the cycle of {', '.join(cycle)}"
        )
    yield from _check_starving_joins(graph, shape)
    yield from _check_fan_in(graph, shape)
    yield from _check_writers(graph, shape, reducers)


def _check_ends(graph: GraphDefinition, shape: Topology) -> Iterator[Finding]:
    names_end = any(
        END in targets for kind in (shape.direct, shape.routes, shape.commands) for targets in kind.values()
    )
    handlers = {handler for handlers in shape.handlers.values() for handler in handlers}
    for name in shape.names:
        # Where no edge of the graph names END, nodes without a way on are how it ends.
        if names_end and name in shape.ending and name not in handlers:
            yield found("DEAD_END", f"node {name}", f"node '{name}' has no way on, not even to END")
        if name not in shape.finishing:
            yield found("NO_PATH_TO_END", f"node {name}", f"no path from node '{name}' comes to an end")


def _check_starving_joins(graph: GraphDefinition, shape: Topology) -> Iterator[Finding]:
    in_question = [edge for edge in graph.waiting_edges if edge.policy in (JoinPolicy.ALL, JoinPolicy.N_OF)]
    if not in_question:
        return
    bits = {name: 1 << index for index, name in enumerate(shape.names)}
    certain = _certain_runs(graph, shape, bits)
    for edge in in_question:
        members = [member for member in dict.fromkeys(edge.members) if member in bits]
        needed = len(members) if edge.policy is JoinPolicy.ALL else edge.count
        if needed < 2 or not members:
            continue
        wanted = sum(bits[member] for member in members)
        above = shape.common_dominators(members)
        if max((certain[name] & wanted).bit_count() for name in above) < needed:
            where = f"join {', '.join(edge.members)} -> {edge.target}"
            yield found(
                "JOIN_MAY_STARVE",
                where,
                f"node '{edge.target}' may wait for ever: not all of {', '.join(members)} run whenever one does",
            )


def _certain_runs(graph: GraphDefinition, shape: Topology, bits: Mapping[str, int]) -> Mapping[str, int]:
    """For each node, as bits, those that are sure to run once it does, if the run comes to an end.

    The greatest solution of: a node, what all of its static edges lead to, and what each of its routes would.
    Nodes are taken behind what they lead to, so that without cycles the first round finds it.
    """
    everything = (1 << len(shape.names)) - 1
    certain = dict.fromkeys((START, END, *shape.names), everything)
    certain[END] = 0
    # By member: what must have come besides, and what is sure then.
    joins: dict[str, list[tuple[int, str]]] = {}
    for edge in graph.waiting_edges:
        alone = edge.policy in (JoinPolicy.ANY, JoinPolicy.SKIP_UNREACHABLE)
        members = 0 if alone else sum(bits.get(member, 0) for member in set(edge.members))
        if edge.target in bits:
            for member in dict.fromkeys(edge.members):
                joins.setdefault(member, []).append((members, edge.target))
    for _ in range(MOST_ROUNDS):
        changed = False
        for name in shape.last_first:
            if name == END:
                continue
            new = _certain_after(name, certain, shape, joins.get(name, ()), bits) | bits.get(name, 0)
            if new != certain[name]:
                certain[name] = new
                changed = True
        if not changed:
            break
    return certain


def _certain_after(
    name: str,
    certain: Mapping[str, int],
    shape: Topology,
    joins: Sequence[tuple[int, str]],
    bits: Mapping[str, int],
) -> int:
    if name in shape.opaque or name in shape.commanding:
        return 0
    if name in shape.routes:
        return reduce(and_, (certain[target] for target in shape.routes[name]))
    sure = reduce(or_, (certain[target] for target in shape.direct.get(name, ())), 0)
    for members, target in joins:
        if members & ~(sure | bits.get(name, 0)) == 0:
            sure |= certain[target]
    return sure


def _check_fan_in(graph: GraphDefinition, shape: Topology) -> Iterator[Finding]:
    waits = {node.name for node in graph.nodes if node.deferred}
    stops = frozenset(waits | {edge.target for edge in graph.waiting_edges})
    before: dict[str, set[str]] = {}
    for kind in (shape.direct, shape.routes, shape.commands):
        for source, targets in kind.items():
            for target in targets:
                before.setdefault(target, set()).add(source)
    met = {name for name, sources in before.items() if len(sources) > 1} - stops - {END}
    reported: set[str] = set()
    looked_at = 0
    for fork in (START, *shape.names):
        firsts = tuple(dict.fromkeys(shape.parallel_targets(fork)))
        if len(firsts) < 2 or not met - reported:
            continue
        # By node: the first way that led there, and how long it was.
        ways: dict[str, tuple[str, int]] = {}
        for first in firsts:
            distances = shape.distances(first, stops)
            looked_at += len(distances)
            for name in sorted((distances.keys() & met) - reported - {fork}):
                other, length = ways.setdefault(name, (first, distances[name]))
                if length != distances[name]:
                    reported.add(name)
                    yield found(
                        "UNEQUAL_FAN_IN",
                        f"node {name}",
                        f"node '{name}' may run twice: from '{fork}' the ways over '{other}' and '{first}' differ in length",
                    )
            if looked_at > MOST_STEPS:
                return


def _check_writers(
    graph: GraphDefinition, shape: Topology, reducers: Mapping[str, Reducer]
) -> Iterator[Finding]:
    single = {name for name, reducer in reducers.items() if reducer.one_writer}
    writes = {node.name: set(node.writes) & single for node in graph.nodes}
    if sum(bool(channels) for channels in writes.values()) < 2:
        return
    clashes: dict[str, list[tuple[str, str]]] = {}
    for one, other in sorted(_parallel_pairs(shape)):
        for channel in writes.get(one, set()) & writes.get(other, set()):
            clashes.setdefault(channel, []).append((one, other))
    for channel, pairs in sorted(clashes.items()):
        one, other = pairs[0]
        more = f", and {len(pairs) - 1} more pairs of nodes" if len(pairs) > 1 else ""
        yield found(
            "PARALLEL_WRITERS",
            f"channel {channel}",
            f"'{one}' and '{other}'{more} may both write channel '{channel}' in one superstep",
        )


def _parallel_pairs(shape: Topology) -> set[tuple[str, str]]:
    """Pairs of nodes that may be active in the same superstep, each in order of name."""
    pairs: set[tuple[str, str]] = set()
    pending: deque[tuple[str, str]] = deque()

    def meet(one: str, other: str) -> None:
        pair = (min(one, other), max(one, other))
        if one != other and END not in pair and pair not in pairs and len(pairs) < MOST_PAIRS:
            pairs.add(pair)
            pending.append(pair)

    for fork in (START, *(name for name in shape.names if name in shape.reachable)):
        if len(pairs) >= MOST_PAIRS:
            return pairs
        for one, other in combinations(dict.fromkeys(shape.parallel_targets(fork)), 2):
            meet(one, other)
    while pending and len(pairs) < MOST_PAIRS:
        one, other = pending.popleft()
        for after_one in shape.declared(one):
            for after_other in shape.declared(other):
                meet(after_one, after_other)
    return pairs
