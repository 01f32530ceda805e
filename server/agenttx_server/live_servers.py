"""Which servers share the database, for the workers that keep a connection to each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from agenttx_server.engine.ports import Clock, StoreUnavailable, TransactionStore
from agenttx_server.worker_messages import LiveServer

__all__ = ["LiveServers"]

_LOGGER = logging.getLogger(__name__)


class LiveServers:
    """The directory of a database's servers: this one alone, or whoever holds a lease where several share it.

    ``own_id`` tells this server's id, which changes if it loses its lease.
    """

    def __init__(self, own_id: Callable[[], str]) -> None:
        self._own_id = own_id
        self._others: tuple[str, ...] = ()
        self._news = asyncio.Event()

    @property
    def own_id(self) -> str:
        """This server."""
        return self._own_id()

    @property
    def listed(self) -> Sequence[LiveServer]:
        """All that are alive as far as this one knows, itself included."""
        return [LiveServer(server_id, "") for server_id in sorted({*self._others, self.own_id})]

    async def changes(self) -> AsyncIterator[Sequence[LiveServer]]:
        """Yield them after each change from now on."""
        told = self.listed
        while True:
            news = self._news
            if self.listed != told:
                told = self.listed
                yield told
            else:
                await news.wait()

    async def follow(self, store: TransactionStore, clock: Clock, seconds: float) -> None:
        """Look every so often, until cancelled, where several servers may share the database."""
        while store.is_shared:
            try:
                self._note(tuple(await store.list_servers(clock.now())))
            except StoreUnavailable as error:
                _LOGGER.warning("the servers could not be listed: %s", error)
            await clock.sleep(seconds)

    def _note(self, alive: tuple[str, ...]) -> None:
        if alive != self._others:
            self._others = alive
            self._news.set()
            self._news = asyncio.Event()
