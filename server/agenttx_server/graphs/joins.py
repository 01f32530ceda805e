"""Joins: rounds of arrivals, judged at each boundary.

A member counts once a round. ALL, ANY and N_OF fire when met; a round that fired swallows
later arrivals and ends when every member came, or when nothing can reach a missing one any more.
SKIP_UNREACHABLE fires when every member came or can't be reached any more. What can be reached
is what edges lead to from work that is active or pending, a way through the join itself aside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.graphs.compiled_graph import CompiledGraph, Join
from agenttx_server.graphs.definition import END, JoinPolicy

__all__ = ["Arrivals", "JoinRound", "Rounds", "arrive", "open_rounds", "settle_rounds"]


@dataclass(frozen=True, slots=True)
class JoinRound:
    """A round under way: who came, in order, and whether the join has fired."""

    arrived: tuple[str, ...]
    fired: bool = False


Rounds: TypeAlias = Mapping[str, JoinRound]
"""Join key → its round. A join without arrivals is not in it."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What arrivals, or a boundary, made of the rounds, and the joins that fired, in order."""

    rounds: Rounds
    fired: tuple[Join, ...]


def arrive(graph: CompiledGraph, rounds: Rounds, member: str) -> Arrivals:
    """Count a finished node at the joins that wait for it, in their order."""
    new = dict(rounds)
    fired = []
    for join in graph.joins_of.get(member, ()):
        before = new.get(join.key, JoinRound(()))
        if member in before.arrived:
            continue
        after = replace(before, arrived=(*before.arrived, member))
        if not after.fired and _is_met(join, after):
            after = replace(after, fired=True)
            fired.append(join)
        if after.fired and len(after.arrived) == len(join.edge.members):
            new.pop(join.key, None)
        else:
            new[join.key] = after
    return Arrivals(new, tuple(fired))


def settle_rounds(graph: CompiledGraph, rounds: Rounds, active: Collection[str]) -> Arrivals:
    """Judge the rounds at a boundary.

    Args:
        graph: whose joins they are.
        rounds: after all arrivals of the superstep.
        active: the nodes that run next, are pending or are deferred.
    """
    new = dict(rounds)
    fired: list[Join] = []
    for join in graph.joins:
        round_ = new.get(join.key)
        if round_ is None:
            continue
        reachable = _reachable(graph, active, join)
        if any(member in reachable for member in join.edge.members if member not in round_.arrived):
            continue
        if round_.fired:
            del new[join.key]
        elif join.edge.policy is JoinPolicy.SKIP_UNREACHABLE:
            del new[join.key]
            fired.append(join)
            # What it makes active may still reach the members of joins behind it.
            active = (*active, join.edge.target)
    return Arrivals(new, tuple(fired))


def open_rounds(graph: CompiledGraph, rounds: Rounds) -> tuple[tuple[Join, tuple[str, ...]], ...]:
    """The joins that still wait, with the members that are missing."""
    waiting = []
    for join in graph.joins:
        round_ = rounds.get(join.key)
        if round_ is not None and not round_.fired:
            waiting.append((join, tuple(m for m in join.edge.members if m not in round_.arrived)))
    return tuple(waiting)


def _is_met(join: Join, round_: JoinRound) -> bool:
    return len(round_.arrived) >= join.needed


def _reachable(graph: CompiledGraph, active: Iterable[str], without: Join) -> set[str]:
    reached: set[str] = set()
    pending = [name for name in active if name in graph.nodes]
    while pending:
        name = pending.pop()
        if name in reached:
            continue
        reached.add(name)
        pending += _next_places(graph, name, without) - reached
    return reached


def _next_places(graph: CompiledGraph, name: str, without: Join) -> set[str]:
    successors = graph.successors[name]
    if successors is None:
        return set(graph.nodes)
    if name in without.edge.members:
        others = {join.edge.target for join in graph.joins_of[name] if join != without}
        successors = frozenset(others.union(graph.direct_targets.get(name, ())))
    handler = graph.nodes[name].error_handler
    return {place for place in (*successors, handler) if place is not None and place != END}
