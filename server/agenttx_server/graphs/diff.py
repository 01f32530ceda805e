"""What differs between two versions of a graph, and what pending work the second one would break."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import JsonValue
from agenttx_server.graphs.channel_types import has_type
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import (
    Channel,
    Edge,
    GraphDefinition,
    Node,
    SubgraphBinding,
    WaitingEdge,
)
from agenttx_server.graphs.joins import Rounds

__all__ = ["Change", "ChangeKind", "PendingWork", "breaking_nodes", "broken_by", "changes_between"]

PartT = TypeVar("PartT")


class ChangeKind(StrEnum):
    """How a part differs."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference; ``reason`` says why work pending under the old version may not go on, if so."""

    kind: ChangeKind
    what: str
    fields: tuple[str, ...] = ()
    reason: str = ""

    @property
    def breaking(self) -> bool:
        """Whether pending work may not go on."""
        return bool(self.reason)


@dataclass(frozen=True, slots=True)
class PendingWork:
    """What a thread has under way.

    Attributes:
        nodes: that run next, are unfinished or deferred.
        rounds: its joins.
        state: its head's.
        kept_subgraphs: nodes with a child whose state is kept or under way.
    """

    nodes: tuple[str, ...] = ()
    rounds: Rounds | None = None
    state: Mapping[str, JsonValue] | None = None
    kept_subgraphs: tuple[str, ...] = ()


def changes_between(old: GraphDefinition, new: GraphDefinition) -> tuple[Change, ...]:
    """Every difference, by kind of part, then by name."""
    return (
        *_parts(old.nodes, new.nodes, lambda node: f"node {node.name}", _node_reason),
        *_parts(old.channels, new.channels, lambda channel: f"channel {channel.name}", _channel_reason),
        *_parts(old.edges, new.edges, _edge_name, _no_reason),
        *_order_changes(old, new),
        *_parts(old.waiting_edges, new.waiting_edges, _waiting_name, _waiting_reason),
        *_parts(
            old.conditional_edges,
            new.conditional_edges,
            lambda edge: f"conditional {edge.source}",
            _no_reason,
        ),
        *_parts((old.policy,), (new.policy,), lambda policy: "policy", _no_reason),
    )


def breaking_nodes(old: GraphDefinition, new: GraphDefinition) -> tuple[str, ...]:
    """The nodes that can't go on under the new version where they are pending."""
    found = {node.name: node for node in new.nodes}
    return tuple(node.name for node in old.nodes if _node_reason(node, found.get(node.name)))


def broken_by(old: CompiledGraph, new: CompiledGraph, pending: PendingWork) -> tuple[str, ...]:
    """Why a thread's pending work can't go on under the new version; none if it can."""
    return tuple(_reasons(old, new, pending))


def _reasons(old: CompiledGraph, new: CompiledGraph, pending: PendingWork) -> Iterator[str]:
    for name in dict.fromkeys(pending.nodes):
        if name not in new.nodes:
            yield f"node '{name}' is pending and is gone"
    for name in pending.kept_subgraphs:
        before, after = old.nodes.get(name), new.nodes.get(name)
        if before is not None and after is not None and before.binding != after.binding:
            yield f"node '{name}' has an embedded graph under way, or its state, which is another now"
    keys = {join.key: join for join in old.joins}
    known = {join.key: join.edge for join in new.joins}
    for key, round_ in (pending.rounds or {}).items():
        if not round_.fired and key in keys and known.get(key) != keys[key].edge:
            edge = keys[key].edge
            yield f"{_waiting_name(edge)} is under way and is gone or another"
    for name, value in (pending.state or {}).items():
        channel = new.channels.get(name)
        if channel is None:
            yield f"channel '{name}' holds a value and is gone"
        elif not has_type(value, channel.type):
            yield f"channel '{name}' holds what is no {channel.type}"
        elif (
            name in old.channels
            and old.channels[name].reducer != channel.reducer
            and not _fits(new, name, value)
        ):
            yield f"channel '{name}' holds what reducer {channel.reducer} would not make"


def _fits(graph: CompiledGraph, channel: str, value: JsonValue) -> bool:
    types = graph.reducers[channel].types
    return any(has_type(value, kind) for kind in types)


def _parts(
    old: Sequence[PartT],
    new: Sequence[PartT],
    name_of: Callable[[PartT], str],
    reason_of: Callable[[PartT, PartT | None], str],
) -> Iterator[Change]:
    before = {name_of(part): part for part in old}
    after = {name_of(part): part for part in new}
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield Change(ChangeKind.ADDED, name)
        elif name not in after:
            yield Change(ChangeKind.REMOVED, name, reason=reason_of(before[name], None))
        elif before[name] != after[name]:
            differing = _differing(before[name], after[name])
            yield Change(ChangeKind.CHANGED, name, differing, reason_of(before[name], after[name]))


def _differing(old: Any, new: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(old) if getattr(old, field.name) != getattr(new, field.name))


def _order_changes(old: GraphDefinition, new: GraphDefinition) -> Iterator[Change]:
    for source in sorted({edge.source for edge in old.edges}):
        before = [edge.target for edge in old.edges if edge.source == source]
        after = [edge.target for edge in new.edges if edge.source == source]
        if before != after and sorted(before) == sorted(after):
            yield Change(ChangeKind.CHANGED, f"order of the edges of {source}", ("edges",))


def _node_reason(old: Node, new: Node | None) -> str:
    if new is None:
        return "the node is gone"
    if isinstance(old.binding, SubgraphBinding) and old.binding != new.binding:
        return "an embedded graph under way there is another now"
    return ""


def _channel_reason(old: Channel, new: Channel | None) -> str:
    if new is None:
        return "the channel is gone; threads may hold a value in it"
    if new.type not in ("any", old.type):
        return "values that threads hold may have another type"
    return "" if new.reducer == old.reducer else "values that threads hold were made by another reducer"


def _waiting_reason(old: WaitingEdge, new: WaitingEdge | None) -> str:
    return "a round of it may be under way"


def _no_reason(old: object, new: object) -> str:
    return ""


def _edge_name(edge: Edge) -> str:
    return f"edge {edge.source} -> {edge.target}"


def _waiting_name(edge: WaitingEdge) -> str:
    return f"join {', '.join(edge.members)} -> {edge.target}"
