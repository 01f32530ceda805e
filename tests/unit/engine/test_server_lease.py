"""A server's lease, where several things of the server find at once that it has ended."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tests.support.engine_harness import FakeClock, SequentialIds

from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import ServerId
from agenttx_server.engine.server_lease import ServerLease


class SteppedClock(FakeClock):
    """Stands still until it is set."""

    at = 0.0

    def monotonic(self) -> float:
        return self.at


class SlowDatabase:
    """Other servers' too; each call takes a turn of the loop, and a lease is there once its registration has returned."""

    is_shared = True

    def __init__(self) -> None:
        self.registered: set[str] = set()

    async def register_server(self, server_id: ServerId, _seconds: float, _now: int) -> None:
        await asyncio.sleep(0)
        self.registered.add(server_id)

    async def renew_lease(self, server_id: ServerId, _seconds: float, _now: int) -> bool:
        await asyncio.sleep(0)
        return server_id in self.registered


async def test_a_lease_that_ended_is_replaced_once_however_many_notice() -> None:
    database = SlowDatabase()
    clock = SteppedClock()
    lease = ServerLease(
        cast(TransactionStore, cast(Any, database)), clock, SequentialIds(), ServerId("first"), 15.0
    )
    await lease.open()
    database.registered.clear()  # another server took it for dead
    clock.at = 30.0

    async with asyncio.timeout(10):
        await asyncio.gather(lease.assure(), lease.renew(), lease.assure())

    assert database.registered == {lease.id}
    assert lease.id != "first"
    assert lease.standing.lost == 1
    lease.check(lease.id)
