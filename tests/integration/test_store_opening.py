"""Opening a database: one server a file, migrations, and what is refused with one clear line."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from tests.support.store_processes import process, read_line
from tests.support.store_records import Driver

from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.store import DatabaseRefused, StoreSettings, migrate, open_store
from agenttx_server.store.schema import HEAD_REVISION, METADATA
from agenttx_server.store.schema_revisions import _config


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def one_line(error: pytest.ExceptionInfo[DatabaseRefused]) -> str:
    line = str(error.value)
    assert "\n" not in line
    return line


async def refusal(url: str, **settings: float) -> str:
    with pytest.raises(DatabaseRefused) as refused:
        async with open_store(url, StoreSettings(**settings)):  # type: ignore[arg-type]
            pass
    return one_line(refused)


# --- one server a file --------------------------------------------------------------------------


async def test_a_second_server_is_told_who_serves(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    with process("serve", database) as first:
        assert read_line(first) == "open"
        line = await refusal(url_of(database), lock_wait_seconds=3600)  # at once all the same
        assert str(database) in line
        assert f"process {first.pid}" in line
        with process("serve", database) as second:
            assert read_line(second) == f"refused: {line}"
        with pytest.raises(DatabaseRefused) as refused:
            migrate(url_of(database))
        assert f"process {first.pid}" in one_line(refused)


async def test_a_second_store_in_one_process_is_refused_too(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    async with open_store(url_of(database)):
        assert "in use" in await refusal(url_of(database))
    async with open_store(url_of(database)) as store:
        await store.check()


async def test_a_killed_server_leaves_no_lock(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    with process("serve", database) as first:
        assert read_line(first) == "open"
        first.kill()
    assert (tmp_path / "agenttx.db.lock").read_text() == f"{first.pid} serving\n"
    async with open_store(url_of(database)) as store:
        await store.check()


async def test_a_child_that_outlives_a_killed_server_keeps_no_lock(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    with process("serve-fork", database) as server:
        child = int(read_line(server))
        assert read_line(server) == "open"
        server.kill()
        server.wait()
        os.kill(child, 0)  # it lives
        async with open_store(url_of(database)) as store:
            await store.check()


def test_of_servers_that_start_at_once_one_serves(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    with (
        process("serve", database) as first,
        process("serve", database) as second,
        process("serve", database) as third,
    ):
        lines = sorted(read_line(child) for child in (first, second, third))
    assert lines[0] == "open"
    assert all(line.startswith("refused: ") for line in lines[1:])


def test_of_migrations_that_start_at_once_all_succeed(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    with (
        process("migrate", database) as first,
        process("migrate", database) as second,
        process("migrate", database) as third,
    ):
        assert [read_line(child) for child in (first, second, third)] == [HEAD_REVISION] * 3


def test_a_server_waits_for_a_migration(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    with process("migrate-half", database) as migrating:
        assert read_line(migrating) == "half"
        with process("serve", database) as server:
            migrating.kill()
            assert read_line(server) == "open"


async def test_a_server_does_not_wait_for_a_migration_for_ever(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    with process("migrate-half", database) as migrating:
        assert read_line(migrating) == "half"
        assert "migrating" in await refusal(url_of(database), lock_wait_seconds=0.1)


# --- migrations ---------------------------------------------------------------------------------


def test_the_newest_migration_is_the_one_the_program_asks_for() -> None:
    assert ScriptDirectory.from_config(_config()).get_heads() == [HEAD_REVISION]


def test_migrations_make_the_tables_of_the_schema(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    assert migrate(url_of(database)) == HEAD_REVISION
    engine = create_engine(url_of(database))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()
    created = create_engine("sqlite://")
    with created.connect() as fresh, closing(sqlite3.connect(database)) as migrated:
        METADATA.create_all(fresh)
        assert declared(migrated) == declared(fresh.connection.driver_connection)
    created.dispose()


def declared(connection: Any) -> dict[str, Any]:
    """Indexes as they were declared (views are made by migrations only), and tables' columns in no order: one that was added is the last."""
    query = "SELECT name, type, sql FROM sqlite_schema WHERE name NOT LIKE 'alembic%' AND sql IS NOT NULL AND type <> 'view'"
    found: dict[str, Any] = {}
    for name, kind, sql in connection.execute(query).fetchall():
        if kind == "table":
            columns = connection.execute(
                'SELECT name, type, "notnull", pk FROM pragma_table_info(?)', (name,)
            )
            found[name] = (set(columns.fetchall()), "WITHOUT ROWID" in sql)
        else:
            found[name] = " ".join(sql.split())
    return found


