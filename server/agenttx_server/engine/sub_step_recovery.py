"""Settles sub-steps that a crash cut off, each by what its own tool promises.

    READ_ONLY, TRANSACTIONAL   nothing of it counts; the step asks for it again
    IDEMPOTENT                 it stays as it is: the step asks again, and the same attempt goes on under its key
    COMPENSATABLE              undone; the step asks again, and it is a new attempt
    IRREVERSIBLE               in doubt, and with it its step: a person says what became of it

Undo that a failed sub-step still owes is run. The caller holds the transaction's lock.
"""

from __future__ import annotations

from agenttx_server.engine import failure_text
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.ports import StepRemoval
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    EffectClass,
    EventType,
    UndoState,
)
from agenttx_server.engine.saga import Saga
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.sub_steps import undo_of
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["SubStepRecovery", "is_doubtful"]


def is_doubtful(transaction: Transaction, step_id: int) -> bool:
    """Whether a step made a call whose outcome is not known, or won't be once it is settled."""
    return any(
        live.state is AttemptState.IN_DOUBT
        or (live.state is AttemptState.EXECUTING and live.effect_class is EffectClass.IRREVERSIBLE)
        for live in transaction.sub_steps.get(step_id, {}).values()
    )


class SubStepRecovery:
    """Settles the sub-steps of a group's members."""

    def __init__(self, services: EngineServices, writer: TransactionWriter, saga: Saga) -> None:
        self._services = services
        self._writer = writer
        self._saga = saga

    async def add_doubts(self, transaction: Transaction, step_id: int, rows: Rows) -> AttemptRecord | None:
        """Add the rows of a step's sub-steps that are in doubt from now on; return the first in doubt."""
        first = None
        for attempt in await self._made(transaction, step_id):
            if not _is_cut_off(attempt, EffectClass.IRREVERSIBLE):
                if attempt.state is AttemptState.IN_DOUBT:
                    first = first or attempt
                continue
            failure = failure_text.interrupted(attempt.tool_name)
            doubtful = replace(
                attempt,
                state=AttemptState.IN_DOUBT,
                hint=failure.hint,
                raw_error=failure.raw_error,
                ended_at=self._services.clock.now(),
            )
            rows.sub_steps.append(doubtful)
            rows.event(
                EventType.STEP_IN_DOUBT,
                attempt.step_id,
                attempt.attempt,
                attempt.sub_step,
                tool_name=attempt.tool_name,
                category=failure.hint.category,
                hint=failure.hint.text,
            )
            transaction.note_sub_step(doubtful)
            first = first or doubtful
        return first

    async def settle(self, transaction: Transaction, step_id: int) -> bool:
        """Undo what has to be, and forget what counts no more; False if an undo action failed."""
        done = True
        for attempt in reversed(await self._made(transaction, step_id)):
            owed = [
                undo
                for undo in undo_of(transaction, attempt)
                if undo.state in (UndoState.PENDING, UndoState.FAILED)
            ]
            cut_off = _is_cut_off(attempt) and attempt.effect_class not in (
                EffectClass.IDEMPOTENT,
                EffectClass.IRREVERSIBLE,
            )
            if cut_off or (attempt.state is AttemptState.FAILED and owed):
                outcomes = await self._saga.run(transaction, owed)
                done = done and all(undo.state is UndoState.DONE for undo in outcomes)
            if cut_off and done:
                await self._forget(transaction, attempt)
        return done

    async def _made(self, transaction: Transaction, step_id: int) -> list[AttemptRecord]:
        if step_id not in transaction.sub_steps:
            return []
        stored = await self._services.store.load_journal(transaction.record.transaction_id, step_id)
        return list(stored.sub_steps)

    async def _forget(self, transaction: Transaction, attempt: AttemptRecord) -> None:
        superseded = replace(attempt, state=AttemptState.SUPERSEDED, ended_at=self._services.clock.now())
        rows = Rows(sub_steps=[superseded], removals=[StepRemoval(superseded.step_id, superseded.sub_step)])
        rows.event(
            EventType.STEP_SUPERSEDED,
            attempt.step_id,
            attempt.attempt,
            attempt.sub_step,
            tool_name=attempt.tool_name,
        )
        await self._writer.write(transaction, rows)
        transaction.forget_sub_step(attempt.step_id, attempt.sub_step)


def _is_cut_off(attempt: AttemptRecord, effect_class: EffectClass | None = None) -> bool:
    return attempt.state is AttemptState.EXECUTING and effect_class in (None, attempt.effect_class)
