"""Every payload of every table is sealed on its way in and opened on its way out, on each database; and what is not the server's work is told."""

from __future__ import annotations

import asyncio
import gc
import importlib
import pkgutil
import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import BigInteger, Connection, Select, Table, select
from sqlalchemy.dialects.sqlite.pysqlite import dialect as sqlite_dialect
from tests.support.store_databases import DATABASES
from tests.support.store_records import NOW, Driver

import agenttx_server.store as store_package
from agenttx_server.engine.ports import ExtraOperation, StoredValueDamaged, TransactionFilter
from agenttx_server.engine.records import StopKind, StopRequest
from agenttx_server.graphs.ports import GraphRecord
from agenttx_server.pipelines.records import PipelineVersionRecord, StopRecord
from agenttx_server.store import DatabaseRefused, PayloadKeys, open_store
from agenttx_server.store.administration import administered
from agenttx_server.store.payload_codec import SEALED
from agenttx_server.store.payload_columns import CLEAR, LOOKED_FOR, PAYLOADS
from agenttx_server.store.prepared_query import PreparedQuery
from agenttx_server.store.schema import METADATA

KEYS = PayloadKeys("k1", {"k1": bytes(range(32))})
MARKER = "marker-4711-größer"
_BY_THEMSELVES = {
    "transactions",
    "committed_state",
    "graph_versions",
    "pipeline_versions",
    "pipeline_stops",
    "stop_requests",
    "recovery_problems",
}


def test_every_column_is_a_payload_or_is_clear_on_purpose():
    found = {table.name: {column.name for column in table.columns} for table in METADATA.sorted_tables}
    said: dict[str, list[str]] = {}
    for kind in (PAYLOADS, LOOKED_FOR, CLEAR):
        for table, columns in kind.items():
            said.setdefault(table, []).extend(columns)
    assert {table: sorted(columns) for table, columns in found.items()} == {
        table: sorted(columns) for table, columns in said.items()
    }


def prepared() -> list[PreparedQuery]:
    """All statements of the store, whatever holds them."""
    for module in pkgutil.iter_modules(store_package.__path__):
        importlib.import_module(f"{store_package.__name__}.{module.name}")
    return [one for one in gc.get_objects() if isinstance(one, PreparedQuery)]


def told(statement: str) -> str:
    """What a statement gives: between SELECT and FROM, or behind RETURNING."""
    if "RETURNING" in statement:
        return statement.partition("RETURNING")[2]
    return re.split(r"\bFROM\b", statement)[0] if re.match(r"\s*SELECT", statement) else ""


def test_a_statement_that_is_no_select_says_which_payloads_it_takes_and_gives():
    looked_at = 0
    for query in prepared():
        statement = query._statement
        sql = str(statement.compile(dialect=sqlite_dialect()))
        for name, columns in PAYLOADS.items():
            names = {column for column in columns if re.search(rf"\b{column}\b", sql)}
            if not names or not re.search(rf"\b{name}\b", sql):
                continue
            if re.match(rf"\s*(INSERT INTO|UPDATE) {name}\b", sql):
                looked_at += 1
                assert names <= {sealing.column for sealing in query._seals.values()}, sql
            if not isinstance(statement, Select) and any(
                re.search(rf"\b{column}\b", told(sql)) for column in names
            ):
                looked_at += 1
                assert query._returns is not None, sql
    assert looked_at > 20


def row(name: str, table: Table, first: str) -> list[Any]:
    """A row with the marker in all payloads."""
    values: list[Any] = [
        MARKER if column.name in PAYLOADS[name] else 1 if isinstance(column.type, BigInteger) else "x"
        for column in table.columns
    ]
    values[0] = first if values[0] != MARKER else MARKER
    return values[:-1] if name == "state_writes" else values


async def fill(store: Any) -> None:
    """Write a row with the marker in all payloads to each table that has some."""
    driver = await Driver(store, "t-1", metadata=((f"n-{MARKER}", MARKER),)).begin()
    other = await Driver(store, "t-2").begin()
    await other.step({"kv/published": f'"{MARKER}"'})
    await other.commit()
    written = {"transactions", "committed_state"}

    def work(calls: Any) -> None:
        sql = calls.statements
        for name, statement in sql.insert_rows.items():
            if name in PAYLOADS:
                written.add(name)
                statement.execute(calls, row(name, METADATA.tables[name], "t-1"))
        for (name, operation), statement in sql.extra_rows.items():
            if name in PAYLOADS and operation is ExtraOperation.INSERT:
                written.add(name)
                table = METADATA.tables[name]
                values = row(name, table, "x")
                statement.execute(calls, values[1:] if name == "graph_events" else values)

    await store._writer.run(work)
    graph = GraphRecord("g", "v1", MARKER, 1, 1, NOW, MARKER)
    await store.register_graph(graph, None)
    await store.pipelines.register(PipelineVersionRecord("p", "v1", 0, NOW, definition=MARKER))
    await store.pipelines.request_stop(StopRecord("p-run", MARKER, NOW))
    await store.request_stop(StopRequest(driver.id, StopKind.CANCEL_STEP, 1, MARKER))
    await store.note_unrecovered(driver.id, MARKER)
    assert written | _BY_THEMSELVES == set(PAYLOADS)


def raw(address: str) -> dict[str, list[Sequence[Any]]]:
    """All that is in all tables, as the database has it."""
    engine = administered(address)
    with engine.connect() as connection:
        found = {
            table.name: [tuple(row) for row in connection.execute(select(table))]
            for table in METADATA.sorted_tables
        }
    engine.dispose()
    return found


