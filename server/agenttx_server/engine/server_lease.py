"""This server's lease: how long the others take it to be alive, and may not take over its work.

Where one server has the database to itself a lease never ends. Where several share it, the
lease is renewed in good time; a server that can't renew starts nothing that has outside effects,
because another one may by then be undoing or repeating what it did. What it still writes is
held off by the revision guard: a takeover moves the revision on.
"""

from __future__ import annotations

import asyncio
import logging

from agenttx_server.engine.engine_activity import LeaseStanding
from agenttx_server.engine.ports import Clock, IdSource, StoreUnavailable, TransactionStore
from agenttx_server.engine.records import ServerId

__all__ = ["LeaseEnded", "ServerLease"]

_LOGGER = logging.getLogger(__name__)
_RENEWALS_A_LEASE = 3
_NOBODY = ServerId("")
# Of a server that has its database to itself: ten years.
_FOR_LIFE = 315_360_000.0
# Of a lease, what must be left for something to be started under it: a tool that was begun has
# that long to register its undo before another server may settle its step.
_MARGIN = 1 / 4


class LeaseEnded(StoreUnavailable):
    """Too little is left of the lease to start something."""


class ServerLease:
    """Keeps the lease of one life of a server; a lease that ended is replaced by one with a new id."""

    def __init__(
        self,
        store: TransactionStore,
        clock: Clock,
        ids: IdSource,
        server_id: ServerId,
        lease_seconds: float,
    ) -> None:
        self.id = server_id
        self._store = store
        self._clock = clock
        self._ids = ids
        self._seconds = lease_seconds if store.is_shared else _FOR_LIFE
        self._held_until = 0.0  # on the monotonic clock, counted from before the request
        self._is_open = False
        # One at a time: a second renewal would find the new id of the first not yet registered, and take a third.
        self._renewing = asyncio.Lock()
        self._renewed = self._failed = self._lost = 0

    @property
    def standing(self) -> LeaseStanding:
        """How the lease stands."""
        left = self._held_until - self._clock.monotonic() if self._store.is_shared else None
        return LeaseStanding(left, self._renewed, self._failed, self._lost)

    async def open(self) -> None:
        """Take the lease. Raises StoreUnavailable."""
        asked_at = self._clock.monotonic()
        await self._store.register_server(self.id, self._seconds, self._clock.now())
        self._held_until = asked_at + self._seconds
        self._is_open = True

    async def keep(self) -> None:
        """Renew the lease until cancelled."""
        while True:
            await self._clock.sleep(self._seconds / _RENEWALS_A_LEASE)
            try:
                await self.renew()
            except StoreUnavailable as error:
                self._failed += 1
                _LOGGER.warning("the lease could not be renewed: %s", error)

    async def renew(self) -> None:
        """Renew the lease once; take a new one, with a new id, if it has ended. Raises StoreUnavailable."""
        async with self._renewing:
            await self._renew()

    async def _renew(self) -> None:
        asked_at = self._clock.monotonic()
        if await self._store.renew_lease(self.id, self._seconds, self._clock.now()):
            self._held_until = asked_at + self._seconds
            self._renewed += 1
            return
        self._lost += 1
        lost, self.id = self.id, ServerId(self._ids.new_id())
        _LOGGER.warning("the lease of server %s ended; this server goes on as %s", lost, self.id)
        await self.open()

    async def assure(self) -> None:
        """Renew the lease if too little of it is left to start something. Raises StoreUnavailable."""
        if self._has_enough():
            return
        async with self._renewing:
            if not self._has_enough():  # whoever renewed it meanwhile did so for all
                await self._renew()

    async def close(self) -> None:
        """Give the lease back. Raises StoreUnavailable."""
        if self._is_open:
            self._is_open = False
            await self._store.retire_server(self.id)

    def check(self, owner: ServerId = _NOBODY) -> None:
        """Raise LeaseEnded unless enough of the lease is left to start something with outside effects.

        ``owner`` is the name under which the work was taken up: a lease that ended meanwhile may have been
        followed by the next one, but the work by another server.
        """
        if not self._store.is_shared:
            return
        if owner not in (_NOBODY, self.id):
            raise LeaseEnded("this server's lease ended while it was at work on the transaction")
        if not self._has_enough():
            raise LeaseEnded("this server could not renew its lease; it starts nothing until it has")

    def _has_enough(self) -> bool:
        left = self._held_until - self._clock.monotonic()
        return not self._store.is_shared or left >= self._seconds * _MARGIN
