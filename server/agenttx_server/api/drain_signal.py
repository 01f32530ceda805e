"""Tells streams that wait for something that the server is shutting down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from agenttx_server.engine.errors import Unavailable

__all__ = ["DrainSignal", "Interruptible"]

T = TypeVar("T")


class DrainSignal:
    """Raised once, for good. What waits through an :class:`Interruptible` stops waiting."""

    def __init__(self) -> None:
        self.raised = False
        self._waiting: set[Interruptible] = set()

    def begin_drain(self) -> None:
        """End every wait that is under way; later ones end at once."""
        self.raised = True
        for waiting in tuple(self._waiting):
            waiting.interrupt()

    def enter(self, waiting: Interruptible) -> None:
        """Have a wait ended."""
        self._waiting.add(waiting)

    def leave(self, waiting: Interruptible) -> None:
        """No longer."""
        self._waiting.discard(waiting)


class Interruptible:
    """Waits that draining ends, of the task that uses it and one after another.

    The task itself is cancelled while it waits, and only then: a second task for every wait
    would cost more than a small step does.
    """

    def __init__(self, drain: DrainSignal, advice: str) -> None:
        self.advice = advice
        self._drain = drain
        self._task: asyncio.Task[object] | None = None
        self._is_waiting = False
        self._was_interrupted = False

    def __enter__(self) -> Interruptible:
        self._task = asyncio.current_task()
        self._drain.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._drain.leave(self)

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Return what is waited for; raise Unavailable with the current advice if the server drains."""
        if self._drain.raised:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()
            raise self._unavailable()
        self._is_waiting = True
        try:
            return await awaitable
        except asyncio.CancelledError:
            # Cancelled from outside as well, it stays cancelled.
            if self._was_interrupted and self._task is not None and self._task.uncancel() == 0:
                raise self._unavailable() from None
            raise
        finally:
            self._is_waiting = False

    def interrupt(self) -> None:
        """End the wait under way, if there is one."""
        if self._is_waiting and self._task is not None:
            self._was_interrupted = True
            self._task.cancel()

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"the server is shutting down; {self.advice}", reason="DRAINING")
