"""Where the value came from that a failed sub-step took: back through its step's calls, then through earlier steps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agenttx_server.engine import json_values
from agenttx_server.engine.dependency_graph import DependencyGraph, fold
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    DependencyKind,
    PathElement,
    PathSource,
)
from agenttx_server.engine.requests import RootCause

__all__ = ["roots_of"]


def roots_of(
    graph: DependencyGraph, step_id: int, failed: AttemptRecord | None, made: Sequence[AttemptRecord]
) -> Callable[[str], RootCause]:
    """Return the tracing of keys for a step that failed by one of its sub-steps (None: by itself).

    ``made`` are the step's live sub-steps. A key that leads nowhere from the sub-step is traced from the step.
    """
    if failed is None:
        return lambda key: graph.find_root_cause(step_id, key)
    calls = sorted(
        [item for item in made if item.state is AttemptState.COMPLETED and item.sub_step < failed.sub_step],
        key=lambda item: item.sub_step,
    )
    inside = _graph_of(calls, failed)
    by_number = {item.sub_step: item for item in [*calls, failed]}

    def trace(key: str) -> RootCause:
        earliest: RootCause | None = None
        for number, input_key in inside.inputs_behind(failed.sub_step, key):
            for edge in by_number[number].edges:
                if fold(edge.target_key) != input_key:
                    continue
                root = graph.find_root_behind(edge.from_step, edge.source_key)
                if root.step_id is None or (earliest is not None and root.step_id >= (earliest.step_id or 0)):
                    continue
                source = PathSource.EXPLICIT_EDGE
                if edge.kind is DependencyKind.IMPLICIT:
                    source = PathSource.IMPLICIT_EDGE
                behind = root.path or (PathElement(edge.from_step, edge.source_key),)
                path = (
                    PathElement(step_id, key),
                    PathElement(behind[0].step_id, behind[0].key, source),
                    *behind[1:],
                )
                earliest = RootCause(root.step_id, path)
        return earliest or graph.find_root_cause(step_id, key)

    return trace


def _graph_of(calls: Sequence[AttemptRecord], failed: AttemptRecord) -> DependencyGraph:
    """Return a graph in which the calls of one step are the steps."""
    graph = DependencyGraph()
    for call in calls:
        graph.add_step(
            call.sub_step, arguments=_value(call.arguments), explicit=(), before_step=call.sub_step
        )
        graph.record_output(call.sub_step, _value(call.output or "null"))
    graph.add_step(
        failed.sub_step, arguments=_value(failed.arguments), explicit=(), before_step=failed.sub_step
    )
    return graph


def _value(text: str) -> json_values.JsonValue:
    try:
        return json_values.parse(text)
    except json_values.ValueRefused:
        return None
