"""Wakes those who follow a journal once something new in it is durable."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

__all__ = ["EventSignals"]

Key = TypeVar("Key", bound=str)


class EventSignals(Generic[Key]):
    """Followers wait here and read from the store; nothing is queued for them. The key names the journal."""

    def __init__(self) -> None:
        self._waiting: dict[Key, set[asyncio.Future[None]]] = {}

    @property
    def is_waited_on(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def notify(self, key: Key) -> None:
        """Wake everyone who waits on a key."""
        for waiter in self._waiting.pop(key, ()):
            if not waiter.done():
                waiter.set_result(None)

    def notify_all(self) -> None:
        """Wake everyone."""
        for key in tuple(self._waiting):
            self.notify(key)

    def subscribe(self, key: Key) -> asyncio.Future[None]:
        """Return a future done at the next event. Take it before reading, so that none is missed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(waiter)
        waiter.add_done_callback(lambda done: self._forget(key, done))
        return waiter

    def _forget(self, key: Key, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiting.get(key)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiting[key]
