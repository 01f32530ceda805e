"""How many steps a second a principal, and a tenant, may send.

A bucket each: it holds what may be sent in one second, and fills as time goes by. So a burst passes, and who goes on faster
than that is told when to come again. Steps that a graph or a pipeline makes are counted likewise, but wait for their turn: nobody is there
to send them again, and a run that failed for its pace would be worse than a slow one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agenttx_server.engine.errors import LimitExceeded
from agenttx_server.engine.visibility import tenant_of

__all__ = ["StepRates", "TooManySteps"]

_MOST_KEPT = 10_000
"""Buckets; one that is not there is a full one."""
_ROUNDING = 1e-6
"""Who comes again when it was told to is let in."""


class TooManySteps(LimitExceeded):
    """More steps a second than the caller may send."""

    def __init__(self, whose: str, rate: int, retry_after_seconds: float) -> None:
        super().__init__(
            f"{whose} more than {rate} steps a second",
            reason="QUOTA_EXCEEDED",
            metadata={"limit": str(rate), "of": "steps a second"},
        )
        self.retry_after_seconds = retry_after_seconds


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


@dataclass(slots=True)
class _Line:
    """Those of one owner that wait, in the order in which they came."""

    first: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class StepRates:
    """Counts steps. A rate of 0 is none. ``monotonic`` is the time in seconds, ``sleep`` waits for so many."""

    def __init__(
        self,
        of_principal: int,
        of_tenant: Callable[[str], int],
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._of_principal = of_principal
        self._of_tenant = of_tenant
        self._monotonic = monotonic
        self._sleep = sleep
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()
        self._lines: dict[str, _Line] = {}

    def take(self, owner: str, steps: int = 1) -> None:
        """Count steps that an owner sends. Raises TooManySteps; then none is counted.

        More at once than a second's are let through when the bucket is full, and waited off afterwards.
        """
        tenant = tenant_of(owner)
        asked = (
            (("principal", owner), self._of_principal, "you send"),
            (("tenant", tenant), self._of_tenant(tenant), "your tenant sends"),
        )
        now = self._monotonic()
        filled = [(self._filled(key, rate, now), rate, told) for key, rate, told in asked if rate]
        for bucket, rate, told in filled:
            needed = min(steps, rate)
            if bucket.left < needed - _ROUNDING:
                raise TooManySteps(told, rate, (needed - bucket.left) / rate)
        for bucket, _, _ in filled:
            bucket.left -= steps

    def turn(self, owner: str) -> Awaitable[None] | None:
        """Count a step that a run of an owner's makes; return what waits for its turn, None if it has come.

        Those that wait come one after the other. What the owner sends itself meanwhile is let in when there is room: it isn't
        made to wait for a run.
        """
        if owner not in self._lines:
            try:
                self.take(owner, 1)
            except TooManySteps:
                pass
            else:
                return None
        return self._wait(owner)

    async def _wait(self, owner: str) -> None:
        line = self._lines.setdefault(owner, _Line())
        line.waiting += 1
        try:
            async with line.first:
                while True:
                    try:
                        self.take(owner, 1)
                    except TooManySteps as behind:
                        seconds = behind.retry_after_seconds
                    else:
                        return
                    await self._sleep(seconds)
        finally:
            line.waiting -= 1
            if not line.waiting:
                del self._lines[owner]

    def _filled(self, key: tuple[str, str], rate: int, now: float) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(float(rate), now)
            while len(self._buckets) > _MOST_KEPT:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
            bucket.left = min(float(rate), bucket.left + (now - bucket.at) * rate)
            bucket.at = now
        return bucket
