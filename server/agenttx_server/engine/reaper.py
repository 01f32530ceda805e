"""Ends transactions that nobody comes back to, and deletes those that ended long ago.

A transaction is idle while it is ACTIVE and nothing of it runs, or while a step of it was approved and is not
sent again; what is in doubt, waits for a decision or is held stops the clock. A deadline waits for who
settles a doubt or a failed undo, but not for an approval: of that step nothing has run. Only time in which
this server has served counts: an outage ends nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from agenttx_server.engine.errors import EngineError
from agenttx_server.engine.ports import StoredValueDamaged, StoreUnavailable
from agenttx_server.engine.records import (
    MicrosecondsUtc,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
)
from agenttx_server.engine.services import EngineServices

__all__ = ["Reaper", "expiry_reason"]

_LOGGER = logging.getLogger(__name__)
_EXPIRED_AT_ONCE = 200
_PURGED_AT_ONCE = 50
# Between two batches, so that steps never wait behind a row of them.
_SECONDS_BETWEEN_PURGES = 0.02


def expiry_reason(
    record: TransactionRecord,
    now: MicrosecondsUtc,
    serving_since: MicrosecondsUtc,
    *,
    is_asked: bool = False,
) -> str:
    """Return why a transaction is to be rolled back now, empty if it isn't; ``is_asked``: a person is asked about it."""
    if record.status in (TransactionStatus.IN_DOUBT, TransactionStatus.ROLLING_BACK):
        return ""
    if record.status.is_terminal:
        return ""
    if record.deadline_at is not None and record.deadline_at <= now:
        return "its deadline passed"
    idle = record.idle_timeout_us
    is_quiet = record.status is TransactionStatus.ACTIVE or (
        record.status is TransactionStatus.AWAITING_APPROVAL and not is_asked
    )
    if idle and is_quiet and max(record.updated_at, serving_since) + idle <= now:
        return f"it was idle for {idle / 1_000_000:g} s"
    return ""


class Reaper:
    """Looks for expired and for old transactions; ``expire`` rolls one back."""

    def __init__(self, services: EngineServices, expire: Callable[[TransactionId], Awaitable[None]]) -> None:
        self._store = services.store
        self._clock = services.clock
        self._settings = services.settings
        self._expire = expire
        self.serving_since = MicrosecondsUtc(0)  # until it watches

    async def watch(self) -> None:
        """Roll back what has expired and delete what is old, again and again, until cancelled."""
        self.serving_since = self._clock.now()
        while True:
            await self._clock.sleep(self._settings.reap_interval_seconds)
            try:
                await self.expire_once()
                await self.purge_once()
            except (StoreUnavailable, StoredValueDamaged) as error:
                self.serving_since = self._clock.now()  # nobody was served either
                _LOGGER.warning("expired transactions could not be looked for: %s", error)

    async def expire_once(self) -> int:
        """Roll back every transaction that has expired; return how many were looked at."""
        expired = await self._store.list_expired(self._clock.now(), self.serving_since, _EXPIRED_AT_ONCE)
        for transaction_id in expired:
            try:
                await self._expire(transaction_id)
            except (EngineError, StoredValueDamaged) as refused:
                _LOGGER.warning("transaction=%s could not be ended: %s", transaction_id, refused)
        return len(expired)

    async def purge_once(self) -> int:
        """Delete the transactions whose retention is over, in small batches; return how many."""
        before = MicrosecondsUtc(self._clock.now() - int(self._settings.retention_seconds * 1_000_000))
        purged = 0
        while True:
            count = await self._store.purge_ended(before, _PURGED_AT_ONCE)
            purged += count
            if count < _PURGED_AT_ONCE:
                break
            await self._clock.sleep(_SECONDS_BETWEEN_PURGES)
        if purged:
            _LOGGER.info("purged %d transactions that ended before their retention", purged)
        return purged
