"""RewindRun, and rolling back runs that wait: the open transaction of a thread is taken back in part, or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.graphs.runs.answered_requests import answered, key_of
from agenttx_server.graphs.runs.going_back import gone_back
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.keyed_locks import KeyedLocks
from agenttx_server.graphs.runs.ports import RunChange
from agenttx_server.graphs.runs.position import pending_of
from agenttx_server.graphs.runs.records import (
    LIVE,
    CheckpointRecord,
    RequestRecord,
    RunRecord,
    ThreadRecord,
    checkpoint_number,
)
from agenttx_server.graphs.runs.requests import RunRefused
from agenttx_server.graphs.runs.run_errors import busy_where_moved
from agenttx_server.graphs.runs.step_port import Turn, Undone

__all__ = ["RewindRunRequest", "RewoundRun", "RunRewinder"]

_WAITED = "nobody went on with it within its wait_timeout"


@dataclass(frozen=True, slots=True)
class RewindRunRequest:
    """Take the open transaction of a thread back to a checkpoint; ``dry_run`` only says what that would undo."""

    thread_id: str
    checkpoint_id: str
    dry_run: bool = False
    accept_irreversible: bool = False
    request: RequestRecord | None = None


@dataclass(frozen=True, slots=True)
class RewoundRun:
    """What a rewind undid, or would undo."""

    run: RunRecord
    checkpoint_id: str
    undone: Undone
    withdrawn_interrupt_ids: tuple[str, ...]


class RunRewinder:
    """Takes back runs that aren't under way. What it does is done to its end, whoever waits for it."""

    def __init__(
        self,
        parts: RunParts,
        tasks: OwnedTasks,
        admission: Callable[[str], AbstractContextManager[None]],
        requests: KeyedLocks,
    ) -> None:
        self._requests = requests
        self._parts = parts
        self._tasks = tasks
        self._admission = admission

    async def rewind(self, request: RewindRunRequest) -> RewoundRun:
        """Undo all that came behind a checkpoint: steps, edits, questions. RetryRun goes on from it.

        The same request again undoes nothing that came since: it says where the run is, and counts nothing undone.
        Raises RunRefused: REQUEST_ID_REUSED, THREAD_NOT_FOUND, CHECKPOINT_NOT_FOUND, THREAD_BUSY, ILLEGAL_TRANSITION for a checkpoint
        that is not of the open transaction. PreconditionFailed: IRREVERSIBLE_STEP, STEP_IN_DOUBT.
        """
        return await self._tasks.run(self._rewind(request))

    async def roll_back(self, run_id: str, reason: str) -> RunRecord:
        """Undo all that a run which isn't under way has done, and end its transaction; return the run.

        One that is rolled back already is left as it is. Raises RunRefused: RUN_NOT_FOUND, THREAD_BUSY,
        ILLEGAL_TRANSITION for one that has completed, ROLLBACK_INCOMPLETE where undo that failed holds it.
        """
        return await self._tasks.run(self._roll_back(run_id, reason))

    async def roll_back_overdue(self, run_id: str, now: int) -> bool:
        """Roll a run back if it still waits, and has waited as long as it may; return whether it was.

        One that undo holds already is left to whoever settles that. Raises what :meth:`roll_back` does.
        """
        run = await self._tasks.run(self._roll_back(run_id, _WAITED, now))
        return not run.transaction_id

    async def _rewind(self, request: RewindRunRequest) -> RewoundRun:
        store = self._parts.store
        async with self._requests.hold(key_of(request.request)):
            known = await answered(store, request.request)
            run = None if known is None else await store.load_run(known.run_id)
            if run is not None and run.rewinds_to is None:
                return RewoundRun(run, request.checkpoint_id, Undone(), ())
            if run is not None:
                # It was begun, and cut off or held: gone on with, not asked for anew.
                request = replace(request, request=None)
            with busy_where_moved(request.thread_id):
                return await self._rewind_now(request)

    async def _rewind_now(self, request: RewindRunRequest) -> RewoundRun:
        with self._admission(request.thread_id):
            thread, run = await self._thread(request.thread_id)
            async with self._parts.transactions.turn(run.transaction_id, run.run_id) as turn:
                thread, run = await self._thread(request.thread_id)
                target = await self._target(request, thread, run)
                return await self._rewind_in_turn(request, thread, run, target, turn)

    async def _rewind_in_turn(
        self,
        request: RewindRunRequest,
        thread: ThreadRecord,
        run: RunRecord,
        target: CheckpointRecord,
        turn: Turn,
    ) -> RewoundRun:
        store = self._parts.store
        asked = await pending_of(store, run)
        why = f"RewindRun to {target.checkpoint_id}"
        if request.dry_run:
            undone = await turn.rewind(
                target.next_step, why, accept_irreversible=request.accept_irreversible, dry_run=True
            )
        else:
            # Kept before anything is undone: whoever makes the last commit goes to this very checkpoint.
            going = replace(run, rewinds_to=target.number)
            asked_by = () if request.request is None else (replace(request.request, run_id=run.run_id),)
            # Another server may go on with the run beside this: one of the two is refused.
            known, thread = (
                thread,
                replace(thread, updated_at=max(self._parts.clock.now(), thread.updated_at + 1)),
            )
            change = RunChange((thread,), (going,), requests=asked_by, unchanged_threads=(known,))
            await turn.write(store.rows(change))
            if turn.obstacle is None and not turn.is_open and turn.steps.start == target.next_step:
                now = self._parts.clock.now()
                change = await gone_back(store, going, thread, target.next_step, {}, now)
                await turn.write(store.rows(change))
                undone = Undone()
            else:
                undone = await turn.rewind(
                    target.next_step, why, accept_irreversible=request.accept_irreversible
                )
            run = await store.load_run(run.run_id) or run
        return RewoundRun(
            run, target.checkpoint_id, undone, tuple(item.interrupt_id for item in asked if not undone.held)
        )

    async def _thread(self, thread_id: str) -> tuple[ThreadRecord, RunRecord]:
        thread = await self._parts.store.load_thread(thread_id)
        run = None if thread is None else await self._parts.store.load_run(thread.run_id)
        of_thread = {"thread_id": thread_id}
        if thread is None or run is None:
            raise RunRefused("THREAD_NOT_FOUND", f"there is no thread '{thread_id}'", of_thread)
        _check_paused(run)
        if not thread.transaction_id or not run.transaction_id:
            raise RunRefused(
                "ILLEGAL_TRANSITION", "the thread has no open transaction to take back", of_thread
            )
        return thread, run

    async def _target(
        self, request: RewindRunRequest, thread: ThreadRecord, run: RunRecord
    ) -> CheckpointRecord:
        about = {"thread_id": thread.thread_id, "checkpoint_id": request.checkpoint_id[:128]}
        number = checkpoint_number(thread.thread_id, request.checkpoint_id)
        found = None if number is None else await self._parts.store.load_checkpoint(thread.thread_id, number)
        if found is None:
            raise RunRefused("CHECKPOINT_NOT_FOUND", "the thread has no such checkpoint", about)
        if found.transaction_id != run.transaction_id or found.rolled_back:
            raise RunRefused(
                "ILLEGAL_TRANSITION",
                "the checkpoint isn't of the open transaction; a run can be started from it instead",
                about,
            )
        return found

    async def _roll_back(self, run_id: str, reason: str, overdue_at: int | None = None) -> RunRecord:
        """``overdue_at`` is the time that must be past its ``waits_until``; None: it is rolled back in any case."""
        run = await self._paused_run(run_id)
        if not run.transaction_id:
            return run
        with busy_where_moved(run.thread_id), self._admission(run.thread_id):
            async with self._parts.transactions.turn(run.transaction_id, run.run_id) as turn:
                run = await self._paused_run(run_id)
                if overdue_at is not None and not (_is_overdue(run, overdue_at) and turn.obstacle is None):
                    return run
                if run.transaction_id:
                    await turn.roll_back(reason or "rolled back on request", accept_irreversible=True)
            run = await self._paused_run(run_id)
        if run.transaction_id:
            raise RunRefused(
                "ROLLBACK_INCOMPLETE",
                "undo that failed, or is the agent's to do, holds the rollback",
                {"run_id": run_id, "transaction_id": run.transaction_id},
            )
        return run

    async def _paused_run(self, run_id: str) -> RunRecord:
        run = await self._parts.store.load_run(run_id)
        if run is None:
            raise RunRefused("RUN_NOT_FOUND", f"there is no run '{run_id}'", {"run_id": run_id})
        _check_paused(run)
        if run.status == "COMPLETED":
            raise RunRefused(
                "ILLEGAL_TRANSITION",
                "the run has completed: what it did is committed",
                {"run_id": run_id, "status": run.status.value},
            )
        return run

    async def ended_and_rolled_back(
        self, ending: asyncio.Future[Any] | None, run_id: str, reason: str
    ) -> RunRecord:
        """Wait for an invocation that was told to stop, and roll its run back."""
        if ending is not None:
            await asyncio.wait({ending})
        return await self.roll_back(run_id, reason)


def _is_overdue(run: RunRecord, now: int) -> bool:
    return run.waits_until is not None and run.waits_until <= now


def _check_paused(run: RunRecord) -> None:
    if run.status in LIVE:
        raise RunRefused(
            "THREAD_BUSY",
            f"run '{run.run_id}' is under way",
            {"thread_id": run.thread_id, "run_id": run.run_id},
        )
