"""A sound graph, indexed for running. Immutable; equal content has equal ``version``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import MISSING, JsonValue, canonical, load
from agenttx_server.expressions import Expression, Kind, Result, compile_expression
from agenttx_server.graphs.definition import (
    END,
    EVERY_NODE,
    START,
    Channel,
    ConditionalEdge,
    ExpressionRouter,
    FunctionRouter,
    GraphDefinition,
    Node,
    Routing,
    WaitingEdge,
)
from agenttx_server.graphs.definition_json import routing_of, to_content
from agenttx_server.graphs.reducers.reduction import Reducer, WriteContext

__all__ = ["ROUTER_VARIABLES", "CompiledGraph", "Join", "version_of"]

ROUTER_VARIABLES: Final[Mapping[str, Kind]] = {"state": Kind.OBJECT, "result": Kind.ANY}


def version_of(definition: GraphDefinition) -> str:
    """The version of a definition: ``v`` and the SHA-256 of its canonical content."""
    return "v" + hashlib.sha256(canonical(to_content(definition)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Join:
    """A waiting edge with a key that names it in checkpoints."""

    key: str
    edge: WaitingEdge

    @property
    def needed(self) -> int:
        """How many members must come for it to fire, where the policy counts."""
        counts = {"any": 1, "n_of": self.edge.count}
        return counts.get(self.edge.policy.value, len(self.edge.members))


class CompiledGraph:
    """What :func:`.compiler.compile_graph` makes.

    Attributes:
        definition: with versions of subgraphs and custom reducers filled in.
        version: its content's hash.
        reducers: channel → reducer.
        subgraphs: node → the graph that it embeds.
    """

    def __init__(
        self,
        definition: GraphDefinition,
        reducers: Mapping[str, Reducer],
        subgraphs: Mapping[str, CompiledGraph],
    ) -> None:
        self.definition: Final = definition
        self.version: Final = version_of(definition)
        self.reducers: Final = reducers
        self.subgraphs: Final = subgraphs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompiledGraph) and self.definition == other.definition

    def __hash__(self) -> int:
        return hash(self.version)

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.definition.name

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.definition.nodes}

    @cached_property
    def channels(self) -> Mapping[str, Channel]:
        """Channels by name."""
        return {channel.name: channel for channel in self.definition.channels}

    @cached_property
    def write_contexts(self) -> Mapping[str, WriteContext]:
        """What each channel's reducer is told of its options."""
        return {
            name: WriteContext("", channel.scalars, channel.ignore_unknown_removals)
            for name, channel in self.channels.items()
        }

    @cached_property
    def entry(self) -> tuple[str, ...]:
        """Where START leads, in order."""
        return self.direct_targets.get(START, ())

    @cached_property
    def direct_targets(self) -> Mapping[str, tuple[str, ...]]:
        """Where direct edges lead, by source, in order; END among them."""
        targets: dict[str, list[str]] = {}
        for edge in self.definition.edges:
            targets.setdefault(edge.source, []).append(edge.target)
        return {source: tuple(names) for source, names in targets.items()}

    @cached_property
    def joins(self) -> tuple[Join, ...]:
        """Waiting edges, in order."""
        return tuple(
            Join(canonical([edge.target, *edge.members]), edge) for edge in self.definition.waiting_edges
        )

    @cached_property
    def joins_of(self) -> Mapping[str, tuple[Join, ...]]:
        """The joins that wait for a node, by its name."""
        joins: dict[str, list[Join]] = {}
        for join in self.joins:
            for member in join.edge.members:
                joins.setdefault(member, []).append(join)
        return {member: tuple(waiting) for member, waiting in joins.items()}

    @cached_property
    def conditional_of(self) -> Mapping[str, ConditionalEdge]:
        """Conditional edges by source."""
        return {edge.source: edge for edge in self.definition.conditional_edges}

    @cached_property
    def routes_of(self) -> Mapping[str, Mapping[str, str]]:
        """Route tables by source: label → target."""
        return {
            edge.source: {route.label: route.target for route in edge.routes}
            for edge in self.definition.conditional_edges
        }

    @cached_property
    def expressions(self) -> Mapping[str, Expression]:
        """Compiled router expressions by source."""
        return {
            edge.source: compile_expression(edge.router.expression, ROUTER_VARIABLES, Result.LABEL)
            for edge in self.definition.conditional_edges
            if isinstance(edge.router, ExpressionRouter)
        }

    @cached_property
    def routing(self) -> Mapping[str, Routing]:
        """How each node routes."""
        return routing_of(self.definition)

    @cached_property
    def successors(self) -> Mapping[str, frozenset[str] | None]:
        """Where a node may lead by its own routing, joins and END among it; None where anywhere."""
        return {name: self._successors(name) for name in self.nodes}

    def default_state(self) -> dict[str, JsonValue]:
        """The state of a thread that had no input: the channels' defaults, a copy."""
        return {
            name: load(canonical(channel.default))
            for name, channel in self.channels.items()
            if channel.default is not MISSING
        }

    def stops_before(self, node: str) -> bool:
        """Whether a run stops before this node."""
        return self._is_listed(node, self.definition.policy.interrupt_before)

    def stops_after(self, node: str) -> bool:
        """Whether a run stops after this node."""
        return self._is_listed(node, self.definition.policy.interrupt_after)

    @staticmethod
    def _is_listed(node: str, names: tuple[str, ...]) -> bool:
        return node in names or EVERY_NODE in names

    def _successors(self, name: str) -> frozenset[str] | None:
        match self.routing[name]:
            case Routing.COMMAND:
                return frozenset(self.nodes[name].destinations or ()) or None
            case Routing.CONDITIONAL:
                edge = self.conditional_of[name]
                if isinstance(edge.router, FunctionRouter):
                    # It may answer Sends, to whatever node.
                    return None
                return frozenset(route.target for route in edge.routes)
            case Routing.STATIC:
                waiting = (join.edge.target for join in self.joins_of.get(name, ()))
                return frozenset((*self.direct_targets.get(name, ()), *waiting))
            case Routing.NONE:
                return frozenset((END,))
