"""The order in which the tasks of a superstep are folded and routed."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.graphs.runs.records import TaskRecord

__all__ = ["in_place_of"]


def in_place_of(tasks: Sequence[TaskRecord]) -> list[tuple[TaskRecord, str]]:
    """Tasks in the order in which they are folded, each with the node that it stands in for, or "".

    A handler's result is where that of its task would be.
    """
    by_id = {task.task_id: task for task in tasks}

    def place(task: TaskRecord) -> tuple[int, int]:
        failed = by_id.get(task.handles)
        return (task.ordinal if failed is None else failed.ordinal, task.ordinal)

    return [
        (task, by_id[task.handles].node if task.handles in by_id else "") for task in sorted(tasks, key=place)
    ]
