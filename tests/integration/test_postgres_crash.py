"""PostgreSQL or the server killed in mid-write: what was acknowledged is there, whole, and in order."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from tests.support.postgres_cluster import PostgresCluster, shared_cluster
from tests.support.store_processes import process, read_line
from tests.support.store_records import Driver

from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import TransactionId
from agenttx_server.store import open_store


def acknowledged_by(writer: subprocess.Popen[str], lines: int) -> dict[str, int]:
    """Read so many acknowledgements: the last step of each transaction."""
    last: dict[str, int] = {}
    for _ in range(lines):
        transaction, step = read_line(writer).split()
        last[transaction] = int(step)
    return last


def rest_of(writer: subprocess.Popen[str], last: dict[str, int]) -> None:
    assert writer.stdout is not None
    for line in writer.stdout:
        if line.endswith("\n") and len(line.split()) == 2:
            transaction, step = line.split()
            last[transaction] = int(step)


async def assert_whole(store: TransactionStore, acknowledged: dict[str, int]) -> None:
    assert acknowledged
    for name, step in acknowledged.items():
        transaction_id = TransactionId(name)
        stored = await store.load(transaction_id)
        assert stored is not None
        written = stored.transaction.next_step_id - 1
        assert written >= step
        steps = list(range(1, written + 1))
        assert [attempt.step_id for attempt in stored.attempts] == steps
        assert [action.step_id for action in stored.undo] == steps
        assert [item.step_id for item in await store.list_effects(transaction_id, frozenset())] == steps
        assert (await store.count_touched(transaction_id, 1))[0] == 2 * written
        assert [event.sequence for event in await store.list_events(transaction_id, 1, 100_000)] == steps
        assert stored.transaction.revision == written + 1


async def test_acknowledged_steps_survive_a_crash_of_the_database() -> None:
    with PostgresCluster(durable=True) as cluster, cluster.database() as address:
        for lines in (40, 200):
            with process("write", address, 20) as writer:
                acknowledged = acknowledged_by(writer, lines)
                cluster.stop("immediate")
                writer.kill()
                rest_of(writer, acknowledged)
            cluster.start()
            async with open_store(address) as store:
                await assert_whole(store, acknowledged)


async def test_acknowledged_steps_survive_a_crash_of_the_server() -> None:
    with shared_cluster().database() as address:
        with process("write", address, 20) as writer:
            acknowledged = acknowledged_by(writer, 200)
            writer.kill()
            rest_of(writer, acknowledged)
        async with open_store(address) as store:
            await assert_whole(store, acknowledged)


@pytest.fixture
def busy_neighbours() -> Iterator[str]:
    """A database with a transaction that stays open and a program that writes to it without rest."""
    ended = threading.Event()

    def write(address: str) -> None:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("CREATE TABLE other_program (number BIGINT)")
            while not ended.is_set():
                connection.execute("INSERT INTO other_program SELECT generate_series(1, 2000)")
            connection.execute("DROP TABLE other_program")

    with shared_cluster().database() as address, closing(psycopg.connect(address)) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM transactions")
        writer = threading.Thread(target=write, args=(address,))
        writer.start()
        yield address
        ended.set()
        writer.join()


async def test_steps_are_written_beside_a_long_read_and_a_busy_writer(busy_neighbours: str) -> None:
    async with open_store(busy_neighbours) as first, open_store(busy_neighbours) as second:

        async def run(store: TransactionStore, number: int) -> None:
            driver = await Driver(store, f"t-{number}").begin()
            for step in range(1, 31):
                await driver.step({f"kv/{number}": str(step)})
            assert (await driver.commit()).keys_published == 1

        await asyncio.gather(*(run((first, second)[number % 2], number) for number in range(20)))
        assert await first.commit_version() == 20
        for number in range(20):
            assert (await second.read_committed(f"kv/{number}")).value == "30"
