"""Rewind and RollbackTransaction: a rewind or an abort that somebody asked for."""

from __future__ import annotations

from agenttx_server.engine import refusals
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.group_run import CancelRequest
from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.recorded_answers import (
    check_same_request,
    fingerprint,
    record_rewind,
    rewind_from,
    same_request,
)
from agenttx_server.engine.records import (
    EffectState,
    KeptEffect,
    PendingRewind,
    RewindPurpose,
    RewindRequestKey,
    Strategy,
    TransactionStatus,
)
from agenttx_server.engine.requests import RewindAnswer, RewindPreview, RewindRequest, RollbackRequest
from agenttx_server.engine.rewinding import Rewinder, abort_reason, asked_again, rewind_answer
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import CacheEntry
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter
from agenttx_server.engine.visibility import name_in_tenant

__all__ = ["RewindExecution"]

_ROLLBACK = "RollbackTransaction"


class RewindExecution:
    """Executes rewinds and aborts on loaded, locked transactions."""

    def __init__(self, services: EngineServices, writer: TransactionWriter, rewinder: Rewinder) -> None:
        self._store: TransactionStore = services.store
        self._services = services
        self._writer = writer
        self._rewinder = rewinder

    # --- before the lock ----------------------------------------------------------------

    def interrupt_for_rewind(
        self, entry: CacheEntry, request: RewindRequest, method: str
    ) -> CancelRequest | None:
        """Stop the running group if the rewind will be granted; an IRREVERSIBLE tool is waited for.

        Raises what :meth:`rewind` would. A repeated or a stale request stops nothing.
        """
        run = entry.running
        transaction = self._interruptible(entry, request.request_id)
        if run is None or transaction is None or request.dry_run:
            return None
        if request.generation not in (None, transaction.record.generation):
            return None
        to_step = refusals.check_rewind_target(
            transaction,
            request.to_step,
            accept_irreversible=request.accept_irreversible,
            running=run.steps,
        )
        return self._cancel(
            entry,
            f"a rewind to step {to_step} was asked for",
            PendingRewind(
                purpose=RewindPurpose.REWIND,
                to_step=to_step,
                final_status=TransactionStatus.ACTIVE,
                started_at=self._services.clock.now(),
                requests=self._keys(method, request.request_id, _rewind_identity(request, method)),
                reason=request.reason,
            ),
            accept_irreversible=request.accept_irreversible,
        )

    def interrupt_for_rollback(self, entry: CacheEntry, request: RollbackRequest) -> CancelRequest | None:
        """Stop the running group, for the transaction is aborted; an IRREVERSIBLE tool is waited for."""
        if self._interruptible(entry, request.request_id) is None:
            return None
        return self._cancel(
            entry,
            "the transaction is being rolled back",
            self._abort(
                request.reason, self._keys(_ROLLBACK, request.request_id, _rollback_identity(request))
            ),
            accept_irreversible=True,
        )

    def _interruptible(self, entry: CacheEntry, request_id: str) -> Transaction | None:
        if entry.running is None or entry.transaction is None:
            return None
        return None if request_id in entry.transaction.request_ids else entry.transaction

    def _cancel(
        self, entry: CacheEntry, why: str, rewind: PendingRewind, *, accept_irreversible: bool
    ) -> CancelRequest | None:
        if entry.running is None or entry.running.cancel_request is not None:
            return None
        request = CancelRequest(why, rewind, accept_irreversible)
        entry.running.cancel(request)
        return request

    # --- with the lock ------------------------------------------------------------------

    async def rewind(
        self,
        transaction: Transaction,
        request: RewindRequest,
        method: str,
        stopped: CancelRequest | None = None,
    ) -> RewindAnswer:
        """Rewind to just before a step, or go on with a held rewind.

        ``stopped`` is what this call had a running group stopped with.
        """
        if stopped is not None and stopped.result is not None:
            return rewind_answer(stopped.result)
        identity = _rewind_identity(request, method)
        recorded = await self._recorded(transaction, request.request_id, method, identity)
        if recorded is not None:
            return recorded
        record = transaction.record
        refusals.check_not_ended(record)
        refusals.check_generation(record, request.generation)
        if record.pending_rewind is not None:
            if request.dry_run:
                return await self._preview(transaction, min(request.to_step, record.pending_rewind.to_step))
            return await self._go_on(transaction, request, method, identity)
        to_step = refusals.check_rewind_target(
            transaction, request.to_step, accept_irreversible=request.accept_irreversible
        )
        if request.dry_run:
            return await self._preview(transaction, to_step)
        # An open group may have rows of later members only: its first step need not be there.
        if to_step == record.next_step_id and record.open_group is None:
            return await self._nothing_to_undo(transaction, request.request_id, method, identity)
        pending = PendingRewind(
            purpose=RewindPurpose.REWIND,
            to_step=to_step,
            final_status=TransactionStatus.ACTIVE,
            started_at=self._services.clock.now(),
            requests=self._keys(method, request.request_id, identity),
            reason=request.reason,
            kept_effects=self._kept_effects(transaction, to_step),
        )
        self._note_request(transaction, request.request_id)
        return rewind_answer(await self._rewinder.begin(transaction, pending, Rows()))

    async def roll_back(
        self, transaction: Transaction, request: RollbackRequest, stopped: CancelRequest | None = None
    ) -> RewindAnswer:
        """Abort: compensate everything and end the transaction."""
        if stopped is not None and stopped.result is not None:
            return rewind_answer(stopped.result)
        identity = _rollback_identity(request)
        recorded = await self._recorded(transaction, request.request_id, _ROLLBACK, identity)
        if recorded is not None:
            return recorded
        record = transaction.record
        refusals.check_not_ended(record)
        if not request.accept_irreversible:
            refusals.check_not_in_doubt(transaction)
        abort = self._abort(request.reason, self._keys(_ROLLBACK, request.request_id, identity))
        self._note_request(transaction, request.request_id)
        if record.pending_rewind is not None:
            held = record.pending_rewind
            pending = replace(
                held,
                purpose=RewindPurpose.ROLLBACK,
                to_step=1,
                # A rewind that ends a failed transaction stays one.
                final_status=(
                    held.final_status if held.final_status.is_terminal else TransactionStatus.ROLLED_BACK
                ),
                reason=held.reason or abort.reason,
                requests=held.requests + abort.requests,
                kept_effects=self._kept_effects(transaction, 1, held),
                held=False,
            )
            rows = asked_again(transaction, pending.to_step)
            await self._writer.write(
                transaction, rows, pending_rewind=pending, abort_reason=abort_reason(pending)
            )
            return rewind_answer(await self._rewinder.resume(transaction))
        pending = replace(abort, kept_effects=self._kept_effects(transaction, 1))
        return rewind_answer(await self._rewinder.begin(transaction, pending, Rows()))

    # --- parts --------------------------------------------------------------------------

    def _abort(self, reason: str, requests: tuple[RewindRequestKey, ...]) -> PendingRewind:
        return PendingRewind(
            purpose=RewindPurpose.ROLLBACK,
            to_step=1,
            final_status=TransactionStatus.ROLLED_BACK,
            started_at=self._services.clock.now(),
            strategy=Strategy.MANUAL,
            requests=requests,
            reason=reason or "rolled back on request",
        )

    async def _recorded(
        self, transaction: Transaction, request_id: str, method: str, identity: str
    ) -> RewindAnswer | None:
        if not request_id or request_id not in transaction.request_ids:
            return None
        pending = transaction.record.pending_rewind
        if pending is not None:
            for key in pending.requests:
                if key.request_id == request_id:
                    check_same_request(request_id, key.method + key.fingerprint, method + identity)
                    return rewind_answer(self._rewinder.held_result(transaction))
        recorded = await self._store.find_response(transaction.record.transaction_id, request_id)
        return rewind_from(same_request(recorded, request_id, method, identity))

    async def _go_on(
        self, transaction: Transaction, request: RewindRequest, method: str, identity: str
    ) -> RewindAnswer:
        """Go on with the held rewind, to the same or a lower target."""
        held = transaction.record.pending_rewind
        if held is None:
            raise RuntimeError("there is no held rewind to go on with")
        if not request.accept_irreversible:
            refusals.check_not_in_doubt(transaction)
        to_step = request.to_step
        if to_step < held.to_step:
            to_step = refusals.check_rewind_target(
                transaction, to_step, accept_irreversible=request.accept_irreversible
            )
        elif to_step > transaction.record.next_step_id:
            refusals.check_rewind_target(transaction, to_step, accept_irreversible=True)
        to_step = min(to_step, held.to_step)
        pending = replace(
            held,
            to_step=to_step,
            requests=held.requests + self._keys(method, request.request_id, identity),
            kept_effects=self._kept_effects(transaction, to_step, held),
            held=False,
        )
        self._note_request(transaction, request.request_id)
        await self._writer.write(transaction, asked_again(transaction, to_step), pending_rewind=pending)
        return rewind_answer(await self._rewinder.resume(transaction))

    async def _nothing_to_undo(
        self, transaction: Transaction, request_id: str, method: str, identity: str
    ) -> RewindAnswer:
        record = transaction.record
        answer = RewindAnswer(record.status, record.next_step_id, record.generation)
        if request_id:
            self._note_request(transaction, request_id)
            row = record_rewind(record.transaction_id, request_id, method, identity, answer)
            await self._writer.write(transaction, Rows(responses=[row]))
        return answer

    async def _preview(self, transaction: Transaction, to_step: int) -> RewindAnswer:
        record = transaction.record
        cursor, steps = "", []
        while True:
            page = await self._store.list_attempts(
                record.transaction_id, cursor, 1000, 4 << 20, include_rewound=False
            )
            steps += [attempt for attempt in page.attempts if attempt.step_id >= to_step]
            cursor = page.next_cursor
            if not cursor:
                break
        rows, keys, _ = await self._store.count_touched(record.transaction_id, to_step)
        staged = await self._store.list_effects(record.transaction_id, frozenset({EffectState.STAGED}))
        return RewindAnswer(
            record.status,
            record.next_step_id,
            record.generation,
            kept_effects=self._kept_effects(transaction, to_step),
            preview=RewindPreview(
                steps=tuple(steps),
                undo=tuple(transaction.owed_undo(to_step)),
                state_rows=rows,
                state_keys=tuple(name_in_tenant(record.principal, key) for key in keys),
                staged_effects=tuple(effect for effect in staged if effect.step_id >= to_step),
            ),
        )

    def _kept_effects(
        self, transaction: Transaction, to_step: int, held: PendingRewind | None = None
    ) -> tuple[KeptEffect, ...]:
        """Effects that stay: of live steps, of one that was cancelled for this rewind, and those named by ``held``."""
        found = transaction.kept_effects(to_step)
        named = {(effect.step_id, effect.attempt) for effect in found}
        cancelled = tuple(
            effect
            for effect in transaction.record.kept_effects
            if effect.step_id >= to_step
            and (effect.step_id, effect.attempt) not in named
            and effect.step_id in transaction.steps
            and transaction.steps[effect.step_id].attempt == effect.attempt
        )
        known = held.kept_effects if held is not None else ()
        return known + tuple(effect for effect in found + cancelled if effect not in known)

    def _keys(self, method: str, request_id: str, identity: str) -> tuple[RewindRequestKey, ...]:
        return (RewindRequestKey(method, request_id, identity),) if request_id else ()

    def _note_request(self, transaction: Transaction, request_id: str) -> None:
        if request_id:
            transaction.request_ids.add(request_id)


def _rewind_identity(request: RewindRequest, method: str) -> str:
    return fingerprint(method, str(request.to_step), str(request.dry_run), str(request.accept_irreversible))


def _rollback_identity(request: RollbackRequest) -> str:
    return fingerprint(_ROLLBACK, "0", str(request.accept_irreversible))
