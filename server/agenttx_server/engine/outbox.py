"""Takes a committed transaction's effects out, in order, once each at commit.

Order holds within a channel: an effect that could not be delivered holds back those
behind it in its channel; channels go side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agenttx_server.engine import failure_text
from agenttx_server.engine.records import EffectRecord, EffectState, EventType, TransactionId
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction_writer import Rows

__all__ = ["Delivery", "DeliveryRound", "Outbox"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a round of deliveries came to; ``tried`` are the changed effects in staging order."""

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
                    delivery_attempts=effect.attempts,
                )


@dataclass(slots=True)
class DeliveryRound:
    """A round of deliveries as far as it got."""

    tried: list[EffectRecord] = field(default_factory=list)

    def take(self) -> Delivery:
        """Return what was tried since it was last asked."""
        tried, self.tried = sorted(self.tried, key=lambda effect: effect.sequence), []
        errors = tuple(
            f"{effect.channel}: effect {effect.effect_id} of step {effect.step_id}: {effect.last_error}"
            for effect in tried
            if effect.state is not EffectState.DELIVERED
        )
        return Delivery(tuple(tried), errors)


class Outbox:
    """Delivers READY effects through the sink."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services

    async def deliver(
        self, transaction_id: TransactionId, ready: Sequence[EffectRecord], progress: DeliveryRound
    ) -> None:
        """Try each effect once, a channel at a time in order; stop a channel at its first failure."""
        channels: dict[str, list[EffectRecord]] = {}
        # By step before staging: which member of a group staged first is chance.
        for effect in sorted(ready, key=lambda effect: (effect.step_id, effect.sequence)):
            channels.setdefault(effect.channel, []).append(effect)
        await asyncio.gather(
            *(self._deliver_channel(transaction_id, effects, progress) for effects in channels.values())
        )

    async def _deliver_channel(
        self, transaction_id: TransactionId, effects: Sequence[EffectRecord], progress: DeliveryRound
    ) -> None:
        for effect in effects:
            outcome = await self._deliver_one(transaction_id, effect)
            progress.tried.append(outcome)
            if outcome.state is not EffectState.DELIVERED:
                break

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
