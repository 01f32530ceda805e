"""An event loop whose time passes at once, so that tests of timeouts are exact and take no time.

When nothing is ready to run, the clock jumps to the next timer. When there is no timer either, nothing
can ever happen again, and the test fails with :class:`Deadlock` instead of hanging.

    @virtual_time
    async def test_something() -> None: ...
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

__all__ = ["Deadlock", "VirtualTimeLoop", "current_loop", "idle", "run_in_virtual_time", "virtual_time"]

P = ParamSpec("P")
T = TypeVar("T")

# A thread that answers nothing for so long is stuck; a test then fails instead of hanging.
_REAL_PATIENCE_SECONDS = 120.0
# Work that looks again and again for what never comes keeps its timers: told by how often time has moved.
_MOST_JUMPS = 50_000


class Deadlock(Exception):
    """Everything waits, for nothing that could still come."""


class _Selector(selectors.DefaultSelector):
    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        events: list[Any] = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        return self.loop.nothing_is_ready(timeout, super().select)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time starts at 0 and moves only while everything waits."""

    def __init__(self) -> None:
        self._now = 0.0
        self._jumps = 0
        self._outside = 0
        self._idle: list[asyncio.Future[None]] = []
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    @contextmanager
    def waiting_for_a_thread(self) -> Iterator[None]:
        """Time stands still meanwhile: a thread works in real time."""
        self._outside += 1
        try:
            yield
        finally:
            self._outside -= 1

    async def shutdown_default_executor(self, *arguments: Any) -> None:
        with self.waiting_for_a_thread():
            await super().shutdown_default_executor(*arguments)

    def idle(self) -> asyncio.Future[None]:
        """A future that is done once everything else waits; no time passes until then."""
        future = self.create_future()
        self._idle.append(future)
        return future

    def nothing_is_ready(
        self, timeout: float | None, really_select: Callable[[float | None], list[Any]]
    ) -> list[Any]:
        """Jump in time, or find out that there is nothing to wait for."""
        if self._outside:
            events = really_select(_REAL_PATIENCE_SECONDS)
            if not events:
                raise Deadlock("a thread does not answer")
            return events
        if self._idle:
            waiting, self._idle = self._idle, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        elif timeout is None:
            raise Deadlock("everything waits and there is no timer")
        else:
            self._now += timeout
            self._jumps += 1
            if self._jumps > _MOST_JUMPS:
                raise Deadlock(f"after {self._now:.0f} s something still looks for what never comes")
        return []


def current_loop() -> VirtualTimeLoop:
    """The running loop of a test in virtual time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop), "the test does not run in virtual time"
    return loop


async def idle() -> None:
    """Let everything go on until all of it waits; no time passes."""
    await current_loop().idle()


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a test of a coroutine function, run in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_in_virtual_time(test(*args, **kwargs))

    return run
