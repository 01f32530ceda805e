"""Does to an open superstep what a request to go on has written down for it: results are undone, tasks join it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from agenttx_server.engine.errors import InvalidRequest
from agenttx_server.engine.frozen import replace
from agenttx_server.graphs.runs.ports import RunChange, RunStore
from agenttx_server.graphs.runs.records import TaskRecord, TaskState
from agenttx_server.graphs.runs.step_port import StepMember, Turn, Unsettled

__all__ = ["ENDED", "AmendmentRefused", "carried_out"]

ENDED: Final = (TaskState.FINISHED, TaskState.LEFT_OUT, TaskState.HANDLED)
"""States of tasks that a superstep doesn't wait for."""


class AmendmentRefused(Exception):
    """The superstep can't be amended so; ``tasks`` are as they are without that. ``reason`` names an ErrorReason."""

    def __init__(self, reason: str, message: str, tasks: Sequence[TaskRecord]) -> None:
        super().__init__(message)
        self.reason = reason
        self.tasks = tasks


async def carried_out(
    turn: Turn, tasks: Sequence[TaskRecord], member: Callable[[TaskRecord], StepMember], store: RunStore
) -> list[TaskRecord]:
    """Undo results that are given up, and extend the group by the tasks that have no step.

    Taken up again after a crash it does what is left. Raises AmendmentRefused.
    """
    now = list(tasks)
    for place, task in enumerate(tasks):
        if task.state not in (TaskState.GIVEN_UP, TaskState.LEFT_OUT):
            continue
        leave_out = task.state is TaskState.LEFT_OUT
        if turn.is_done(task.step_id):
            try:
                await turn.give_up(task.step_id, leave_out=leave_out)
            except Unsettled as refused:
                kept = [
                    replace(item, state=TaskState.FINISHED)
                    if item.state in (TaskState.GIVEN_UP, TaskState.LEFT_OUT) and turn.is_done(item.step_id)
                    else item
                    for item in now
                ]
                raise AmendmentRefused(refused.reason, str(refused), kept) from refused
        now[place] = replace(
            task, state=task.state if leave_out else TaskState.PENDING, answer=None, error=None
        )
    added = [task for task in now if not task.step_id and task.state is TaskState.PENDING]
    if not added:
        return now
    numbered = [replace(task, step_id=step) for step, task in enumerate(added, start=turn.steps.stop)]
    try:
        await turn.extend([member(task) for task in numbered], store.rows(RunChange(tasks=numbered)))
    except InvalidRequest as refused:
        without = [replace(task, state=TaskState.LEFT_OUT) if task in added else task for task in now]
        raise AmendmentRefused(refused.reason, refused.message, without) from refused
    return [*(task for task in now if task not in added), *numbered]
