"""What a run's journal tells of it once nobody works on it here: the nodes it ran, the state it ended in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agenttx_server.engine.json_values import JsonValue, load
from agenttx_server.graphs.runs.ports import RunStore
from agenttx_server.graphs.runs.records import EventRecord, RunRecord, RunStatus

__all__ = ["final_state", "visited_nodes"]

_PAGE = 1000


async def visited_nodes(store: RunStore, run: RunRecord) -> tuple[str, ...]:
    """The nodes that ran in the newest invocation, in order of superstep and task."""
    visited: list[str] = []
    async for event in _events(store, run, 0):
        if event.kind == "run.started":
            visited.clear()
        elif event.kind == "node.completed":
            visited.append(event.node)
    return tuple(visited)


async def final_state(store: RunStore, run: RunRecord) -> dict[str, JsonValue]:
    """The state that a run has completed in; of others, which keep none without a thread, nothing."""
    if run.status is not RunStatus.COMPLETED:
        return {}
    async for event in _events(store, run, run.next_offset - 1):
        payload: Any = load(event.payload)
        if event.kind == "run.completed":
            return dict(payload["state"])
    return {}


async def _events(store: RunStore, run: RunRecord, offset: int) -> AsyncIterator[EventRecord]:
    while page := await store.list_events(run.run_id, offset, _PAGE):
        for event in page:
            yield event
        offset = page[-1].offset + 1
