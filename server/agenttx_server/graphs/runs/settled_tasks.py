"""The tasks of a superstep that is about to be ended early: those that conflicted in the store are unfinished."""

from __future__ import annotations

from agenttx_server.engine.frozen import replace
from agenttx_server.graphs.runs.ports import RunStore
from agenttx_server.graphs.runs.position import unfolded_tasks
from agenttx_server.graphs.runs.records import RunRecord, TaskRecord, TaskState
from agenttx_server.graphs.runs.requests import RunRefused
from agenttx_server.graphs.runs.step_port import Turn, Unsettled

__all__ = ["settled_tasks"]


async def settled_tasks(store: RunStore, turn: Turn, run: RunRecord) -> list[TaskRecord]:
    """Return the tasks of a run's open superstep; empty at a boundary.

    Raises RunRefused: ROLLBACK_INCOMPLETE where one that conflicted can't be undone.
    """
    if not turn.is_open:
        return []
    try:
        losers = await turn.settle_conflicts()
    except Unsettled as held:
        raise RunRefused(held.reason, str(held), {"run_id": run.run_id}) from held
    return [
        replace(task, state=TaskState.PENDING, answer=None) if task.step_id in losers else task
        for task in await unfolded_tasks(store, run)
    ]
