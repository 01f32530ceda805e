"""The life of a server's runs: recovered before it serves and while it does, told what they are asked for, drained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from agenttx_server.engine.ports import Clock, StoredValueDamaged, StoreUnavailable
from agenttx_server.graphs.runs.event_following import JournalPoll
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator
from agenttx_server.graphs.runs.run_stops import RunStops
from agenttx_server.graphs.runs.waiting_runs import WaitingRuns

__all__ = ["RunLife"]

_LOGGER = logging.getLogger(__name__)
_PURGE_EVERY_SECONDS = 60.0


class RunLife:
    """Looks after the runs of one server.

    ``stops`` stops them, ``waiting`` ends waits that last too long, ``poll`` finds what other servers write of theirs,
    ``purges`` delete what nobody needs any more.
    """

    def __init__(
        self,
        runs: RunCoordinator,
        stops: RunStops,
        waiting: WaitingRuns,
        poll: JournalPoll,
        purges: Sequence[Callable[[], Awaitable[int]]],
        clock: Clock,
    ) -> None:
        self.runs = runs
        self.stops = stops
        self._waiting = waiting
        self._poll = poll
        self._purges = purges
        self._clock = clock
        self._background: list[asyncio.Task[None]] = []

    async def start(self, recover_every_seconds: float) -> None:
        """Go on with what dead servers left behind, and keep looking for more. Raises StoreUnavailable."""
        try:
            while await self._recover():
                pass
        except StoredValueDamaged as error:  # one run's; the others, and all else, are served
            _LOGGER.error("runs of servers that are gone are not gone on with: %s", error)
        self._spawn(
            self._watch(recover_every_seconds),
            self._end_waits(recover_every_seconds),
            self._keep_purged(),
            self.stops.follow(),
            self._poll.follow(),
        )

    async def stop(self) -> None:
        """End the work in the background; after the drain."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def begin_drain(self) -> None:
        """Have runs let go of at their next boundary: another server, or the next start, goes on with them."""
        self.runs.begin_drain()

    async def drain(self, timeout_seconds: float) -> int:
        """Wait for that; return how many runs are left in mid-superstep when time is up."""
        return await self.runs.stop(timeout_seconds)

    async def _watch(self, every_seconds: float) -> None:
        while True:
            await self._clock.sleep(every_seconds)
            try:
                await self._recover()
            except (StoreUnavailable, StoredValueDamaged) as error:
                _LOGGER.warning("runs of servers that are gone could not be looked for: %s", error)

    async def _end_waits(self, every_seconds: float) -> None:
        while True:
            await self._clock.sleep(every_seconds)
            if self.runs.is_draining:
                continue
            try:
                ended = await self._waiting.end_overdue()
            except (StoreUnavailable, StoredValueDamaged) as error:
                _LOGGER.warning("runs that have waited too long could not be looked for: %s", error)
            else:
                if ended:
                    _LOGGER.info("rolled back %d runs that had waited too long", len(ended))

    async def _keep_purged(self) -> None:
        while True:
            await self._clock.sleep(_PURGE_EVERY_SECONDS)
            try:
                for purge in self._purges:
                    await purge()
            except (StoreUnavailable, StoredValueDamaged) as error:
                _LOGGER.warning("what nobody needs any more could not be deleted: %s", error)

    async def _recover(self) -> bool:
        if self.runs.is_draining:
            return False
        recovered = await self.runs.recover(self._clock.now())
        if recovered:
            _LOGGER.info("going on with %d runs", len(recovered))
            await self.stops.take(tuple(recovered))
        return bool(recovered)

    def _spawn(self, *work: Coroutine[None, None, None]) -> None:
        self._background += [asyncio.get_running_loop().create_task(item) for item in work]
