"""What the compiler asks of its surroundings: the graphs that are registered already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agenttx_server.graphs.compiled_graph import CompiledGraph

__all__ = ["Catalog", "KnownGraphs"]


class Catalog(Protocol):
    """The registered graphs that a definition may embed."""

    def find(self, name: str, version: str = "") -> CompiledGraph | None:
        """The graph of this name and whole version; without a version the newest; None if there is none."""
        ...


class KnownGraphs:
    """A catalog of graphs at hand: by name, each in its versions, the newest last."""

    def __init__(self, graphs: Mapping[str, tuple[CompiledGraph, ...]] | None = None) -> None:
        self._graphs = dict(graphs or {})

    def find(self, name: str, version: str = "") -> CompiledGraph | None:
        versions = self._graphs.get(name, ())
        if not version:
            return versions[-1] if versions else None
        return next((graph for graph in versions if graph.version == version), None)
