"""The commit writer where the database fails: who is told what, and that it goes on.

The connection is a real one with faults on order.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.store_records import Driver

from agenttx_server.engine.ports import (
    StaleRevision,
    StoreUnavailable,
    TransactionStore,
    WriteReceipt,
    WriteSet,
)
from agenttx_server.store import StoreSettings, WriterSettings, migrate
from agenttx_server.store.commit_writer import CommitWriter
from agenttx_server.store.sqlite_connection import WriteConnection
from agenttx_server.store.write_set_encoding import encode_write_set


class Faults:
    """What fails next, and a gate that holds the writer before BEGIN."""

    def __init__(self) -> None:
        self.at_commit: list[Exception] = []
        self.after_commit: list[Exception] = []
        self.at_statement: dict[str, list[Exception]] = {}
        self.at_begin: list[Exception] = []
        self.connections = 0
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold the writer, so that what is queued meanwhile is one batch (but for the first)."""
        self.gate.clear()
        self.reached.clear()
        try:
            yield
        finally:
            self.gate.set()


def sqlite_error(code: int, words: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(words)
    error.sqlite_errorcode = code
    return error


class FaultyConnection(WriteConnection):
    def __init__(self, path: Path, faults: Faults) -> None:
        super().__init__(path, StoreSettings())
        self.faults = faults
        faults.connections += 1

    def begin(self) -> None:
        self.faults.reached.set()
        self.faults.gate.wait()
        if self.faults.at_begin:
            raise self.faults.at_begin.pop(0)
        super().begin()

    def commit(self) -> None:
        if self.faults.at_commit:
            raise self.faults.at_commit.pop(0)
        super().commit()
        if self.faults.after_commit:
            raise self.faults.after_commit.pop(0)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        for words, errors in self.faults.at_statement.items():
            if words in statement and errors:
                raise errors.pop(0)
        return super().execute(statement, parameters)


class WriterStore:
    """Just enough of a store for :class:`Driver`."""

    def __init__(self, writer: CommitWriter) -> None:
        self.writer = writer

    async def write(self, write_set: WriteSet) -> WriteReceipt:
        return await self.writer.submit(encode_write_set(write_set))


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    migrate(f"sqlite:///{tmp_path / 'agenttx.db'}")
    return tmp_path / "agenttx.db"


@pytest.fixture
async def store(database: Path, faults: Faults) -> AsyncIterator[Any]:
    writer = CommitWriter(
        lambda: FaultyConnection(database, faults),
        WriterSettings(busy_timeout_seconds=0.2),
        lambda connection: None,
    )
    writer.start()
    yield WriterStore(writer)
    faults.gate.set()
    await asyncio.to_thread(writer.close)


async def begun(store: TransactionStore, count: int) -> list[Driver]:
    return [await Driver(store, f"t-{number}").begin() for number in range(count)]


async def write_together(faults: Faults, drivers: Sequence[Driver]) -> list[Any]:
    """Write a step of each; all but the first are surely one batch."""
    with faults.holding():
        tasks = [asyncio.ensure_future(driver.step({f"kv/{driver.id}": "1"})) for driver in drivers]
        await asyncio.sleep(0)
    return list(await asyncio.gather(*tasks, return_exceptions=True))


def revisions(database: Path) -> list[int]:
    connection = sqlite3.connect(database)
    try:
        return [
            row[0] for row in connection.execute("SELECT revision FROM transactions ORDER BY transaction_id")
        ]
    finally:
        connection.close()


@pytest.mark.parametrize("made", [False, True])
async def test_an_error_at_commit_is_an_unknown_outcome_for_the_whole_batch(
    store: Any, faults: Faults, database: Path, made: bool
) -> None:
    drivers = await begun(store, 5)
    error = sqlite_error(sqlite3.SQLITE_IOERR, "disk I/O error")
    # Once for the first, which may be a batch of its own, once for the rest.
    (faults.after_commit if made else faults.at_commit).extend([error, error])
    outcomes = await write_together(faults, drivers)
    faults.at_commit.clear()
    faults.after_commit.clear()
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 5
    assert len({id(outcome) for outcome in outcomes}) == 5
    assert revisions(database) == [2 if made else 1] * 5
    # The next write has a new connection.
    connections = faults.connections
    fresh = await Driver(store, "fresh").begin()
    assert faults.connections == connections + 1
    await fresh.step()


async def test_a_full_disk_at_a_statement_is_unavailable_and_writes_nothing(
    store: Any, faults: Faults, database: Path
) -> None:
    (driver,) = await begun(store, 1)
    before = driver.record
    faults.at_statement = {
        "INSERT INTO attempts": [sqlite_error(sqlite3.SQLITE_FULL, "database or disk is full")]
    }
    with pytest.raises(StoreUnavailable, match="full"):
        await driver.step({"kv/a": "1"})
    assert revisions(database) == [1]
    driver.record = before
    await driver.step({"kv/a": "1"})
    assert revisions(database) == [2]


async def test_a_batch_that_fails_is_tried_set_by_set(store: Any, faults: Faults, database: Path) -> None:
    drivers = await begun(store, 5)
    # The batch fails as a whole once; then each set on its own, of which one fails again.
    faults.at_statement = {"INSERT INTO events": [sqlite_error(sqlite3.SQLITE_IOERR, "disk I/O error")] * 2}
    outcomes = await write_together(faults, drivers)
    # (Or the first was a batch of its own and took one of the faults.)
    assert (
        sorted(type(outcome).__name__ for outcome in outcomes) == ["StoreUnavailable"] + ["WriteReceipt"] * 4
    )
    failed = [isinstance(outcome, StoreUnavailable) for outcome in outcomes]
    assert revisions(database) == [1 if each else 2 for each in failed]


async def test_a_mistake_in_the_program_is_raised_as_it_is(store: Any, faults: Faults) -> None:
    (driver,) = await begun(store, 1)
    faults.at_statement = {"INSERT INTO attempts": [sqlite3.ProgrammingError("wrong number of bindings")]}
    with pytest.raises(sqlite3.ProgrammingError):
        await driver.step()


async def test_sets_behind_one_whose_outcome_is_unknown_are_stale(
    store: Any, faults: Faults, database: Path
) -> None:
    (driver,) = await begun(store, 1)
    faults.at_commit.append(sqlite_error(sqlite3.SQLITE_IOERR, "disk I/O error"))
    with faults.holding():
        first = asyncio.ensure_future(driver.step())
        await asyncio.sleep(0)
        await asyncio.to_thread(faults.reached.wait)  # it is the writer's batch, alone
        second = asyncio.ensure_future(driver.step())
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable, StaleRevision]
    assert revisions(database) == [1]


