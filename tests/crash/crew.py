"""The workers of a run, which offer the tools: started, killed, stopped for too long, started again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.crash.fleet import Fleet
from tests.crash.starter import fork_process, when_ended
from tests.support.crash_tools import LOG_VARIABLE, REFUSES_LATE_VARIABLE

__all__ = ["SILENCE_SECONDS", "Crew", "WorkerKiller", "open_crew"]

# The servers' silence limit. A worker that is stopped for longer is given up, also one that runs nothing.
SILENCE_SECONDS = 1.5
_STOP_SHARE = 0.2
_STOP_SECONDS = (0.5 * SILENCE_SECONDS, 3 * SILENCE_SECONDS)
_LONGEST_LIFE_SECONDS = 0.8
_LONGEST_ABSENCE_SECONDS = 0.4


@dataclass(eq=False)
class WorkerLife:
    """One worker process from its start to its end."""

    pid: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Crew:
    """``size`` workers, each connected to every server of a fleet."""

    def __init__(self, fleet: Fleet, size: int) -> None:
        self.size = size
        self.lives: dict[int, WorkerLife] = {}
        self._fleet = fleet

    def start(self, index: int) -> None:
        """Start a worker; it connects by itself."""
        sockets = (self._fleet.worker_socket(number) for number in range(self._fleet.servers))
        pid = fork_process(
            {
                "worker_of": " ".join(f"unix:{socket}" for socket in sockets),
                LOG_VARIABLE: str(self._fleet.world_log),
                REFUSES_LATE_VARIABLE: "yes",
                "stderr": str(self._fleet.directory / f"worker-{index}.log"),
            }
        )
        life = self.lives[index] = WorkerLife(pid)
        when_ended(pid, life.ended.set)

    async def kill(self, index: int) -> None:
        """Send SIGKILL and wait for the end. Raises AssertionError if it had ended by itself."""
        life = self.lives[index]
        if life.ended.is_set():
            text = (self._fleet.directory / f"worker-{index}.log").read_text()
            raise AssertionError(f"worker {index} ended by itself:\n{text[-4000:]}")
        life.signal(signal.SIGKILL)
        await life.ended.wait()

    async def kill_all(self) -> None:
        """Leave none."""
        for life in self.lives.values():
            life.signal(signal.SIGKILL)
            await life.ended.wait()


@asynccontextmanager
async def open_crew(fleet: Fleet, size: int) -> AsyncIterator[Crew]:
    """Start workers; those that run at the end are killed."""
    crew = Crew(fleet, size)
    try:
        for index in range(size):
            crew.start(index)
        yield crew
    finally:
        await crew.kill_all()


class WorkerKiller:
    """Kills workers at random instants, ``kills`` in all, and now and then stops one, mostly for longer than it may be silent.

    One that was stopped goes on with what it was at; what it answers then has to be dropped. ``done`` counts both.
    """

    def __init__(self, seed: str, kills: int, crew: Crew, done: Counter[str]) -> None:
        self.done = done
        self._kills = kills
        self._crew = crew
        self._chance = random.Random(f"{seed} worker killer")

    async def work(self) -> None:
        """Return once there were kills enough; then all workers run."""
        while self.done["killed"] < self._kills:
            await asyncio.sleep(self._chance.random() * _LONGEST_LIFE_SECONDS)
            index = self._chance.randrange(self._crew.size)
            if self._chance.random() < _STOP_SHARE:
                await self._stop(index)
            else:
                await self._kill(index)

    async def _kill(self, index: int) -> None:
        await self._crew.kill(index)
        self.done["killed"] += 1
        await asyncio.sleep(self._chance.random() * _LONGEST_ABSENCE_SECONDS)
        self._crew.start(index)

    async def _stop(self, index: int) -> None:
        life = self._crew.lives[index]
        life.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self._chance.uniform(*_STOP_SECONDS))
        finally:
            life.signal(signal.SIGCONT)
        self.done["stopped"] += 1
