"""Tasks that belong to the server, not to the call that started them.

What must finish runs here: a client that goes away, or a handler that is cancelled, only
stops waiting. Shutdown waits for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["OwnedTasks"]

T = TypeVar("T")


class OwnedTasks:
    """Spawns and tracks tasks; each failure is seen by its waiter or by the log."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that runs to its end whoever waits."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end; cancelling this call leaves the work running."""
        return await asyncio.shield(self.spawn(work))

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keep a task that nobody waits for any more; its outcome is of no further use."""
        if not task.done():
            self._running.add(task)
            task.add_done_callback(self._ended)

    def hold(self, work: asyncio.Future[Any]) -> None:
        """Count work of the server's that no task does, until it is let go of."""
        self._running.add(work)

    def let_go(self, work: asyncio.Future[Any]) -> None:
        """The work is over, and its outcome was seen to."""
        self._running.discard(work)

    async def wait_all(self, timeout_seconds: float) -> int:
        """Wait for the running tasks, new ones too; return how many are left when time is up."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_seconds
        while self._running:
            left = end - loop.time()
            if left <= 0:
                break
            await asyncio.wait(set(self._running), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return len(self._running)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as seen: a waiter that left must not cause a warning
