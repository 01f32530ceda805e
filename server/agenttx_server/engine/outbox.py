"""The rules of the outbox: in which order effects leave, when one is tried again, when it is given up.

Pure. Order holds within a transaction and a channel: an effect that waits for its next
attempt holds back those behind it, one that is DEAD, delivered or discarded doesn't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agenttx_server.engine import failure_text, hints
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.ports import DeliveryFailed
from agenttx_server.engine.records import (
    EffectRecord,
    EffectState,
    EventType,
    Hint,
    HintCategory,
    MicrosecondsUtc,
)
from agenttx_server.engine.services import EngineSettings
from agenttx_server.engine.transaction_writer import Rows

__all__ = [
    "add_events",
    "backoff_seconds",
    "by_channel",
    "delivered",
    "error_line",
    "failed",
    "next_due",
]

# 2 to the power of more than this is beyond every wait that can be set.
_MOST_DOUBLINGS = 40


def by_channel(effects: Iterable[EffectRecord]) -> dict[str, list[EffectRecord]]:
    """Return the effects of each channel in the order in which they leave."""
    channels: dict[str, list[EffectRecord]] = {}
    # By step before staging: which member of a group staged first is chance.
    for effect in sorted(effects, key=lambda effect: (effect.step_id, effect.sequence)):
        channels.setdefault(effect.channel, []).append(effect)
    return channels


def next_due(effects: Iterable[EffectRecord], now: MicrosecondsUtc) -> MicrosecondsUtc | None:
    """Return when the first of a transaction's READY effects may be tried, ``now`` or later; None if there is none."""
    ready = [effect for effect in effects if effect.state is EffectState.READY]
    heads = [channel[0] for channel in by_channel(ready).values()]
    return min((MicrosecondsUtc(max(head.next_attempt_at or now, now)) for head in heads), default=None)


def backoff_seconds(failures: int, settings: EngineSettings, chance: float) -> float:
    """Return the wait after so many failed deliveries: doubling, and of it the later half by ``chance`` (0 to 1).

    Effects that failed together so don't all come back together.
    """
    doubled = settings.effect_retry_base_seconds * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)
    return min(doubled, settings.effect_retry_max_seconds) * (1 + chance) / 2


def delivered(effect: EffectRecord, now: MicrosecondsUtc) -> EffectRecord:
    """Return an effect whose delivery succeeded."""
    return replace(
        effect,
        state=EffectState.DELIVERED,
        last_error="",
        delivered_at=now,
        next_attempt_at=None,
        settled_at=now,
    )


def failed(
    effect: EffectRecord,
    error: Exception,
    now: MicrosecondsUtc,
    settings: EngineSettings,
    chance: float,
    clean: Callable[[str], Hint],
) -> EffectRecord:
    """Return an effect whose delivery failed: READY for another attempt, or DEAD."""
    told = error if isinstance(error, DeliveryFailed) else None
    line = (
        hints.from_structured(HintCategory.UNKNOWN, told.message).text
        if told is not None
        else failure_text.from_exception(error, clean).hint.text
    )
    if effect.attempts >= settings.effect_max_attempts or (told is not None and told.permanent):
        return replace(effect, state=EffectState.DEAD, last_error=line, next_attempt_at=None, settled_at=now)
    wait = backoff_seconds(effect.attempts, settings, chance)
    if told is not None and told.retry_after_seconds is not None:
        wait = max(wait, told.retry_after_seconds)
    next_attempt_at = MicrosecondsUtc(now + round(wait * 1_000_000))
    return replace(effect, last_error=line, next_attempt_at=next_attempt_at)


def error_line(effect: EffectRecord) -> str:
    """Say in one line which effect was not delivered, and why."""
    given_up = " Given up." if effect.state is EffectState.DEAD else ""
    where = f"{effect.channel}: effect {effect.effect_id} of step {effect.step_id}"
    return f"{where}: {effect.last_error}{given_up}"


def add_events(rows: Rows, outcomes: Iterable[EffectRecord]) -> None:
    """Add the event of each delivery that ended."""
    for effect in outcomes:
        about = {"effect_id": effect.effect_id, "channel": effect.channel}
        if effect.state is EffectState.DELIVERED:
            rows.event(EventType.EFFECT_DELIVERED, effect.step_id, effect.attempt, **about)
            continue
        kind = EventType.EFFECT_DEAD if effect.state is EffectState.DEAD else EventType.EFFECT_FAILED
        rows.event(
            kind,
            effect.step_id,
            effect.attempt,
            **about,
            error=effect.last_error,
            delivery_attempts=effect.attempts,
        )
