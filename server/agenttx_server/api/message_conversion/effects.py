"""Staged effects between the wire and the engine: listed, requeued, discarded."""

from __future__ import annotations

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.message_conversion.enumerations import to_wire
from agenttx_server.api.message_conversion.request_reader import PageRequest, RequestReader
from agenttx_server.api.message_conversion.values import timestamp_from_microseconds
from agenttx_server.engine.ports import EffectPage
from agenttx_server.engine.records import EffectRecord, EffectState, MicrosecondsUtc, TransactionId
from agenttx_server.engine.requests import EffectAnswer, EffectRequest

__all__ = [
    "discard_request",
    "discard_response",
    "effect",
    "list_request",
    "list_response",
    "requeue_request",
    "requeue_response",
]

LONGEST_CHANNEL_BYTES = 4096


def list_request(
    message: pb.ListEffectsRequest,
) -> tuple[TransactionId | None, frozenset[EffectState], PageRequest]:
    """Return whose effects ListEffects asks for, in which states, and which page of them."""
    reader = RequestReader()
    transaction_id = reader.transaction_id(message.transaction_id) if message.transaction_id else None
    states = set()
    for index, number in enumerate(message.states):
        state = reader.enumeration(f"states[{index}]", EffectState, number)
        if state is not None:
            states.add(state)
        elif number == pb.EFFECT_STATE_UNSPECIFIED:
            reader.refuse(f"states[{index}]", "is unspecified; leave states empty for all")
    reader.name("channel", message.channel, LONGEST_CHANNEL_BYTES)
    page = reader.page(message.page_size, message.page_token)
    reader.check()
    return transaction_id, frozenset(states), page


def list_response(page: EffectPage) -> pb.ListEffectsResponse:
    """Return the answer of ListEffects."""
    return pb.ListEffectsResponse(
        effects=[effect(record.transaction_id, found, record.ended_at) for record, found in page.effects],
        next_page_token=page.next_cursor,
    )


def requeue_request(message: pb.RequeueEffectRequest, principal: str) -> EffectRequest:
    """Return what RequeueEffect asks."""
    return _request(message, "", principal)


def requeue_response(answer: EffectAnswer) -> pb.RequeueEffectResponse:
    """Return the answer of RequeueEffect."""
    return pb.RequeueEffectResponse(effect=effect(answer.transaction_id, answer.effect, answer.ready_at))


def discard_request(message: pb.DiscardEffectRequest, principal: str) -> EffectRequest:
    """Return what DiscardEffect asks."""
    return _request(message, message.reason, principal)


def discard_response(answer: EffectAnswer) -> pb.DiscardEffectResponse:
    """Return the answer of DiscardEffect."""
    return pb.DiscardEffectResponse(effect=effect(answer.transaction_id, answer.effect, answer.ready_at))


def _request(
    message: pb.RequeueEffectRequest | pb.DiscardEffectRequest, reason: str, principal: str
) -> EffectRequest:
    reader = RequestReader()
    if not message.effect_id:
        reader.refuse("effect_id", "is empty; ListEffects gives it")
    request = EffectRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        effect_id=message.effect_id,
        reason=reason,
        request_id=message.request_id,
        principal=principal,
    )
    reader.check()
    return request


def effect(
    transaction_id: TransactionId, record: EffectRecord, ready_at: MicrosecondsUtc | None = None
) -> pb.Effect:
    """Return an effect; ``ready_at`` is when its transaction ended, which counts unless it is STAGED."""
    message = pb.Effect(
        effect_id=record.effect_id,
        transaction_id=transaction_id,
        step_id=record.step_id,
        sub_step=record.sub_step,
        attempt=record.attempt,
        sequence=record.sequence,
        channel=record.channel,
        payload_json=record.payload,
        idempotency_key=record.idempotency_key,
        state=to_wire(record.state),
        delivery_attempts=record.attempts,
        last_error=record.last_error,
        staged_at=timestamp_from_microseconds(record.staged_at),
    )
    if ready_at is not None and record.state is not EffectState.STAGED:
        message.ready_at.CopyFrom(timestamp_from_microseconds(ready_at))
    if record.next_attempt_at is not None:
        message.next_attempt_at.CopyFrom(timestamp_from_microseconds(record.next_attempt_at))
    settled_at = record.settled_at or record.delivered_at  # rows from before there was settled_at
    if settled_at is not None:
        message.settled_at.CopyFrom(timestamp_from_microseconds(settled_at))
    return message
