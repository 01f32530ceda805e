"""RetryCompensation and ResolveCompensation: what a person does about undo that failed; AcknowledgeUndo: the agent about its own.

Any of them may settle the last undo action that holds a rewind. The write that says so also marks
the rewind as going on, and records the caller's answer: whatever happens then, the rewind is
completed, and a repeat of the request is told the same.

Behind what the agent has done there may be undo to run here, which may fail. So of its undo actions the
repeat is told what became of the action, and how the transaction stands by then.
"""

from __future__ import annotations

from typing import Any

from agenttx_server.engine import agent_undo, failure_text
from agenttx_server.engine.attempt_history import attempts_of_step
from agenttx_server.engine.errors import NotFound, PreconditionFailed
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.kept_effects import also_kept
from agenttx_server.engine.recorded_answers import (
    compensation_from,
    fingerprint,
    record_compensation,
    same_request,
)
from agenttx_server.engine.records import (
    EffectClass,
    EventType,
    KeptEffect,
    PendingRewind,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
    UndoResolution,
    UndoState,
)
from agenttx_server.engine.requests import (
    AcknowledgeUndoRequest,
    CompensationAnswer,
    CompensationState,
    ResolveCompensationRequest,
    RetryCompensationRequest,
    compensation_id,
    compensation_state,
)
from agenttx_server.engine.rewinding import Rewinder, let_go_if_over
from agenttx_server.engine.saga import Saga, outcome_rows
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction import Transaction, accepted_effect
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["CompensationExecution"]

_RETRY = "RetryCompensation"
_RESOLVE = "ResolveCompensation"
_ACKNOWLEDGE = "AcknowledgeUndo"
_OF_RESOLVE = (UndoState.FAILED, UndoState.AWAITING_AGENT)


