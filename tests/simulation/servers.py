"""Servers over one database: they start, crash, stand still and go on; and the network before them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar, cast

from tests.simulation.database import SimulatedStore, Weather
from tests.simulation.loop import Process, SimulatedLoop, in_process
from tests.simulation.plan import Plan
from tests.simulation.tools import SimulatedSink, SimulatedTools
from tests.simulation.world import World
from tests.support.engine_harness import FakeClock
from tests.support.memory_store import MemoryDatabase

from agenttx_server.engine import hints
from agenttx_server.engine.ports import StoreUnavailable, TransactionStore
from agenttx_server.engine.records import ServerId
from agenttx_server.engine.services import EngineServices, EngineSettings
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator

__all__ = ["Cluster", "ConnectionLost", "Server"]

T = TypeVar("T")

SETTINGS = EngineSettings(
    step_timeout_seconds=3.0,
    long_step_seconds=0.5,
    retry_base_seconds=0.05,
    stop_grace_seconds=1.0,
    idempotent_reruns=2,
    compensation_retries=2,
    compensation_timeout_seconds=2.0,
    compensation_backoff_seconds=0.1,
    dispatch_wait_seconds=0.5,
    effect_retry_base_seconds=0.2,
    effect_retry_max_seconds=2.0,
    effect_max_attempts=4,
    lease_seconds=3.0,
    recovery_wait_seconds=2.0,
    idle_timeout_seconds=0.0,
    reap_interval_seconds=4.0,
)


class ConnectionLost(Exception):
    """No answer came: whether the call was made is unknown."""


class _Ids:
    """Ids that tell where they were made, and chance from the seed."""

    def __init__(self, prefix: str, random: Random) -> None:
        self._prefix = prefix
        self._last = 0
        self.random = random.random

    def new_id(self) -> str:
        self._last += 1
        return f"{self._prefix}.{self._last}"


class Server:
    """One life of a server."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.process = Process(name)
        self.is_serving = False
        self.replies: dict[asyncio.Future[Any], None] = {}
        plan, world = cluster.plan, cluster.world
        self.sink = SimulatedSink(world, self.process, Random(f"sink {plan.seed} {name}"), plan.trouble)
        services = EngineServices(
            store=cast(
                "TransactionStore",
                SimulatedStore(
                    cluster.database, world, cluster.weather, self.process, is_shared=cluster.is_shared
                ),
            ),
            tools=SimulatedTools(world, self.process, Random(f"tools {plan.seed} {name}")),
            sink=self.sink,
            clock=FakeClock(),
            ids=_Ids(name, Random(f"ids {plan.seed} {name}")),
            clean=hints.clean,
            server_id=ServerId(name),
            settings=SETTINGS,
        )
        self.coordinator = in_process(self.process).run(TransactionCoordinator, services)

    async def start(self) -> None:
        """Begin to serve, however long the database stays away."""
        while True:
            try:
                await self.coordinator.start()
                break
            except StoreUnavailable:
                await asyncio.sleep(0.5)
        self.is_serving = True


