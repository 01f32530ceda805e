"""Time travel to a checkpoint of a graph inside a node: a branch in which that graph goes on from there.

The branch begins at the boundary before the embedding node, which is run again; of the graph inside, the supersteps up to the
checkpoint are answered by what their nodes and routers answered then, and nobody is called (docs/decisions/0022).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from agenttx_server.engine.frozen import replace
from agenttx_server.graphs.runs.branching import Branch, branch_at
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.ports import RunFilter, RunStore
from agenttx_server.graphs.runs.records import (
    CheckpointRecord,
    Durability,
    EmbeddedCheckpoint,
    RunRecord,
    TaskRecord,
    TaskState,
    ThreadRecord,
    checkpoint_number,
)
from agenttx_server.graphs.runs.requests import RunRefused, no_checkpoint

__all__ = ["branch_inside"]

_PAGE: Final = 1000
_NAMESPACE = re.compile(r"[^/#]+#[0-9]+\.[0-9]+")
_SCOPE = re.compile(r"([0-9]+)\.[0-9]+\??/")


async def branch_inside(parts: RunParts, thread: ThreadRecord, name: str) -> Branch | None:
    """Make a checkpoint of an embedded graph the start of a branch; None if no graph inside a node has one of this id.

    Raises RunRefused: ILLEGAL_TRANSITION where what led there isn't committed, or was undone; NOT_SUPPORTED_YET for a graph two
    or more levels down, one that keeps its state, and one of a run of durability EXIT; CHECKPOINT_NOT_FOUND where what its
    nodes answered isn't kept any more.
    """
    store = parts.store
    found = await _find(store, thread, name)
    if found is None:
        return None
    child, inside = found
    about = {"thread_id": thread.thread_id, "checkpoint_id": name[:128]}
    parent = await store.load_run(child.parent_run_id)
    if parent is None:
        raise no_checkpoint(thread.thread_id, name)
    if not _NAMESPACE.fullmatch(child.namespace) or parent.options.durability is Durability.EXIT:
        raise RunRefused(
            "NOT_SUPPORTED_YET",
            "a run can't start at a checkpoint of a graph two levels down, of one that keeps its state, or inside a run "
            "that left its own checkpoints out; start at one of the graph around it",
            {**about, "feature": "checkpoint_id"},
        )
    behind = await _boundary_behind(store, thread, inside.run_id)
    is_open = behind is not None and await parts.transactions.is_open(behind.transaction_id)
    if behind is None or behind.rolled_back or inside.rolled_back or is_open:
        raise RunRefused(
            "ILLEGAL_TRANSITION",
            "what led to the checkpoint isn't committed: a run can start inside a node once the node's run has completed",
            about,
        )
    before = None if behind.parent is None else await store.load_checkpoint(thread.thread_id, behind.parent)
    tasks = await store.load_tasks(behind.run_id, behind.superstep)
    task = next(
        (item for item in tasks if item.child is not None and item.child.run_id == inside.run_id), None
    )
    if before is None or task is None:
        raise no_checkpoint(thread.thread_id, name)
    given = await _given(parts, behind, task, child, inside)
    if given is None:
        raise no_checkpoint(thread.thread_id, name)
    branch = await branch_at(parts, before)
    work, activations = branch.position.work, list(branch.position.work.activations)
    if task.ordinal >= len(activations) or activations[task.ordinal].node != task.node:
        raise no_checkpoint(thread.thread_id, name)
    activations[task.ordinal] = replace(activations[task.ordinal], given=tuple(sorted(given.items())))
    position = replace(branch.position, work=replace(work, activations=tuple(activations)))
    return replace(branch, position=position)


async def _find(
    store: RunStore, thread: ThreadRecord, name: str
) -> tuple[RunRecord, EmbeddedCheckpoint] | None:
    """The checkpoint of an embedded graph that has an id, and its run. Ids hash their namespace."""
    cursor, seen = "", set()
    while True:
        page = await store.list_runs(
            RunFilter(thread_id=thread.thread_id, include_children=True), cursor, _PAGE
        )
        for run in page.runs:
            if not run.namespace or run.namespace in seen:
                continue
            seen.add(run.namespace)
            number = checkpoint_number(thread.thread_id, name, run.namespace)
            if number is None:
                continue
            at = await store.list_embedded(thread.thread_id, run.namespace, number + 1, 1)
            if not at or at[0].number != number:
                return None
            own = run if run.run_id == at[0].run_id else await store.load_run(at[0].run_id)
            return None if own is None else (own, at[0])
        cursor = page.next_cursor
        if not cursor:
            return None


async def _boundary_behind(store: RunStore, thread: ThreadRecord, run_id: str) -> CheckpointRecord | None:
    """The checkpoint of the root graph in which a run of an embedded graph ended."""
    cursor = ""
    while True:
        page = await store.list_checkpoints(thread.thread_id, frozenset(), cursor, _PAGE)
        for checkpoint in page.checkpoints:
            if any(child.run_id == run_id for child in checkpoint.children):
                return checkpoint
        cursor = page.next_cursor
        if not cursor:
            return None


async def _given(
    parts: RunParts, behind: CheckpointRecord, task: TaskRecord, child: RunRecord, inside: EmbeddedCheckpoint
) -> Mapping[str, str] | None:
    """What the supersteps up to a checkpoint answered, by scope; None where that isn't kept whole."""
    known = await parts.transactions.answers(behind.transaction_id, task.step_id)
    given = {
        scope: answer
        for scope, answer in known.items()
        if (place := _SCOPE.fullmatch(scope)) and int(place[1]) <= inside.superstep
    }
    for superstep in range(1, inside.superstep + 1):
        made = await parts.store.load_tasks(child.run_id, superstep)
        # What a handler stands in for has failed, and would have to fail again.
        whole = all(f"{superstep}.{item.ordinal}/" in given for item in made)
        if not made or not whole or any(item.state is TaskState.HANDLED for item in made):
            return None
    return given
