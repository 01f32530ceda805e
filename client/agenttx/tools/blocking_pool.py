"""Daemon threads for code that blocks, so that the event loop never does.

Not ``asyncio.to_thread``: its threads are joined when the interpreter exits, so one stuck
tool would keep the server from stopping, and its pool is shared with everything else.
A call is never abandoned: cancelling the wait for it asks the code to stop (``on_cancel``)
and goes on waiting until the thread has ended the call, because until then its effects
may still come.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["BlockingPool", "NeverStarted", "waiting_for_another_call"]

Result = TypeVar("Result")

IDLE_SECONDS = 30.0

_thread = threading.local()


class NeverStarted(asyncio.CancelledError):
    """The wait was cancelled while the call was still queued: its code has not run and never will."""


class _Call:
    """One piece of blocking work; either a thread starts it or its caller withdraws it, never both."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.result: Any = None
        self.error: BaseException | None = None
        self._work = work
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._taken = False

    def take(self) -> bool:
        with self._lock:
            taken, self._taken = self._taken, True
            return not taken

    def run(self) -> None:
        try:
            self.result = self._context.run(self._work)
        except BaseException as error:
            self.error = error
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


@contextlib.contextmanager
def waiting_for_another_call() -> Iterator[None]:
    """Have a pool's thread not count while it waits for a call that may need a thread of the same pool."""
    pool: BlockingPool | None = getattr(_thread, "pool", None)
    if pool is None:
        yield
        return
    pool._lend()
    try:
        yield
    finally:
        pool._take_back()


class BlockingPool:
    """At most ``max_threads`` daemon threads at work, started when needed, ended when idle; excess calls wait."""

    def __init__(self, max_threads: int, name: str) -> None:
        if max_threads < 1:
            raise ValueError(f"a pool needs at least one thread, not {max_threads}")
        self._max_threads = max_threads
        self._name = name
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting_threads = 0
        self._lent = 0
        self._queued = 0

    @property
    def threads(self) -> int:
        """How many threads there are now."""
        return self._threads

    @property
    def waiting(self) -> int:
        """How many calls wait for a thread."""
        return self._queued

    @property
    def idle_threads(self) -> int:
        """How many of them wait for a call."""
        return self._waiting_threads

    async def run(self, work: Callable[[], Result], on_cancel: Callable[[], None] = lambda: None) -> Result:
        """Run ``work`` in a thread; return its result or raise its error.

        Cancelled while queued: raises NeverStarted at once. Cancelled while running: calls
        ``on_cancel``, waits for the end of the code, then raises CancelledError from
        whatever the code raised.
        """
        call = _Call(work)
        self._submit(call)
        cancelled: asyncio.CancelledError | None = None
        while not call.ended.done():
            try:
                await asyncio.shield(call.ended)
            except asyncio.CancelledError as error:
                if cancelled is None and call.take():
                    raise NeverStarted("cancelled while waiting for a free thread") from None
                cancelled = error
                on_cancel()
        try:
            if cancelled is not None:
                raise cancelled from call.error
            if call.error is not None:
                raise call.error
            result: Result = call.result
            return result
        finally:
            del call, cancelled  # a frame that holds an error which holds the frame is a cycle

    def _submit(self, call: _Call) -> None:
        with self._lock:
            self._calls.put(call)
            self._queued += 1
            self._start_if_needed()

    def _start_if_needed(self) -> None:
        if self._queued > self._waiting_threads and self._threads - self._lent < self._max_threads:
            self._start_thread()

    def _lend(self) -> None:
        with self._lock:
            self._lent += 1
            self._start_if_needed()

    def _take_back(self) -> None:
        with self._lock:
            self._lent -= 1

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{self._threads + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if self._threads == 0:
                raise
            return  # no more threads can be had: those that run will take the call
        self._threads += 1

    def _work(self) -> None:
        _thread.pool = self
        while (call := self._next_call()) is not None:
            if call.take():
                call.run()
            del call

    def _next_call(self) -> _Call | None:
        with self._lock:
            self._waiting_threads += 1
        try:
            call = self._calls.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            call = None
        with self._lock:
            self._waiting_threads -= 1
            if call is None:
                try:  # put between the timeout and the lock
                    call = self._calls.get_nowait()
                except queue.Empty:
                    self._threads -= 1
                    return None
            self._queued -= 1
        return call