class Cluster:
    """The servers of a plan, and calls to them."""

    def __init__(self, plan: Plan, world: World, loop: SimulatedLoop) -> None:
        self.plan = plan
        self.world = world
        self.weather = Weather(plan)
        self.database = MemoryDatabase()
        self.is_shared = plan.servers > 1
        self.servers: list[Server] = []
        self._loop = loop
        self._lives = [0] * plan.servers
        self._faults = sorted(
            [(at, "crash", seconds) for at, seconds in plan.crashes]
            + [(at, "pause", seconds) for at, seconds in plan.pauses]
        )
        self._background: list[asyncio.Task[Any]] = []
        loop.on_callback = self._fault
        self._arm()

    # --- life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start all servers."""
        self.servers = [self._new_life(number) for number in range(self.plan.servers)]

    def _new_life(self, number: int) -> Server:
        self._lives[number] += 1
        server = Server(self, f"{'ABC'[number]}{self._lives[number]}")
        self.world.note("start", server.process.name)
        self._keep(self._loop.create_task(server.start(), context=in_process(server.process)))
        return server

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._background.append(task)

    def _arm(self) -> None:
        if self._faults:
            self._loop.next_fault = max(self._faults[0][0], self._loop.callbacks + 1)

    def _fault(self, process: Process) -> None:
        _, kind, seconds = self._faults.pop(0)
        self._arm()
        number = next((index for index, server in enumerate(self.servers) if server.process is process), None)
        if number is None:  # it is about to start
            return
        if kind == "crash":
            self._crash(number)
            self._later(seconds, lambda: self._revive(number))
        else:
            process.is_paused = True
            self.world.note("pause", process.name, text=f"{seconds:.2f} s")
            self._later(seconds, lambda: self._resume(process))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._loop.call_later(seconds, act, context=in_process(None))

    def _crash(self, number: int) -> None:
        server = self.servers[number]
        server.process.is_dead = True
        server.process.parked.clear()
        server.is_serving = False
        self.world.kill(server.process.name)
        self.world.note("crash", server.process.name)
        for reply in list(server.replies):
            if not reply.done():
                reply.set_exception(ConnectionLost("the server died"))

    def _revive(self, number: int) -> None:
        if self.servers[number].process.is_dead:
            self.servers[number] = self._new_life(number)

    def _resume(self, process: Process) -> None:
        if process.is_paused and not process.is_dead:
            self.world.note("resume", process.name)
            self._loop.resume(process)
            self.world.stirred = self.world.time()

    def clear_up(self) -> None:
        """Nothing goes wrong any more, and every server is there."""
        self._faults.clear()
        self._loop.next_fault = 0
        self.weather.clear_up()
        for number, server in enumerate(self.servers):
            server.sink.trouble = 0.0
            self._resume(server.process)
            self._revive(number)
            self.servers[number].sink.trouble = 0.0
        self.world.note("calm", "")

    async def calm(self) -> None:
        """Return once every server serves."""
        for _ in range(1000):
            if self.is_calm:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("a server does not come up")

    async def stop(self) -> None:
        """Stop the servers in order."""
        for server in self.servers:
            task = self._loop.create_task(server.coordinator.stop(), context=in_process(server.process))
            self._keep(task)
            await asyncio.wait((task,))

    @property
    def is_calm(self) -> bool:
        """Whether every server serves."""
        return all(
            server.is_serving and not server.process.is_paused and not server.process.is_dead
            for server in self.servers
        )

    # --- calls ------------------------------------------------------------------------------

    async def call(
        self,
        number: int,
        make: Callable[[TransactionCoordinator], Awaitable[T]],
        patience: float,
        *,
        hangs_up: bool,
    ) -> T:
        """Call a server. Raises ConnectionLost where no answer came, and what the server refuses with.

        ``hangs_up``: a caller whose patience ends has the server cancel the handler.
        """
        weather = self.weather
        chance = weather.random.random
        await asyncio.sleep(weather.delay())
        server = self.servers[number]
        if server.process.is_dead or not (server.is_serving or server.process.is_paused):
            await asyncio.sleep(0.05)
            raise ConnectionLost("the server is not there")
        if not server.is_serving:
            raise ConnectionLost("the server is not there yet")
        if weather.network_faults and chance() < weather.network_faults / 2:
            raise ConnectionLost("the request was lost")
        is_lost = weather.network_faults and chance() < weather.network_faults / 2
        reply: asyncio.Future[T] = self._loop.create_future()

        async def handle() -> T:
            return await make(server.coordinator)

        def answered(task: asyncio.Task[T]) -> None:
            if reply.done():
                return
            if task.cancelled() or is_lost:
                reply.set_exception(ConnectionLost("the answer was lost"))
            elif (error := task.exception()) is not None:
                reply.set_exception(error)
            else:
                reply.set_result(task.result())

        task = self._loop.create_task(handle(), context=in_process(server.process))
        task.add_done_callback(answered)
        self._keep(task)
        server.replies[reply] = None
        try:
            async with asyncio.timeout(patience):
                return await reply
        except TimeoutError:
            if hangs_up:
                task.cancel()
            raise ConnectionLost("the caller's patience ended") from None
        finally:
            server.replies.pop(reply, None)