class CompensationExecution:
    """Retries, resolves and acknowledges undo actions of loaded, locked transactions, ended ones too."""

    def __init__(
        self, services: EngineServices, writer: TransactionWriter, saga: Saga, rewinder: Rewinder
    ) -> None:
        self._services = services
        self._writer = writer
        self._saga = saga
        self._rewinder = rewinder

    async def retry(self, transaction: Transaction, request: RetryCompensationRequest) -> CompensationAnswer:
        """Run a failed undo action again, under the same key, with fresh tries.

        One of a late effect without undo has nothing to run: it stays as it is. The agent is asked again for its own.
        """
        identity = fingerprint(_RETRY, request.compensation_id)
        recorded = await self._recorded(transaction, request.request_id, _RETRY, identity)
        if recorded is not None:
            return recorded
        failed = _found(transaction, request.compensation_id)
        if failed.state is not UndoState.FAILED:
            raise _not_failed(failed, compensation_state(transaction.record, failed))
        if failed.by_agent:
            outcome = self._asked_again(transaction, failed)
            rows = Rows(undo=[outcome])
        elif failed.undo_name:
            await self._take_up(transaction, failed)
            outcome = await self._saga.settle(transaction, failed)
            rows = outcome_rows(outcome)
        else:
            outcome, rows = failed, Rows()
        return await self._conclude(transaction, outcome, rows, (_RETRY, request.request_id, identity))

    async def resolve(
        self, transaction: Transaction, request: ResolveCompensationRequest
    ) -> CompensationAnswer:
        """Take a person's word that an effect was undone otherwise, or that it stays."""
        identity = fingerprint(_RESOLVE, request.compensation_id, request.resolution, request.note)
        recorded = await self._recorded(transaction, request.request_id, _RESOLVE, identity)
        if recorded is not None:
            return recorded
        failed = _found(transaction, request.compensation_id)
        if failed.state not in _OF_RESOLVE:
            raise _not_failed(failed, compensation_state(transaction.record, failed))
        if self._saga.is_running(transaction.record.transaction_id, failed.sequence):
            # It would do its work after later steps.
            raise _not_failed(failed, CompensationState.RUNNING)
        outcome = replace(
            failed,
            state=UndoState.RESOLVED,
            resolution=request.resolution,
            note=request.note,
            ended_at=self._services.clock.now(),
        )
        rows = Rows(undo=[outcome])
        rows.event(
            EventType.UNDO_RESOLVED,
            outcome.step_id,
            outcome.attempt,
            tool_name=outcome.tool_name,
            action=outcome.undo_name,
            resolution=request.resolution,
            note=request.note,
        )
        kept = None
        if request.resolution is UndoResolution.KEPT:
            kept = accepted_effect(outcome, await self._effect_class(transaction, outcome))
        return await self._conclude(
            transaction, outcome, rows, (_RESOLVE, request.request_id, identity), kept
        )

    async def acknowledge(
        self, transaction: Transaction, request: AcknowledgeUndoRequest
    ) -> CompensationAnswer:
        """Take the agent's word that it has done an undo action of its own, or why it could not; go on with the rest."""
        identity = fingerprint(_ACKNOWLEDGE, request.compensation_id, request.error)
        recorded = await self._recorded(transaction, request.request_id, _ACKNOWLEDGE, identity)
        if recorded is not None:
            return recorded
        awaited = _found(transaction, request.compensation_id)
        if awaited.state is not UndoState.AWAITING_AGENT:
            raise _not_awaited(awaited, compensation_state(transaction.record, awaited))
        newest = transaction.awaited_undo()[0]
        if newest.sequence != awaited.sequence:
            raise _out_of_order(awaited, newest)
        failure = failure_text.reported(request.error, self._services.clean) if request.error else None
        outcome = replace(
            awaited,
            state=UndoState.DONE if failure is None else UndoState.FAILED,
            attempts=awaited.attempts + 1,
            hint=failure.hint if failure else None,
            raw_error=failure.raw_error if failure else "",
            ended_at=self._services.clock.now(),
        )
        return await self._conclude(
            transaction, outcome, outcome_rows(outcome), (_ACKNOWLEDGE, request.request_id, identity)
        )

    def _asked_again(self, transaction: Transaction, failed: UndoRecord) -> UndoRecord:
        """Return an undo action that the agent could not do as it stands when it is asked for it once more."""
        pending = transaction.record.pending_rewind
        if pending is None or failed.step_id < pending.to_step:
            # Nothing is held by it (policy CONTINUE): it can be resolved, not be run after later steps.
            raise _not_held(failed)
        return replace(
            failed,
            state=UndoState.AWAITING_AGENT,
            hint=None,
            raw_error="",
            ended_at=self._services.clock.now(),
        )

    async def _take_up(self, transaction: Transaction, failed: UndoRecord) -> None:
        """Make sure that memory is not behind, and that no other server goes on with the rewind meanwhile."""
        if not self._services.store.is_shared:
            return
        pending = transaction.record.pending_rewind
        if pending is not None and not failed.late:
            pending = replace(pending, retrying=True)
        await self._writer.write(transaction, Rows(), pending_rewind=pending)

    async def _conclude(
        self,
        transaction: Transaction,
        outcome: UndoRecord,
        rows: Rows,
        request: tuple[str, str, str],
        kept: KeptEffect | None = None,
    ) -> CompensationAnswer:
        """Record how an undo action stands now, and complete the rewind that nothing holds any more."""
        transaction.note_undo(outcome)
        record = transaction.record
        head: dict[str, Any] = {}
        pending = None if outcome.late else record.pending_rewind
        if pending is not None and _gives_back(transaction, pending):
            head |= {"pending_rewind": None, "status": TransactionStatus.EXECUTING}
            head["kept_effects"] = _with(record.kept_effects, kept)
            pending = None
        elif pending is not None:
            pending = replace(
                pending,
                compensations_run=pending.compensations_run + (outcome.state is UndoState.DONE),
                kept_effects=pending.kept_effects + ((kept,) if kept else ()),
                # Of a held rewind every undo action was run, up to what the agent has to do.
                held=agent_undo.waits(transaction.owed_undo(pending.to_step)),
                retrying=False,
            )
            head["pending_rewind"] = pending
        elif kept is not None and kept not in record.kept_effects:
            head["kept_effects"] = _with(record.kept_effects, kept)
        answer = _answer(replace(record, **head), outcome, pending)
        method, request_id, identity = request
        if request_id:
            transaction.request_ids.add(request_id)
            rows.responses.append(
                record_compensation(record.transaction_id, request_id, method, identity, answer)
            )
        await self._writer.write(transaction, rows, **head)
        if pending is not None and not pending.held:
            await self._rewinder.resume(transaction, retry_failed=False)
        else:
            await let_go_if_over(self._services, transaction)
        return _as_it_stands(transaction, answer) if outcome.by_agent else answer

    async def _recorded(
        self, transaction: Transaction, request_id: str, method: str, identity: str
    ) -> CompensationAnswer | None:
        if not request_id or request_id not in transaction.request_ids:
            return None
        recorded = await self._services.store.find_response(transaction.record.transaction_id, request_id)
        answer = compensation_from(same_request(recorded, request_id, method, identity))
        return _as_it_stands(transaction, answer) if answer.undo.by_agent else answer

    async def _effect_class(self, transaction: Transaction, undo: UndoRecord) -> EffectClass:
        live = transaction.steps.get(undo.step_id)
        if live is not None and live.attempt == undo.attempt and live.effect_class is not None:
            return live.effect_class
        attempts = await attempts_of_step(
            self._services.store, transaction.record.transaction_id, undo.step_id
        )
        found = next((attempt for attempt in attempts if attempt.attempt == undo.attempt), None)
        return (found.effect_class if found else None) or EffectClass.COMPENSATABLE


