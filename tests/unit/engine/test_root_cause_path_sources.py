"""A root cause's path says how the walk came to each of its stops."""

from __future__ import annotations

from agenttx_server.engine.dependency_graph import DependencyGraph
from agenttx_server.engine.records import DependencyKind, Edge, PathSource


def test_reference_pass_through_and_equal_value_are_told_apart() -> None:
    graph = DependencyGraph()
    graph.add_step(2, arguments={}, explicit=(), before_step=2)
    graph.record_output(2, {"id": "u-7"})
    reference = Edge(2, 5, "id", "user", DependencyKind.EXPLICIT)
    graph.add_step(5, arguments={"user": "u-7"}, explicit=(reference,), before_step=5)
    graph.record_output(5, {"owner_id": "u-7"})
    graph.add_step(9, arguments={"owner_id": "u-7"}, explicit=(), before_step=9)

    cause = graph.find_root_cause(9, "owner_id")

    assert [(stop.step_id, stop.key, stop.source) for stop in cause.path] == [
        (9, "owner_id", PathSource.ERROR_KEY),
        (5, "owner_id", PathSource.IMPLICIT_EDGE),
        (5, "user", PathSource.PASS_THROUGH),
        (2, "id", PathSource.EXPLICIT_EDGE),
    ]
