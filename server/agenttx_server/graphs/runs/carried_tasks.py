"""Tasks of a superstep that was ended early, as they go on in the next one: with their attempts and their questions."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine.frozen import replace
from agenttx_server.graphs.runs.ports import RunStore
from agenttx_server.graphs.runs.records import InterruptRecord, InterruptState, TaskRecord, TaskState
from agenttx_server.graphs.tasks import Activation

__all__ = ["taken_along"]


async def taken_along(
    store: RunStore, tasks: Sequence[TaskRecord], activations: Sequence[Activation]
) -> tuple[list[TaskRecord], list[InterruptRecord]]:
    """Give the tasks of a superstep that begins what they were before, and return their questions, moved to it.

    Args:
        store: where that is kept.
        tasks: of the new superstep.
        activations: what they are made of, in the same order.
    """
    taken: list[TaskRecord] = []
    questions: list[InterruptRecord] = []
    for task, activation in zip(tasks, activations, strict=True):
        carried = activation.carried
        if carried is None:
            taken.append(task)
            continue
        before = await store.load_tasks(carried.run_id, carried.superstep)
        known = next((item for item in before if item.task_id == carried.task_id), task)
        asked = [
            replace(item, run_id=task.run_id, superstep=task.superstep)
            for item in await store.load_interrupts(carried.run_id, carried.superstep)
            if item.waiting_task == carried.task_id
        ]
        waits = any(item.state is InterruptState.PENDING for item in asked)
        questions += asked
        taken.append(
            replace(
                task,
                state=TaskState.INTERRUPTED if waits else TaskState.PENDING,
                attempts=known.attempts,
                retries=known.retries,
                reported=known.reported,
                adopts=(carried.transaction_id, carried.step_id) if carried.step_id else None,
            )
        )
    return taken, questions
