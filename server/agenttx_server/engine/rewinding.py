"""Takes a transaction back to before a step: undo first, then one commit that drops the rest.

With nothing to undo a rewind is one commit, unless it removes very many rows (rewind_parts). Else the
first commit says what is going on (ROLLING_BACK, with the pending rewind), the undo actions run and are
recorded one by one, and the last commit drops state, effects and steps and records the answers. An undo that
fails holds the rewind there: no undo ever runs after a later forward step. (Under the policy
on_undo_failure = CONTINUE the last commit is made all the same, and the transaction says so.)
Undo that only the agent can do holds it too, in its place in the order, until the agent has acknowledged it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agenttx_server.engine import agent_undo
from agenttx_server.engine.approvals import withdraw_from
from agenttx_server.engine.attempt_history import attempts_of_step
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.kept_effects import also_kept
from agenttx_server.engine.late_tools import GivenUp, LateTools, Outlived
from agenttx_server.engine.ports import StepRemoval, TransactionStore
from agenttx_server.engine.recorded_answers import record_rewind
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    EventType,
    PendingRewind,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
    UndoState,
)
from agenttx_server.engine.requests import RewindAnswer, StepAnswer, StepStatus
from agenttx_server.engine.rewind_parts import cut, may_be_cut
from agenttx_server.engine.saga import Saga, undo_error_line
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_answers import encode_answer, fields_to_json, within_output_limit
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = [
    "RewindResult",
    "Rewinder",
    "abort_reason",
    "asked_again",
    "let_go_if_over",
    "let_go_of_undo",
    "member_answer",
    "member_answers",
    "rewind_answer",
]

_LOGGER = logging.getLogger(__name__)


_ENDED_EVENTS = {
    TransactionStatus.ROLLED_BACK: EventType.TRANSACTION_ROLLED_BACK,
    TransactionStatus.FAILED: EventType.TRANSACTION_FAILED,
}


@dataclass(frozen=True, slots=True)
class RewindResult:
    """How a rewind stands: ``record`` after it, ``errors`` of the undo actions that failed.

    ``awaited`` are those that the agent has to do now, newest first.
    """

    pending: PendingRewind
    record: TransactionRecord
    finished_at: int
    errors: tuple[str, ...] = ()
    awaited: tuple[UndoRecord, ...] = ()

    @property
    def incomplete(self) -> bool:
        """Whether the rewind is held by undo actions that failed, or that the agent has to do."""
        return self.record.pending_rewind is not None


def abort_reason(pending: PendingRewind) -> str:
    """Return why a transaction ends with this rewind."""
    return (pending.decision.abort_reason if pending.decision else "") or pending.reason


async def let_go_of_undo(services: EngineServices, transaction_id: TransactionId) -> None:
    """Have tools drop what they kept for undoing a transaction that has ended."""
    try:
        await services.tools.transaction_ended(transaction_id)
    except Exception:  # the end is durable: what is left behind is no reason to call it failed
        _LOGGER.exception("tools could not let go of transaction=%s", transaction_id)


async def let_go_if_over(services: EngineServices, transaction: Transaction) -> None:
    """Have tools drop what they kept for undoing a transaction, if it has ended and nothing is left to undo."""
    if transaction.record.status.is_terminal and not transaction.unsettled_undo():
        await let_go_of_undo(services, transaction.record.transaction_id)


def asked_again(transaction: Transaction, to_step: int) -> Rows:
    """Return rows by which undo that the agent could not do is owed again, for a rewind that is sent once more."""
    rows = Rows()
    for undo in transaction.owed_undo(to_step):
        if undo.by_agent and undo.state is UndoState.FAILED:
            rows.undo.append(replace(undo, state=UndoState.PENDING, hint=None, raw_error=""))
    for undo in rows.undo:
        transaction.note_undo(undo)
    return rows


def _told_target(pending: PendingRewind) -> int:
    """Return the step rewound to as events name it: 0 for a reset or an abort."""
    return 0 if pending.context_reset or pending.final_status.is_terminal else pending.to_step


def member_answer(attempt: AttemptRecord, result: RewindResult) -> StepAnswer:
    """Return what the sender of one step of the failed group is told."""
    pending, record = result.pending, result.record
    failed = attempt.state is not AttemptState.COMPLETED
    aborted = pending.final_status.is_terminal
    if failed:
        status = StepStatus.FAILED if aborted else StepStatus.ROLLBACK_TRIGGERED
    else:
        status = StepStatus.SUCCESS
    return StepAnswer(
        status=status,
        next_step_id=0 if aborted else pending.to_step,
        generation=record.generation,
        attempt=attempt.attempt,
        output=attempt.output,
        hint=attempt.hint,
        strategy=pending.strategy,
        rollback_to_step=0 if aborted or pending.context_reset else pending.to_step,
        constraints=tuple(constraint.text for constraint in record.constraints),
        context_reset=pending.context_reset,
        rollback_latency_ms=(result.finished_at - pending.started_at) / 1000,
        abort_reason=abort_reason(pending) if aborted else "",
        compensation_errors=result.errors,
        dependencies=attempt.edges,
        decision=pending.decision,
        rewound=not failed,
        rollback_incomplete=result.incomplete,
        kept_effects=pending.kept_effects,
        pending_undo=agent_undo.told(result.awaited),
    )


def member_answers(
    attempts: Sequence[AttemptRecord], result: RewindResult, output_bytes: int
) -> tuple[StepAnswer, ...]:
    """Return what the senders of a failed group's steps are told, outputs within a limit."""
    return within_output_limit([member_answer(attempt, result) for attempt in attempts], output_bytes)


