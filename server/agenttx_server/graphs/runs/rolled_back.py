"""What becomes of a run's records when its transaction is rewound or rolled back: a RunOwner of the engine.

Its rows are in the last commit of that, whoever makes it. After a rewind the run is at an earlier boundary
(:mod:`.going_back`); after a rollback the head is again the last committed
checkpoint, later ones are history, and nothing is waited for any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine import records as engine
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.ports import ExtraRows
from agenttx_server.engine.records import PendingRewind, RewindPurpose, TransactionRecord
from agenttx_server.graphs.runs.embedded_undone import undone_inside
from agenttx_server.graphs.runs.going_back import (
    Decision,
    answers_forgotten,
    gone_back,
    undone_checkpoints,
    undone_tasks,
    withdrawn,
)
from agenttx_server.graphs.runs.journal import Draft, failed
from agenttx_server.graphs.runs.ports import RunChange, RunStore
from agenttx_server.graphs.runs.records import (
    LIVE,
    MAIN_BRANCH,
    RunError,
    RunRecord,
    RunStatus,
    TaskRecord,
    TaskState,
    ThreadRecord,
)
from agenttx_server.graphs.runs.task_reports import reported_task

__all__ = ["RolledBackRuns"]


class RolledBackRuns:
    """Answers the engine for runs (engine.run_owner.RunOwner)."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def rows_when_rewound(
        self, record: TransactionRecord, pending: PendingRewind
    ) -> Sequence[ExtraRows]:
        run = await self._store.load_run(record.run_id)
        if run is None or run.transaction_id != record.transaction_id:
            return ()
        thread = await self._store.load_thread(run.thread_id) if run.thread_id else None
        if pending.final_status.is_terminal:
            return self._store.rows(await self._ended(run, thread, pending))
        if thread is None:
            return ()
        told = _told(record, pending)
        return self._store.rows(
            await gone_back(self._store, run, thread, pending.to_step, told, pending.started_at)
        )

    def settled(self, record: TransactionRecord) -> None:
        """Nothing waits for that yet: such a run has failed, and RetryRun goes on."""

    async def _ended(self, run: RunRecord, thread: ThreadRecord | None, pending: PendingRewind) -> RunChange:
        store = self._store
        draft = Draft(run, pending.started_at)
        tasks = await undone_tasks(store, draft, run)
        asked = [] if thread is None else await withdrawn(store, draft, run, tasks, "rolled back")
        ended = replace(run, transaction_id="", server_id="", active_nodes=(), rewinds_to=None)
        if run.status in LIVE and thread is not None and pending.purpose is RewindPurpose.ROLLBACK:
            # Another server went on with it while it was being rolled back on request: that stands.
            draft.add("run.cancelled", reason=pending.reason)
            ended = replace(ended, status=RunStatus.CANCELLED)
        elif run.status in LIVE:
            if pending.decision is not None:
                draft.add("rollback.decided", **_told_decision(pending.decision), to_superstep=0)
            ended = failed(draft, ended, _error(pending, tasks))
        elif run.status in (RunStatus.INTERRUPTED, RunStatus.DRAINED):
            # It waited, and is not to go on.
            draft.add("run.cancelled", reason=pending.reason)
            ended = replace(ended, status=RunStatus.CANCELLED)
        moved, undone = [], []
        if thread is not None:
            # A run that another branch was left for has the thread no more.
            has_thread = thread.transaction_id == run.transaction_id
            moved = [await self._taken_back(thread, pending.started_at)] if has_thread else []
            first = thread.transaction_first if has_thread else 0
            undone = await undone_checkpoints(store, thread, run.transaction_id, first)
        return RunChange(
            threads=moved,
            unchanged_threads=[thread] if thread is not None and moved else [],
            runs=[draft.counted(ended)],
            tasks=[
                *(replace(reported_task(task), state=TaskState.UNDONE, answer=None) for task in tasks),
                *await answers_forgotten(store, run, 0),
            ],
            interrupts=asked,
            rolled_back=undone,
            embedded_rolled_back=()
            if thread is None
            else await undone_inside(self._store, thread.thread_id, undone, tasks),
            events=draft.events,
        )

    async def _taken_back(self, thread: ThreadRecord, now: int) -> ThreadRecord:
        head = thread.committed_head
        kept = None if head is None else await self._store.load_checkpoint(thread.thread_id, head)
        branch = MAIN_BRANCH if kept is None else kept.branch
        return replace(thread, head=head, branch=branch, transaction_id="", unkept=0, updated_at=now)


def _error(pending: PendingRewind, tasks: Sequence[TaskRecord]) -> RunError:
    """Why a run has failed with its transaction: of a decision, the node's error and why that was the end."""
    if pending.decision is None:
        conflicted = pending.purpose is RewindPurpose.CONFLICT
        return RunError("COMMIT_CONFLICT" if conflicted else "TRANSACTION_ENDED", pending.reason)
    errors = [task.error for task in tasks if task.state is TaskState.FAILED and task.error is not None]
    why = pending.decision.abort_reason
    if not errors:
        return RunError("TRANSACTION_ENDED", why)
    metadata = (*errors[0].metadata, ("abort_reason", why))
    message = f"{errors[0].message}; rolled back: {why}"
    return replace(errors[0], message=message, metadata=tuple(sorted(metadata)), others=tuple(errors[1:]))


def _told(record: TransactionRecord, pending: PendingRewind) -> Decision:
    """What the journal says of why a run goes back; nothing where a person asked for it."""
    if pending.decision is not None:
        hint = record.constraints[-1].text if record.constraints else ""
        return {**_told_decision(pending.decision), "hint": hint}
    if pending.purpose is RewindPurpose.CONFLICT:
        return {"strategy": pending.strategy.value, "key": "", "hint": pending.reason}
    return {}


def _told_decision(decision: engine.Decision) -> Decision:
    return {
        "strategy": decision.strategy.value,
        "key": decision.error_key or "",
        "attempt": decision.failure_number,
        "cost": decision.cost,
        "budget_left": max(decision.budget_total - decision.budget_spent_before - decision.cost, 0),
        "passed_over": [
            {"strategy": rung.strategy.value, "reason": rung.reason} for rung in decision.passed_over
        ],
    }
