"""What is written beside write sets: a transaction of its own each, whole or not at all, in its turn."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.support.store_records import NOW, Driver

from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.engine.records import ServerId
from agenttx_server.store import SqlTransactionStore, StoreSettings, WriterSettings, open_store
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls

FACT = PreparedQuery(text("INSERT INTO database_facts (name, value) VALUES (:name, 'x')"))
SERVER = ServerId("server-a")


class NotWanted(Exception):
    pass


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "agenttx.db"


@pytest.fixture
async def store(database: Path) -> AsyncIterator[SqlTransactionStore]:
    settings = StoreSettings(writer=WriterSettings(busy_timeout_seconds=0.1))
    async with open_store(f"sqlite:///{database}", settings) as opened:
        yield opened


def facts(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM database_facts")} - {"database_id"}


async def test_what_a_job_raises_takes_back_what_it_did_and_nothing_else(
    store: SqlTransactionStore, database: Path
) -> None:
    def fails(calls: WriteCalls) -> None:
        calls.change(FACT, name="taken back")
        raise NotWanted

    driver = await Driver(store).begin()
    before = asyncio.ensure_future(driver.step({"kv/a": "1"}))
    job = store._database.writer.run(fails)
    after = asyncio.ensure_future(driver.step({"kv/b": "1"}))
    with pytest.raises(NotWanted):
        await job
    await asyncio.gather(before, after)
    assert facts(database) == set()
    assert await store.load_record(driver.id) == driver.record


async def test_jobs_and_sets_take_their_turns(store: SqlTransactionStore) -> None:
    def revision(calls: WriteCalls) -> int:
        query = PreparedQuery(text("SELECT revision FROM transactions WHERE transaction_id = 't-1'"))
        return int(calls.rows(query)[0][0])

    driver = await Driver(store).begin()
    seen = []
    for _ in range(20):
        step = asyncio.ensure_future(driver.step())
        await asyncio.sleep(0)  # it is queued
        seen.append(store._database.writer.run(revision))
        await asyncio.sleep(0)
        del step
    assert await asyncio.gather(*seen) == list(range(2, 22))


async def test_a_caller_that_goes_away_does_not_undo_its_job(
    store: SqlTransactionStore, database: Path
) -> None:
    job = store._database.writer.run(lambda calls: calls.change(FACT, name="kept"))
    job.cancel()
    await store.check()  # behind it in the queue
    assert facts(database) == {"kept"}


async def test_a_mistake_in_a_statement_is_raised_as_it_is(store: SqlTransactionStore) -> None:
    for _ in range(2):
        await store._database.writer.run(lambda calls: calls.rows(PreparedQuery(text("SELECT 1"))))
    with pytest.raises(sqlite3.IntegrityError):
        await store._database.writer.run(
            lambda calls: [calls.change(FACT, name="once"), calls.change(FACT, name="once")]
        )


async def test_a_database_that_takes_no_writes_is_unavailable(
    store: SqlTransactionStore, database: Path
) -> None:
    await store.check()
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked by another process"):
            await store.check()
        with pytest.raises(StoreUnavailable, match="locked by another process"):
            await store.register_server(SERVER, 10, NOW)
        assert await store.is_alive(SERVER, NOW) is False  # reads go on
        other.execute("ROLLBACK")
    await store.check()
    await store.register_server(SERVER, 10, NOW)
    assert await store.is_alive(SERVER, NOW)


async def test_a_closed_store_takes_no_jobs(database: Path) -> None:
    async with open_store(f"sqlite:///{database}") as store:
        pass
    with pytest.raises(StoreUnavailable):
        await store.register_server(SERVER, 10, NOW)
    with pytest.raises(StoreUnavailable):
        await store.claim_orphans(SERVER, NOW, 10)


async def test_a_lease_outlives_its_process(database: Path) -> None:
    async with open_store(f"sqlite:///{database}") as store:
        await store.register_server(SERVER, 10, NOW)
    async with open_store(f"sqlite:///{database}") as store:
        assert await store.is_alive(SERVER, NOW)
        await store.register_server(ServerId("server-b"), 10, NOW)
        assert not await store.is_alive(SERVER, NOW)
