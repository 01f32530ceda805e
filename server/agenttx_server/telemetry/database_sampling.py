"""What stands open in the database, counted every so often and not for each scrape."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from agenttx_server.engine.ports import Clock, StoreUnavailable
from agenttx_server.engine.records import EffectState, MicrosecondsUtc, TransactionStatus, UndoState
from agenttx_server.store.standing import Standing, StandingCounts
from agenttx_server.telemetry import metric_families as families
from agenttx_server.telemetry.exposition import Values

__all__ = ["DatabaseSampling"]

_LOGGER = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
# Where there is much to count, counting takes at most one part in so many of a reader thread's time.
_PARTS = 20
_NOTHING = Standing()
_WAITING_UNDO = (UndoState.FAILED, UndoState.LATE, UndoState.AWAITING_AGENT)
_OPEN = tuple(status for status in TransactionStatus if not status.is_terminal)


class DatabaseSampling:
    """Keeps the last count. Of several servers that share a database each tells the same, so take one's or the greatest."""

    def __init__(self, count: Callable[[], Awaitable[StandingCounts]], clock: Clock) -> None:
        self._count = count
        self._clock = clock
        self._counts: StandingCounts | None = None
        self._counted_at: MicrosecondsUtc | None = None

    async def follow(self) -> None:
        """Count every so often until cancelled; while the database does not answer, the last count stands."""
        while True:
            began = self._clock.monotonic()
            try:
                self._counts = await self._count()
                self._counted_at = self._clock.now()
            except StoreUnavailable as error:
                _LOGGER.warning("what stands open could not be counted: %s", error)
            except Exception:
                _LOGGER.exception("what stands open could not be counted")
            took = self._clock.monotonic() - began
            await self._clock.sleep(max(EVERY_SECONDS, took * _PARTS))

    def read(self, values: Values) -> None:
        """Write the last count; a source of :class:`.exposition.Exposition`."""
        counts, at = self._counts, self._counted_at
        if counts is None or at is None:
            return
        now = self._clock.now()
        values.number(families.DATABASE_SAMPLE_AGE, (now - at) / 1_000_000)
        for status in _OPEN:
            standing = counts.transactions.get(status, _NOTHING)
            values.number(families.TRANSACTIONS_OPEN, standing.count, status.value)
            values.number(families.TRANSACTIONS_OLDEST, _age(standing, now), status.value)
        values.number(families.TRANSACTIONS_HELD, counts.held)
        values.number(families.TRANSACTIONS_UNRECOVERED, counts.unrecovered)
        for undo in _WAITING_UNDO:
            values.number(families.UNDO_WAITING, counts.undo.get(undo, 0), undo.value)
        for effect in (EffectState.READY, EffectState.DEAD):
            standing = counts.effects.get(effect, _NOTHING)
            values.number(families.EFFECTS_WAITING, standing.count, effect.value)
            values.number(families.EFFECTS_OLDEST, _age(standing, now), effect.value)
        values.number(families.APPROVALS_PENDING, counts.approvals.count)
        values.number(families.APPROVALS_OLDEST, _age(counts.approvals, now))


def _age(standing: Standing, now: MicrosecondsUtc) -> float:
    return 0.0 if standing.since is None else max(now - standing.since, 0) / 1_000_000
