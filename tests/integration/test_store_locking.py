"""Other processes at the same file: a reader that stays, a writer that never rests."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.store_processes import process, read_line
from tests.support.store_records import Driver

from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.store import StoreSettings, WriterSettings, open_store

TRANSACTIONS = 20
STEPS = 50


async def test_steps_are_written_beside_a_long_read_and_a_busy_writer(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    async with open_store(f"sqlite:///{database}") as store:
        with process("hold-read", database) as reader, process("write-loop", database) as writer:
            assert read_line(reader) == read_line(writer) == "open"

            async def run(number: int) -> None:
                driver = await Driver(store, f"t-{number:02}").begin()
                for step in range(1, STEPS + 1):
                    await driver.step({"kv/a": str(step)}, reads={"kv/b": 0})
                    assert (await store.read_state(driver.id, "kv/a", step + 1)).value == str(step)
                await driver.rewind(STEPS)

            await asyncio.gather(*(run(number) for number in range(TRANSACTIONS)))
        for number in range(TRANSACTIONS):
            driver = Driver(store, f"t-{number:02}")
            page = await store.list_attempts(driver.id, "", 1000, 1 << 20)
            assert [attempt.step_id for attempt in page.attempts] == list(range(1, STEPS + 1))
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM other_program").fetchone()[0] > 0


async def test_a_lock_held_too_long_is_unavailable_and_nothing_was_written(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    settings = StoreSettings(writer=WriterSettings(busy_timeout_seconds=0.1))
    async with open_store(f"sqlite:///{database}", settings) as store:
        driver = await Driver(store).begin()
        before = driver.record
        with closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="locked by another process"):
                await driver.step()
            # Reads go on.
            assert await store.load_record(driver.id) == before
            other.execute("ROLLBACK")
        driver.record = before
        await driver.step()
        assert await store.load_record(driver.id) == driver.record


async def test_a_lock_let_go_in_time_is_waited_for(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    async with open_store(f"sqlite:///{database}") as store:
        driver = await Driver(store).begin()
        with closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writing = asyncio.ensure_future(driver.step())
            await asyncio.wait([writing], timeout=0.2)
            assert not writing.done()
            other.execute("COMMIT")
            await writing


async def test_the_log_is_emptied_once_no_reader_is_in_the_way(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    log = tmp_path / "agenttx.db-wal"
    limit = 256 * 1024
    async with open_store(f"sqlite:///{database}", StoreSettings(wal_limit_bytes=limit)) as store:
        driver = await Driver(store).begin()
        with process("hold-read", database) as reader:
            assert read_line(reader) == "open"
            while log.stat().st_size <= 2 * limit:
                await driver.step({"kv/a": f'"{"x" * 20_000}"'})
        # The reader has gone: some later pause of the writer empties the log.
        while log.stat().st_size > limit:
            await driver.step()
            await asyncio.sleep(0.05)
        assert await store.load_record(driver.id) == driver.record
