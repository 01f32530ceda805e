"""A SQLite database backed up into one file, while it is served or not, and put back from it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agenttx_server.store.database import database_file
from agenttx_server.store.database_copy import CopiedDatabase, copy_database, sync_folder, unfinished
from agenttx_server.store.lock_file import LockFile
from agenttx_server.store.migrating import stored_revision
from agenttx_server.store.postgres_address import is_postgresql
from agenttx_server.store.storage_errors import DatabaseRefused

__all__ = ["BackupRefused", "Restored", "back_up", "restore"]


class BackupRefused(Exception):
    """A file stands in the way or isn't there; ``str()`` is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was put back, and where the database of before is now (None: there was none)."""

    copied: CopiedDatabase
    kept: Path | None


def back_up(database_url: str, target: Path, *, replace: bool) -> CopiedDatabase:
    """Copy a database, which may be served meanwhile, into a file; ``replace`` one that is there.

    The file is complete and durable once it has its name. Raises BackupRefused, and DatabaseRefused
    if the database isn't one of ours, is newer than this program or can't be read.
    """
    source = _file_of(database_url)
    _must_be_ours(source, f"there is no database {source}")
    if not target.parent.is_dir():
        raise BackupRefused(f"the directory {target.parent} does not exist")
    if target.is_dir():
        raise BackupRefused(f"{target} is a directory; give the name of a file")
    if target.exists() and not replace:
        raise BackupRefused(f"the file {target} exists; give another name, or --force to replace it")
    if target.exists() and target.samefile(source):
        raise BackupRefused(f"{target} is the database itself")
    try:
        with unfinished(target) as path:
            copied = copy_database(source, path)
            if replace:
                path.replace(target)
            else:
                # A link, for a rename would replace a file that came there meanwhile.
                os.link(path, target)
        sync_folder(target.parent)
    except FileExistsError as error:
        raise BackupRefused(f"the file {target} exists by now; give another name") from error
    except OSError as error:
        raise BackupRefused(f"the file {target} can't be written: {error.strerror}") from error
    return copied


def restore(database_url: str, backup: Path, now: datetime | None = None) -> Restored:
    """Put a backup in a database's place; what was there is kept beside it, under a name with the time.

    The database has the state of before or that of the backup at any moment, whole. Raises
    BackupRefused; DatabaseRefused if a server uses the database, or if the file isn't a database of ours, is
    newer than this program or damaged.
    """
    target = _file_of(database_url)
    _must_be_ours(backup, f"there is no backup {backup}")
    with LockFile(target, "restoring", wait_seconds=5.0):
        try:
            if target.exists() and target.samefile(backup):
                raise BackupRefused(f"{backup} is the database itself")
            with unfinished(target) as path:
                copied = copy_database(backup, path)
                _give_to_owner(path, target)
                kept = _keep_aside(target, now or datetime.now(UTC))
                path.replace(target)
            sync_folder(target.parent)
        except OSError as error:
            raise BackupRefused(f"the database {target} can't be replaced: {error.strerror}") from error
    return Restored(copied, kept)


def _file_of(database_url: str) -> Path:
    if is_postgresql(database_url):
        raise BackupRefused(
            "PostgreSQL has tools of its own for this: pg_dump and pg_restore, or its archive"
        )
    return database_file(database_url)


def _must_be_ours(path: Path, missing: str) -> None:
    """Raise unless a file is a database that this program knows to read."""
    if not path.is_file():
        raise BackupRefused(missing)
    if stored_revision(path) is None:
        raise DatabaseRefused(f"the file {path} is empty")


def _give_to_owner(path: Path, target: Path) -> None:
    """Have a database belong to whom the one of before did, or the directory; root restores for others."""
    before = target.stat() if target.exists() else None
    if before is not None:
        path.chmod(stat.S_IMODE(before.st_mode))
    if os.geteuid() == 0:
        owner = before or target.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def _keep_aside(target: Path, now: datetime) -> Path | None:
    """Give a database a second name, and leave nothing of it that its successor would take for its own."""
    if not target.exists():
        _remove_log(target)
        return None
    kept = target.with_name(f"{target.name}.before-restore-{now:%Y%m%dT%H%M%S.%fZ}")
    wal, kept_wal = _beside(target, "-wal"), _beside(kept, "-wal")
    if wal.exists():
        shutil.copy(wal, kept_wal)
    if _empty_log(target):
        kept_wal.unlink(missing_ok=True)
    # The name itself stays: there is no moment without a database, which a server would make anew.
    os.link(target, kept)
    _remove_log(target)
    return kept


def _empty_log(path: Path) -> bool:
    """Have all that was committed in the database's one file; False if SQLite can't, as with a damaged one."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error:
        return False
    return not busy


def _remove_log(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        _beside(path, suffix).unlink(missing_ok=True)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
