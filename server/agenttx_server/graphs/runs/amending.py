"""What a request to go on changes before the run does: an update, targets beside what is pending, results given up.

The superstep that is open stays open: an update makes a checkpoint before it, on which it is folded when it ends,
and targets are further tasks of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import MISSING, canonical
from agenttx_server.graphs.boundary import Work, with_targets
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.fold import TaskWrites
from agenttx_server.graphs.node_results import Target
from agenttx_server.graphs.runs.folding import folded_aside
from agenttx_server.graphs.runs.ports import RunFilter, RunStore
from agenttx_server.graphs.runs.position import NextCheckpoint, Position, next_checkpoint
from agenttx_server.graphs.runs.records import (
    CheckpointSource,
    RunRecord,
    TaskRecord,
    TaskState,
    ThreadRecord,
)
from agenttx_server.graphs.runs.requests import Amendment, RunRefused
from agenttx_server.graphs.tasks import order_tasks, write_seed

__all__ = ["Amended", "amended", "refuse_results_inside"]

_MOST_LOOKED_AT = 1000

_ENDED = (TaskState.FINISHED, TaskState.LEFT_OUT, TaskState.HANDLED)


@dataclass(frozen=True, slots=True)
class Amended:
    """Where a run stands with what a request changed, and the tasks of its open superstep that changed."""

    saved: NextCheckpoint
    tasks: tuple[TaskRecord, ...] = ()


async def amended(
    graph: CompiledGraph,
    thread: ThreadRecord,
    run: RunRecord,
    position: Position,
    tasks: Sequence[TaskRecord],
    amendment: Amendment,
    now: int,
) -> Amended:
    """Apply what a request changes.

    Args:
        graph: the run's.
        thread: as it stands.
        run: as it stands.
        position: its head.
        tasks: those of its open superstep; empty if none is open.
        amendment: what is changed.
        now: the time.

    Raises:
        FoldError: for the update.
        RouteError: UNKNOWN_TARGET; STATE_TOO_LARGE for too many tasks.
        RunRefused: INVALID_REQUEST for a task without a result to give up.
    """
    given_up = _given_up(run, tasks, amendment.discard)
    if not amendment.update and not amendment.goto:
        return Amended(NextCheckpoint(position, thread), given_up)
    seed = write_seed(run.namespace, run.superstep, "", thread.next_number)
    updates = (dict(amendment.update),) if amendment.update else ()
    folded = await folded_aside(
        graph, position.state, [TaskWrites("", updates, seed)], position.origins, keep_ephemeral=True
    )
    added: tuple[TaskRecord, ...] = ()
    work = with_targets(graph, position.work, amendment.goto)
    if tasks:
        work, added = _beside(graph, run, position.work, tasks, amendment.goto)
    saved = next_checkpoint(graph, thread, run, position, folded, work, CheckpointSource.UPDATE, now)
    return Amended(saved, (*given_up, *added))


def _beside(
    graph: CompiledGraph, run: RunRecord, work: Work, tasks: Sequence[TaskRecord], goto: Sequence[Target]
) -> tuple[Work, tuple[TaskRecord, ...]]:
    """Make targets further tasks of a superstep; a plain one joins a plain task of its node that hasn't ended."""
    active = {task.node for task in tasks if task.arg is None and task.state not in _ENDED}
    wanted = [target for target in goto if target.is_send or target.node not in active]
    extra = with_targets(graph, replace(work, activations=()), wanted)
    extra = replace(
        extra,
        activations=tuple(item for item in extra.activations if not graph.nodes[item.node].deferred),
        deferred=(
            *extra.deferred,
            *(item for item in extra.activations if graph.nodes[item.node].deferred),
        ),
    )
    records = tuple(
        TaskRecord(
            run.run_id,
            run.superstep,
            task.ordinal,
            task.task_id,
            task.node,
            run.thread_id,
            run.namespace,
            arg=None if task.arg is MISSING else canonical(task.arg),
        )
        for task in order_tasks(
            run.run_id, run.namespace, run.superstep, extra.activations, first_ordinal=len(tasks)
        )
    )
    return replace(extra, activations=(*work.activations, *extra.activations)), records


async def refuse_results_inside(
    store: RunStore, run: RunRecord, tasks: Sequence[TaskRecord], discard: Sequence[str]
) -> None:
    """Raise RunRefused (NOT_SUPPORTED_YET) for results of nodes of embedded graphs: they can't be given up one by one."""
    unknown = set(discard) - {task.task_id for task in tasks}
    if not unknown:
        return
    page = await store.list_runs(
        RunFilter(thread_id=run.thread_id, include_children=True), "", _MOST_LOOKED_AT
    )
    for child in page.runs:
        if child.root_run_id != run.run_id or not child.parent_run_id:
            continue
        for task in await store.load_tasks(child.run_id, child.superstep):
            if task.task_id in unknown:
                around = child.namespace.split("/")[0].split("#")[0]
                raise RunRefused(
                    "NOT_SUPPORTED_YET",
                    f"task '{task.task_id[:128]}' is of graph '{child.graph}' inside node '{around}', whose results can't be "
                    "given up one by one; discard that node's result, or edit the state in its name",
                    {"thread_id": run.thread_id, "run_id": run.run_id, "node": around},
                )


def _given_up(run: RunRecord, tasks: Sequence[TaskRecord], discard: Sequence[str]) -> tuple[TaskRecord, ...]:
    wanted = set(discard)
    known = {task.task_id for task in tasks if task.state is TaskState.FINISHED}
    for name in discard:
        if name not in known:
            raise RunRefused(
                "INVALID_REQUEST",
                f"task '{name[:128]}' has no result that could be given up",
                {"thread_id": run.thread_id, "run_id": run.run_id},
            )
    rivals = _rivals(run)
    # Of results that can't be folded together one may stay; the others would be in its way again.
    stays = bool(rivals - wanted)
    return tuple(
        replace(task, state=TaskState.LEFT_OUT if stays and task.task_id in rivals else TaskState.GIVEN_UP)
        for task in tasks
        if task.task_id in wanted
    )


def _rivals(run: RunRecord) -> set[str]:
    if run.error is None or run.error.reason != "CONCURRENT_UPDATE":
        return set()
    return set(dict(run.error.metadata).get("task_ids", "").split(","))
