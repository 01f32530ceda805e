"""A database of the release before: brought over with the work in it, by one process, whole or not at all."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.previous_release import make_database, revision_of
from tests.support.store_processes import process, read_line
from tests.support.store_records import NOW, Driver

from agenttx_server.engine.ports import TransactionFilter
from agenttx_server.engine.records import (
    EffectState,
    MicrosecondsUtc,
    ServerId,
    TransactionId,
    TransactionRecord,
    UndoState,
)
from agenttx_server.store import migrate, open_store
from agenttx_server.store.schema import HEAD_REVISION

SERVER = ServerId("server-a")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "agenttx.db"


@pytest.fixture
def before(database: Path) -> dict[str, TransactionRecord]:
    made = make_database(database)
    assert revision_of(database) == "0001"
    return made


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def contents(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


async def test_what_was_under_way_is_taken_over_and_nothing_else(
    database: Path, before: dict[str, TransactionRecord]
) -> None:
    async with open_store(url_of(database)) as store:
        await store.register_server(SERVER, 10, NOW)
        assert set(await store.claim_orphans(SERVER, NOW, 10)) == {"executing", "rolling-back"}
        assert await store.claim_orphans(SERVER, NOW, 10) == []
    assert revision_of(database) == HEAD_REVISION


async def test_effects_that_were_not_delivered_are_due(
    database: Path, before: dict[str, TransactionRecord]
) -> None:
    async with open_store(url_of(database)) as store:
        await store.register_server(SERVER, 10, NOW)
        assert await store.next_outbox_due() == 0
        assert await store.claim_outbox(SERVER, NOW, 10) == ["ready"]
        assert await store.claim_outbox(SERVER, NOW, 10) == []


async def test_what_was_written_before_is_read_as_it_was(
    database: Path, before: dict[str, TransactionRecord]
) -> None:
    async with open_store(url_of(database)) as store:
        for name, record in before.items():
            found = await store.load_record(record.transaction_id)
            assert found is not None
            assert dataclasses.replace(found, owner=ServerId(""), outbox_due_at=None) == record, name
        # Idle timeouts were among the details; those of before are heeded.
        late = MicrosecondsUtc(NOW + 7_000_000)
        assert await store.list_expired(late, NOW, 10) == ["idle"]
        page = await store.list_compensations("", None, frozenset({UndoState.FAILED}), "", 10)
        assert [(record.transaction_id, item.attempts, item.late) for record, item in page.undo] == [
            ("rolling-back", 3, False)
        ]
        waiting = frozenset({EffectState.READY, EffectState.DEAD})
        effects = await store.list_effects_page("", None, waiting, "", "", 10, 1000)
        assert [(record.transaction_id, item.state) for record, item in effects.effects] == [
            ("delivered", EffectState.DEAD),
            ("ready", EffectState.READY),
        ]
        assert await store.commit_version() == 2


async def test_work_goes_on_in_a_database_of_before(
    database: Path, before: dict[str, TransactionRecord]
) -> None:
    async with open_store(url_of(database)) as store:
        driver = Driver(store, "idle")
        record = await store.load_record(driver.id)
        assert record is not None
        driver.record = dataclasses.replace(record, next_step_id=2)
        await driver.step({"kv/a": "1"})
        receipt = await driver.commit()
        assert (receipt.commit_version, receipt.effects_ready) == (3, 1)
        assert await store.purge_ended(MicrosecondsUtc(NOW + 10**6), 10) == 1  # the others are owed something
        page = await store.list_transactions(TransactionFilter(), "", 10)
        assert TransactionId("aborted") not in {record.transaction_id for record in page.transactions}


# --- several processes, and one that dies --------------------------------------------------------------


def test_of_servers_that_open_it_at_once_one_migrates_and_serves_and_the_others_are_refused(
    database: Path, before: dict[str, TransactionRecord]
) -> None:
    with process("serve", database) as first, process("serve", database) as second:
        lines = sorted(read_line(child) for child in (first, second))
        assert lines[0] == "open"
        assert lines[1].startswith("refused: ")
        assert "is in use by process" in lines[1]
    assert revision_of(database) == HEAD_REVISION


def test_migrations_at_once_are_made_once_and_all_succeed(
    database: Path, before: dict[str, TransactionRecord]
) -> None:
    with process("migrate", database) as first, process("migrate", database) as second:
        assert [read_line(first), read_line(second)] == [HEAD_REVISION] * 2
    assert revision_of(database) == HEAD_REVISION


def test_a_server_waits_until_another_process_has_migrated(
    database: Path, before: dict[str, TransactionRecord]
) -> None:
    with process("migrate-half", database) as migrating:
        assert read_line(migrating) == "half"
        with process("serve", database) as server:
            # It waits: what it would open is half made, and locked.
            migrating.kill()
            assert read_line(server) == "open"
    assert revision_of(database) == HEAD_REVISION


async def test_a_migration_killed_half_way_leaves_the_database_of_before(
    database: Path, before: dict[str, TransactionRecord]
) -> None:
    was = contents(database)
    with process("migrate-half", database) as migrating:
        assert read_line(migrating) == "half"
        migrating.kill()
        migrating.wait()
    assert contents(database) == was
    assert migrate(url_of(database)) == HEAD_REVISION
    async with open_store(url_of(database)) as store:
        assert {record.transaction_id for record in await everything(store)} == set(before)


async def everything(store: object) -> list[TransactionRecord]:
    page = await store.list_transactions(TransactionFilter(), "", 100)  # type: ignore[attr-defined]
    return list(page.transactions)


def test_a_newer_database_is_refused_with_one_line_and_unchanged(
    database: Path, before: dict[str, TransactionRecord]
) -> None:
    migrate(url_of(database))
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    was = database.read_bytes()
    for role in ("serve", "migrate"):
        with process(role, database) as child:
            line = read_line(child)
            assert line.startswith("refused: ")
            assert "9999" in line
            assert "newer release" in line
            assert read_line(child) == ""
    assert database.read_bytes() == was