async def test_a_set_behind_a_failed_one_is_stale_in_a_later_batch_though_its_revision_fits(
    store: Any, faults: Faults, database: Path
) -> None:
    # As if another server had written the revision that the second set was made on.
    (driver,) = await begun(store, 1)
    first = replace(driver.step_set(), expected_revision=5)
    second = replace(driver.step_set(), expected_revision=1)
    with faults.holding():
        tasks = [asyncio.ensure_future(store.write(first))]
        await asyncio.sleep(0)
        await asyncio.to_thread(faults.reached.wait)
        tasks.append(asyncio.ensure_future(store.write(second)))
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StaleRevision, StaleRevision]
    assert revisions(database) == [1]


async def test_a_connection_that_can_not_be_made_is_unavailable_until_it_can(
    store: Any, faults: Faults
) -> None:
    (driver,) = await begun(store, 1)
    before = driver.record
    faults.at_begin.append(sqlite_error(sqlite3.SQLITE_CANTOPEN, "unable to open database file"))
    with pytest.raises(StoreUnavailable, match="unable to open"):
        await driver.step()
    driver.record = before
    await driver.step()


async def test_a_busy_database_is_tried_again(store: Any, faults: Faults) -> None:
    (driver,) = await begun(store, 1)
    faults.at_begin += [sqlite_error(sqlite3.SQLITE_BUSY, "database is locked")] * 3
    faults.at_begin.append(sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT, "database is locked"))
    await driver.step()
    assert faults.at_begin == []


async def test_closing_writes_what_is_queued(database: Path, faults: Faults) -> None:
    writer = CommitWriter(
        lambda: FaultyConnection(database, faults), WriterSettings(), lambda connection: None
    )
    writer.start()
    store: Any = WriterStore(writer)
    drivers = await begun(store, 3)
    with faults.holding():
        tasks = [asyncio.ensure_future(driver.step()) for driver in drivers for _ in range(4)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(asyncio.to_thread(writer.close))
        await asyncio.sleep(0)
    await closing
    await asyncio.gather(*tasks)
    assert revisions(database) == [5, 5, 5]
    with pytest.raises(StoreUnavailable):
        await drivers[0].step()


async def test_a_lone_step_waits_for_no_other(database: Path, faults: Faults) -> None:
    settings = WriterSettings(linger_seconds=3600)
    writer = CommitWriter(lambda: FaultyConnection(database, faults), settings, lambda connection: None)
    writer.start()
    store: Any = WriterStore(writer)
    for driver in await begun(store, 3):
        await driver.step()
    assert writer.written == (6, 6)
    await asyncio.to_thread(writer.close)


async def test_batches_are_bounded(database: Path, faults: Faults) -> None:
    writer = CommitWriter(
        lambda: FaultyConnection(database, faults), WriterSettings(batch_sets=7), lambda connection: None
    )
    writer.start()
    store: Any = WriterStore(writer)
    (driver,) = await begun(store, 1)
    before = writer.written
    with faults.holding():
        tasks = [asyncio.ensure_future(driver.step()) for _ in range(50)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    sets, commits = writer.written
    assert sets - before[0] == 50
    assert commits - before[1] >= 8
    await asyncio.to_thread(writer.close)


async def test_large_sets_are_not_batched_without_end(database: Path, faults: Faults) -> None:
    writer = CommitWriter(
        lambda: FaultyConnection(database, faults),
        WriterSettings(batch_bytes=10_000),
        lambda connection: None,
    )
    writer.start()
    store: Any = WriterStore(writer)
    drivers = await begun(store, 6)
    before = writer.written
    with faults.holding():
        tasks = [asyncio.ensure_future(driver.step({"kv/a": f'"{"x" * 20_000}"'})) for driver in drivers]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert writer.written[1] - before[1] == 6
    await asyncio.to_thread(writer.close)


def test_a_set_whose_loop_has_gone_is_written_all_the_same(database: Path, faults: Faults) -> None:
    writer = CommitWriter(
        lambda: FaultyConnection(database, faults), WriterSettings(), lambda connection: None
    )
    writer.start()

    async def leave() -> None:
        writer.submit(encode_write_set(WriteSet(Driver(None).record, 0)))  # type: ignore[arg-type]

    with faults.holding():
        asyncio.run(leave())
    writer.close()
    assert revisions(database) == [1]
