"""A pipeline that can run: its actions with versions made, their order, and guards and prompts compiled."""

from __future__ import annotations

from collections.abc import Mapping

from agenttx_server.expressions import Expression
from agenttx_server.lineage.definition import SOURCE, Action, PipelineDefinition
from agenttx_server.lineage.expansion import expand
from agenttx_server.lineage.guards import compile_guard
from agenttx_server.lineage.prompts import Prompt
from agenttx_server.lineage.topology import Topology

__all__ = ["Plan"]


class Plan:
    """Made of a definition in which :func:`.validation.check_pipeline` found no error. Immutable."""

    def __init__(self, definition: PipelineDefinition) -> None:
        self.definition = definition
        expanded = expand(definition.actions)
        self.actions: Mapping[str, Action] = {action.name: action for action in expanded}
        self.topology = Topology(expanded)
        self.order = self.topology.order
        self.guards: Mapping[str, Expression] = {
            action.name: compile_guard(action.guard.condition, self.topology.upstream[action.name] | {SOURCE})
            for action in expanded
            if action.guard is not None
        }
        self.prompts: Mapping[str, Prompt] = {
            action.name: Prompt(action.prompt) for action in expanded if action.prompt
        }
        self.barriers = frozenset(name for name in self.order if self.actions[name].is_barrier)

    @property
    def below_barriers(self) -> frozenset[str]:
        """The barriers, and all actions that come after one: they start when every root is through."""
        return self.barriers.union(*(self.topology.below(name) for name in self.barriers))
