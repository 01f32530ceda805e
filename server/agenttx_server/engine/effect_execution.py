"""RequeueEffect and DiscardEffect: what a person does about effects that could not be delivered."""

from __future__ import annotations

from typing import Any

import orjson

from agenttx_server.engine import outbox
from agenttx_server.engine.errors import NotFound, PreconditionFailed
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.outbox_dispatcher import OutboxDispatcher
from agenttx_server.engine.recorded_answers import fingerprint, record_response, same_request
from agenttx_server.engine.records import (
    EffectRecord,
    EffectState,
    EventType,
    MicrosecondsUtc,
    RecordedResponse,
)
from agenttx_server.engine.requests import EffectAnswer, EffectRequest
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_answers import fields_to_json
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["EffectExecution"]

_REQUEUE = "RequeueEffect"
_DISCARD = "DiscardEffect"
_SETTLED = (EffectState.DELIVERED, EffectState.DISCARDED)


class EffectExecution:
    """Requeues and discards effects of loaded, locked transactions, committed ones in the main."""

    def __init__(
        self, services: EngineServices, writer: TransactionWriter, dispatcher: OutboxDispatcher
    ) -> None:
        self._services = services
        self._writer = writer
        self._dispatcher = dispatcher

    async def requeue(self, transaction: Transaction, request: EffectRequest) -> EffectAnswer:
        """Make a DEAD effect READY again, with fresh attempts; it is tried at once."""
        identity = fingerprint(_REQUEUE, request.effect_id)
        recorded = await self._recorded(transaction, request.request_id, _REQUEUE, identity)
        if recorded is not None:
            return recorded
        effect = (await self._effects(transaction, request.effect_id))[request.effect_id]
        if effect.state is not EffectState.DEAD:
            raise PreconditionFailed(
                f"effect {effect.effect_id} is not dead: it is {effect.state}",
                reason="EFFECT_NOT_DEAD",
                metadata={"effect_id": effect.effect_id, "state": effect.state},
            )
        requeued = replace(
            effect,
            state=EffectState.READY,
            attempts=0,
            last_error="",
            next_attempt_at=None,
            settled_at=None,
        )
        rows = Rows()
        rows.event(
            EventType.EFFECT_REQUEUED,
            effect.step_id,
            effect.attempt,
            effect_id=effect.effect_id,
            channel=effect.channel,
        )
        head = {"outbox_due_at": self._services.clock.now()}
        answer = await self._write(
            transaction, requeued, rows, head, (_REQUEUE, request.request_id, identity)
        )
        self._dispatcher.renew(requeued, transaction.record.transaction_id)
        return answer

    async def discard(self, transaction: Transaction, request: EffectRequest) -> EffectAnswer:
        """Give up an effect that is READY or DEAD; a delivery under way may still arrive."""
        identity = fingerprint(_DISCARD, request.effect_id, request.reason)
        recorded = await self._recorded(transaction, request.request_id, _DISCARD, identity)
        if recorded is not None:
            return recorded
        effects = await self._effects(transaction, request.effect_id)
        effect = effects[request.effect_id]
        if effect.state is EffectState.STAGED:
            raise PreconditionFailed(
                f"effect {effect.effect_id} is staged by an open transaction; rewind its step {effect.step_id} instead",
                reason="EFFECT_STAGED",
                metadata={"effect_id": effect.effect_id, "step_id": str(effect.step_id)},
            )
        if effect.state in _SETTLED:
            raise PreconditionFailed(
                f"effect {effect.effect_id} is settled: it is {effect.state}",
                reason="EFFECT_SETTLED",
                metadata={"effect_id": effect.effect_id, "state": effect.state},
            )
        now = self._services.clock.now()
        discarded = replace(effect, state=EffectState.DISCARDED, next_attempt_at=None, settled_at=now)
        rows = Rows()
        rows.event(
            EventType.EFFECT_DISCARDED,
            effect.step_id,
            effect.attempt,
            effect_id=effect.effect_id,
            channel=effect.channel,
            reason=request.reason,
        )
        head: dict[str, Any] = {}
        if not transaction.record.outbox_owner:  # else who delivers says when it gives the transaction back
            head["outbox_due_at"] = outbox.next_due((effects | {effect.effect_id: discarded}).values(), now)
        answer = await self._write(
            transaction, discarded, rows, head, (_DISCARD, request.request_id, identity)
        )
        self._dispatcher.forget(transaction.record.transaction_id, effect.effect_id)
        return answer

    async def _effects(self, transaction: Transaction, effect_id: str) -> dict[str, EffectRecord]:
        """Return a transaction's effects as they stand, the one asked for among them."""
        transaction_id = transaction.record.transaction_id
        await self._dispatcher.bring_up_to_date(transaction)
        found = await self._services.store.list_effects(transaction_id, frozenset())
        effects = {effect.effect_id: effect for effect in found}
        if effect_id not in effects:
            raise NotFound(
                f"the transaction has no effect '{effect_id[:64]}'; ListEffects names those there are",
                reason="EFFECT_NOT_FOUND",
                metadata={"transaction_id": transaction_id, "effect_id": effect_id[:64]},
            )
        return effects

    async def _write(
        self,
        transaction: Transaction,
        effect: EffectRecord,
        rows: Rows,
        head: dict[str, Any],
        request: tuple[str, str, str],
    ) -> EffectAnswer:
        record = transaction.record
        answer = EffectAnswer(record.transaction_id, effect, record.ended_at)
        method, request_id, identity = request
        rows.effects.append(effect)
        if request_id:
            transaction.request_ids.add(request_id)
            values = {
                # The payload stands in the effect's own row and never changes.
                "effect": fields_to_json(replace(effect, payload="")),
                "ready_at": answer.ready_at,
            }
            rows.responses.append(
                record_response(record.transaction_id, request_id, method, identity, values)
            )
        try:
            await self._writer.write(transaction, rows, **head)
        finally:  # also if its outcome is unknown: something else is due now
            self._dispatcher.wake()
        return answer

    async def _recorded(
        self, transaction: Transaction, request_id: str, method: str, identity: str
    ) -> EffectAnswer | None:
        if not request_id or request_id not in transaction.request_ids:
            return None
        transaction_id = transaction.record.transaction_id
        recorded = await self._services.store.find_response(transaction_id, request_id)
        recorded = same_request(recorded, request_id, method, identity)
        effects = await self._services.store.list_effects(transaction_id, frozenset())
        payloads = {effect.effect_id: effect.payload for effect in effects}
        return _answer_from(transaction, recorded, payloads)


def _answer_from(
    transaction: Transaction, recorded: RecordedResponse, payloads: dict[str, str]
) -> EffectAnswer:
    values = orjson.loads(recorded.response)
    fields = values["effect"]
    ready_at = values["ready_at"]
    effect = EffectRecord(
        **{
            **fields,
            "state": EffectState(fields.get("state", EffectState.STAGED)),
            "payload": payloads.get(fields["effect_id"], ""),
        }
    )
    return EffectAnswer(
        transaction.record.transaction_id, effect, None if ready_at is None else MicrosecondsUtc(ready_at)
    )
