"""CommitTransaction: validate, publish and release in one commit, then deliver once.

The commit is the one of the store; the answer is fixed after the dispatch wait and
recorded, so that a repeat gets the same. A conflict compensates the transaction and ends
it as FAILED.
"""

from __future__ import annotations

import asyncio

import orjson

from agenttx_server.engine import refusals
from agenttx_server.engine.errors import CommitConflict, RequestIdReused
from agenttx_server.engine.outbox import Delivery, DeliveryRound, Outbox
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import CommitRefused, WriteReceipt
from agenttx_server.engine.recorded_answers import (
    check_same_request,
    commit_from,
    fingerprint,
    record_commit,
    record_response,
)
from agenttx_server.engine.records import (
    EffectState,
    EventType,
    PendingRewind,
    RecordedResponse,
    RewindPurpose,
    TransactionId,
    TransactionStatus,
)
from agenttx_server.engine.requests import CommitAnswer, CommitRequest
from agenttx_server.engine.rewinding import Rewinder, let_go_of_undo
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import TransactionCache
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["CommitExecution"]

_METHOD = "CommitTransaction"
_IDENTITY = fingerprint(_METHOD)
_COUNTED_KEYS = 1000


class CommitExecution:
    """Executes commits on loaded, locked transactions."""

    def __init__(
        self,
        services: EngineServices,
        writer: TransactionWriter,
        rewinder: Rewinder,
        tasks: OwnedTasks,
        cache: TransactionCache,
    ) -> None:
        self._services = services
        self._writer = writer
        self._rewinder = rewinder
        self._tasks = tasks
        self._cache = cache
        self._outbox = Outbox(services)

    async def commit(self, transaction: Transaction, request: CommitRequest) -> CommitAnswer:
        """Commit, or answer as recorded."""
        record = transaction.record
        recorded = await self._recorded(transaction, request.request_id)
        if recorded is not None:
            return await self._answer_again(transaction, recorded)
        refusals.check_not_ended(record)
        refusals.check_not_held(transaction)
        refusals.check_not_in_doubt(transaction)
        refusals.check_settled(transaction)
        receipt = await self._publish(transaction, request.request_id)
        return await self._deliver_and_answer(transaction, request.request_id, receipt)

    async def _answer_again(self, transaction: Transaction, recorded: RecordedResponse) -> CommitAnswer:
        """Return the recorded answer; give the one that a published commit still owes."""
        conflict = orjson.loads(recorded.response).get("conflict")
        if conflict is not None:
            raise _conflict_error(conflict["key"], conflict["description"])
        store, transaction_id = self._services.store, transaction.record.transaction_id
        answer = await store.find_response(_answer_scope(transaction_id), recorded.request_id)
        if answer is not None:
            return commit_from(answer)
        delivered = await store.list_effects(transaction_id, frozenset({EffectState.DELIVERED}))
        rows, keys, _ = await store.count_touched(transaction_id, 1)
        receipt = WriteReceipt(
            commit_version=transaction.record.commit_version,
            keys_published=len(keys) if len(keys) < _COUNTED_KEYS else rows,
        )
        return await self._deliver_and_answer(
            transaction, recorded.request_id, receipt, delivered_before=len(delivered)
        )

    async def _deliver_and_answer(
        self,
        transaction: Transaction,
        request_id: str,
        receipt: WriteReceipt,
        *,
        delivered_before: int = 0,
    ) -> CommitAnswer:
        record = transaction.record
        await let_go_of_undo(self._services, record.transaction_id)
        delivery, ready = await self._dispatch(transaction)
        delivered = sum(1 for effect in delivery.tried if effect.state is EffectState.DELIVERED)
        answer = CommitAnswer(
            steps_committed=record.next_step_id - 1,
            effects_dispatched=delivered_before + delivered,
            dispatch_errors=delivery.errors,
            effects_pending=ready - delivered,
            keys_published=receipt.keys_published,
            commit_version=receipt.commit_version,
        )
        rows = Rows()
        delivery.add_rows(rows)
        scope = _answer_scope(record.transaction_id)
        rows.responses.append(record_commit(scope, request_id, _IDENTITY, answer))
        await self._writer.write(transaction, rows, commit_version=receipt.commit_version)
        return answer

    async def _recorded(self, transaction: Transaction, request_id: str) -> RecordedResponse | None:
        ended = transaction.record.status.is_terminal
        if request_id not in transaction.request_ids and not (ended and not request_id):
            return None
        recorded = await self._services.store.find_response(transaction.record.transaction_id, request_id)
        if recorded is None:
            if not request_id:
                return None
            raise RequestIdReused(request_id, "another kind of request", _IDENTITY[:12])
        if recorded.method != _METHOD:
            raise RequestIdReused(request_id, recorded.method, _METHOD)
        check_same_request(request_id, recorded.fingerprint, _IDENTITY)
        return recorded

    async def _publish(self, transaction: Transaction, request_id: str) -> WriteReceipt:
        before = transaction.record
        if request_id:
            transaction.request_ids.add(request_id)
        rows = Rows()
        rows.event(EventType.TRANSACTION_COMMITTED, steps_committed=before.next_step_id - 1)
        rows.responses.append(
            record_response(before.transaction_id, request_id, _METHOD, _IDENTITY, {"published": True})
        )
        try:
            return await self._writer.write(
                transaction,
                rows,
                publish=True,
                status=TransactionStatus.COMMITTED,
                ended_at=self._services.clock.now(),
            )
        except CommitRefused as refused:
            transaction.record = before  # nothing of the set was written
            raise await self._conflict(transaction, request_id, refused) from None

    async def _conflict(
        self, transaction: Transaction, request_id: str, refused: CommitRefused
    ) -> CommitConflict:
        """Compensate and end a transaction whose commit was refused; return what its caller is told."""
        transaction_id = transaction.record.transaction_id
        reason = f"commit conflict: {refused.description}"
        rows = Rows()
        rows.event(EventType.COMMIT_CONFLICT, key=refused.key, description=refused.description)
        if request_id:
            values = {"conflict": {"key": refused.key, "description": refused.description}}
            rows.responses.append(record_response(transaction_id, request_id, _METHOD, _IDENTITY, values))
        pending = PendingRewind(
            purpose=RewindPurpose.CONFLICT,
            to_step=1,
            final_status=TransactionStatus.FAILED,
            started_at=self._services.clock.now(),
            reason=reason,
            kept_effects=transaction.kept_effects(1),
        )
        await self._rewinder.begin(transaction, pending, rows)
        return _conflict_error(refused.key, refused.description)

    async def _dispatch(self, transaction: Transaction) -> tuple[Delivery, int]:
        """Deliver what became ready; return what was tried within the wait, and how many were ready."""
        record = transaction.record
        progress = DeliveryRound()
        if not record.effect_sequence:
            return progress.take(), 0
        ready = await self._services.store.list_effects(record.transaction_id, frozenset({EffectState.READY}))
        if ready:
            delivery = self._tasks.spawn(self._outbox.deliver(record.transaction_id, ready, progress))
            await asyncio.wait((delivery,), timeout=self._services.settings.dispatch_wait_seconds)
            if not delivery.done():
                self._tasks.spawn(
                    self._record_late(record.transaction_id, record.principal, delivery, progress)
                )
        return progress.take(), len(ready)

    async def _record_late(
        self,
        transaction_id: TransactionId,
        principal: str,
        delivery: asyncio.Task[None],
        progress: DeliveryRound,
    ) -> None:
        """Record deliveries that took longer than the commit waits."""
        await asyncio.wait((delivery,))
        entry = self._cache.pin(transaction_id)
        try:
            async with entry.lock:
                transaction = await self._cache.loaded(entry, principal)
                rows = Rows()
                progress.take().add_rows(rows)
                try:
                    await self._writer.write(transaction, rows)
                except BaseException:
                    entry.transaction = None  # memory is ahead of what was written
                    raise
        finally:
            self._cache.unpin(entry)


def _answer_scope(transaction_id: TransactionId) -> str:
    """Where a commit's answer is recorded: its request_id is taken, with the publication, before there is one."""
    return f"commit:{transaction_id}"


def _conflict_error(key: str, description: str) -> CommitConflict:
    return CommitConflict(
        f"the commit was refused and the transaction compensated: {description}",
        reason="COMMIT_CONFLICT",
        metadata={"key": key, "status": TransactionStatus.FAILED},
    )
