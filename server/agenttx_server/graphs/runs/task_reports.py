"""What the journal is told of tasks, at a boundary or a pause: in order of their ordinals, each attempt once."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import JsonValue, load
from agenttx_server.graphs.errors import InvalidNodeResult
from agenttx_server.graphs.node_results import read_result
from agenttx_server.graphs.runs.journal import Draft
from agenttx_server.graphs.runs.records import TaskRecord, TaskState

__all__ = ["folded_task", "passed_task", "report_task", "reported_task", "updates_of"]


def report_task(draft: Draft, task: TaskRecord) -> None:
    """Journal what a task did since it was reported last."""
    if task.reported < 0:
        draft.add("task.scheduled", task, ordinal=task.ordinal)
    for attempt, delay_ms, hint, category in task.retries:
        draft.add("node.started", task, attempt=attempt)
        draft.add(
            "node.retry_scheduled", task, attempt=attempt, delay_ms=delay_ms, hint=hint, category=category
        )
    if task.attempts <= max(task.reported, 0):
        return
    draft.add("node.started", task, attempt=task.attempts)
    child = task.child
    if child is not None and task.reported <= 0:
        draft.add(
            "subgraph.started",
            task,
            child_run_id=child.run_id,
            graph=child.graph,
            version=child.graph_version,
        )
    for name, data in task.events:
        draft.add("custom", task, name=name, data=load(data))
    match task.state:
        case TaskState.FINISHED:
            if child is not None:
                draft.add("subgraph.completed", task, child_run_id=child.run_id, status="completed")
            duration = (task.ended_at - task.started_at) // 1000
            cached: dict[str, JsonValue] = {"cached": True} if task.is_cached else {}
            draft.add("node.completed", task, attempt=task.attempts, duration_ms=duration, **cached)
            for update in updates_of(task):
                draft.add("state.updated", task, update=update)
        case TaskState.FAILED | TaskState.HANDLED if task.error is not None:
            draft.add(
                "node.failed",
                task,
                attempt=task.attempts,
                hint=task.error.hint,
                category=task.error.category,
                reason=task.error.reason,
            )
        case _:
            pass


def reported_task(task: TaskRecord) -> TaskRecord:
    """The task, with all that it did reported."""
    return replace(task, reported=max(task.attempts, task.reported, 0), retries=(), events=())


def folded_task(task: TaskRecord) -> TaskRecord:
    """The task at a boundary: its answer is in the checkpoint and in the journal, and kept for other runs if it may be."""
    answer = task.answer if task.is_to_be_kept and task.state is TaskState.FINISHED else None
    return replace(reported_task(task), state=TaskState.FOLDED, answer=answer, router_answer=None)


def passed_task(task: TaskRecord) -> TaskRecord:
    """The task at a boundary without a checkpoint: it keeps what the boundary is made of."""
    if task.state is not TaskState.FINISHED:
        return reported_task(task)
    return replace(reported_task(task), state=TaskState.FOLDED)


def updates_of(task: TaskRecord) -> Sequence[JsonValue]:
    """What a finished task wrote."""
    try:
        return list(read_result(load(task.answer or "null")).updates)
    except InvalidNodeResult:
        return []
