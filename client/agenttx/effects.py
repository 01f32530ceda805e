"""The outbox as operations for either client: what is in it, and what can be done about dead effects."""

from __future__ import annotations

from collections.abc import Iterable

from agenttx import message_conversion as conversion
from agenttx import records
from agenttx.methods import DISCARD_EFFECT, LIST_EFFECTS, REQUEUE_EFFECT
from agenttx.operation import Operation, invoke
from agenttx.reads import Page
from agenttx.transaction_cursor import new_request_id
from agenttx.v1 import transaction_pb2 as pb
from agenttx.values import count, member

__all__ = ["discard_effect", "list_effects", "requeue_effect"]


def list_effects(
    token: str,
    *,
    transaction_id: str,
    states: Iterable[records.EffectState | str],
    channel: str,
    page_size: int,
) -> Operation[Page[records.Effect]]:
    """Read one page of effects."""
    request = pb.ListEffectsRequest(
        transaction_id=transaction_id,
        states=[
            conversion.number_of(
                pb.EffectState, "EFFECT_STATE_", member("states", records.EffectState, state)
            )
            for state in states
        ],
        channel=channel,
        page_size=count("page_size", page_size),
        page_token=token,
    )
    answer = yield from invoke(LIST_EFFECTS, request)
    return Page(tuple(conversion.effect(entry) for entry in answer.effects), answer.next_page_token)


def requeue_effect(transaction_id: str, effect_id: str) -> Operation[records.Effect]:
    """Have a dead effect delivered after all."""
    request = pb.RequeueEffectRequest(
        transaction_id=transaction_id, effect_id=effect_id, request_id=new_request_id()
    )
    return conversion.effect((yield from invoke(REQUEUE_EFFECT, request)).effect)


def discard_effect(transaction_id: str, effect_id: str, reason: str) -> Operation[records.Effect]:
    """Give an effect up."""
    request = pb.DiscardEffectRequest(
        transaction_id=transaction_id, effect_id=effect_id, reason=reason, request_id=new_request_id()
    )
    return conversion.effect((yield from invoke(DISCARD_EFFECT, request)).effect)
