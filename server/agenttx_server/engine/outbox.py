"""Takes a committed transaction's effects out, in order, once each at commit.

Order holds within a channel: an effect that could not be delivered holds back those
behind it in its channel; channels go side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agenttx_server.engine import failure_text
from agenttx_server.engine.records import EffectRecord, EffectState, EventType, TransactionId
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction_writer import Rows

__all__ = ["Delivery", "Outbox"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one round of deliveries came to; ``tried`` are the changed effects in staging order."""

    tried: tuple[EffectRecord, ...]
    errors: tuple[str, ...]

    def add_rows(self, rows: Rows) -> None:
        """Add the changed effects and their events."""
        rows.effects += self.tried
        for effect in self.tried:
            if effect.state is EffectState.DELIVERED:
                rows.event(
                    EventType.EFFECT_DELIVERED,
                    effect.step_id,
                    effect.attempt,
                    effect_id=effect.effect_id,
                    channel=effect.channel,
                )
            else:
                rows.event(
                    EventType.EFFECT_FAILED,
                    effect.step_id,
                    effect.attempt,
                    effect_id=effect.effect_id,
                    channel=effect.channel,
                    error=effect.last_error,
                )


class Outbox:
    """Delivers READY effects through the sink."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services

    async def deliver(self, transaction_id: TransactionId, ready: Sequence[EffectRecord]) -> Delivery:
        """Try each effect once, a channel at a time in order; stop a channel at its first failure."""
        channels: dict[str, list[EffectRecord]] = {}
        for effect in ready:
            channels.setdefault(effect.channel, []).append(effect)
        outcomes = await asyncio.gather(
            *(self._deliver_channel(transaction_id, effects) for effects in channels.values())
        )
        tried = sorted((effect for outcome in outcomes for effect in outcome), key=lambda item: item.sequence)
        errors = tuple(
            f"{effect.channel}: effect {effect.effect_id} of step {effect.step_id}: {effect.last_error}"
            for effect in tried
            if effect.state is not EffectState.DELIVERED
        )
        return Delivery(tuple(tried), errors)

    async def _deliver_channel(
        self, transaction_id: TransactionId, effects: Sequence[EffectRecord]
    ) -> list[EffectRecord]:
        tried = []
        for effect in effects:
            outcome = await self._deliver_one(transaction_id, effect)
            tried.append(outcome)
            if outcome.state is not EffectState.DELIVERED:
                break
        return tried

    async def _deliver_one(self, transaction_id: TransactionId, effect: EffectRecord) -> EffectRecord:
        attempts = effect.attempts + 1
        try:
            await self._services.sink.deliver(transaction_id, effect)
        except Exception as error:  # whatever a sink raises, the effect stays to be delivered
            hint = failure_text.from_exception(error, self._services.clean).hint
            return replace(effect, attempts=attempts, last_error=hint.text)
        return replace(
            effect,
            state=EffectState.DELIVERED,
            attempts=attempts,
            last_error="",
            delivered_at=self._services.clock.now(),
        )
