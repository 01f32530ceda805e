"""Connections to PostgreSQL that end: what was not written is written, what may have been is not guessed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import ConnStatus
from tests.support.calls import begin, commit, step
from tests.support.postgres_cluster import PostgresCluster, shared_cluster, terminate_backends
from tests.support.running_server import running_server
from tests.support.sample_tools import read_log
from tests.support.store_records import NOW, Driver

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.audit.chain import ChainCheck
from agenttx_server.engine.ports import StaleRevision, StoreUnavailable, TransactionStore, WriteSet
from agenttx_server.engine.records import EventRecord, EventType
from agenttx_server.pipelines.records import InputRecord, InputState
from agenttx_server.store import PostgresSettings, SqlTransactionStore, StoreSettings, open_audit, open_store
from agenttx_server.store.postgres_connection import PostgresConnection
from agenttx_server.store.postgres_statements import STATEMENTS


@pytest.fixture
def address() -> Iterator[str]:
    with shared_cluster().database() as address:
        yield address


@pytest.fixture
async def store(address: str) -> AsyncIterator[SqlTransactionStore]:
    async with open_store(address) as store:
        yield store


async def use_all_connections(store: TransactionStore) -> list[Driver]:
    """Write by each writer and read by each reader, so that all have a connection."""
    drivers = [await Driver(store, f"t-{number}").begin() for number in range(16)]
    await asyncio.gather(*(driver.step({f"kv/{driver.id}": "1"}) for driver in drivers))
    await asyncio.gather(*(store.load(driver.id) for driver in drivers for _ in range(4)))
    await store.check()
    return drivers


# --- connections that end between two uses --------------------------------------------------------------


async def test_steps_and_reads_go_on_after_all_connections_were_ended(
    store: SqlTransactionStore, address: str
) -> None:
    drivers = await use_all_connections(store)
    assert terminate_backends(address) >= 5
    for _ in range(3):
        await asyncio.gather(*(driver.step({f"kv/{driver.id}": "2"}) for driver in drivers))
        terminate_backends(address)
        for driver in drivers:
            assert await store.load_record(driver.id) == driver.record
        terminate_backends(address)
        await store.check()
        terminate_backends(address)
        assert (await drivers.pop().commit()).keys_published == 1


async def test_a_server_goes_on_after_its_connections_were_ended(address: str) -> None:
    async with running_server(database_url=address) as server:
        transaction = await begin(server.stub)
        await step(server.stub, transaction, 1, "kv.put", {"key": "a", "value": 1})
        terminate_backends(address)
        answer = await step(server.stub, transaction, 2, "kv.put", {"key": "a", "value": 2})
        assert answer.status == pb.STEP_STATUS_SUCCESS
        terminate_backends(address)
        await commit(server.stub, transaction)
        terminate_backends(address)
        read = await server.stub.GetState(pb.GetStateRequest(key="a"))
        assert read.entry.value_json == "2"


@pytest.mark.parametrize("name", ["ending.charge", "ending.pay"])
async def test_an_effect_is_not_run_twice_when_connections_end_before_it_is_recorded(
    address: str, tmp_path: Path, name: str
) -> None:
    log = tmp_path / "log"
    async with running_server(database_url=address, tools="tests.support.connection_ending_tools") as server:
        transaction = await begin(server.stub)
        arguments = {"log": str(log), "entry": "paid", "database_url": address}
        answer = await step(server.stub, transaction, 1, name, arguments, request_id="r-1")
        again = await step(server.stub, transaction, 1, name, arguments, request_id="r-1")
        assert answer.status == again.status == pb.STEP_STATUS_SUCCESS
        assert again.replayed
        following = await step(server.stub, transaction, 2, "kv.put", {"key": "a", "value": 1})
        assert following.status == pb.STEP_STATUS_SUCCESS
        await commit(server.stub, transaction)
    assert read_log(log) == ["effect paid"]


# --- connections that end in the middle -----------------------------------------------------------------


class Cut(PostgresConnection):
    """A connection whose backend is ended at a chosen moment, once."""

    at: str = ""
    moments: list[str] = []

    def _cut(self, moment: str) -> None:
        if moment in Cut.moments and self._wire.status == ConnStatus.OK:
            Cut.moments.remove(moment)
            with shared_cluster().connect() as connection:
                connection.execute("SELECT pg_terminate_backend(%s, 10000)", (self._wire.backend_pid,))

    def _check_alive(self) -> None:
        self._cut("before COMMIT")
        super()._check_alive()
        self._cut("at COMMIT")

    def commit(self) -> None:
        super().commit()
        if "after COMMIT" in Cut.moments:
            Cut.moments.remove("after COMMIT")
            raise ConnectionResetError("the answer to COMMIT was lost")


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setattr("agenttx_server.store.postgres_database.PostgresConnection", Cut)
    Cut.moments = []
    yield Cut.moments
    assert Cut.moments == []


async def test_what_ended_before_commit_is_written_again_and_once(cut: list[str], address: str) -> None:
    async with open_store(address) as store:
        driver = await Driver(store).begin()
        cut.append("before COMMIT")
        await driver.step({"kv/a": "1"})
        assert await store.load_record(driver.id) == driver.record
        assert len(await store.list_events(driver.id, 1, 10)) == 1


async def test_what_ended_twice_in_a_row_is_unavailable_and_not_written(cut: list[str], address: str) -> None:
    async with open_store(address) as store:
        driver = await Driver(store).begin()
        before = driver.record
        cut += ["before COMMIT"] * 2
        with pytest.raises(StoreUnavailable):
            await driver.step({"kv/a": "1"})
        driver.record = before
        await driver.step({"kv/a": "1"})


@pytest.mark.parametrize("moment", ["at COMMIT", "after COMMIT"])
async def test_what_ended_at_commit_is_of_unknown_outcome_and_not_written_again(
    cut: list[str], address: str, moment: str
) -> None:
    async with open_store(address) as store:
        driver = await Driver(store).begin()
        before = driver.record
        cut.append(moment)
        with pytest.raises(StoreUnavailable, match="unknown"):
            await driver.step({"kv/a": "1"})
        found = await store.load_record(driver.id)
        assert found == (driver.record if moment == "after COMMIT" else before)


def count_waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows whenever a writer waits for the database."""
    waits: list[str] = []
    results = PostgresConnection._results

    def counted(connection: PostgresConnection) -> Any:
        waits.append("wait")
        return results(connection)

    monkeypatch.setattr(PostgresConnection, "_results", counted)
    return waits


