"""A run whose transaction was rolled back begins again: from the last committed checkpoint, with its own input.

One that had committed as it began to wait goes on from there instead: what its input led to stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import load
from agenttx_server.engine.ports import ExtraRows
from agenttx_server.graphs.boundary import first_work
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.fold import TaskWrites
from agenttx_server.graphs.runs.amending import amended
from agenttx_server.graphs.runs.folding import folded_aside
from agenttx_server.graphs.runs.journal import Draft, report_checkpoints
from agenttx_server.graphs.runs.ports import RunChange, RunStore
from agenttx_server.graphs.runs.position import (
    NextCheckpoint,
    Position,
    built_on,
    in_new_transaction,
    load_position,
    next_checkpoint,
)
from agenttx_server.graphs.runs.records import (
    CheckpointRecord,
    CheckpointSource,
    RunRecord,
    RunStatus,
    ThreadRecord,
)
from agenttx_server.graphs.runs.requests import RetryRequest, RunRefused, Trigger, request_records
from agenttx_server.graphs.runs.work_json import read_targets_text
from agenttx_server.graphs.tasks import write_seed

__all__ = ["Begun", "begun_again"]

Begun = tuple[RunRecord, NextCheckpoint]


async def begun_again(
    store: RunStore,
    graph: CompiledGraph,
    thread: ThreadRecord,
    run: RunRecord,
    request: RetryRequest,
    now: int,
) -> Callable[[str, list[Begun]], Sequence[ExtraRows]]:
    """Return what makes the rows that begin it, given the new transaction's id, and notes what was begun.

    Its counts start anew, the invocation goes on counting; an update of the request comes behind the input.

    Raises:
        RunRefused: INVALID_REQUEST for results to give up: there are none.
        FoldError, RouteError: for the update and the targets.
    """
    amendment = request.amendment
    if amendment.discard:
        raise RunRefused(
            "INVALID_REQUEST", "the run was rolled back: it has no results", {"thread_id": thread.thread_id}
        )
    position = in_new_transaction(await load_position(store, graph, thread))
    head = None if thread.head is None else await store.load_checkpoint(thread.thread_id, thread.head)
    if head is not None and head.run_id == run.run_id:
        return await _from_commit(store, graph, thread, run, request, now, position, head)
    given: Any = load(run.input) if run.input else None
    updates = tuple(dict(update) for update in (given, amendment.update) if update)
    seed = write_seed("", thread.superstep, "", thread.next_number)
    folded = await folded_aside(graph, position.state, [TaskWrites("", updates, seed)], position.origins)
    targets = read_targets_text(run.goto)
    work = first_work(graph, (*targets, *amendment.goto))
    again = replace(
        run,
        status=RunStatus.RUNNING,
        error=None,
        ended_at=None,
        superstep=thread.superstep,
        total_supersteps=0,
        visits=(),
        invocation=run.invocation + 1,
        invocation_first=0,
        invoked_at=now,
        active_nodes=(),
        stopped_before=(),
        stopped_after=(),
        passes_stops=False,
        rewinds_to=None,
    )

    def rows(transaction_id: str, begun: list[Begun]) -> Sequence[ExtraRows]:
        owned = replace(again, transaction_id=transaction_id)
        saved = next_checkpoint(
            graph, thread, owned, position, folded, work, CheckpointSource.INPUT, now, next_step=1
        )
        assert saved.thread is not None
        moved = replace(saved.thread, transaction_id=transaction_id, transaction_first=thread.next_number)
        saved = replace(saved, thread=moved)
        draft = Draft(owned, now)
        draft.add("run.started", trigger=Trigger.RETRY.value, graph=run.graph, version=run.graph_version)
        report_checkpoints(draft, saved.checkpoints)
        owned = draft.counted(owned)
        begun[:] = [(owned, saved)]
        assert saved.thread is not None
        change = RunChange(
            threads=(saved.thread,),
            runs=(owned,),
            checkpoints=saved.checkpoints,
            values=saved.values,
            events=draft.events,
            requests=request_records("RetryRun", request, run.run_id),
        )
        return store.rows(built_on(change, thread, position))

    return rows


async def _from_commit(
    store: RunStore,
    graph: CompiledGraph,
    thread: ThreadRecord,
    run: RunRecord,
    request: RetryRequest,
    now: int,
    position: Position,
    head: CheckpointRecord,
) -> Callable[[str, list[Begun]], Sequence[ExtraRows]]:
    """Begin where the run had committed; what waited there asks again."""
    again = replace(
        run,
        status=RunStatus.RUNNING,
        error=None,
        ended_at=None,
        superstep=thread.superstep,
        total_supersteps=head.total_supersteps,
        visits=head.visits,
        invocation=run.invocation + 1,
        invocation_first=head.total_supersteps,
        invoked_at=now,
        active_nodes=(),
        stopped_before=(),
        stopped_after=(),
        passes_stops=False,
        rewinds_to=None,
    )
    changed = (await amended(graph, thread, again, position, (), request.amendment, now)).saved

    def rows(transaction_id: str, begun: list[Begun]) -> Sequence[ExtraRows]:
        owned = replace(again, transaction_id=transaction_id)
        moved = replace(
            changed.thread or thread,
            transaction_id=transaction_id,
            transaction_first=thread.next_number,
            updated_at=max(now, thread.updated_at + 1),
        )
        checkpoints = [replace(item, transaction_id=transaction_id) for item in changed.checkpoints]
        draft = Draft(owned, now)
        draft.add("run.started", trigger=Trigger.RETRY.value, graph=run.graph, version=run.graph_version)
        draft.add("checkpoint.restored", checkpoint_id=head.checkpoint_id)
        report_checkpoints(draft, checkpoints)
        owned = draft.counted(owned)
        begun[:] = [(owned, replace(changed, thread=moved))]
        change = RunChange(
            threads=(moved,),
            runs=(owned,),
            checkpoints=checkpoints,
            values=changed.values,
            events=draft.events,
            requests=request_records("RetryRun", request, run.run_id),
        )
        return store.rows(built_on(change, thread, position))

    return rows
