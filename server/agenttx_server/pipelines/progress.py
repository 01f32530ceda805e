"""What happens to runs, told to whoever follows them. A follower that is slow misses rows, and costs no more than that."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from agenttx_server.engine.frozen import dataclass
from agenttx_server.pipelines.unit_run import UnitEnded

__all__ = ["Progress", "Watch", "Watches"]

_MOST_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class Progress:
    """A root has ended; in a run that is one transaction, all have."""

    run_id: str
    place: int
    transaction_id: str
    ended: UnitEnded


class Watch:
    """What one follower has not taken yet."""

    def __init__(self) -> None:
        self._kept: deque[Progress] = deque(maxlen=_MOST_KEPT)
        self._news = asyncio.Event()

    def put(self, progress: Progress | None) -> None:
        """Tell of a row, or (None) that the run stands otherwise."""
        if progress is not None:
            self._kept.append(progress)
        self._news.set()

    def take(self) -> Progress | None:
        """The next row, None where there is none now."""
        return self._kept.popleft() if self._kept else None

    async def wait(self, seconds: float) -> None:
        """Wait for news, or so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()


class Watches:
    """Who follows which run on this server."""

    def __init__(self) -> None:
        self._of: dict[str, set[Watch]] = {}

    @contextmanager
    def watching(self, run_id: str) -> Iterator[Watch]:
        """Follow a run until the context is left."""
        watch = Watch()
        self._of.setdefault(run_id, set()).add(watch)
        try:
            yield watch
        finally:
            self._of[run_id].discard(watch)
            if not self._of[run_id]:
                del self._of[run_id]

    def tell(self, run_id: str, progress: Progress | None = None) -> None:
        """Tell everybody who follows a run."""
        for watch in self._of.get(run_id, ()):
            watch.put(progress)
