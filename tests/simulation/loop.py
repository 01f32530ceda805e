"""An event loop in virtual time that runs what is ready in an order of its own, and servers that stand still or die.

Every callback belongs to the process in whose context it was made: a server's life, or none (a client, the
database, the simulator). Those of a paused process are kept until it goes on, as if it had been stopped
by a signal; those of a dead one never run again, so that a crash leaves everything as it was between two awaits.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.virtual_time import Deadlock, VirtualTimeLoop

__all__ = ["Process", "Runaway", "SimulatedLoop", "in_process"]


class Runaway(Exception):
    """The history does not come to an end."""


@dataclass(eq=False)
class Process:
    """One life of a server. ``parked`` are its callbacks while it stands still."""

    name: str
    is_paused: bool = False
    is_dead: bool = False
    parked: list[asyncio.Handle] = field(default_factory=list)


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def in_process(process: Process | None) -> Context:
    """Return a context whose callbacks belong to a process."""
    context = copy_context()
    context.run(_PROCESS.set, process)
    return context


class SimulatedLoop(VirtualTimeLoop):
    """``disorder`` is how often what is ready changes its order, from 0 (never) to 1.

    ``on_callback`` is called when a process has run its ``next_fault``-th callback, counted over all.
    """

    _ready: Any
    _scheduled: Any

    def __init__(self, random: Random, disorder: float, most_callbacks: int) -> None:
        super().__init__()
        self.callbacks = 0
        self.next_fault = 0
        self.on_callback: Callable[[Process], None] = lambda _: None
        self._random = random
        self._disorder = disorder
        self._left = most_callbacks

    def resume(self, process: Process) -> None:
        """Let a paused process go on with what came to it meanwhile."""
        process.is_paused = False
        self._ready.extend(process.parked)
        process.parked.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Say nothing: what ends unseen belongs to a process that died."""

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:
            self._pass_time()
        while scheduled and scheduled[0]._when <= self._now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        if not ready:
            return
        batch = list(ready)
        ready.clear()
        if self._disorder and len(batch) > 1:
            batch = self._disturbed(batch)
        for handle in batch:
            if not handle._cancelled:
                self._run(handle)

    def _pass_time(self) -> None:
        if self._idle:
            waiting, self._idle = self._idle, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        elif self._scheduled:
            self._now = max(self._now, self._scheduled[0]._when)
        else:
            raise Deadlock("everything waits and there is no timer")

    def _disturbed(self, batch: list[asyncio.Handle]) -> list[asyncio.Handle]:
        chance, disorder = self._random.random, self._disorder
        if chance() < disorder:
            self._random.shuffle(batch)
        if chance() < disorder:
            now, later = [], []
            for handle in batch:
                (later if chance() < 0.3 else now).append(handle)
            if now:
                self._ready.extend(later)
                return now
        return batch

    def _run(self, handle: asyncio.Handle) -> None:
        process: Process | None = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
        self._left -= 1
        if self._left < 0:
            raise Runaway(f"too many callbacks; the time is {self._now:.3f}")
        if process is None:
            handle._run()
            return
        if process.is_dead:
            return
        if process.is_paused:
            process.parked.append(handle)
            return
        handle._run()
        self.callbacks += 1
        if self.callbacks == self.next_fault:
            self.on_callback(process)
