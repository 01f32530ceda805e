"""Which sink takes an effect: a worker that delivers its channel, the one bound to it, else the one for all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from agenttx_server.engine.ports import EffectSink
from agenttx_server.engine.records import EffectRecord, TransactionId

__all__ = ["ChannelRouter", "HostedChannels"]


class HostedChannels(EffectSink, Protocol):
    """Channels that workers deliver."""

    def knows_channel(self, channel: str) -> bool:
        """Whether a worker offers the channel, or did: its effects then wait for one."""


class ChannelRouter:
    """Hands each effect to the workers or the sink of its channel, or to ``others``."""

    def __init__(
        self, by_channel: Mapping[str, EffectSink], others: EffectSink, hosted: HostedChannels | None = None
    ) -> None:
        self._by_channel = dict(by_channel)
        self._others = others
        self._hosted = hosted

    async def deliver(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        """Deliver one effect. Raises what its sink raises."""
        if self._hosted is not None and self._hosted.knows_channel(effect.channel):
            await self._hosted.deliver(transaction_id, effect)
            return
        sink = self._by_channel.get(effect.channel, self._others)
        await sink.deliver(transaction_id, effect)
