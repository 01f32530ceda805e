"""One transaction's effects on their way out: a task for each channel, and what is to be written of them.

Whoever holds the transaction's lock writes (:meth:`DeliveryRun.take`, then
:meth:`DeliveryRun.written`); the run itself only delivers. Before an effect is handed to the
sink its attempt is counted, durably: after a crash its next delivery can be told from a first one,
and a server that lost the transaction to another fails to count and so delivers nothing. To
count is a write, so a few effects of a channel are counted together, with the outcomes of those
before them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from agenttx_server.engine import outbox
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.ports import DeliveryFailed, StoreUnavailable
from agenttx_server.engine.records import (
    EffectRecord,
    EffectState,
    MicrosecondsUtc,
    ServerId,
    TransactionId,
)
from agenttx_server.engine.server_lease import ServerLease
from agenttx_server.engine.services import EngineServices

__all__ = ["DeliveryRun"]

# A crash makes at most so many effects of a channel seem to have been tried that were not.
COUNTED_TOGETHER = 16
# Outcomes are written after this long at the latest: a crash redelivers no more than came in since.
LINGER_SECONDS = 0.1
# Of no transaction: what is known has to be read again.
_UNKNOWN_REVISION = -1


class DeliveryRun:
    """Delivers a transaction's READY effects until none is due, or it is stopped.

    ``server_id`` is the outbox owner under whom it runs, ``revision`` the transaction's as far as
    this run knows it (``is_behind``: another server wrote since). ``effects`` are those it began with,
    as their deliveries left them, without those that others settled. ``is_over`` is that nothing is delivered any more, ``is_closed`` that
    all of it is written, ``is_waiting`` that effects were left to be delivered later.
    """

    def __init__(
        self,
        services: EngineServices,
        lease: ServerLease,
        transaction_id: TransactionId,
        owner: str,
        ready: Iterable[EffectRecord],
    ) -> None:
        self.transaction_id = transaction_id
        self._owner = owner
        self.server_id: ServerId = lease.id
        self.revision = _UNKNOWN_REVISION
        self.is_over = False
        self.is_closed = False
        self.is_waiting = False
        self.is_behind = False
        self._services = services
        self._lease = lease
        self._ready: dict[str, EffectRecord] = {}
        self._channels: dict[str, deque[str]] = {}
        # Not tried, with the attempt counted: still to be written, and written.
        self._counted: dict[str, EffectRecord] = {}
        self._begun: dict[str, EffectRecord] = {}
        self._under_way: set[str] = set()
        # To be written: what deliveries came to, and effects that were counted and not tried.
        self._outcomes: dict[str, EffectRecord] = {}
        self._untried: dict[str, EffectRecord] = {}
        self._is_stopped = False
        self._wants_write = False
        self._oldest_outcome_at = 0.0
        self._news = asyncio.Event()
        self._next_write: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keep(ready)
        self.effects = dict(self._ready)

    def _keep(self, ready: Iterable[EffectRecord]) -> None:
        channels = outbox.by_channel(ready)
        self._ready = {effect.effect_id: effect for effects in channels.values() for effect in effects}
        self._channels = {
            name: deque(effect.effect_id for effect in effects) for name, effects in channels.items()
        }

    # --- delivering -----------------------------------------------------------------------

    def count_first(self) -> bool:
        """Count the first effects of each channel, to be written; return whether any is due."""
        for channel in self._channels:
            head = self._head(channel)
            if head is not None and self._is_due(head):
                self._count(channel)
        return bool(self._counted)

    async def deliver(self) -> None:
        """Deliver until nothing is due. The first effects of each channel are counted, and that is written."""
        await asyncio.gather(*(self._deliver_channel(channel) for channel in tuple(self._channels)))
        self._untried = {
            effect_id: replace(effect, attempts=effect.attempts - 1)
            for effect_id, effect in (self._counted | self._begun).items()
        }
        self._counted.clear()
        self._begun.clear()
        self.is_over = True
        self._news.set()

    def stop(self) -> None:
        """Let the deliveries under way end, and begin no other."""
        self._is_stopped = True
        self._wake_workers()

    def give_up(self) -> None:
        """Stop because another server delivers the effects now; what was counted here counts no more."""
        self._counted.clear()
        self._begun.clear()
        self._untried.clear()
        self.stop()

    def forget(self, effect_id: str) -> None:
        """Leave out an effect that somebody settled, unless its delivery is under way."""
        for effects in (self._ready, self._counted, self._begun, self._untried, self._outcomes):
            effects.pop(effect_id, None)
        if effect_id in self.effects and self.effects[effect_id].state is EffectState.READY:
            del self.effects[effect_id]

    def renew(self, effect: EffectRecord) -> None:
        """Take in an effect that was requeued: those behind it in its channel wait for it again."""
        self._keep([*(self._ready | {effect.effect_id: effect}).values()])

    async def _deliver_channel(self, channel: str) -> None:
        while not self._is_stopped:
            head = self._head(channel)
            if head is None or not self._is_due(head):
                return
            if head.effect_id not in self._begun:
                if head.effect_id not in self._counted:
                    self._count(channel)
                await self._until_written()
            elif await self._is_still_ours():
                effect = self._begun.pop(head.effect_id, None)
                if effect is None:
                    continue  # settled, or to be counted anew
                self._under_way.add(effect.effect_id)
                outcome = await self._try(effect)
                self._under_way.remove(effect.effect_id)
                self._note(outcome)
                if outcome.state is EffectState.READY:
                    return
                if outcome.state is EffectState.DEAD:
                    await self._until_durable(outcome)

    async def _try(self, effect: EffectRecord) -> EffectRecord:
        services = self._services
        try:
            await services.sink_of(self._owner).deliver(self.transaction_id, effect)
        except Exception as error:
            failure: Exception = error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            failure = DeliveryFailed("the delivery was cancelled from inside the sink")
        else:
            return outbox.delivered(effect, services.clock.now())
        return outbox.failed(
            effect, failure, services.clock.now(), services.settings, services.ids.random(), services.clean
        )

    async def _is_still_ours(self) -> bool:
        """Whether a delivery may begin; if not, the run is stopped or what is known is read again first."""
        if not self._services.store.is_shared:
            return True
        try:
            self._lease.check()
            revision = await self._services.store.load_revision(self.transaction_id)
        except StoreUnavailable:
            self.stop()
            return False
        if revision > self.revision:  # another server wrote: a discarded effect must stay
            self.is_behind = True
            await self._until_written()
            return False
        return not self._is_stopped

    def _head(self, channel: str) -> EffectRecord | None:
        """The first effect of a channel that is not settled, as it stands."""
        waiting = self._channels.get(channel, deque())
        while waiting:
            effect_id = waiting[0]
            effect = self._outcomes.get(effect_id) or self._ready.get(effect_id)
            if effect is not None and effect.state is EffectState.READY:
                return effect
            waiting.popleft()
        return None

    def _is_due(self, effect: EffectRecord) -> bool:
        return (effect.next_attempt_at or 0) <= self._services.clock.now()

    def _count(self, channel: str) -> None:
        # One that was requeued stands before others that were tried.
        taken = self._begun.keys() | self._outcomes.keys() | self._under_way
        first = [
            effect
            for effect_id in islice(self._channels[channel], COUNTED_TOGETHER)
            if (effect := self._ready.get(effect_id)) and effect_id not in taken
        ]
        for number, effect in enumerate(first):
            # Behind the head one may wait for an attempt of its own: it is counted when it is the head.
            if number and not self._is_due(effect):
                break
            self._counted[effect.effect_id] = replace(effect, attempts=effect.attempts + 1)

    def _note(self, outcome: EffectRecord) -> None:
        if not self._outcomes:
            self._oldest_outcome_at = self._services.clock.monotonic()
        self._outcomes[outcome.effect_id] = outcome
        self.effects[outcome.effect_id] = outcome
        self._news.set()

    async def _until_written(self) -> None:
        self._wants_write = True
        self._news.set()
        await asyncio.shield(self._next_write)

    async def _until_durable(self, dead: EffectRecord) -> None:
        """Wait before those behind a dead effect leave: a crash must not find it alive again."""
        while dead.effect_id in self._outcomes and not self._is_stopped:
            await self._until_written()

    def _wake_workers(self) -> None:
        self._next_write.set_result(None)
        self._next_write = asyncio.get_running_loop().create_future()

    # --- writing: the caller holds the transaction's lock -----------------------------------

    async def news(self, timeout_seconds: float | None = None) -> bool:
        """Wait until something should be written, or the run is over; return False if the time was up before."""
        clock = self._services.clock
        end = None if timeout_seconds is None else clock.monotonic() + timeout_seconds
        while True:
            if self.is_over or self._wants_write:
                return True
            left = None if end is None else end - clock.monotonic()
            if left is not None and left <= 0:
                return False
            if self._outcomes:
                linger = self._oldest_outcome_at + LINGER_SECONDS - clock.monotonic()
                if linger <= 0:
                    return True
                left = linger if left is None else min(left, linger)
            self._news.clear()
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                continue

    def take(self) -> tuple[list[EffectRecord], list[EffectRecord]]:
        """Return the effects to be written, and those of them whose delivery ended, in staging order."""
        self._wants_write = self.is_behind = False
        outcomes = sorted(self._outcomes.values(), key=lambda effect: effect.sequence)
        return [*outcomes, *self._counted.values(), *self._untried.values()], outcomes

    def written(self, effects: Sequence[EffectRecord]) -> None:
        """Note that these are durable, as they were taken."""
        for effect in effects:
            effect_id = effect.effect_id
            for waiting in (self._outcomes, self._untried):
                if waiting.get(effect_id) is effect:
                    del waiting[effect_id]
            if self._counted.get(effect_id) is effect:
                self._begun[effect_id] = self._counted.pop(effect_id)
            if effect.state is EffectState.READY:
                self._ready[effect_id] = effect
            else:
                self._ready.pop(effect_id, None)
        if self._outcomes:
            self._oldest_outcome_at = self._services.clock.monotonic()
        self._wake_workers()

    def doubt(self) -> None:
        """Note that a write's outcome is unknown: what is known has to be read again."""
        self.revision = _UNKNOWN_REVISION
        self._wants_write = True

    def refresh(self, ready: Sequence[EffectRecord]) -> None:
        """Take in the READY effects as they are stored; what somebody else settled stays so."""
        self._keep(ready)
        self.effects = {
            effect_id: effect
            for effect_id, effect in self.effects.items()
            if effect_id in self._ready or effect.state is not EffectState.READY
        }
        self._outcomes = _kept(self._outcomes, self._ready)
        # One that was requeued since has other counts: it begins anew.
        self._untried = {
            effect_id: effect
            for effect_id, effect in _kept(self._untried, self._ready).items()
            if self._ready[effect_id].attempts - effect.attempts in (0, 1)
        }
        counted = _kept(self._counted | self._begun, self._ready)
        missing = {
            effect_id: effect.attempts - self._ready[effect_id].attempts
            for effect_id, effect in counted.items()
        }
        self._begun = {
            effect_id: counted[effect_id] for effect_id, attempts in missing.items() if not attempts
        }
        self._counted = {
            effect_id: counted[effect_id] for effect_id, attempts in missing.items() if attempts == 1
        }

    def next_due(self, now: MicrosecondsUtc) -> MicrosecondsUtc | None:
        """Return when the first effect that is still READY may be tried."""
        return outbox.next_due(self._standing(), now)

    @property
    def waiting(self) -> int:
        """How many effects are still to be delivered."""
        return sum(effect.state is EffectState.READY for effect in self._standing())

    def _standing(self) -> Iterable[EffectRecord]:
        return (self._outcomes.get(effect_id, effect) for effect_id, effect in self._ready.items())


def _kept(effects: dict[str, EffectRecord], ready: dict[str, EffectRecord]) -> dict[str, EffectRecord]:
    return {effect_id: effect for effect_id, effect in effects.items() if effect_id in ready}
