"""Wakes those who follow a transaction's events once something new is durable."""

from __future__ import annotations

import asyncio

from agenttx_server.engine.records import TransactionId

__all__ = ["EventSignals"]


class EventSignals:
    """Followers wait here and read from the store; nothing is queued for them."""

    def __init__(self) -> None:
        self._waiting: dict[TransactionId, set[asyncio.Future[None]]] = {}

    def notify(self, transaction_id: TransactionId) -> None:
        """Wake everyone who waits on a transaction."""
        for waiter in self._waiting.pop(transaction_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def subscribe(self, transaction_id: TransactionId) -> asyncio.Future[None]:
        """Return a future done at the next event. Take it before reading, so that none is missed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(transaction_id, set()).add(waiter)
        waiter.add_done_callback(lambda done: self._forget(transaction_id, done))
        return waiter

    def _forget(self, transaction_id: TransactionId, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiting.get(transaction_id)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiting[transaction_id]
