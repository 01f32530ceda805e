"""What of a node can't be run yet: graphs that have it are refused before a run begins."""

from __future__ import annotations

from agenttx_server.graphs.definition import FunctionBinding, Node, SubgraphBinding

__all__ = ["unserved"]


def unserved(node: Node) -> str:
    """Say what of a node can't be run; "" if all can."""
    if node.cache is not None and isinstance(node.binding, SubgraphBinding):
        return "what a graph inside a node gives can't be kept in a cache"
    if node.idle_timeout_us and not isinstance(node.binding, FunctionBinding):
        return (
            "an idle timeout is for a function, which tells of its progress; give the node a timeout instead"
        )
    return ""
