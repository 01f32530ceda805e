"""Opening a PostgreSQL database: its address, what is refused in one clear line, migrations side by side."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from tests.support.cli_calls import AGENTTX
from tests.support.postgres_cluster import PostgresCluster, shared_cluster
from tests.support.store_processes import process, read_line
from tests.support.store_records import Driver

from agenttx_server.store import DatabaseRefused, StoreSettings, migrate, open_store
from agenttx_server.store.schema import HEAD_REVISION, METADATA

SECRET = "hunter2"  # of no account


@pytest.fixture
def cluster() -> PostgresCluster:
    return shared_cluster()


@pytest.fixture
def empty(cluster: PostgresCluster) -> Iterator[str]:
    """The address of a database with nothing in it."""
    with cluster.database(migrated=False) as address:
        yield address


@pytest.fixture
def migrated(empty: str) -> str:
    migrate(empty)
    return empty


async def refusal(address: str, **settings: float) -> str:
    """Why both the server and `migrate` refuse a database: one line without the password."""
    with pytest.raises(DatabaseRefused) as refused:
        async with open_store(address, StoreSettings(**settings)):  # type: ignore[arg-type]
            pass
    with pytest.raises(DatabaseRefused) as refused_too:
        migrate(address, lock_wait_seconds=settings.get("lock_wait_seconds", 60.0))
    line = str(refused.value)
    assert line == str(refused_too.value)
    assert "\n" not in line
    chained: BaseException | None = refused.value
    while chained is not None:
        assert SECRET not in str(chained)
        chained = chained.__cause__
    return line


# --- addresses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
async def test_an_address_of_either_form_will_do(empty: str, scheme: str) -> None:
    address = empty.replace("postgresql", scheme, 1)
    assert migrate(address) == HEAD_REVISION
    async with open_store(address) as store:
        assert store.is_shared
        await Driver(store).begin()


async def test_a_schema_of_its_own_will_do(cluster: PostgresCluster, empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute("CREATE TABLE transactions (of_somebody_else TEXT)")
        connection.execute("CREATE SCHEMA apart")
    async with open_store(f"{empty}&options=-csearch_path%3Dapart") as store:
        driver = await Driver(store).begin()
        await driver.step({"kv/a": "1"})
        await driver.commit()
        assert (await store.read_committed("kv/a")).value == "1"
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT count(*) FROM transactions").fetchone() == (0,)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (f"postgresql://me:{SECRET}@127.0.0.1:1/agenttx", "PostgreSQL database agenttx at 127.0.0.1:1: "),
        (f"postgresql://me:{SECRET}@/agenttx?host=/no/such/directory", "/no/such/directory"),
        (f"postgresql://me@/agenttx?host=/no/such/directory&password={SECRET}", "/no/such/directory"),
        (f"postgresql://me:{SECRET}@127.0.0.1:1/agenttx?nonsense=1", "nonsense"),
        (f"postgresql://me:{SECRET}@127.0.0.1:port/agenttx", "no URL"),
        (f"postgresql+asyncpg://me:{SECRET}@127.0.0.1/agenttx", "begins with postgresql://"),
    ],
)
async def test_a_server_that_is_not_there_is_named(address: str, words: str) -> None:
    assert words in await refusal(address)


async def test_an_unknown_user_is_told(cluster: PostgresCluster) -> None:
    line = await refusal(cluster.address("postgres", user=f"nobody:{SECRET}"))
    assert 'role "nobody" does not exist' in line


def test_a_password_is_in_no_log_of_a_server_that_can_not_start(tmp_path: Path) -> None:
    environment = os.environ | {
        "AGENTTX_DATABASE_URL": f"postgresql://me:{SECRET}@127.0.0.1:1/agenttx",
        "AGENTTX_DATA_DIR": str(tmp_path),
    }
    for command in (["serve", "--listen", "127.0.0.1:0"], ["migrate"]):
        ended = subprocess.run([AGENTTX, *command], env=environment, capture_output=True, text=True)
        assert ended.returncode == 78
        assert "can't connect" in ended.stderr
        assert SECRET not in ended.stderr + ended.stdout


# --- what is there already ------------------------------------------------------------------------------


async def test_another_encoding_is_refused(cluster: PostgresCluster) -> None:
    with cluster.database(migrated=False, options="TEMPLATE template0 ENCODING 'SQL_ASCII'") as address:
        assert "encoding SQL_ASCII" in await refusal(address)


async def test_a_newer_schema_is_refused_and_left_alone(migrated: str) -> None:
    with psycopg.connect(migrated, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        line = await refusal(migrated)
        assert "9999" in line
        assert "newer" in line
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)


@pytest.mark.parametrize("table", ["customers (name TEXT)", "alembic_version (version_num TEXT)"])
async def test_a_database_of_something_else_is_refused_and_left_alone(empty: str, table: str) -> None:
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table}")
        assert "something else" in await refusal(empty)
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert connection.execute(tables).fetchone() == (1,)


@pytest.fixture
def guest(cluster: PostgresCluster) -> Iterator[str]:
    """A user with no rights."""
    with cluster.connect() as connection:
        connection.execute("CREATE ROLE guest LOGIN")
        yield "guest"
        connection.execute("DROP ROLE guest")


async def test_a_user_who_may_create_nothing_is_told(empty: str, guest: str) -> None:
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    line = await refusal(empty.replace("//agenttx@", f"//{guest}@"))
    assert "permission denied for schema public" in line


async def test_a_user_who_may_not_write_a_table_is_told(migrated: str, guest: str) -> None:
    with psycopg.connect(migrated, autocommit=True) as connection:
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {guest}")
        connection.execute(f"REVOKE DELETE ON rewinds FROM {guest}")
        line = await refusal(migrated.replace("//agenttx@", f"//{guest}@"))
        assert "delete rewinds" in line
        connection.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {guest}")


# --- migrations -----------------------------------------------------------------------------------------


def test_migrations_make_the_tables_of_the_schema(migrated: str) -> None:
    engine = create_engine(migrated.replace("postgresql", "postgresql+psycopg", 1))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
        order = connection.exec_driver_sql(
            "SELECT collation_name FROM information_schema.columns "
            "WHERE table_name = 'committed_state' AND column_name = 'key'"
        )
        assert order.scalar() == "C"
    engine.dispose()


def test_of_migrations_that_start_at_once_all_succeed(empty: str) -> None:
    with (
        process("migrate", empty) as first,
        process("migrate", empty) as second,
        process("serve", empty) as third,
    ):
        assert [read_line(child) for child in (first, second, third)] == [HEAD_REVISION] * 2 + ["open"]


def test_a_server_waits_for_a_migration_and_makes_it_where_that_was_killed(empty: str) -> None:
    with process("migrate-half", empty) as migrating:
        assert read_line(migrating) == "half"
        with psycopg.connect(empty) as connection:  # nothing of it is to be seen
            assert connection.execute(
                "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
            ).fetchone() == (0,)
        with process("serve", empty) as server:
            migrating.kill()
            assert read_line(server) == "open"


async def test_a_server_does_not_wait_for_a_migration_for_ever(empty: str) -> None:
    with process("migrate-half", empty) as migrating:
        assert read_line(migrating) == "half"
        assert "being migrated" in await refusal(empty, lock_wait_seconds=0.1)


async def test_several_stores_serve_one_database(migrated: str) -> None:
    async with open_store(migrated) as first, open_store(migrated) as second:
        driver = await Driver(first).begin()
        assert await second.load_record(driver.id) == driver.record