async def test_a_write_and_a_publication_wait_for_the_database_once(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    waits = count_waits(monkeypatch)
    async with open_store(address) as store:
        driver = await Driver(store).begin()
        waits.clear()
        await driver.step({"kv/a": "1"})
        assert waits == ["wait"]
        assert (await driver.commit()).keys_published == 1
        assert waits == ["wait"] * 2


async def test_the_rows_that_a_pipeline_is_given_are_one_statement(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    waits = count_waits(monkeypatch)
    async with open_store(address) as store:
        rows = [InputRecord("r", place, InputState.PENDING, "", "{}") for place in range(1, 101)]
        await store.pipelines.write(None, [*rows, InputRecord("r", 1, InputState.COMMITTED, "", "{}")])
        assert waits == ["wait"]
        counts = await store.pipelines.count_inputs("r")
        assert (counts[InputState.PENDING], counts[InputState.COMMITTED]) == (99, 1)


@pytest.mark.parametrize("servers", [1, 2])
async def test_the_audit_trail_is_whole_though_its_head_is_remembered(
    monkeypatch: pytest.MonkeyPatch, address: str, servers: int
) -> None:
    """Of one server no begin waits for the head, but the first of each connection; of two on one chain all stand in it."""
    one_chain = replace(
        STATEMENTS,
        lock_audit=STATEMENTS.lock_audit.replace("mod(pg_backend_pid(), 16)", "3"),
        audit_head=STATEMENTS.audit_head.replace("mod(pg_backend_pid(), 16)", "3"),
    )
    monkeypatch.setattr("agenttx_server.store.postgres_database.STATEMENTS", one_chain)
    settings = StoreSettings(postgres=PostgresSettings(writers=1))
    waits = count_waits(monkeypatch)
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(address, settings)) for _ in range(servers)]
        for number in range(12):
            store = stores[number % servers]
            driver = Driver(store, f"t-{number}")
            driver.record = replace(driver.record, event_sequence=1)
            begun = EventRecord(1, EventType.TRANSACTION_BEGUN, 1, NOW)
            waits.clear()
            await store.write(WriteSet(driver.record, 0, events=[begun]))
            if servers == 1:
                assert len(waits) == (1 if number else 2)
    with open_audit(address) as entries:
        found = list(entries)
    check = ChainCheck()
    for entry in found:
        check.take(entry)
    assert check.end() == []
    assert [(entry.chain, entry.deed.subject) for entry in found] == [(3, f"t-{n}") for n in range(12)]


