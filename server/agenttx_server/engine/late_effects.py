"""Late effects: what an attempt did after it had been given up.

A tool that outlived its cancellation, or a server that came back after another one had settled its
step, may have had effects that no rewind saw. Such an attempt is reported: its undo actions are owed
again, also those recorded as done, and whatever has become of the transaction since. They hold
nothing and no rewind runs or drops them. An effect without undo is listed among the undo actions
that failed, for a person to look at.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from agenttx_server.engine import hints
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.records import (
    AttemptRecord,
    EventType,
    HintCategory,
    UndoRecord,
    UndoState,
)
from agenttx_server.engine.rewinding import let_go_if_over
from agenttx_server.engine.saga import Saga
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["LateEffects"]


class LateEffects:
    """Records late effects and has them undone. Its caller holds the transaction's lock."""

    def __init__(self, services: EngineServices, writer: TransactionWriter, saga: Saga) -> None:
        self._services = services
        self._writer = writer
        self._saga = saga

    async def report(
        self, transaction: Transaction, attempt: AttemptRecord, undo: Sequence[UndoRecord]
    ) -> None:
        """Record that an attempt had effects after it was given up; ``undo`` is what it ever registered.

        One write; :meth:`settle_owed` runs what is owed then. An attempt of a tool that can't act
        outside is passed over. Raises what the store raises.
        """
        if attempt.effect_class is None or not attempt.effect_class.acts_outside:
            return
        rows = Rows()
        head: dict[str, Any] = {}
        if undo:
            rows.undo = [_owed_again(transaction.undo.get(row.sequence, row)) for row in undo]
            rows.undo = [row for row in rows.undo if not _is_owed(transaction, row.sequence)]
        elif not _is_listed(transaction, attempt):
            sequence = transaction.record.undo_sequence + 1
            rows.undo = [self._without_undo(attempt, sequence)]
            head["undo_sequence"] = sequence
        rows.event(
            EventType.LATE_EFFECT_REPORTED,
            attempt.step_id,
            attempt.attempt,
            attempt.sub_step,
            tool_name=attempt.tool_name,
        )
        for row in rows.undo:
            transaction.note_undo(row)
        await self._writer.write(transaction, rows, **head)

    async def settle_owed(self, transaction: Transaction, except_for: Collection[int] = ()) -> None:
        """Run what late effects owe, newest first; each is then done, or listed among those that failed.

        ``except_for`` are sequences whose tool still runs. Works on ended transactions too. Raises
        what the store raises.
        """
        owed = [undo for undo in transaction.late_undo() if undo.sequence not in except_for]
        if owed:
            await self._saga.run(transaction, owed)
            await let_go_if_over(self._services, transaction)

    def _without_undo(self, attempt: AttemptRecord, sequence: int) -> UndoRecord:
        now = self._services.clock.now()
        return UndoRecord(
            sequence=sequence,
            step_id=attempt.step_id,
            attempt=attempt.attempt,
            tool_name=attempt.tool_name,
            undo_name="",
            arguments="{}",
            idempotency_key=attempt.idempotency_key,
            registered_at=now,
            state=UndoState.FAILED,
            hint=hints.from_structured(
                HintCategory.UNKNOWN,
                f"{attempt.tool_name[:64]} of step {attempt.step_id} may have taken effect after its attempt was "
                "given up, and it has no undo. Look whether it did, then resolve it.",
                (),
            ),
            ended_at=now,
            late=True,
            sub_step=attempt.sub_step,
        )


def _owed_again(undo: UndoRecord) -> UndoRecord:
    return replace(
        undo,
        state=UndoState.LATE,
        late=True,
        hint=None,
        raw_error="",
        ended_at=None,
        resolution=None,
        note="",
    )


def _is_owed(transaction: Transaction, sequence: int) -> bool:
    """Whether an undo action will be run anyway, by the rewind that is under way or held."""
    pending = transaction.record.pending_rewind
    if pending is None:
        return False
    return any(undo.sequence == sequence for undo in transaction.owed_undo(pending.to_step))


def _is_listed(transaction: Transaction, attempt: AttemptRecord) -> bool:
    """Whether the late effect of an attempt without undo was reported before and is not settled."""
    return any(
        (undo.step_id, undo.sub_step, undo.attempt, undo.undo_name)
        == (attempt.step_id, attempt.sub_step, attempt.attempt, "")
        for undo in transaction.unsettled_undo()
    )
