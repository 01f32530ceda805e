"""What of embedded graphs can't be run yet, refused by name before a run begins."""

from __future__ import annotations

from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import Node, SubgraphBinding
from agenttx_server.graphs.runs.node_launch import unserved
from agenttx_server.graphs.runs.requests import RunRefused

__all__ = ["check_embedded"]


def check_embedded(embedding: Node, graph: CompiledGraph, *, keeps: bool) -> None:
    """Check a graph that a run would embed, and those inside it; ``keeps``: those around it keep checkpoints.

    Raises RunRefused: UNBOUND, NOT_SUPPORTED_YET, INTERRUPT_WITHOUT_CHECKPOINTS; INVALID_REQUEST for a state that is to be kept and can't be.
    """
    policy = graph.definition.policy
    keeps = keeps and policy.checkpoints
    if isinstance(embedding.binding, SubgraphBinding) and embedding.binding.state_key and not keeps:
        raise RunRefused(
            "INVALID_REQUEST",
            f"node '{embedding.name}' keeps its graph's state, in checkpoints; these need a thread: name one",
            {"where": "thread_id"},
        )
    if (policy.interrupt_before or policy.interrupt_after) and not keeps:
        raise RunRefused(
            "INTERRUPT_WITHOUT_CHECKPOINTS",
            f"graph '{graph.name}' stops at nodes, and goes on from checkpoints; these need a thread: name one",
            {"where": "thread_id"},
        )
    for node in graph.definition.nodes:
        where = f"node '{node.name}' of graph '{graph.name}'"
        if node.binding is None:
            raise RunRefused("UNBOUND", f"{where} has nothing to run", {"node": node.name})
        if node.cache is not None:
            raise _refused(node, f"{where} has a cache: nodes of embedded graphs can't have any yet")
        if why := unserved(node):
            raise _refused(node, f"{where}: {why}")
        if node.name in graph.subgraphs:
            check_embedded(node, graph.subgraphs[node.name], keeps=keeps)


def _refused(node: Node, message: str) -> RunRefused:
    return RunRefused("NOT_SUPPORTED_YET", message, {"node": node.name})
