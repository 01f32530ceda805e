"""A reducer of a deployment's own, and a graph that uses it."""

from __future__ import annotations

from typing import Any

from agenttx import END, START, GraphBuilder
from agenttx_server.graphs.reducers import reducer


@reducer("longest", version="1")
def longest(current: Any, update: Any) -> Any:
    """The longer of two texts; the one that was there, where they are equally long."""
    return update if len(update) > len(current) else current


BUILDER = GraphBuilder("sample").channel("best", reducer="longest").node("a").edge(START, "a").edge("a", END)
