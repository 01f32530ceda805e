"""What the boundary behind a superstep writes: its checkpoint, its tasks, its events, and how the run stands then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import JsonValue
from agenttx_server.graphs.boundary import RouteTaken, Work
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.errors import GraphError
from agenttx_server.graphs.fold import Folded, tracked
from agenttx_server.graphs.runs.journal import Draft, failed, report_checkpoints
from agenttx_server.graphs.runs.next_superstep import Begun
from agenttx_server.graphs.runs.ports import RunChange
from agenttx_server.graphs.runs.position import NextCheckpoint, Position, next_checkpoint, passed
from agenttx_server.graphs.runs.records import (
    CheckpointSource,
    RunError,
    RunRecord,
    RunStatus,
    TaskRecord,
    TaskState,
    ThreadRecord,
)
from agenttx_server.graphs.runs.run_errors import error_of
from agenttx_server.graphs.runs.task_reports import folded_task, passed_task, report_task

__all__ = ["MadeBoundary", "Superstep", "completed", "made_boundary", "starved_error"]


@dataclass(frozen=True, slots=True)
class Superstep:
    """A superstep whose tasks have ended, and where its run stood before it.

    ``said`` is what workers' routers said, as JSON by task; ``thread`` is None where no checkpoints are kept.
    """

    graph: CompiledGraph
    run: RunRecord
    thread: ThreadRecord | None
    position: Position
    tasks: Sequence[TaskRecord]
    said: Mapping[str, str]

    @property
    def finished(self) -> list[TaskRecord]:
        """Those of its tasks that have finished."""
        return [task for task in self.tasks if task.state is TaskState.FINISHED]


@dataclass(frozen=True, slots=True)
class MadeBoundary:
    """What a boundary writes, and where the run stands then; ``begun`` is the superstep that begins with it."""

    change: RunChange
    run: RunRecord
    thread: ThreadRecord | None
    position: Position
    completes: bool
    begun: Begun | None = None


def made_boundary(
    superstep: Superstep,
    folded: Folded,
    work: Work,
    next_step: int,
    now: int,
    *,
    keeps: bool,
    waits_live: bool,
) -> MadeBoundary:
    """Make the boundary behind a superstep.

    Args:
        superstep: what it ends.
        folded: its state.
        work: what comes next.
        next_step: the step of the transaction that comes first behind it.
        now: the time.
        keeps: whether it has a checkpoint, where the run keeps any.
        waits_live: whether a run that stops after a node is live still, as one that is to commit first.
    """
    graph, tasks = superstep.graph, superstep.tasks
    starved = starved_error(superstep.run, work)
    after = _stops_after(superstep, work)
    completes = work.is_done and starved is None and not after
    draft = Draft(superstep.run, now)
    for task in tasks:
        report_task(draft, task)
    for taken in work.routes:
        _report_route(draft, tasks, taken)
    saved = _saved(superstep, folded, work, next_step, now, keeps=keeps)
    report_checkpoints(draft, saved.checkpoints)
    draft.add("superstep.completed", next=[item.node for item in work.activations])
    run = replace(superstep.run, active_nodes=(), stopped_after=after)
    if starved is not None:
        run = failed(draft, run, starved)
    elif completes:
        run = completed(graph, draft, run, saved.position, now)
    elif after and not waits_live:
        run = replace(run, status=RunStatus.INTERRUPTED)
        draft.add("run.interrupted", interrupt_ids=[], before=[], after=list(after))
    if superstep.thread is None and not completes:
        run = replace(run, server_id=superstep.run.server_id)
    run = draft.counted(run)
    thread = saved.thread
    if thread is not None and completes:
        thread = replace(thread, transaction_id="", committed_head=thread.head)
    change = RunChange(
        threads=() if thread is None else (thread,),
        runs=(run,),
        checkpoints=saved.checkpoints,
        values=saved.values,
        tasks=[folded_task(task) if keeps else _passed(superstep, task) for task in tasks],
        events=draft.events,
    )
    return MadeBoundary(change, run, thread, saved.position, completes)


def completed(graph: CompiledGraph, draft: Draft, run: RunRecord, position: Position, now: int) -> RunRecord:
    """The run that has completed at a position, which the journal is told."""
    draft.add("run.completed", supersteps=run.total_supersteps, state=tracked(graph, position.state))
    return replace(
        run,
        status=RunStatus.COMPLETED,
        ended_at=now,
        server_id="",
        error=None,
        active_nodes=(),
        stopped_before=(),
    )


def starved_error(run: RunRecord, work: Work) -> RunError | None:
    """Why a run fails whose joins wait for what nothing leads to any more, if any do."""
    try:
        work.refuse_starved()
    except GraphError as error:
        return error_of(error, run)
    return None


def _stops_after(superstep: Superstep, work: Work) -> tuple[str, ...]:
    """The nodes after which the run stops here; where no work is left, those alone that are named."""
    graph = superstep.graph
    named = graph.definition.policy.interrupt_after
    nodes = dict.fromkeys(task.node for task in superstep.finished)
    return tuple(node for node in nodes if graph.stops_after(node) and (not work.is_done or node in named))


def _saved(
    superstep: Superstep, folded: Folded, work: Work, next_step: int, now: int, *, keeps: bool
) -> NextCheckpoint:
    graph, thread, run = superstep.graph, superstep.thread, superstep.run
    before, done = superstep.position, superstep.finished
    if keeps or thread is None:
        source = CheckpointSource.LOOP
        return next_checkpoint(graph, thread, run, before, folded, work, source, now, done, next_step)
    position = passed(graph, thread, run, before, folded, work, done, next_step)
    first = thread.unkept or run.superstep
    moved = replace(thread, unkept=first, graph_version=graph.version, updated_at=now)
    return NextCheckpoint(position, moved)


def _passed(superstep: Superstep, task: TaskRecord) -> TaskRecord:
    return passed_task(replace(task, router_answer=superstep.said.get(task.task_id)))


def _report_route(draft: Draft, tasks: Sequence[TaskRecord], taken: RouteTaken) -> None:
    task = next(task for task in tasks if task.task_id == taken.task_id)
    targets = [item.node for item in taken.targets]
    nodes: list[JsonValue] = list(dict.fromkeys(targets))
    draft.add("route.selected", task, label=taken.label or "", targets=nodes, sends=len(targets))
