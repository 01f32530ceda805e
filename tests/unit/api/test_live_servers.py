"""Which servers workers are told of."""

from __future__ import annotations

import asyncio

from tests.support.memory_store import MemoryDatabase, MemoryStore
from tests.support.virtual_time import current_loop, virtual_time

from agenttx_server.engine.records import MicrosecondsUtc, ServerId
from agenttx_server.live_servers import LiveServers


class LoopClock:
    """The loop's own time."""

    def now(self) -> MicrosecondsUtc:
        return MicrosecondsUtc(int(current_loop().time() * 1_000_000))

    def monotonic(self) -> float:
        return current_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def ids(servers: LiveServers) -> list[str]:
    return [server.server_id for server in servers.listed]


@virtual_time
async def test_servers_that_come_and_go_are_told() -> None:
    store, clock = MemoryStore(MemoryDatabase(), is_shared=True), LoopClock()
    await store.register_server(ServerId("a"), 1000, clock.now())
    servers = LiveServers(lambda: "a")
    told: list[list[str]] = []

    async def listen() -> None:
        async for listed in servers.changes():
            told.append([server.server_id for server in listed])

    tasks = [asyncio.create_task(listen()), asyncio.create_task(servers.follow(store, clock, 5))]
    await asyncio.sleep(6)
    assert ids(servers) == ["a"]
    await store.register_server(ServerId("b"), 12, clock.now())
    await asyncio.sleep(10)
    assert ids(servers) == ["a", "b"]
    await asyncio.sleep(20)
    for task in tasks:
        task.cancel()

    assert told == [["a", "b"], ["a"]]


@virtual_time
async def test_a_server_that_has_its_database_to_itself_is_alone() -> None:
    servers = LiveServers(lambda: "a")
    await servers.follow(MemoryStore(MemoryDatabase()), LoopClock(), 5)

    assert ids(servers) == ["a"]