async def test_a_database_has_an_id_of_its_own_that_stays(tmp_path: Path) -> None:
    def database_id(path: Path) -> str:
        with closing(sqlite3.connect(path)) as connection:
            ((value,),) = connection.execute("SELECT value FROM database_facts WHERE name = 'database_id'")
            return str(value)

    first, second = tmp_path / "a.db", tmp_path / "b.db"
    for path in (first, second):
        migrate(url_of(path))
    before = database_id(first)
    assert len(before) == 36
    assert before != database_id(second)
    migrate(url_of(first))
    async with open_store(url_of(first)):
        pass
    assert database_id(first) == before


async def test_a_migration_killed_half_way_leaves_nothing_and_is_made_again(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    with process("migrate-half", database) as migrating:
        assert read_line(migrating) == "half"
        migrating.kill()
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
    async with open_store(url_of(database)) as store:
        await Driver(store).begin()


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if not path.name.endswith(".lock")
    }


async def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    async with open_store(url_of(database)) as store:
        await Driver(store).begin()
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    before = digests(tmp_path)
    line = await refusal(url_of(database))
    assert "9999" in line
    assert "newer" in line
    with pytest.raises(DatabaseRefused):
        migrate(url_of(database))
    assert digests(tmp_path) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not a database at all, but longer than a header of a hundred bytes. " * 4, "can't be read"),
        ("CREATE TABLE customers (name TEXT)", "something else"),
        ("CREATE TABLE alembic_version (version_num TEXT)", "something else"),
    ],
)
async def test_a_file_of_something_else_is_refused_and_left_alone(
    tmp_path: Path, content: bytes | str, words: str
) -> None:
    database = tmp_path / "agenttx.db"
    if isinstance(content, bytes):
        database.write_bytes(content)
    else:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute(content)
    before = digests(tmp_path)
    assert words in await refusal(url_of(database))
    assert digests(tmp_path) == before


async def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    database.touch()
    async with open_store(url_of(database)) as store:
        await store.check()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "must be a file"),
        ("sqlite:///:memory:", "must be a file"),
        ("mysql://host/name", "mysql"),
        ("postgres://name:secret@host/name", "postgresql://"),
        ("postgresql+asyncpg://name:secret@host/name", "postgresql://"),
        ("nonsense", "no URL"),
        ("sqlite:////no/such/directory/agenttx.db", "/no/such/directory"),
    ],
)
async def test_an_address_that_will_not_do_is_refused(url: str, words: str) -> None:
    assert words in await refusal(url)
    with pytest.raises(DatabaseRefused) as refused:
        migrate(url)
    assert words in one_line(refused)


@pytest.mark.parametrize("name", ["a b.db", "ä#?%25.db", "agenttx"])
async def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    from sqlalchemy.engine import URL

    url = URL.create("sqlite", database=str(tmp_path / name)).render_as_string()
    for _ in range(2):
        async with open_store(url) as store:
            with suppress(Exception):
                await Driver(store).begin()
            assert await store.count_open("") == 1
    assert (tmp_path / name).stat().st_size > 0


async def test_a_relative_address_is_a_file_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_store("sqlite:///agenttx.db") as store:
        await store.check()
    assert (tmp_path / "agenttx.db").exists()


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
async def test_the_writer_is_as_durable_as_was_asked(tmp_path: Path, synchronous: str) -> None:
    settings = StoreSettings(synchronous=synchronous)  # type: ignore[arg-type]
    async with open_store(url_of(tmp_path / "agenttx.db"), settings) as store:
        await Driver(store).begin()
        connection = store._writer._connection
        assert connection is not None
        driver = connection._driver
        assert driver is not None
        assert driver.execute("PRAGMA synchronous").fetchone() == ({"FULL": 2, "NORMAL": 1}[synchronous],)
        assert driver.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_database_that_was_removed_or_replaced_takes_no_more_answers(
    tmp_path: Path, replaced: bool
) -> None:
    database, aside = tmp_path / "agenttx.db", tmp_path / "aside.db"
    async with open_store(url_of(database)) as store:
        driver = await Driver(store).begin()
        database.rename(aside)
        if replaced:
            database.write_bytes(aside.read_bytes())

        with pytest.raises(StoreUnavailable, match="was replaced" if replaced else "can't be found"):
            await driver.write()
        with pytest.raises(StoreUnavailable):
            await store.check()

        assert database.exists() == replaced  # no empty one was made in its place
        aside.rename(database)
        await store.check()
        driver.record = await store.load_record(driver.id)  # type: ignore[assignment]
        await driver.write()
