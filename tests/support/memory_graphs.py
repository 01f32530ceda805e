"""The store of graphs in memory: the part of :class:`.memory_store.MemoryStore` that graphs need."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agenttx_server.engine.ports import DuplicateRequestId
from agenttx_server.engine.records import RecordedResponse
from agenttx_server.graphs.ports import GraphPage, GraphRecord, RegisteredGraph

__all__ = ["MemoryGraphs"]


class MemoryGraphs:
    """Implements graphs.ports.GraphStore over ``database.graphs`` and ``database.responses``."""

    database: Any

    async def _read(self, method: str) -> None:
        raise NotImplementedError

    async def register_graph(
        self, record: GraphRecord, response: RecordedResponse | None = None
    ) -> RegisteredGraph:
        await self._read("register_graph")
        key = (record.name, record.version)
        if response is not None and (response.scope, response.request_id) in self.database.responses:
            raise DuplicateRequestId("an answer is recorded under this request_id")
        existed = key in self.database.graphs
        if not existed:
            last = max((kept.sequence for kept in self._versions(record.name)), default=0)
            self.database.graphs[key] = replace(record, sequence=last + 1)
        if response is not None:
            answer = json.dumps({**json.loads(response.response), "existed": existed})
            self.database.responses[response.scope, response.request_id] = replace(response, response=answer)
        return RegisteredGraph(self.database.graphs[key], existed)

    async def find_graph(self, name: str, version: str) -> Sequence[GraphRecord]:
        await self._read("find_graph")
        versions = self._versions(name)
        if not version:
            return versions[-1:]
        return sorted((v for v in versions if v.version.startswith(version)), key=lambda v: v.version)[:2]

    async def list_graphs(self, name: str, cursor: str, limit: int) -> GraphPage:
        await self._read("list_graphs")
        kind = "graph_versions" if name else "graphs"
        position = _decoded(kind, cursor) if cursor else None
        if name:
            found = [v for v in self._versions(name)[::-1] if position is None or v.sequence < position]
        else:
            names = sorted({kept.name for kept in self.database.graphs.values()})
            found = [self._versions(n)[-1] for n in names if position is None or n > position]
        page = [replace(record, definition="") for record in found[:limit]]
        if len(found) <= limit:
            return GraphPage(page, "")
        last = page[-1].sequence if name else page[-1].name
        return GraphPage(page, base64.urlsafe_b64encode(json.dumps([kind, last]).encode()).decode())

    def _versions(self, name: str) -> list[GraphRecord]:
        kept = (record for record in self.database.graphs.values() if record.name == name)
        return sorted(kept, key=lambda record: record.sequence)


def _decoded(kind: str, cursor: str) -> Any:
    try:
        found, position = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except ValueError as error:
        raise ValueError("the cursor was not given out by this server") from error
    if found != kind:
        raise ValueError("the cursor was not given out by this listing")
    return position
