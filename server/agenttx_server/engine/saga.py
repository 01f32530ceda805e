"""Runs undo actions, newest first, each until it is done or its attempts are used up.

At least once: an action gets the same key every time and must be idempotent. One that is
recorded as done is not run again, unless a late effect of its attempt is reported; one that fails
does not stop the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from agenttx_server.engine import failure_text, json_values
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import UndoContext, UndoUnavailable
from agenttx_server.engine.records import EventType, TransactionId, UndoRecord, UndoState
from agenttx_server.engine.server_lease import LeaseEnded, ServerLease
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["Saga", "outcome_rows", "undo_error_line"]


def undo_error_line(undo: UndoRecord) -> str:
    """Return what a caller is told of a failed undo action."""
    hint = undo.hint.text if undo.hint else "Hint: no reason recorded."
    step = f"{undo.step_id}.{undo.sub_step}" if undo.sub_step else str(undo.step_id)
    if not undo.undo_name:
        return f"step {step} ({undo.tool_name}): a late effect without undo: {hint}"
    return f"step {step} ({undo.tool_name}): undo '{undo.undo_name}' failed: {hint}"


def outcome_rows(outcome: UndoRecord) -> Rows:
    """Return the rows for an undo action that was run: itself and its event."""
    rows = Rows(undo=[outcome])
    at = (outcome.step_id, outcome.attempt, outcome.sub_step)
    told = {"tool_name": outcome.tool_name, "action": outcome.undo_name}
    if outcome.state is UndoState.DONE:
        rows.event(EventType.UNDO_COMPLETED, *at, **told)
    else:
        hint = outcome.hint
        told |= {"hint": hint.text if hint else "", "category": hint.category if hint else ""}
        rows.event(EventType.UNDO_FAILED, *at, **told)
    return rows


class Saga:
    """Runs a transaction's owed undo actions and records each outcome."""

    def __init__(
        self, services: EngineServices, writer: TransactionWriter, tasks: OwnedTasks, lease: ServerLease
    ) -> None:
        self._services = services
        self._writer = writer
        self._tasks = tasks
        self._lease = lease
        self._running: dict[tuple[TransactionId, int], tuple[asyncio.Task[None], bool]] = {}

    async def run(self, transaction: Transaction, owed: Sequence[UndoRecord]) -> list[UndoRecord]:
        """Run undo actions in the order given, each recorded before the next; return how they stand."""
        outcomes = []
        for undo in owed:
            outcome = await self.settle(transaction, undo)
            transaction.note_undo(outcome)
            await self._writer.write(transaction, outcome_rows(outcome))
            outcomes.append(outcome)
        return outcomes

    def is_running(self, transaction_id: TransactionId, sequence: int) -> bool:
        """Whether a try of an undo action goes on in the background, after its time was up."""
        return (transaction_id, sequence) in self._running

    async def settle(self, transaction: Transaction, undo: UndoRecord) -> UndoRecord:
        """Run an undo action until it is done or its tries are used up; return how it stands, unrecorded."""
        settings = self._services.settings
        failure: failure_text.StepFailure | None = None
        attempts = undo.attempts
        for number in range(settings.compensation_retries):
            if number:
                backoff = settings.compensation_backoff_seconds * 2 ** (number - 1)
                await self._services.clock.sleep(backoff * (0.5 + self._services.ids.random()))
            attempts += 1
            failure = await self.attempt(transaction, undo)
            if failure is None:
                break
            if failure.hint.rule == failure_text.UNDO_UNAVAILABLE:
                attempts -= 1  # not tried: it holds the rewind until somebody who has it is there
                break
        return replace(
            undo,
            state=UndoState.DONE if failure is None else UndoState.FAILED,
            attempts=attempts,
            hint=failure.hint if failure else None,
            raw_error=failure.raw_error if failure else "",
            ended_at=self._services.clock.now(),
        )

    async def attempt(self, transaction: Transaction, undo: UndoRecord) -> failure_text.StepFailure | None:
        """Run an undo action once; return why it failed, None if it did not.

        One that does not stop when its time is up goes on in the background, as code in a thread
        may. The next try waits for that one instead of starting a second beside it: while it
        runs, the rewind stays held, so it never ends after a later forward step. What a late effect
        asks for is begun after the effect: one that ran before has not seen it.
        """
        record = transaction.record
        owner = record.owner or self._lease.id
        context = UndoContext(
            record.transaction_id,
            record.agent_id,
            undo.step_id,
            undo.attempt,
            undo.idempotency_key,
            partial(self._lease.check, owner),
            record.principal,
        )
        seconds = self._services.settings.compensation_timeout_seconds
        key = (record.transaction_id, undo.sequence)
        is_late = undo.state is UndoState.LATE
        running, began_late = self._running.get(key, (None, False))
        if running is not None and is_late and not began_late:
            await asyncio.wait((running,), timeout=seconds)
            if not running.done():
                return failure_text.timed_out(f"undo {undo.undo_name}", seconds)
            running = None
        if running is None:
            running = self._tasks.spawn(self._call(undo, context))
            self._running[key] = running, is_late
            running.add_done_callback(lambda ended: self._forget(key, ended))
        stopped = False
        try:
            await asyncio.wait((running,), timeout=seconds)
            if not running.done():
                stopped = running.cancel()
                await asyncio.wait((running,), timeout=self._services.settings.stop_grace_seconds)
        except asyncio.CancelledError:
            running.cancel()
            raise
        if not running.done() or (stopped and running.cancelled()):
            return failure_text.timed_out(f"undo {undo.undo_name}", seconds)
        if running.cancelled():
            return failure_text.cancelled(undo.undo_name, "it raised CancelledError")
        error = running.exception()
        if isinstance(error, LeaseEnded):  # it was not begun
            raise error
        if isinstance(error, UndoUnavailable):
            return failure_text.undo_unavailable(error)
        # Whatever an undo action raises is its failure.
        return None if error is None else failure_text.from_exception(error, self._services.clean)

    async def _call(self, undo: UndoRecord, context: UndoContext) -> None:
        """Run an undo action if the lease lasts, both in one go: between two the process may stand still."""
        context.check_begin()
        tools = self._services.tools_of(context.owner)
        await tools.undo(undo.undo_name, json_values.load(undo.arguments), context)

    def _forget(self, key: tuple[TransactionId, int], ended: asyncio.Task[None]) -> None:
        if self._running.get(key, (None, False))[0] is ended:
            del self._running[key]
