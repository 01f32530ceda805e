"""A run that commits as it begins to wait: its transaction ends with what was done, and the next one begins where it waits.

Two commits, and between them the run is live without a transaction: whoever finds it so makes the second one.
"""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import JsonValue, load
from agenttx_server.engine.ports import ExtraRows
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.runs.edits import edited
from agenttx_server.graphs.runs.journal import Draft, report_checkpoints
from agenttx_server.graphs.runs.ports import RunChange, RunStore
from agenttx_server.graphs.runs.position import NextCheckpoint, Position, next_checkpoint, pending_of
from agenttx_server.graphs.runs.records import (
    CheckpointSource,
    InterruptRecord,
    RunRecord,
    RunStatus,
    TaskRecord,
    TaskState,
    ThreadRecord,
)
from agenttx_server.graphs.runs.step_port import NodeFunctions, RunTransactions
from agenttx_server.graphs.runs.task_reports import report_task, reported_task

__all__ = ["begin_to_wait", "committed", "committed_thread", "ended_early"]


async def ended_early(
    graph: CompiledGraph,
    functions: NodeFunctions,
    thread: ThreadRecord,
    run: RunRecord,
    position: Position,
    tasks: Sequence[TaskRecord],
    now: int,
    next_step: int,
) -> NextCheckpoint:
    """The boundary that ends a superstep with what has finished; what hasn't goes on in the next one, as the tasks it is.

    Raises FoldError, RouteError.
    """
    done = await edited(
        graph, functions, position, tasks, (), run.transaction_id, run.superstep, thread.next_number
    )
    source = CheckpointSource.LOOP
    return next_checkpoint(
        graph, thread, run, position, done.folded, done.work, source, now, done.finished, next_step
    )


def committed_thread(thread: ThreadRecord, now: int) -> ThreadRecord:
    """A thread whose open transaction commits at its head."""
    return replace(thread, transaction_id="", committed_head=thread.head, updated_at=now)


def committed(
    run: RunRecord,
    tasks: Sequence[TaskRecord],
    asked: Sequence[InterruptRecord],
    saved: NextCheckpoint,
    now: int,
) -> tuple[RunChange, RunRecord]:
    """What is written with the commit, and the run, which is live still; ``asked`` is what was asked in its superstep."""
    assert saved.thread is not None
    draft = Draft(run, now)
    for task in tasks:
        report_task(draft, task)
    for item in asked:
        task = next(task for task in tasks if task.task_id == item.waiting_task)
        draft.add(
            "interrupt.emitted",
            task,
            interrupt_id=item.interrupt_id,
            payload=load(item.payload),
            ordinal=item.ordinal,
        )
    report_checkpoints(draft, saved.checkpoints)
    run = draft.counted(replace(run, transaction_id="", active_nodes=(), error=None))
    change = RunChange(
        threads=(committed_thread(saved.thread, now),),
        runs=(run,),
        checkpoints=saved.checkpoints,
        values=saved.values,
        # What they were is kept; those that go on do so in the next superstep.
        tasks=[replace(reported_task(task), state=TaskState.FOLDED, answer=None) for task in tasks],
        events=draft.events,
        standing_runs=(run.run_id,),
    )
    return change, run


async def begin_to_wait(
    store: RunStore, transactions: RunTransactions, run: RunRecord, thread: ThreadRecord, now: int
) -> tuple[RunRecord, ThreadRecord]:
    """Begin the transaction in which a run that has committed waits; it is INTERRUPTED then.

    Raises ExtraRowsRefused if somebody else has, and what the store raises.
    """
    pending = await pending_of(store, run)
    ids: list[JsonValue] = [item.interrupt_id for item in pending]
    draft = Draft(run, now)
    draft.add(
        "run.interrupted", interrupt_ids=ids, before=list(run.stopped_before), after=list(run.stopped_after)
    )
    begun: list[tuple[RunRecord, ThreadRecord]] = []

    def rows(transaction_id: str) -> Sequence[ExtraRows]:
        waits = replace(run, status=RunStatus.INTERRUPTED, server_id="", transaction_id=transaction_id)
        moved = replace(
            thread,
            transaction_id=transaction_id,
            transaction_first=thread.next_number,
            updated_at=max(now, thread.updated_at + 1),
        )
        begun[:] = [(draft.counted(waits), moved)]
        return store.rows(
            RunChange(
                threads=(moved,),
                unchanged_threads=(thread,),
                runs=(begun[0][0],),
                events=draft.events,
                standing_runs=(run.run_id,),
                standing_threads=(thread.thread_id,),
            )
        )

    await transactions.begin(run.run_id, run.principal, rows)
    return begun[0]
