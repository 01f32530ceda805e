"""The tasks of a superstep that have finished, as the rules route them."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine.json_values import MISSING, load
from agenttx_server.graphs.node_results import read_result
from agenttx_server.graphs.routing import FinishedTask
from agenttx_server.graphs.runs.records import TaskRecord, TaskState
from agenttx_server.graphs.runs.task_places import in_place_of
from agenttx_server.graphs.tasks import Task

__all__ = ["finished_of"]


def finished_of(tasks: Sequence[TaskRecord], counts: TaskState = TaskState.FINISHED) -> list[FinishedTask]:
    """Return the tasks in the state that ``counts``, in the order in which they are folded. Raises InvalidNodeResult."""
    found = []
    for record, stands_in_for in in_place_of(tasks):
        if record.state is not counts:
            continue
        answer = load(record.answer or "null")
        arg = MISSING if record.arg is None else load(record.arg)
        said = MISSING if record.router_answer is None else load(record.router_answer)
        task = Task(record.task_id, record.node, record.ordinal, arg)
        found.append(
            FinishedTask(task, read_result(answer), answer, router_answer=said, stands_in_for=stands_in_for)
        )
    return found
