"""Effects that nothing takes back, as a transaction's head names them for whoever has to know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agenttx_server.engine.records import EffectClass, KeptEffect

if TYPE_CHECKING:
    from agenttx_server.engine.group_run import Member

__all__ = ["MOST_KEPT_EFFECTS", "also_kept", "kept_by_cancelling"]

MOST_KEPT_EFFECTS = 1000  # named by a transaction's head; the history has all


def also_kept(named: tuple[KeptEffect, ...], kept: Iterable[KeptEffect]) -> tuple[KeptEffect, ...]:
    """Return the effects that a head names, with more of them; the oldest give way."""
    return (*named, *(effect for effect in kept if effect not in named))[-MOST_KEPT_EFFECTS:]


def kept_by_cancelling(member: Member) -> tuple[KeptEffect, ...]:
    """Return the effect of a call that may have happened although it was cancelled, if nothing takes it back."""
    if not member.cancelled or not member.tries or member.undo_registered:
        return ()
    if member.effect_class is not EffectClass.IDEMPOTENT:
        return ()
    reason = "was cancelled while it ran; its outcome is unknown and it has no registered undo"
    name = member.call.tool_name
    return (
        KeptEffect(member.step_id, member.attempt, name, EffectClass.IDEMPOTENT, reason, member.sub_step),
    )
