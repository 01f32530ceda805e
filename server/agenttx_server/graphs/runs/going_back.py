"""A run goes back to a boundary: what that writes, from what is durable alone.

Asked for by the last commit of a rewind, whoever makes it and whatever it is for: a decision of the rollback
controller, RewindRun, a conflict at commit. The head is the boundary before the first step that is undone; numbers of
supersteps and checkpoints go on growing, so ids of what comes are new.
"""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import JsonValue, load
from agenttx_server.graphs.runs.embedded_undone import undone_inside
from agenttx_server.graphs.runs.journal import Draft
from agenttx_server.graphs.runs.ports import RunChange, RunStore
from agenttx_server.graphs.runs.position import pending_of, unfolded_tasks
from agenttx_server.graphs.runs.records import (
    CheckpointRecord,
    InterruptRecord,
    InterruptState,
    RunRecord,
    TaskRecord,
    TaskState,
    ThreadRecord,
)
from agenttx_server.graphs.runs.task_reports import report_task, reported_task

__all__ = [
    "Decision",
    "answers_forgotten",
    "checkpoint_before",
    "gone_back",
    "undone_checkpoints",
    "undone_tasks",
    "withdrawn",
]

Decision = dict[str, JsonValue]
"""What rollback.decided says, but for the checkpoint; empty where nothing was decided."""


async def gone_back(
    store: RunStore, run: RunRecord, thread: ThreadRecord, to_step: int, decision: Decision, now: int
) -> RunChange:
    """What is written when all steps from ``to_step`` on are undone."""
    target = await checkpoint_before(store, run, thread, to_step)
    draft = Draft(run, now)
    tasks = await undone_tasks(store, draft, run)
    if decision:
        draft.add(
            "rollback.decided",
            **decision,
            to_superstep=target.superstep + 1,
            checkpoint_id=target.checkpoint_id,
        )
    interrupts = await withdrawn(store, draft, run, tasks, "rewound")
    draft.add("checkpoint.restored", checkpoint_id=target.checkpoint_id)
    is_own = target.run_id == run.run_id
    total = target.total_supersteps if is_own else 0
    visits = target.visits if is_own else ()
    # Boundaries without a checkpoint that stand: only the superstep behind them is undone.
    first = target.next_step if target.transaction_id == run.transaction_id else 1
    stand = thread.unkept if is_own and to_step > first else 0
    if stand:
        total = run.total_supersteps - 1 if tasks else run.total_supersteps
        visits = _visits_without(run, tasks)
    back = replace(
        run,
        total_supersteps=total,
        invocation_first=min(run.invocation_first, total),
        visits=visits,
        active_nodes=(),
        stopped_before=(),
        stopped_after=(),
        passes_stops=False,
        rewinds_to=None,
    )
    undone = await undone_checkpoints(store, thread, run.transaction_id, target.number + 1)
    return RunChange(
        threads=[replace(thread, head=target.number, unkept=stand, updated_at=now)],
        unchanged_threads=[thread],
        runs=[draft.counted(back)],
        tasks=[
            *(replace(reported_task(task), state=TaskState.UNDONE, answer=None) for task in tasks),
            *await answers_forgotten(store, run, to_step),
        ],
        interrupts=interrupts,
        rolled_back=undone,
        embedded_rolled_back=await undone_inside(store, thread.thread_id, undone, tasks),
        events=draft.events,
    )


def _visits_without(run: RunRecord, tasks: Sequence[TaskRecord]) -> tuple[tuple[str, int], ...]:
    visits = dict(run.visits)
    for task in tasks:
        if task.node in visits and not task.handles:
            visits[task.node] -= 1
    return tuple(sorted(visits.items()))


async def answers_forgotten(store: RunStore, run: RunRecord, to_step: int) -> Sequence[TaskRecord]:
    """The tasks in checkpoints whose steps, from ``to_step`` on, are undone: no other run gets their answers."""
    kept = await store.list_cacheable(run.run_id)
    return [replace(task, answer=None) for task in kept if task.step_id >= to_step]


async def checkpoint_before(
    store: RunStore, run: RunRecord, thread: ThreadRecord, to_step: int
) -> CheckpointRecord:
    """The boundary before a step: the one that was asked for, else the last one; edits made there stay."""
    if run.rewinds_to is not None:
        asked = await store.load_checkpoint(thread.thread_id, run.rewinds_to)
        if asked is not None and asked.next_step == to_step and asked.transaction_id == run.transaction_id:
            return asked
    number, found = thread.head, None
    while number is not None:
        checkpoint = await store.load_checkpoint(thread.thread_id, number)
        if checkpoint is None:
            break
        if checkpoint.transaction_id != run.transaction_id:
            # What the run had committed as it began to wait: its transaction began there.
            found = checkpoint if checkpoint.run_id == run.run_id else found
            break
        found = checkpoint
        if checkpoint.next_step <= to_step:
            break
        number = checkpoint.parent
    assert found is not None, "a transaction of a run begins with a checkpoint"
    return found


async def undone_tasks(store: RunStore, draft: Draft, run: RunRecord) -> list[TaskRecord]:
    """The tasks of the open superstep, with what they did in the journal."""
    tasks = await unfolded_tasks(store, run)
    for task in tasks:
        report_task(draft, task)
    return tasks


async def withdrawn(
    store: RunStore, draft: Draft, run: RunRecord, tasks: Sequence[TaskRecord], why: str
) -> list[InterruptRecord]:
    """What the run waits for, withdrawn. All of it is of the open superstep."""
    unreported = {task.task_id: task for task in tasks if task.attempts > max(task.reported, 0)}
    pending = await pending_of(store, run)
    for item in pending:
        if (task := unreported.get(item.waiting_task)) is not None:
            draft.add(
                "interrupt.emitted",
                task,
                interrupt_id=item.interrupt_id,
                payload=load(item.payload),
                ordinal=item.ordinal,
            )
        draft.add("interrupt.withdrawn", interrupt_id=item.interrupt_id, reason=why)
    return [replace(item, state=InterruptState.WITHDRAWN) for item in pending]


async def undone_checkpoints(
    store: RunStore, thread: ThreadRecord, transaction_id: str, first: int
) -> list[CheckpointRecord]:
    """The checkpoints of a transaction from a number on, marked as history."""
    undone = []
    for number in range(first, thread.next_number):
        checkpoint = await store.load_checkpoint(thread.thread_id, number)
        if checkpoint is None or checkpoint.rolled_back:
            continue
        if checkpoint.transaction_id == transaction_id:
            undone.append(replace(checkpoint, rolled_back=True))
    return undone
