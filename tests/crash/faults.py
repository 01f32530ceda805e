"""What befalls servers beside their death: they stand still, their clocks jump, their database stops or fails over, its disk is full."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tests.crash.databases import Database
from tests.crash.fleet import Fleet, Life
from tests.crash.warm_start import put_clock
from tests.support.postgres_cluster import PostgresCluster

__all__ = ["FAULTS", "FaultMaker"]

FAULTS = ("freezes", "clock_jumps", "outages", "full_disks", "failovers")
_PAUSE_SECONDS = 1.0
_OUTAGE_SECONDS = 3.0
_FULL_SECONDS = 1.5
# Retries of effects that were put off by a clock that was ahead are still due before the run's patience ends.
_LARGEST_JUMP_SECONDS = 20.0
_STARTS, _STARTS_PAUSE_SECONDS = 100, 0.1
_OUTAGES = ("fast", "immediate", "kill")


class Servers(Protocol):
    """Whoever starts and kills the servers."""

    def serving(self) -> Collection[Life]:
        """Those that serve now."""

    def none_starts(self) -> AbstractAsyncContextManager[None]:
        """Wait until none is starting, and have none started or killed until the block is left."""


class FaultMaker:
    """Makes so many faults of each kind, in an order that is drawn, one at a time; ``done`` counts them."""

    def __init__(
        self,
        seed: str,
        wanted: Mapping[str, int],
        lease_seconds: float,
        fleet: Fleet,
        database: Database,
        servers: Servers,
    ) -> None:
        self.done: Counter[str] = Counter()
        # One thread that lives as long as this process: with the one that started a cluster the cluster ends.
        self._thread = ThreadPoolExecutor(1)
        self._chance = random.Random(f"{seed} faults")
        self._wanted = [kind for kind, times in wanted.items() for _ in range(times)]
        self._chance.shuffle(self._wanted)
        self._lease_seconds = lease_seconds
        self._fleet = fleet
        self._database = database
        self._servers = servers
        self._makers: dict[str, Callable[[], Awaitable[bool]]] = {
            "freezes": self._freeze,
            "clock_jumps": self._jump,
            "outages": self._outage,
            "full_disks": self._fill_disk,
            "failovers": self._fail_over,
        }

    async def work(self) -> None:
        """Return once all were made; then nothing is wrong any more but what they left."""
        while self._wanted:
            await asyncio.sleep(self._chance.random() * _PAUSE_SECONDS)
            if await self._makers[self._wanted[-1]]():
                self.done[self._wanted.pop()] += 1
        for index in range(self._fleet.servers):
            put_clock(self._fleet.clock_file(index), 0.0)

    async def _freeze(self) -> bool:
        serving = sorted(self._servers.serving(), key=lambda life: life.index)
        if not serving:
            return False
        # From a hiccup to long after the lease.
        seconds = self._chance.uniform(0.3, 3) * self._lease_seconds
        await self._fleet.freeze(self._chance.choice(serving), seconds, self._chance)
        return True

    async def _jump(self) -> bool:
        index = self._chance.randrange(self._fleet.servers)
        jump = self._chance.uniform(-_LARGEST_JUMP_SECONDS, _LARGEST_JUMP_SECONDS)
        put_clock(self._fleet.clock_file(index), jump)
        return True

    async def _outage(self) -> bool:
        assert self._database.cluster is not None
        # A server that starts meanwhile says why it can't and ends, as it should.
        async with self._servers.none_starts():
            self._database.cluster.stop(self._chance.choice(_OUTAGES))  # type: ignore[arg-type]
            await asyncio.sleep(self._chance.random() * _OUTAGE_SECONDS)
            await self._start(self._database.cluster)
        return True

    async def _fail_over(self) -> bool:
        assert self._database.pair is not None
        async with self._servers.none_starts():
            await self._aside(self._database.pair.fail_over)
            await asyncio.sleep(self._chance.random() * _OUTAGE_SECONDS)
            await self._aside(self._database.pair.follow)
        return True

    async def _start(self, cluster: PostgresCluster) -> None:
        """Start it, once the last process of its life before has noticed that it is over."""
        for _ in range(_STARTS):
            try:
                await self._aside(cluster.start)
            except RuntimeError:
                await asyncio.sleep(_STARTS_PAUSE_SECONDS)
            else:
                return
        await self._aside(cluster.start)

    async def _aside(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _fill_disk(self) -> bool:
        assert self._database.disk is not None
        async with self._servers.none_starts():
            try:
                await self._aside(self._database.disk.fill)
                await asyncio.sleep(self._chance.random() * _FULL_SECONDS)
            finally:
                self._database.disk.free()
            if self._database.cluster is not None:
                await self._aside(self._database.cluster.revive)
        return True
