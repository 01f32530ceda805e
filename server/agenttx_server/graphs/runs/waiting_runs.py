"""Rolls back runs that have waited as long as their ``wait_timeout``, whichever server they were last on.

Several servers may look at the same time: who has the turn at a run's transaction looks again, and a run that was
gone on with meanwhile is left alone.
"""

from __future__ import annotations

import logging

from agenttx_server.engine.errors import EngineError
from agenttx_server.engine.ports import Clock, ExtraRowsRefused, StaleRevision
from agenttx_server.graphs.runs.ports import RunStore
from agenttx_server.graphs.runs.requests import RunRefused
from agenttx_server.graphs.runs.run_rewinder import RunRewinder

__all__ = ["WaitingRuns"]

_LOGGER = logging.getLogger(__name__)
_PAGE = 100
_FROM_THE_FIRST = (-1, "")


class WaitingRuns:
    """Ends waits that have lasted too long."""

    def __init__(self, store: RunStore, rewinds: RunRewinder, clock: Clock) -> None:
        self._store = store
        self._rewinds = rewinds
        self._clock = clock

    async def end_overdue(self) -> list[str]:
        """Roll back what has waited too long; return the runs. Raises StoreUnavailable.

        One after the other; one that can't be rolled back now is tried again the next time, and holds up no other.
        """
        ended: list[str] = []
        now, after = self._clock.now(), _FROM_THE_FIRST
        while True:
            page = await self._store.list_overdue(now, after, _PAGE)
            for run in page:
                assert run.waits_until is not None, "an overdue run has a time to wait"
                after = (run.waits_until, run.run_id)
                if await self._end(run.run_id, now):
                    ended.append(run.run_id)
            if len(page) < _PAGE:
                return ended

    async def _end(self, run_id: str, now: int) -> bool:
        try:
            return await self._rewinds.roll_back_overdue(run_id, now)
        except (RunRefused, EngineError, StaleRevision, ExtraRowsRefused) as refused:
            # Somebody goes on with it, or undo that failed holds it.
            _LOGGER.info("run=%s has waited too long, and is not rolled back now: %s", run_id, refused)
            return False
