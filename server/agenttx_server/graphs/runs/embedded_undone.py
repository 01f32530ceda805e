"""What becomes of checkpoints inside when those around them are undone, which makes them history, or pruned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agenttx_server.engine.frozen import replace
from agenttx_server.graphs.runs.ports import RunStore
from agenttx_server.graphs.runs.records import CheckpointRecord, EmbeddedCheckpoint, EmbeddedRun, TaskRecord

__all__ = ["pruned_inside", "undone_inside"]

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


async def pruned_inside(
    store: RunStore, thread_id: str, gone: Iterable[CheckpointRecord], stay: Iterable[CheckpointRecord]
) -> tuple[tuple[str, int], ...]:
    """Return which checkpoints inside go with those around them: namespaces and numbers.

    Those from which something that stays goes on, as it keeps its state, stay too.
    """
    spared: set[tuple[str, int]] = set()
    kept = [run for item in stay for run in item.kept]
    while kept:
        run = kept.pop()
        if run.checkpoint is None or (run.namespace, run.checkpoint) in spared:
            continue
        spared.add((run.namespace, run.checkpoint))
        for found in await store.list_embedded(thread_id, run.namespace, run.checkpoint + 1, 1):
            kept += found.kept
    going: set[tuple[str, int]] = set()
    left, seen = [child for item in gone for child in item.children], set[str]()
    while left:
        child = left.pop()
        if child.run_id in seen:
            continue
        seen.add(child.run_id)
        for found in await _checkpoints_of(store, thread_id, child):
            left += found.children
            going.add((found.namespace, found.number))
    return tuple(sorted(going - spared))


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