def _gives_back(transaction: Transaction, pending: PendingRewind) -> bool:
    """Whether recovery goes on with the group that ``pending`` held, and it is not taken back.

    So it is beside a step in doubt: taking the group back would pass it, and only a person's word does that.
    """
    return bool(transaction.unsettled_doubts()) and not transaction.failed_undo(pending.to_step)


def _with(kept: tuple[KeptEffect, ...], effect: KeptEffect | None) -> tuple[KeptEffect, ...]:
    return also_kept(kept, () if effect is None else (effect,))


def _answer(
    record: TransactionRecord, outcome: UndoRecord, pending: PendingRewind | None
) -> CompensationAnswer:
    """Return how things stand once the rewind that ``pending`` is has gone on as far as it can."""
    completes = pending is not None and not pending.held
    waiting = pending or record.pending_rewind
    if waiting is not None:
        next_step_id = 0 if waiting.final_status.is_terminal else waiting.to_step
    else:
        next_step_id = 0 if record.status.is_terminal else record.next_step_id
    return CompensationAnswer(
        transaction_id=record.transaction_id,
        undo=outcome,
        state=compensation_state(record, outcome),
        rollback_incomplete=waiting is not None and not completes,
        next_step_id=next_step_id,
        generation=record.generation + (1 if completes else 0),
    )


def _as_it_stands(transaction: Transaction, answer: CompensationAnswer) -> CompensationAnswer:
    """Return an answer about an undo action of the agent's with where the transaction is now."""
    record = transaction.record
    pending = record.pending_rewind
    next_step_id = record.next_step_id if pending is None else pending.to_step
    is_over = record.status.is_terminal if pending is None else pending.final_status.is_terminal
    return replace(
        answer,
        rollback_incomplete=pending is not None,
        next_step_id=0 if is_over else next_step_id,
        generation=record.generation,
        pending_undo=agent_undo.told(transaction.awaited_undo(pending.to_step)) if pending else (),
    )


def _found(transaction: Transaction, wanted: str) -> UndoRecord:
    """Return the undo action to settle; refuse one that there is not."""
    undo = next((undo for undo in transaction.undo.values() if compensation_id(undo) == wanted), None)
    if undo is None:
        transaction_id = transaction.record.transaction_id
        raise NotFound(
            f"the transaction has no undo action '{wanted[:64]}'; ListCompensations names those there are, and what a "
            "rewind has undone is dropped when it ends",
            reason="COMPENSATION_NOT_FOUND",
            metadata={"compensation_id": wanted[:64], "transaction_id": transaction_id},
        )
    return undo


def _not_awaited(undo: UndoRecord, state: CompensationState) -> PreconditionFailed:
    why = f"it is {state}"
    if not undo.by_agent:
        why = "the server runs it"
    elif state is CompensationState.PENDING:
        why = "newer undo actions come first"
    return PreconditionFailed(
        f"undo action {compensation_id(undo)} ('{undo.undo_name}' of step {undo.step_id}) does not wait for the agent: "
        f"{why}",
        reason="COMPENSATION_NOT_PENDING",
        metadata={"compensation_id": compensation_id(undo), "state": state},
    )


def _out_of_order(undo: UndoRecord, newest: UndoRecord) -> PreconditionFailed:
    return PreconditionFailed(
        f"undo action {compensation_id(undo)} ('{undo.undo_name}' of step {undo.step_id}) is to be done after "
        f"{compensation_id(newest)} ('{newest.undo_name}' of step {newest.step_id}): the newest comes first",
        reason="COMPENSATION_OUT_OF_ORDER",
        metadata={
            "compensation_id": compensation_id(undo),
            "expected_compensation_id": compensation_id(newest),
        },
    )


def _not_held(undo: UndoRecord) -> PreconditionFailed:
    return PreconditionFailed(
        f"undo action {compensation_id(undo)} ('{undo.undo_name}' of step {undo.step_id}) holds nothing, and only the "
        "agent can do it: settle it with ResolveCompensation",
        reason="COMPENSATION_NOT_PENDING",
        metadata={"compensation_id": compensation_id(undo), "state": CompensationState(undo.state)},
    )


def _not_failed(undo: UndoRecord, state: CompensationState) -> PreconditionFailed:
    why = f"it is {state}"
    if state is CompensationState.RUNNING:
        why = "its last try has not ended; RetryCompensation waits for it"
    return PreconditionFailed(
        f"undo action {compensation_id(undo)} ('{undo.undo_name}' of step {undo.step_id}) has not failed: {why}",
        reason="COMPENSATION_NOT_FAILED",
        metadata={"compensation_id": compensation_id(undo), "state": state},
    )
