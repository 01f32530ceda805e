"""What a graph needs, or can't have yet, is said before a run of it begins."""

from __future__ import annotations

from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import FailurePolicy, SubgraphBinding
from agenttx_server.graphs.runs.embedded_launch import check_embedded
from agenttx_server.graphs.runs.node_launch import unserved
from agenttx_server.graphs.runs.records import (
    CommitPolicy,
    Durability,
)
from agenttx_server.graphs.runs.requests import (
    RunLimits,
    RunRefused,
)

__all__ = ["check_keeping", "check_launch"]


def check_launch(graph: CompiledGraph, thread_id: str) -> None:
    """Refuse a graph that can't be run so. Raises RunRefused: UNBOUND, NOT_SUPPORTED_YET, INTERRUPT_WITHOUT_CHECKPOINTS, INVALID_REQUEST."""
    for node in graph.definition.nodes:
        if node.binding is None:
            raise RunRefused("UNBOUND", f"node '{node.name}' has nothing to run", {"node": node.name})
        if why := unserved(node):
            raise RunRefused("NOT_SUPPORTED_YET", f"node '{node.name}': {why}", {"node": node.name})
        if isinstance(node.binding, SubgraphBinding):
            keeps = bool(thread_id) and graph.definition.policy.checkpoints
            check_embedded(node, graph.subgraphs[node.name], keeps=keeps)
    policy = graph.definition.policy
    if policy.on_failure is FailurePolicy.ROLLBACK and not (policy.checkpoints and thread_id):
        raise RunRefused(
            "INVALID_REQUEST",
            "on_failure ROLLBACK goes back to checkpoints; these need a thread: name one",
            {"where": "thread_id"},
        )
    if (policy.interrupt_before or policy.interrupt_after) and not (policy.checkpoints and thread_id):
        raise RunRefused(
            "INTERRUPT_WITHOUT_CHECKPOINTS",
            "the graph stops at nodes, and goes on from checkpoints; these need a thread: name one",
            {"where": "thread_id"},
        )


def check_keeping(graph: CompiledGraph, thread_id: str, limits: RunLimits) -> None:
    """Refuse limits that need what a run doesn't keep. Raises RunRefused."""
    policy = graph.definition.policy
    if limits.commit is CommitPolicy.INTERRUPT and not (policy.checkpoints and thread_id):
        raise RunRefused(
            "INVALID_REQUEST",
            "a run that commits as it begins to wait goes on from a checkpoint; these need a thread: name one",
            {"where": "options.commit"},
        )
    if limits.durability is Durability.EXIT and policy.on_failure is FailurePolicy.ROLLBACK:
        raise RunRefused(
            "INVALID_REQUEST",
            "on_failure ROLLBACK goes back to checkpoints, and durability EXIT leaves them out; choose another one",
            {"where": "options.durability"},
        )
