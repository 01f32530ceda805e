"""Checkpoints of embedded graphs whose supersteps around them are undone: they are history from then on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from agenttx_server.graphs.runs.ports import RunStore
from agenttx_server.graphs.runs.records import CheckpointRecord, EmbeddedCheckpoint, EmbeddedRun, TaskRecord

__all__ = ["undone_inside"]

_PAGE = 100


async def undone_inside(
    store: RunStore, thread_id: str, checkpoints: Iterable[CheckpointRecord], tasks: Iterable[TaskRecord]
) -> list[EmbeddedCheckpoint]:
    """Return those of the runs that these checkpoints and tasks of an undone part of a run had inside, marked."""
    undone: list[EmbeddedCheckpoint] = []
    left = [child for item in checkpoints for child in item.children]
    left += [task.child for task in tasks if task.child is not None]
    seen: set[str] = set()
    while left:
        child = left.pop()
        if child.run_id in seen:
            continue
        seen.add(child.run_id)
        for found in await _checkpoints_of(store, thread_id, child):
            left += found.children
            if not found.rolled_back:
                undone.append(replace(found, rolled_back=True))
        run = await store.load_run(child.run_id)
        if run is not None:
            open_tasks = await store.load_tasks(child.run_id, run.superstep)
            left += [task.child for task in open_tasks if task.child is not None]
    return undone


async def _checkpoints_of(
    store: RunStore, thread_id: str, child: EmbeddedRun
) -> Sequence[EmbeddedCheckpoint]:
    """Those of one run: in a namespace that is kept others stand before and behind them."""
    found: list[EmbeddedCheckpoint] = []
    before: int | None = None
    while page := await store.list_embedded(thread_id, child.namespace, before, _PAGE):
        found += [item for item in page if item.run_id == child.run_id]
        before = page[-1].number
        if found and page[-1].run_id != child.run_id:
            break  # one run's are numbered in one go
    return found