def rewind_answer(result: RewindResult) -> RewindAnswer:
    """Return what the caller of a rewind or an abort is told."""
    pending, record = result.pending, result.record
    return RewindAnswer(
        status=record.status,
        next_step_id=0 if pending.final_status.is_terminal else pending.to_step,
        generation=record.generation,
        compensations_run=pending.compensations_run,
        compensation_errors=result.errors,
        kept_effects=pending.kept_effects,
        rollback_incomplete=result.incomplete,
        pending_undo=agent_undo.told(result.awaited),
    )


class Rewinder:
    """Begins, goes on with and ends rewinds. Its caller holds the transaction's lock."""

    def __init__(
        self, services: EngineServices, writer: TransactionWriter, saga: Saga, late: LateTools
    ) -> None:
        self._store: TransactionStore = services.store
        self._services = services
        self._writer = writer
        self._saga = saga
        self._late = late

    async def begin(
        self, transaction: Transaction, pending: PendingRewind, rows: Rows, **head: Any
    ) -> RewindResult:
        """Rewind as ``pending`` says; ``rows`` and ``head`` belong to its first commit."""
        self._withdraw_approvals(transaction, pending, rows)
        members = rows.attempts
        owed = transaction.owed_undo(pending.to_step)
        if not owed and not await self._parts(transaction, pending.to_step):
            return await self._finish(transaction, pending, rows, members, **head)
        rows.event(
            EventType.ROLLBACK_STARTED,
            to_step=_told_target(pending),
            strategy=pending.strategy,
            reason=pending.reason,
            undo_actions=len(owed),
        )
        if pending.final_status.is_terminal:
            head["abort_reason"] = abort_reason(pending)
        outlived = self._owe_late_undo(transaction, pending.to_step, rows)
        await self._writer.write(
            transaction, rows, status=TransactionStatus.ROLLING_BACK, pending_rewind=pending, **head
        )
        for tool, item in outlived:
            tool.item = item  # durable now, and held back until the tool has ended
        return await self.resume(transaction, members)

    def _withdraw_approvals(self, transaction: Transaction, pending: PendingRewind, rows: Rows) -> None:
        if transaction.approvals:
            ends = pending.final_status.is_terminal
            why = (
                "its transaction is rolled back" if ends else f"a rewind to step {pending.to_step} passed it"
            )
            withdraw_from(transaction, pending.to_step, why, rows, self._services.clock.now())

    def _owe_late_undo(
        self, transaction: Transaction, to_step: int, rows: Rows
    ) -> list[tuple[Outlived, GivenUp]]:
        """Owe the undo of tools once more that still run though their steps, in doubt before, are taken back."""
        outlived = []
        for tool in self._late.not_owed(transaction.record.transaction_id):
            attempt = tool.item.attempt
            live = transaction.live(attempt)
            if attempt.step_id >= to_step and live is not None and live.attempt == attempt.attempt:
                copies = transaction.owe_once_more(tool.item.undo)
                rows.undo += copies
                outlived.append((tool, replace(tool.item, undo=copies, is_owed=True)))
        return outlived

    async def resume(
        self,
        transaction: Transaction,
        members: list[AttemptRecord] | None = None,
        rows: Rows | None = None,
        *,
        retry_failed: bool = True,
    ) -> RewindResult:
        """Run what is still owed of the pending rewind, up to what the agent has to do; end it if nothing is left.

        ``retry_failed`` is that what failed before is run again.
        """
        pending = transaction.record.pending_rewind
        if pending is None:
            raise RuntimeError("there is no pending rewind to go on with")
        following = agent_undo.next_undo(transaction.owed_undo(pending.to_step), retry_failed=retry_failed)
        outcomes = await self._saga.run(transaction, following.to_run)
        done = sum(undo.state is UndoState.DONE for undo in outcomes)
        pending = replace(pending, compensations_run=pending.compensations_run + done)
        failed = transaction.failed_undo(pending.to_step)
        if failed or following.to_ask:
            pending = replace(pending, held=True)
            held = Rows(undo=self._asked(transaction, following.to_ask))
            held.event(
                EventType.ROLLBACK_HELD,
                to_step=_told_target(pending),
                strategy=pending.strategy,
                failed=len(failed),
                awaiting_agent=len(following.to_ask),
            )
            await self._writer.write(transaction, held, pending_rewind=pending)
            return self._held(transaction, pending)
        if members is None:
            members = await self._load_members(transaction, pending)
        # Also those that failed before a crash in between: they are not run again.
        skipped = {undo.sequence: undo for undo in transaction.skipped_undo(pending.to_step)}
        skipped |= {undo.sequence: undo for undo in outcomes if undo.state is UndoState.FAILED}
        newest_first = [skipped[sequence] for sequence in sorted(skipped, reverse=True)]
        for part in await self._parts(transaction, pending.to_step):
            await self._writer.write(transaction, Rows(removals=[StepRemoval(step) for step in part]))
        return await self._finish(transaction, pending, rows or Rows(), members, newest_first)

    async def _parts(self, transaction: Transaction, to_step: int) -> list[list[int]]:
        """Return the steps whose rows are removed before the last commit, a list a commit; mostly none."""
        if not may_be_cut(transaction.most_state_rows):
            return []
        rows = await self._store.rows_by_step(transaction.record.transaction_id, to_step)
        # Undo that was done stays on record until the rewind is: by it a step is known not to be kept.
        return cut(rows, whole={undo.step_id for undo in transaction.undo.values()})

    def _asked(self, transaction: Transaction, to_ask: Sequence[UndoRecord]) -> list[UndoRecord]:
        """Return the rows of undo that the agent is asked for from now on, taken in already."""
        now = self._services.clock.now()
        asked = [
            replace(undo, state=UndoState.AWAITING_AGENT, ended_at=now)
            for undo in to_ask
            if undo.state is not UndoState.AWAITING_AGENT
        ]
        for undo in asked:
            transaction.note_undo(undo)
        return asked

    async def finish_interrupted(self, transaction: Transaction) -> None:
        """Go on with a rewind that was cut off; one that is held is left as it is."""
        pending = transaction.record.pending_rewind
        if pending is not None and not pending.held:
            if transaction.owed_undo(pending.to_step):
                # First of all: where nothing can be written, undo would be run at each call that comes.
                await self._writer.write(transaction, Rows())
            await self.resume(transaction)

    def held_result(self, transaction: Transaction) -> RewindResult:
        """Return how the held rewind of a transaction stands."""
        pending = transaction.record.pending_rewind
        if pending is None:
            raise RuntimeError("there is no held rewind")
        return self._held(transaction, pending)

    def _held(self, transaction: Transaction, pending: PendingRewind) -> RewindResult:
        errors = tuple(undo_error_line(undo) for undo in transaction.failed_undo(pending.to_step))
        awaited = tuple(transaction.awaited_undo(pending.to_step))
        return RewindResult(pending, transaction.record, self._services.clock.now(), errors, awaited)

    async def _load_members(self, transaction: Transaction, pending: PendingRewind) -> list[AttemptRecord]:
        found = []
        for member in pending.members:
            attempts = await attempts_of_step(self._store, transaction.record.transaction_id, member.step_id)
            found += [attempt for attempt in attempts if attempt.attempt == member.attempt]
        return found

    async def _finish(
        self,
        transaction: Transaction,
        pending: PendingRewind,
        rows: Rows,
        members: list[AttemptRecord],
        skipped: Sequence[UndoRecord] = (),
        **head: Any,
    ) -> RewindResult:
        now = self._services.clock.now()
        self._withdraw_approvals(transaction, pending, rows)
        ends = pending.final_status.is_terminal
        head |= {
            "status": pending.final_status,
            "next_step_id": 0 if ends else pending.to_step,
            "generation": transaction.record.generation + 1,
            "pending_rewind": None,
            "open_group": None,
        }
        head["kept_effects"] = also_kept(transaction.record.kept_effects, pending.kept_effects)
        if ends:
            head |= {"ended_at": now, "abort_reason": abort_reason(pending)}
        if skipped:
            head["undo_was_skipped"] = True
        errors = tuple(undo_error_line(undo) for undo in skipped)
        result = RewindResult(pending, replace(transaction.record, **head), now, errors)
        answers = member_answers(members, result, self._services.limits.group_output_bytes)
        rows.attempts = [
            replace(attempt, response=encode_answer(answer))
            for attempt, answer in zip(members, answers, strict=True)
        ]
        rows.responses += [
            record_rewind(
                transaction.record.transaction_id,
                key.request_id,
                key.method,
                key.fingerprint,
                rewind_answer(result),
            )
            for key in pending.requests
        ]
        told: dict[str, Any] = {
            "compensations_run": pending.compensations_run,
            "kept_effects": fields_to_json(pending.kept_effects),
        }
        if ends:
            told["abort_reason"] = head["abort_reason"]
        else:
            told |= {
                "to_step": _told_target(pending),
                "strategy": pending.strategy,
                "reason": pending.reason,
            }
        rows.event(_ENDED_EVENTS.get(pending.final_status, EventType.TRANSACTION_REWOUND), **told)
        head["held"] = None
        owner = self._services.run_owner
        if owner is not None and transaction.record.run_id:
            rows.extra += await owner.rows_when_rewound(transaction.record, pending)
        before = transaction.record
        await self._writer.write(transaction, rows, rewind_from=pending.to_step, **head)
        if self._services.observer is not None:
            self._services.observer.rewound(before, transaction.record, pending)
        transaction.rewind(pending.to_step)
        await let_go_if_over(self._services, transaction)
        return replace(result, record=transaction.record)
