"""Error handler nodes: one stands in for a node whose attempts are used up, as a further task of the same superstep."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import MISSING, JsonValue, canonical, load
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.runs.ports import RunChange, RunStore
from agenttx_server.graphs.runs.records import RunRecord, TaskRecord, TaskState
from agenttx_server.graphs.runs.step_port import Turn, Unsettled
from agenttx_server.graphs.tasks import Activation, order_tasks

__all__ = ["handed_over", "handler_of", "is_handled"]


def is_handled(graph: CompiledGraph, task: TaskRecord) -> bool:
    """Whether a handler stands in for a task if it fails. A failing handler has none: its error is the run's.

    Nor has what is no failure of a node: an embedded graph that can't be folded, or is at its limit.
    """
    if task.error is not None and not task.error.category:
        return False
    return graph.nodes[task.node].error_handler is not None and not task.handles


async def handed_over(
    turn: Turn, graph: CompiledGraph, run: RunRecord, tasks: Sequence[TaskRecord], store: RunStore
) -> list[TaskRecord]:
    """Hand what failed over to handlers: it is undone and counts as ended, and a task of its handler is added.

    Either is durable in one write; the new tasks have no step yet. A handler is told, as its argument, the node, the
    error and the node's own argument. Raises Unsettled: undo that failed holds the superstep.
    """
    now = list(tasks)
    for place, task in enumerate(tasks):
        if task.state is not TaskState.FAILED or not is_handled(graph, task):
            continue
        if task.error is None or turn.is_in_doubt(task.step_id):
            continue
        handler = handler_of(graph, run, task, len(now))
        handled = replace(task, state=TaskState.HANDLED)
        if not await turn.let_go(task.step_id, store.rows(RunChange(tasks=(handled, handler)))):
            raise Unsettled("ROLLBACK_INCOMPLETE", f"what '{task.node}' did could not be undone")
        now[place] = handled
        now.append(handler)
    return now


def handler_of(graph: CompiledGraph, run: RunRecord, task: TaskRecord, ordinal: int) -> TaskRecord:
    """The task of the handler that stands in for one that failed."""
    node, error = graph.nodes[task.node].error_handler or "", task.error
    assert error is not None
    told: dict[str, JsonValue] = {
        "node": task.node,
        "task_id": task.task_id,
        "reason": error.reason,
        "category": error.category,
        "hint": error.hint,
        "message": error.message,
        "attempts": task.attempts,
    }
    if task.arg is not None:
        told["arg"] = load(task.arg)
    (made,) = order_tasks(
        run.run_id, run.namespace, task.superstep, (Activation(node, told),), first_ordinal=ordinal
    )
    assert made.arg is not MISSING
    return TaskRecord(
        run.run_id,
        task.superstep,
        made.ordinal,
        made.task_id,
        node,
        run.thread_id,
        run.namespace,
        arg=canonical(told),
        handles=task.task_id,
    )