async def test_where_a_statement_fails_the_commit_behind_it_is_passed_over(address: str) -> None:
    async with open_store(address) as store:
        driver = await Driver(store).begin()
        before = driver.record
        await driver.step({"kv/a": "1"})
        written = driver.record
        driver.record = before
        with pytest.raises(StaleRevision):
            await driver.step({"kv/b": "1"})
        assert await store.load_record(driver.id) == written
        assert len(await store.list_events(driver.id, 1, 10)) == 1


# --- a server that stops and comes back -----------------------------------------------------------------


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_a_database_that_was_restarted_is_used_again(how: Any) -> None:
    with PostgresCluster(durable=True) as cluster, cluster.database() as address:
        async with open_store(address) as store:
            driver = await Driver(store).begin()
            await driver.step({"kv/a": "1"})
            await store.load(driver.id)
            written = driver.record

            cluster.stop(how)
            with pytest.raises(StoreUnavailable):
                await driver.step({"kv/a": "2"})
            with pytest.raises(StoreUnavailable):
                await store.load(driver.id)
            with pytest.raises(StoreUnavailable):
                await store.check()

            cluster.start()
            await store.check()
            assert await store.load_record(driver.id) == written
            driver.record = written
            await driver.step({"kv/a": "2"})
            assert (await driver.commit()).keys_published == 1


async def test_a_database_that_takes_no_writes_any_more_fails_the_check(
    store: SqlTransactionStore, address: str
) -> None:
    driver = await Driver(store).begin()
    name = address.split("@/")[1].split("?")[0]
    with shared_cluster().connect() as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        try:
            terminate_backends(address)
            with pytest.raises(StoreUnavailable, match="read-only"):
                await store.check()
            with pytest.raises(StoreUnavailable, match="read-only"):
                await driver.step()
        finally:
            connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


# --- locks ----------------------------------------------------------------------------------------------


async def test_a_write_waits_for_a_lock_no_longer_than_its_time(address: str) -> None:
    settings = StoreSettings(postgres=PostgresSettings(lock_timeout_seconds=0.05))
    object.__setattr__(settings.writer, "busy_timeout_seconds", 0.2)
    async with open_store(address, settings) as store:
        driver = await Driver(store).begin()
        before = driver.record
        with psycopg.connect(address) as connection:
            connection.execute("SELECT 1 FROM transactions FOR UPDATE")
            with pytest.raises(StoreUnavailable, match="lock"):
                await driver.step()
        driver.record = before
        await driver.step()


async def test_a_statement_takes_no_longer_than_its_time(address: str) -> None:
    settings = StoreSettings(postgres=PostgresSettings(statement_timeout_seconds=0.1))
    async with open_store(address, settings) as store:
        driver = await Driver(store).begin()
        with psycopg.connect(address) as connection:
            connection.execute("LOCK TABLE events")
            with pytest.raises(StoreUnavailable, match="statement timeout"):
                await driver.step()
            with pytest.raises(StoreUnavailable, match="statement timeout"):
                await store.list_events(driver.id, 1, 10)


# --- large rows -----------------------------------------------------------------------------------------


async def test_of_large_rows_no_more_are_fetched_than_are_wanted(
    store: SqlTransactionStore, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = await Driver(store).begin()
    large = f'"{"x" * 100_000}"'
    for _ in range(100):
        await driver.step({f"kv/{driver.record.next_step_id:03}": large}, output=large, raw_context=large)
    fetched: list[int] = []
    fetchmany = psycopg.ServerCursor.fetchmany

    def counted(cursor: psycopg.ServerCursor[Any], size: int = 0) -> list[Any]:
        rows = fetchmany(cursor, size)
        fetched.append(len(rows))
        return rows

    monkeypatch.setattr(psycopg.ServerCursor, "fetchmany", counted)

    page = await store.list_attempts(driver.id, "", 1000, 500_000)
    assert len(page.attempts) == 2
    contexts, left_out = await store.load_context(driver.id, 250_000)
    assert (len(contexts), left_out) == (2, True)
    await driver.commit()
    assert len((await store.scan_committed("kv/", "", 1000, 250_000)).entries) == 2

    assert 0 < sum(fetched) < 100
