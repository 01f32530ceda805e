"""Runs undo actions, newest first, each until it is done or its attempts are used up.

At least once: an action gets the same key every time and must be idempotent. One that is
recorded as done is not run again; one that fails does not stop the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from agenttx_server.engine import failure_text, json_values
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import UndoContext
from agenttx_server.engine.records import EventType, TransactionId, UndoRecord, UndoState
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["Saga", "undo_error_line"]


def undo_error_line(undo: UndoRecord) -> str:
    """Return what a caller is told of a failed undo action."""
    hint = undo.hint.text if undo.hint else "Hint: no reason recorded."
    return f"step {undo.step_id} ({undo.tool_name}): undo '{undo.undo_name}' failed: {hint}"


class Saga:
    """Runs a transaction's owed undo actions and records each outcome."""

    def __init__(self, services: EngineServices, writer: TransactionWriter, tasks: OwnedTasks) -> None:
        self._services = services
        self._writer = writer
        self._tasks = tasks
        self._running: dict[tuple[TransactionId, int], asyncio.Task[None]] = {}

    async def run(self, transaction: Transaction, owed: Sequence[UndoRecord]) -> int:
        """Run undo actions in the order given; return how many were done."""
        done = 0
        for undo in owed:
            outcome = await self._run_one(transaction, undo)
            transaction.undo[undo.sequence] = outcome
            rows = Rows(undo=[outcome])
            if outcome.state is UndoState.DONE:
                done += 1
                rows.event(
                    EventType.UNDO_COMPLETED,
                    undo.step_id,
                    undo.attempt,
                    tool_name=undo.tool_name,
                    action=undo.undo_name,
                )
            else:
                rows.event(
                    EventType.UNDO_FAILED,
                    undo.step_id,
                    undo.attempt,
                    tool_name=undo.tool_name,
                    action=undo.undo_name,
                    hint=outcome.hint.text if outcome.hint else "",
                    category=outcome.hint.category if outcome.hint else "",
                )
            await self._writer.write(transaction, rows)
        return done

    async def _run_one(self, transaction: Transaction, undo: UndoRecord) -> UndoRecord:
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
                now = self._services.clock.now()
                return replace(undo, state=UndoState.DONE, attempts=attempts, hint=None, ended_at=now)
        return replace(
            undo,
            state=UndoState.FAILED,
            attempts=attempts,
            hint=failure.hint if failure else None,
            ended_at=self._services.clock.now(),
        )

    async def attempt(self, transaction: Transaction, undo: UndoRecord) -> failure_text.StepFailure | None:
        """Run an undo action once; return why it failed, None if it did not.

        One that does not stop when its time is up goes on in the background, as code in a thread
        may. The next try waits for that one instead of starting a second beside it: while it
        runs, the rewind stays held, so it never ends after a later forward step.
        """
        record = transaction.record
        context = UndoContext(
            record.transaction_id, record.agent_id, undo.step_id, undo.attempt, undo.idempotency_key
        )
        seconds = self._services.settings.compensation_timeout_seconds
        key = (record.transaction_id, undo.sequence)
        running = self._running.get(key)
        if running is None:
            arguments = json_values.load(undo.arguments)
            running = self._tasks.spawn(self._services.tools.undo(undo.undo_name, arguments, context))
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key, None))
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
        # Whatever an undo action raises is its failure.
        return None if error is None else failure_text.from_exception(error, self._services.clean)