def kept(folder: Path) -> bytes:
    """The bytes of the database's file and of its log."""
    return b"".join(path.read_bytes() for path in folder.rglob("agenttx.db*"))


def everything(connection: Connection) -> dict[str, list[Sequence[Any]]]:
    """All payloads of all tables, opened."""
    return {
        name: list(PreparedQuery(select(*(METADATA.tables[name].c[one] for one in columns))).run(connection))
        for name, columns in PAYLOADS.items()
    }


@pytest.fixture(params=DATABASES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with DATABASES[request.param](tmp_path) as found:
        yield found


def texts(rows: Sequence[Sequence[Any]]) -> list[str]:
    return [value for row in rows for value in row if isinstance(value, str)]


async def test_no_payload_is_in_any_column_nor_in_the_file_and_all_are_read_back(
    address: str, tmp_path: Path
):
    async with open_store(address, payload_keys=KEYS) as store:
        await fill(store)
        found = await asyncio.to_thread(raw, address)
        bytes_of_files = await asyncio.to_thread(kept, tmp_path)
        opened = await store._pool.read(everything)
        by_metadata = TransactionFilter(metadata=((f"n-{MARKER}", MARKER),))
        assert [
            one.transaction_id for one in (await store.list_transactions(by_metadata, "", 5)).transactions
        ] == ["t-1"]
        for pair in ((f"n-{MARKER}", "other"), ("n", MARKER)):
            assert not (
                await store.list_transactions(TransactionFilter(metadata=(pair,)), "", 5)
            ).transactions
    for name, columns in PAYLOADS.items():
        names = [column.name for column in METADATA.tables[name].columns]
        for column in columns:
            values = [row[names.index(column)] for row in found[name]]
            assert any(value and value.startswith(SEALED) for value in values), (name, column)
        assert any(MARKER in value for value in texts(opened[name])), name
        assert not [value for value in texts(opened[name]) if SEALED in value]
    assert not [value for rows in found.values() for value in texts(rows) if "4711" in value]
    assert b"4711" not in bytes_of_files


async def test_without_keys_the_same_search_finds_all_of_them(address: str, tmp_path: Path):
    async with open_store(address) as store:
        await fill(store)
        found = await asyncio.to_thread(raw, address)
        if address.startswith("sqlite"):
            assert b"4711" in await asyncio.to_thread(kept, tmp_path)
    for name in (*PAYLOADS, *LOOKED_FOR):
        assert any(MARKER in value for value in texts(found[name])), name


async def test_a_value_that_was_changed_or_put_into_another_row_is_told_and_not_given(tmp_path: Path):
    address = f"sqlite:///{tmp_path / 'agenttx.db'}"
    async with open_store(address, payload_keys=KEYS) as store:
        for name in ("t-1", "t-2"):
            driver = await Driver(store, name).begin()
            await driver.step({f"kv/{name}": f'"{name}"'}, output=f'"{name}"')
            await driver.commit()
        with closing(sqlite3.connect(tmp_path / "agenttx.db")) as connection, connection:
            outputs = connection.execute("SELECT output FROM attempts ORDER BY transaction_number").fetchall()
            connection.execute("UPDATE attempts SET output = ? WHERE transaction_number = 1", outputs[1])
            connection.execute("UPDATE committed_state SET value = value || 'A' WHERE key = 'kv/t-2'")
        with pytest.raises(StoredValueDamaged, match=r"attempts\.output of 't-1', '1', '1'"):
            await store.load_output("t-1", 1, 1)
        with pytest.raises(StoredValueDamaged, match=r"attempts\.output of 't-1'"):
            await store.list_attempts("t-1", "", 10, 10_000, None, True, False)
        with pytest.raises(StoredValueDamaged, match=r"state\.value of 'kv/t-2'"):
            await store.read_committed("kv/t-2")
        # Others go on.
        assert await store.load_output("t-2", 1, 1) == '"t-2"'
        assert (await store.read_committed("kv/t-1")).value == '"t-1"'


@asynccontextmanager
async def refused(address: str, keys: PayloadKeys | None, why: str) -> AsyncIterator[None]:
    with pytest.raises(DatabaseRefused, match=why):
        async with open_store(address, payload_keys=keys):
            pass
    yield


async def test_a_database_is_not_served_without_the_keys_of_its_values(address: str):
    async with open_store(address) as store:
        await Driver(store, "t-0").begin()
    async with open_store(address, payload_keys=KEYS) as store:
        await (driver := await Driver(store, "t-1").begin()).step({"kv/a": "1"})
        # What was plain before stays readable.
        assert (await store.load_record(Driver(store, "t-0").id)) is not None
    more = {"k1": KEYS.keys["k1"], "k2": bytes(range(2, 34))}
    async with refused(address, None, "sealed with the keys k1; name the file"):
        pass
    async with refused(address, PayloadKeys("k2", {"k2": more["k2"]}), "'k1', which is not in the file"):
        pass
    async with refused(
        address, PayloadKeys("k1", {"k1": more["k2"]}), "'k1' in the file of keys is not the one"
    ):
        pass
    async with open_store(address, payload_keys=PayloadKeys("k2", more)) as store:
        loaded = await store.load(driver.id)
        assert loaded is not None
        assert loaded.attempts[0].output == '{"step":1}'
    async with refused(address, KEYS, "'k2', which is not in the file"):
        pass
