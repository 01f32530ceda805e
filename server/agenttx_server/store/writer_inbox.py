"""What waits for the writer's thread.

A thread that is woken takes the interpreter lock from the event loop, which then has to get it back: with a
wake-up a set, a crowd's sets cost the loop two such turns each. So whoever puts something in wakes the
thread only when as much is there as it waits for, and never while it is at work.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Generic, TypeVar

__all__ = ["WriterInbox"]

Item = TypeVar("Item")
_NOT_WAITING = sys.maxsize


class WriterInbox(Generic[Item]):
    """A queue of many threads to one. ``take`` and ``wait`` belong to that one; others may take back what waits."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._lock = threading.Lock()
        # How many items end the wait that is under way.
        self._wanted = _NOT_WAITING
        # Held, but for the moment between the waking and the waking up.
        self._woken = threading.Lock()
        self._woken.acquire()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item, *, at_once: bool = False) -> None:
        """Add an item; ``at_once`` ends a wait for more of them."""
        with self._lock:
            self._items.append(item)
            if self._wanted == _NOT_WAITING or (len(self._items) < self._wanted and not at_once):
                return
            self._wanted = _NOT_WAITING
        self._woken.release()

    def take(self) -> Item | None:
        """Return the oldest item, None if there is none."""
        if not self._items:
            return None
        try:
            return self._items.popleft()
        except IndexError:  # the last one was withdrawn just now
            return None

    def waiting(self) -> list[Item]:
        """Return what waits now, oldest first."""
        return list(self._items)

    def withdraw(self, item: Item) -> bool:
        """Take out an item, which others equal only if they are it; False if it was taken already."""
        try:
            self._items.remove(item)  # at one go, for no item has a comparison written in Python
        except ValueError:
            return False
        return True

    def wait(self, wanted: int, seconds: float) -> None:
        """Wait until so many items are there, or one that is to be done at once comes, at most so long."""
        with self._lock:
            if len(self._items) >= wanted:
                return
            self._wanted = wanted
        if self._woken.acquire(timeout=seconds):
            return
        with self._lock:
            was_woken = self._wanted == _NOT_WAITING
            self._wanted = _NOT_WAITING
        if was_woken:  # just as the time was up
            self._woken.acquire()
