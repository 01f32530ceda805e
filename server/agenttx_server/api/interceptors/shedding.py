"""How many new calls a server that is behind refuses, so that those it takes are answered in time.

A bound on calls alone can't tell: a thousand steps that wait for slow tools are no load, and three hundred quick ones are more
than a core does in time. What tells is how late the event loop is, and how many steps wait for group commit: a batch that is
written holds the next one, which grows meanwhile. So the share that is refused rises from nothing, where both are within
their targets, to nearly all, where one is at twice its own (as random early detection drops packets). In between it
settles where what is let in is what is done.
"""

from __future__ import annotations

from collections.abc import Callable

from agenttx_server.engine.ports import Clock

__all__ = ["Shedding"]

EVERY_SECONDS = 0.05
MOST_REFUSED = 0.95
"""Some are always let in: else nothing would show when there is room again."""
SMOOTHING = 0.3
"""Weight of a look beside those before: one late turn of the loop, or one slow fsync, is no overload."""
RETRY_AFTER_SECONDS = (0.5, 2.5)
"""When to come again, from little refused to nearly all; spread by up to half of it."""
GOLDEN = 0.6180339887498949


class Shedding:
    """The share of new work that is refused, 0 to 0.95.

    Args:
        target_seconds: How late the loop may be; 0 refuses none.
        target_queued: How many sets of writes may wait to be committed.
    """

    def __init__(self, target_seconds: float, target_queued: int = 1) -> None:
        self._target = target_seconds
        self._target_queued = target_queued
        self._load = 0.0
        self._owed = 0.0
        self._spread = 0.0
        self.share = 0.0

    def observe(self, late_seconds: float, queued: int) -> None:
        """Take one look: how late the loop was, and how many sets wait."""
        if not self._target:
            return
        load = max(late_seconds / self._target, queued / self._target_queued)
        self._load += SMOOTHING * (load - self._load)
        self.share = min(max(self._load - 1, 0.0), MOST_REFUSED)

    def refuses(self) -> bool:
        """Whether to refuse the next call that may be refused: that share of them, evenly."""
        if not self.share:
            return False
        self._owed += self.share
        if self._owed < 1:
            return False
        self._owed -= 1
        return True

    def retry_after_seconds(self) -> float:
        """When the one that is refused now should come again: not all at once, so each is told another time."""
        self._spread = (self._spread + GOLDEN) % 1
        least, most = RETRY_AFTER_SECONDS
        wait = least + (most - least) * self.share / MOST_REFUSED
        return round(wait * (0.75 + self._spread / 2), 3)

    async def follow(self, clock: Clock, queued: Callable[[], int]) -> None:
        """Look again and again until cancelled; ``queued`` says how many sets wait."""
        while True:
            due = clock.monotonic() + EVERY_SECONDS
            await clock.sleep(EVERY_SECONDS)
            self.observe(max(clock.monotonic() - due, 0.0), queued())
