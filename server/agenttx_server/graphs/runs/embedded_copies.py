"""Last states of embedded graphs, taken along where their thread is forked or copied."""

from __future__ import annotations

from collections.abc import Iterable

from agenttx_server.engine.frozen import replace
from agenttx_server.graphs.runs.ports import RunStore
from agenttx_server.graphs.runs.records import EmbeddedCheckpoint, EmbeddedRun

__all__ = ["copied_inside"]


async def copied_inside(
    store: RunStore, thread_id: str, kept: Iterable[EmbeddedRun], new_thread_id: str
) -> list[EmbeddedCheckpoint]:
    """Return the checkpoints that these runs ended in, for another thread, and those of the runs inside them."""
    copies: dict[tuple[str, int], EmbeddedCheckpoint] = {}
    left = list(kept)
    while left:
        run = left.pop()
        if run.checkpoint is None or (run.namespace, run.checkpoint) in copies:
            continue
        for found in await store.list_embedded(thread_id, run.namespace, run.checkpoint + 1, 1):
            if found.number == run.checkpoint:
                copies[run.namespace, found.number] = replace(
                    found, thread_id=new_thread_id, parent=None, transaction_id=""
                )
                left += (*found.kept, *found.children)
    return [copies[place] for place in sorted(copies)]
