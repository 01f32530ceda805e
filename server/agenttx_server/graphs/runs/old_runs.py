"""Runs without a thread are kept as long as ended transactions: nobody goes on with them."""

from __future__ import annotations

import logging

from agenttx_server.engine.ports import Clock
from agenttx_server.graphs.runs.ports import RunStore

__all__ = ["OldRuns"]

_LOGGER = logging.getLogger(__name__)


class OldRuns:
    """Deletes runs without a thread that ended more than ``retention_seconds`` ago."""

    def __init__(self, store: RunStore, clock: Clock, retention_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._retention_us = int(retention_seconds * 1_000_000)

    async def purge(self) -> int:
        """Delete them, with their journals; return how many. Raises StoreUnavailable."""
        purged = await self._store.purge_runs(self._clock.now() - self._retention_us)
        if purged:
            _LOGGER.info("purged %d runs without a thread that ended before their retention", purged)
        return purged
