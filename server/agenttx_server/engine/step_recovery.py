"""Settles steps whose server died, or whose settlement was lost, by what their tools promise.

    READ_ONLY, TRANSACTIONAL   nothing of it counts; the client's retry runs it again
    IDEMPOTENT                 the recorded intent is run to its end: same attempt, same key
    COMPENSATABLE              undone; then run again as a new attempt with a new key
    IRREVERSIBLE               in doubt: a person says what became of it

The first write fences whoever still holds the transaction, before anything is run or undone. The
caller holds the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agenttx_server.engine import failure_text, json_values
from agenttx_server.engine.approvals import give_back
from agenttx_server.engine.attempt_history import attempts_of_step
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.group_run import Member
from agenttx_server.engine.group_settlement import GroupSettlement
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    EffectClass,
    EventType,
    OnUndoFailure,
    PendingRewind,
    RewindPurpose,
    TransactionStatus,
    UndoRecord,
    UndoState,
)
from agenttx_server.engine.requests import StepCall
from agenttx_server.engine.saga import Saga
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_execution import StepExecution
from agenttx_server.engine.sub_step_recovery import SubStepRecovery, is_doubtful
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import CacheEntry
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["StepRecovery", "member_from"]


@dataclass(slots=True)
class _Found:
    """What was found of an open group, by what is to be done about it.

    ``ended`` have their outcome, ``stopped`` made calls whose outcome is not known.
    """

    ended: list[AttemptRecord] = field(default_factory=list)
    lost: list[AttemptRecord] = field(default_factory=list)
    to_finish: list[AttemptRecord] = field(default_factory=list)
    to_undo: list[AttemptRecord] = field(default_factory=list)
    doubtful: list[AttemptRecord] = field(default_factory=list)
    stopped: list[AttemptRecord] = field(default_factory=list)


def member_from(attempt: AttemptRecord, *, same_attempt: bool) -> Member:
    """Return the member that runs a recorded call: as the same attempt, or as a new one."""
    call = StepCall(attempt.tool_name, attempt.arguments, attempt.raw_context, attempt.request_id)
    return Member(
        attempt.step_id,
        call,
        attempt.fingerprint,
        attempt.arguments,
        json_values.load(attempt.arguments),
        recorded=attempt if same_attempt else None,
        resumed=True,
    )


class StepRecovery:
    """Settles what was left of a group."""

    def __init__(
        self,
        services: EngineServices,
        writer: TransactionWriter,
        saga: Saga,
        steps: StepExecution,
        settlement: GroupSettlement,
        sub_steps: SubStepRecovery,
    ) -> None:
        self._sub_steps = sub_steps
        self._services = services
        self._writer = writer
        self._saga = saga
        self._steps = steps
        self._settlement = settlement

    async def recover(self, entry: CacheEntry, transaction: Transaction) -> None:
        """Settle the open group as far as it can be without its sender."""
        first, size = transaction.record.open_group or (0, 0)
        found = await self._find(transaction, first, size)
        await self._fence(transaction, found)
        for step_id in range(first, first + size):
            if not await self._sub_steps.settle(transaction, step_id) and self._holds(transaction):
                await self._hold(transaction, step_id, first)
                return
        for attempt in found.to_undo:
            if not await self._undo(transaction, attempt, first):
                return
        if transaction.record.held is not None:
            return  # its run goes on with it
        members = [member_from(attempt, same_attempt=True) for attempt in found.to_finish]
        members += [member_from(attempt, same_attempt=False) for attempt in found.to_undo]
        waits = transaction.in_doubt_steps() or transaction.awaiting_steps()
        if not members and (len(found.ended) < size or waits):
            return  # the rest is its sender's, or a person's
        members.sort(key=lambda member: member.step_id)
        run = self._steps.new_run(transaction, members, found.ended, size)
        await self._steps.carry_out(entry, run)
        if run.is_whole:
            await self._steps.guarded(run, self._settlement.settle(transaction, run))
        else:
            await self._steps.guarded(run, self._settlement.leave_open(transaction, run, Rows()))

    async def _find(self, transaction: Transaction, first: int, size: int) -> _Found:
        found = _Found()
        for step_id in range(first, first + size):
            live = transaction.steps.get(step_id)
            if live is None:
                continue
            attempts = await attempts_of_step(
                self._services.store, transaction.record.transaction_id, step_id
            )
            attempt = next(item for item in attempts if item.attempt == live.attempt)
            if attempt.state is not AttemptState.EXECUTING:
                found.ended.append(attempt)
            elif is_doubtful(transaction, step_id):
                found.stopped.append(attempt)
            elif transaction.record.held is not None and attempt.effect_class is EffectClass.IDEMPOTENT:
                found.lost.append(attempt)  # its run makes the call again, under the same key
            elif attempt.restartable and transaction.record.held is not None:
                found.lost.append(attempt)
            elif attempt.restartable or attempt.effect_class is EffectClass.IDEMPOTENT:
                found.to_finish.append(attempt)
            elif attempt.effect_class is EffectClass.COMPENSATABLE:
                found.to_undo.append(attempt)
            elif attempt.effect_class is EffectClass.IRREVERSIBLE:
                found.doubtful.append(attempt)
            else:
                found.lost.append(attempt)
        return found

    async def _fence(self, transaction: Transaction, found: _Found) -> None:
        """Write what is known at once. This server owns the transaction from here on."""
        rows = Rows()
        for attempt in found.lost:
            self._supersede(transaction, attempt, rows)
        now = self._services.clock.now()
        for attempt in [*found.doubtful, *found.stopped]:
            failure = failure_text.interrupted(attempt.tool_name)
            call = await self._sub_steps.add_doubts(transaction, attempt.step_id, rows)
            if call is not None and attempt.effect_class is not EffectClass.IRREVERSIBLE:
                failure = failure_text.sub_step_in_doubt(call.step_id, call.sub_step, call.tool_name)
            doubtful = replace(
                attempt,
                state=AttemptState.IN_DOUBT,
                hint=failure.hint,
                raw_error=failure.raw_error,
                ended_at=now,
            )
            rows.attempts.append(doubtful)
            rows.event(
                EventType.STEP_IN_DOUBT,
                attempt.step_id,
                attempt.attempt,
                tool_name=attempt.tool_name,
                category=failure.hint.category,
                hint=failure.hint.text,
            )
            transaction.finish_attempt(doubtful)
            found.ended.append(doubtful)
        await self._write_state(transaction, rows)

    async def _write_state(self, transaction: Transaction, rows: Rows, **head: Any) -> None:
        """Write rows with the status that what is left of the group has."""
        group = transaction.record.open_group
        first, size = group or (0, 0)
        if transaction.record.held is None and not any(
            step in transaction.steps or step in transaction.sub_steps for step in range(first, first + size)
        ):
            group = None
        if transaction.executing_steps():
            status = TransactionStatus.EXECUTING
        elif transaction.in_doubt_steps():
            status = TransactionStatus.IN_DOUBT
        elif transaction.awaiting_steps():
            status = TransactionStatus.AWAITING_APPROVAL
        else:
            status = TransactionStatus.ACTIVE
        await self._writer.write(transaction, rows, status=status, open_group=group, **head)

    def _supersede(self, transaction: Transaction, attempt: AttemptRecord, rows: Rows) -> None:
        rows.attempts.append(
            replace(attempt, state=AttemptState.SUPERSEDED, ended_at=self._services.clock.now())
        )
        rows.event(EventType.STEP_SUPERSEDED, attempt.step_id, attempt.attempt, tool_name=attempt.tool_name)
        give_back(transaction, attempt, rows)
        transaction.supersede(attempt.step_id)

    async def _undo(self, transaction: Transaction, attempt: AttemptRecord, first: int) -> bool:
        """Take back what a step did; False if an undo action failed and the transaction is held by it."""
        await self._saga.run(transaction, _owed(transaction, attempt))
        failed = [undo for undo in _owed(transaction, attempt) if undo.state is UndoState.FAILED]
        rows = Rows()
        if not failed or transaction.record.policy.on_undo_failure is OnUndoFailure.CONTINUE:
            # As if it had never begun: if this server stops too before it has, the client's retry runs it.
            self._supersede(transaction, attempt, rows)
            was_skipped = bool(failed) or transaction.record.undo_was_skipped
            await self._write_state(transaction, rows, undo_was_skipped=was_skipped)
            return True
        await self._hold(transaction, attempt.step_id, first)
        return False

    def _holds(self, transaction: Transaction) -> bool:
        return transaction.record.policy.on_undo_failure is OnUndoFailure.HOLD

    async def _hold(self, transaction: Transaction, step_id: int, first: int) -> None:
        """Have a person see to undo that failed: the group is taken back once it is done."""
        rows = Rows()
        failed = transaction.failed_undo(first)
        pending = PendingRewind(
            purpose=RewindPurpose.RECOVERY,
            to_step=first,
            final_status=TransactionStatus.ACTIVE,
            started_at=self._services.clock.now(),
            reason=f"step {step_id} was interrupted when its server stopped",
            kept_effects=transaction.kept_effects(first),
            held=True,
        )
        rows.event(EventType.ROLLBACK_HELD, to_step=first, strategy=pending.strategy, failed=len(failed))
        await self._writer.write(
            transaction, rows, status=TransactionStatus.ROLLING_BACK, pending_rewind=pending
        )


def _owed(transaction: Transaction, attempt: AttemptRecord) -> Sequence[UndoRecord]:
    return [
        undo
        for _, undo in sorted(transaction.undo.items(), reverse=True)
        if (undo.step_id, undo.sub_step, undo.attempt) == (attempt.step_id, attempt.sub_step, attempt.attempt)
        and undo.state in (UndoState.PENDING, UndoState.FAILED)
        and not undo.late
    ]
