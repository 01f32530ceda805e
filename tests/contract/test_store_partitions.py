"""Which of several writers a set goes to: a caller alone finds one connection, and a transaction's order is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from tests.support.postgres_cluster import shared_cluster
from tests.support.store_records import Driver

from agenttx_server.store import open_store, partitioned_writer

_WRITERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'COMMIT'"
_BLOCKED = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.fixture
def address() -> Iterator[str]:
    with shared_cluster().database() as address:
        yield address


async def _until_blocked(outside: psycopg.Connection) -> None:
    """Wait until a writer waits for a lock: who is sent with it waits with it."""
    async with asyncio.timeout(20):
        while outside.execute(_BLOCKED).fetchone() != (1,):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)


async def test_a_caller_alone_is_written_by_one_connection(address: str) -> None:
    async with open_store(address) as store:
        for number in range(12):
            driver = await Driver(store, f"t-{number}").begin()
            await driver.step({"kv/a": "1"})
        with psycopg.connect(address) as outside:
            assert outside.execute(_WRITERS).fetchone() == (1,)


async def test_while_the_disk_is_quick_many_callers_share_one_connection_and_its_commits(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned_writer, "_SHORT_SECONDS", 60.0)  # however slow this one is
    monkeypatch.setattr(partitioned_writer, "_LONG_SECONDS", 60.0)
    async with open_store(address) as store:
        drivers = await asyncio.gather(*(Driver(store, f"t-{number}").begin() for number in range(32)))
        await asyncio.gather(*(driver.step({f"kv/{driver.id}": "1"}) for driver in drivers))
        sets, commits = store.written
        with psycopg.connect(address) as outside:
            assert outside.execute(_WRITERS).fetchone() == (1,)
    assert sets == 64
    assert commits <= 16


async def test_while_it_is_slow_callers_use_several(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned_writer, "_SHORT_SECONDS", 0.0)  # any disk is slow to it
    async with open_store(address) as store:
        await asyncio.gather(*(Driver(store, f"t-{number}").begin() for number in range(32)))
        with psycopg.connect(address) as outside:
            assert outside.execute(_WRITERS).fetchone() == (4,)


async def test_who_is_held_up_holds_up_no_other_but_what_is_behind_in_the_same_transaction(
    address: str,
) -> None:
    async with open_store(address) as store:
        held = await Driver(store, "held").begin()
        others = [await Driver(store, f"t-{number}").begin() for number in range(12)]
        with psycopg.connect(address) as outside:
            outside.execute("SELECT FROM transactions WHERE transaction_id = 'held' FOR UPDATE")
            first = asyncio.ensure_future(held.step({"kv/a": "1"}))
            await _until_blocked(outside)
            second = asyncio.ensure_future(held.step({"kv/a": "2"}))
            async with asyncio.timeout(20):
                for driver in others:
                    await driver.step({"kv/b": "1"})
            assert not first.done()
            assert not second.done()
            # The second waits for its turn behind the first, and not for its lock beside it.
            assert outside.execute(_BLOCKED).fetchone() == (1,)
            outside.rollback()
        async with asyncio.timeout(20):
            await asyncio.gather(first, second)


async def test_what_waits_behind_somebody_held_up_is_written_by_another(address: str) -> None:
    async with open_store(address) as store:
        held = await Driver(store, "held").begin()
        others = [await Driver(store, f"t-{number}").begin() for number in range(6)]
        with psycopg.connect(address) as outside:
            outside.execute("SELECT FROM transactions WHERE transaction_id = 'held' FOR UPDATE")
            first = asyncio.ensure_future(held.step({"kv/a": "1"}))
            await _until_blocked(outside)
            async with asyncio.timeout(20):
                # All at once, before anybody can know that it takes long; then two of one transaction.
                await asyncio.gather(*(driver.step({f"kv/{driver.id}": "1"}) for driver in others))
                await asyncio.gather(*(others[0].step({"kv/c": str(number)}) for number in range(2)))
            assert not first.done()
            outside.rollback()
        async with asyncio.timeout(20):
            await first
