"""What comes after a boundary: the next superstep, or why none begins."""

from __future__ import annotations

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import MISSING, canonical
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.runs.carried_tasks import taken_along
from agenttx_server.graphs.runs.journal import Draft
from agenttx_server.graphs.runs.ports import RunChange, RunStore
from agenttx_server.graphs.runs.position import Position
from agenttx_server.graphs.runs.records import (
    EventRecord,
    InterruptRecord,
    RunError,
    RunRecord,
    RunStatus,
    TaskRecord,
    ThreadRecord,
)
from agenttx_server.graphs.runs.superstep_run import StopSignal
from agenttx_server.graphs.tasks import Task, order_tasks

__all__ = ["Begun", "Stand", "Stopped", "begin_superstep", "new_superstep", "why_stop"]


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a run stands between two supersteps."""

    run: RunRecord
    thread: ThreadRecord | None
    position: Position


@dataclass(frozen=True, slots=True)
class Stopped:
    """No superstep begins: the invocation ends so. ``run`` is its record, with the stops that it came to."""

    run: RunRecord
    status: RunStatus
    error: RunError | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """A superstep that begins: the records as they are with it, its tasks, and the questions that they take along."""

    run: RunRecord
    thread: ThreadRecord | None
    tasks: list[TaskRecord]
    questions: list[InterruptRecord]
    events: tuple[EventRecord, ...]

    def change(self, before: RunChange) -> RunChange:
        """What is written with the superstep's start, and in the same commit ``before`` it."""
        return replace(
            before,
            threads=() if self.thread is None else (self.thread,),
            runs=(self.run,),
            tasks=[*before.tasks, *self.tasks],
            interrupts=[*before.interrupts, *self.questions],
            events=[*before.events, *self.events],
        )


def why_stop(graph: CompiledGraph, stand: Stand, stop: StopSignal, now: MicrosecondsUtc) -> Stopped | None:
    """Say why no superstep begins where a run stands, if none does though work is left."""
    run, options = stand.run, stand.run.options
    if stop.cancelled.is_set():
        return Stopped(run, RunStatus.CANCELLED)
    if stop.drains:
        return Stopped(run, RunStatus.DRAINED)
    for limit, used in (
        (options.recursion_limit, run.total_supersteps - run.invocation_first),
        (options.max_total_steps, run.total_supersteps),
    ):
        if used >= limit:
            message = f"work is left after {limit} supersteps"
            return _limit(run, "RECURSION_LIMIT", message, limit=str(limit))
    if options.deadline_us is not None and now >= run.invoked_at + options.deadline_us:
        return _limit(run, "RUN_DEADLINE", "the run reached its deadline")
    visits = dict(run.visits)
    for activation in stand.position.work.activations:
        most = graph.nodes[activation.node].max_visits or 0
        visits[activation.node] = visits.get(activation.node, 0) + 1
        if most and visits[activation.node] > most:
            message = f"node '{activation.node}' has run {most} times"
            return _limit(run, "NODE_VISIT_LIMIT", message, node=activation.node, limit=str(most))
    nodes = dict.fromkeys(item.node for item in stand.position.work.activations)
    before = tuple(node for node in nodes if graph.stops_before(node))
    if before and not run.passes_stops:
        return Stopped(replace(run, stopped_before=before), RunStatus.INTERRUPTED)
    return None


async def begin_superstep(
    store: RunStore, graph: CompiledGraph, stand: Stand, first_step: int, now: MicrosecondsUtc
) -> Begun:
    """Make the superstep that comes next; its first task is step ``first_step``. Raises RouteError for too many tasks."""
    begun = new_superstep(graph, stand, first_step, now)
    activations = stand.position.work.activations
    if all(activation.carried is None for activation in activations):
        return begun
    tasks, questions = await taken_along(store, begun.tasks, activations)
    return replace(begun, tasks=tasks, questions=questions)


def new_superstep(graph: CompiledGraph, stand: Stand, first_step: int, now: MicrosecondsUtc) -> Begun:
    """As :func:`begin_superstep`, of work that takes no task of an earlier superstep along."""
    number = 1 + (stand.run.superstep if stand.thread is None else stand.thread.superstep)
    activations = stand.position.work.activations
    ordered = order_tasks(stand.run.run_id, stand.run.namespace, number, activations)
    visits = dict(stand.run.visits)
    for activation in activations:
        if graph.nodes[activation.node].max_visits:
            visits[activation.node] = visits.get(activation.node, 0) + 1
    run = replace(
        stand.run,
        superstep=number,
        total_supersteps=stand.run.total_supersteps + 1,
        visits=tuple(sorted(visits.items())),
        passes_stops=False,
        active_nodes=tuple(dict.fromkeys(task.node for task in ordered)),
    )
    thread = None if stand.thread is None else replace(stand.thread, superstep=number, updated_at=now)
    draft = Draft(run, now)
    draft.add("superstep.started", tasks=len(ordered))
    tasks = [_record_of(run, task, step) for step, task in enumerate(ordered, first_step)]
    return Begun(draft.counted(run), thread, tasks, [], draft.events)


def _record_of(run: RunRecord, task: Task, step_id: int) -> TaskRecord:
    return TaskRecord(
        run.run_id,
        run.superstep,
        task.ordinal,
        task.task_id,
        task.node,
        run.thread_id,
        run.namespace,
        step_id=step_id,
        arg=None if task.arg is MISSING else canonical(task.arg),
    )


def _limit(run: RunRecord, reason: str, message: str, *, node: str = "", **metadata: str) -> Stopped:
    pairs = {"run_id": run.run_id, **metadata, **({"node": node} if node else {})}
    error = RunError(reason, message, node=node, metadata=tuple(sorted(pairs.items())))
    return Stopped(run, RunStatus.FAILED, error)
