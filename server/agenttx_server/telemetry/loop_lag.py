"""How late the event loop is."""

from __future__ import annotations

from agenttx_server.engine.ports import Clock
from agenttx_server.histogram import Histogram

__all__ = ["LoopLag"]

BOUNDS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
EVERY_SECONDS = 0.25


class LoopLag:
    """Sets itself a timer four times a second and counts how late it is woken."""

    def __init__(self, clock: Clock) -> None:
        self.seconds = Histogram(BOUNDS_SECONDS)
        self._clock = clock

    async def measure(self) -> None:
        """Go on until cancelled."""
        while True:
            due = self._clock.monotonic() + EVERY_SECONDS
            await self._clock.sleep(EVERY_SECONDS)
            self.seconds.observe(max(self._clock.monotonic() - due, 0.0))
