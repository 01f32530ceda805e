"""A database copied while it is written to, and put back: whole or not at all, and nothing else touched."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.previous_release import make_database
from tests.support.store_processes import process, read_line
from tests.support.store_records import Driver

from agenttx_server.engine.ports import TransactionFilter
from agenttx_server.store import DatabaseRefused, migrate, open_store
from agenttx_server.store import backup as store_backup
from agenttx_server.store.backup import BackupRefused, back_up, restore
from agenttx_server.store.database_copy import copy_database
from agenttx_server.store.schema import HEAD_REVISION


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "agenttx.db"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    (tmp_path / "backups").mkdir()
    return tmp_path / "backups" / "monday.db"


def one_step(database: Path, name: str) -> None:
    """Have a database hold a committed transaction."""

    async def write() -> None:
        async with open_store(url_of(database)) as store:
            driver = await Driver(store, name).begin()
            await driver.step({f"kv/{name}": "1"})
            await driver.commit()

    asyncio.run(write())


def transactions(database: Path) -> set[str]:
    """What a server finds in it, which goes on with each."""

    async def go_on() -> None:
        async with open_store(url_of(database)) as store:
            for record in (await store.list_transactions(TransactionFilter(), "", 100)).transactions:
                driver = Driver(store, record.transaction_id)
                driver.record = record
                await driver.write()

    asyncio.run(go_on())
    with closing(sqlite3.connect(database)) as connection:
        return {name for (name,) in connection.execute("SELECT transaction_id FROM transactions")}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


# --- backing up ----------------------------------------------------------------------------------------


def test_a_copy_made_while_it_is_written_to_has_whole_steps_and_every_one_answered_before(
    database: Path, copy: Path
) -> None:
    answered: dict[str, int] = {}
    with process("write", database, 4) as writing:
        for number in range(3):
            for _ in range(200):
                name, answer = read_line(writing).split()
                answered[name] = int(answer)
            back_up(url_of(database), copy, replace=number > 0)
            read_line(writing)  # it goes on
        writing.kill()
    assert names(copy.parent) == {copy.name}
    with closing(sqlite3.connect(copy)) as connection:
        for name, step in answered.items():
            ((number, found),) = connection.execute(
                "SELECT number, next_step_id - 1 FROM transactions WHERE transaction_id = ?", (name,)
            )
            assert found >= step
            for table in ("attempts", "effects", "undo_actions", "events"):
                count = f"SELECT count(*) FROM {table} WHERE transaction_number = ?"
                assert connection.execute(count, (number,)).fetchone() == (found,)
    assert transactions(copy) == set(answered)


def test_a_copy_is_one_file_and_says_what_it_holds(database: Path, copy: Path) -> None:
    one_step(database, "t-1")
    copied = back_up(url_of(database), copy, replace=False)
    with closing(sqlite3.connect(database)) as connection:
        ((database_id,),) = connection.execute("SELECT value FROM database_facts WHERE name = 'database_id'")
    assert (copied.schema_version, copied.database_id) == (HEAD_REVISION, database_id)
    assert (copied.transactions, copied.commit_version) == (1, 1)
    assert copied.size_bytes == copy.stat().st_size
    assert copy.stat().st_mode & 0o777 == 0o600
    assert names(copy.parent) == {copy.name}
    with closing(sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_database_of_the_release_before_is_copied_as_it_is(database: Path, copy: Path) -> None:
    make_database(database)
    assert back_up(url_of(database), copy, replace=False).schema_version == "0001"
    migrate(url_of(database))
    assert restore(url_of(database), copy).copied.schema_version == "0001"
    assert len(transactions(database)) == 7


def test_a_file_that_is_there_is_replaced_only_if_told(database: Path, copy: Path) -> None:
    one_step(database, "t-1")
    copy.write_text("somebody's")
    with pytest.raises(BackupRefused, match="exists; give another name, or --force"):
        back_up(url_of(database), copy, replace=False)
    assert copy.read_text() == "somebody's"
    assert back_up(url_of(database), copy, replace=True).transactions == 1
    assert names(copy.parent) == {copy.name}


def test_a_file_that_came_meanwhile_is_not_replaced(
    database: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_step(database, "t-1")

    def slow(source: Path, target: Path) -> object:
        copy.write_text("somebody's")
        return copy_database(source, target)

    monkeypatch.setattr(store_backup, "copy_database", slow)
    with pytest.raises(BackupRefused, match="exists by now"):
        back_up(url_of(database), copy, replace=False)
    assert copy.read_text() == "somebody's"
    assert names(copy.parent) == {copy.name}


def test_what_can_not_be_backed_up_is_said_in_one_line(database: Path, copy: Path) -> None:
    url = url_of(database)
    with pytest.raises(BackupRefused, match="there is no database"):
        back_up(url, copy, replace=False)
    assert names(database.parent) == set()
    one_step(database, "t-1")
    for target, words in (
        (copy.parent, "is a directory"),
        (copy.parent / "no" / "such.db", "directory .* does not exist"),
        (database, "is the database itself"),
    ):
        with pytest.raises(BackupRefused, match=words):
            back_up(url, target, replace=True)
    with pytest.raises(BackupRefused, match="pg_dump"):
        back_up("postgresql://host/agenttx", copy, replace=False)
    assert transactions(database) == {"t-1"}
    assert names(copy.parent) == set()


def test_a_damaged_database_gives_no_backup(database: Path, copy: Path) -> None:
    one_step(database, "t-1")
    with database.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xa5" * 4096 * 20)
    with pytest.raises(DatabaseRefused, match=r"damaged|can't be"):
        back_up(url_of(database), copy, replace=False)
    assert names(copy.parent) == set()


# --- restoring -----------------------------------------------------------------------------------------


def test_a_restored_database_has_the_state_of_the_backup_and_the_other_is_kept(
    database: Path, copy: Path
) -> None:
    one_step(database, "before")
    back_up(url_of(database), copy, replace=False)
    one_step(database, "after")
    database.chmod(0o640)

    restored = restore(url_of(database), copy)

    assert restored.copied.transactions == 1
    assert restored.kept is not None
    assert restored.kept.name.startswith("agenttx.db.before-restore-")
    assert names(database.parent) == {database.name, restored.kept.name}
    assert database.stat().st_mode & 0o777 == 0o640
    assert transactions(database) == {"before"}
    assert transactions(restored.kept) == {"before", "after"}
    one_step(database, "later")
    assert transactions(copy) == {"before"}


def test_a_log_left_by_a_crash_stays_with_the_database_it_belongs_to(database: Path, copy: Path) -> None:
    one_step(database, "before")
    back_up(url_of(database), copy, replace=False)
    with process("write", database, 2) as writing:
        for _ in range(50):
            read_line(writing)
        writing.kill()
        writing.wait()
    assert (database.parent / "agenttx.db-wal").stat().st_size > 0

    kept = restore(url_of(database), copy).kept

    assert kept is not None
    assert names(database.parent) == {database.name, kept.name}
    assert transactions(database) == {"before"}
    assert len(transactions(kept)) == 3


def test_a_database_damaged_beyond_reading_is_kept_with_its_log(database: Path, copy: Path) -> None:
    one_step(database, "before")
    back_up(url_of(database), copy, replace=False)
    wal = database.with_name("agenttx.db-wal")
    database.write_bytes(b"not a database any more " * 1000)
    wal.write_bytes(b"nor a log " * 1000)

    kept = restore(url_of(database), copy).kept

    assert kept is not None
    assert kept.read_bytes().startswith(b"not a database")
    assert kept.with_name(f"{kept.name}-wal").read_bytes().startswith(b"nor a log")
    assert not wal.exists()
    assert transactions(database) == {"before"}


def test_a_backup_makes_a_database_where_there_was_none(database: Path, copy: Path, tmp_path: Path) -> None:
    one_step(database, "before")
    back_up(url_of(database), copy, replace=False)
    elsewhere = tmp_path / "elsewhere.db"
    (tmp_path / "elsewhere.db-wal").write_bytes(b"left by something else")
    assert restore(url_of(elsewhere), copy).kept is None
    assert transactions(elsewhere) == {"before"}


def test_the_raw_files_of_a_killed_server_will_do_as_a_backup(database: Path, tmp_path: Path) -> None:
    with process("write", database, 2) as writing:
        for _ in range(50):
            read_line(writing)
        writing.kill()
        writing.wait()
    elsewhere = tmp_path / "elsewhere.db"
    assert restore(url_of(elsewhere), database).copied.transactions == 2
    assert len(transactions(elsewhere)) == 2


@pytest.mark.parametrize("at", ["copy_database", "_keep_aside", "sync_folder"])
def test_a_restore_that_fails_leaves_one_of_the_two_whole(
    database: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    one_step(database, "before")
    back_up(url_of(database), copy, replace=False)
    one_step(database, "after")

    def fails(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_backup, at, fails)
    with pytest.raises(BackupRefused, match="No space left"):
        restore(url_of(database), copy)
    monkeypatch.undo()
    expected = {"before"} if at == "sync_folder" else {"before", "after"}
    assert transactions(database) == expected
    assert not [name for name in names(database.parent) if "unfinished" in name]


def test_what_can_not_be_restored_is_said_in_one_line_and_nothing_changes(
    database: Path, copy: Path, tmp_path: Path
) -> None:
    one_step(database, "mine")
    newer, foreign, empty, text, damaged = (
        tmp_path / name for name in ("newer.db", "foreign.db", "empty.db", "text.db", "damaged.db")
    )
    back_up(url_of(database), newer, replace=False)
    back_up(url_of(database), damaged, replace=False)
    with closing(sqlite3.connect(newer)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    with damaged.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xa5" * 4096 * 20)
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    empty.touch()
    text.write_text("no database " * 1000)
    was = database.read_bytes()
    for file_given, words in (
        (newer, "made by a newer release"),
        (foreign, "something else"),
        (empty, "is empty"),
        (text, "can't be read"),
        (damaged, r"damaged|malformed"),
        (tmp_path / "missing.db", "there is no backup"),
        (tmp_path, "there is no backup"),
        (database, "is the database itself"),
    ):
        with pytest.raises((BackupRefused, DatabaseRefused), match=words) as refused:
            restore(url_of(database), file_given)
        assert "\n" not in str(refused.value)
    assert database.read_bytes() == was
    assert names(database.parent) == {database.name}
    assert transactions(database) == {"mine"}


def test_nothing_is_restored_under_a_server(database: Path, copy: Path) -> None:
    one_step(database, "before")
    back_up(url_of(database), copy, replace=False)
    with process("serve", database) as server:
        assert read_line(server) == "open"
        with pytest.raises(DatabaseRefused, match=f"in use by process {server.pid}"):
            restore(url_of(database), copy)
        assert "before-restore" not in " ".join(names(database.parent))
