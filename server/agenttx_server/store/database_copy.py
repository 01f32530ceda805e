"""A whole SQLite database copied into a new file beside its target, which takes its name at the end.

The copy is made in one read transaction of the source, so that it is one moment's state however
long it takes and however much is written meanwhile. (Without one SQLite would begin anew after every
write of another process.) The source's write-ahead log grows until then.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from agenttx_server.store.storage_errors import DatabaseRefused

__all__ = ["CopiedDatabase", "copy_database", "sync_folder", "unfinished"]

# 4 MiB, then a pause of a third of what reading them took: writers get their turn at the disk.
_PAGES_A_STEP = 1024
_PAUSE = 1 / 3
_BUSY_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CopiedDatabase:
    """What was copied. ``commit_version`` is that of the newest publication in it."""

    schema_version: str
    database_id: str
    commit_version: int
    transactions: int
    size_bytes: int


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """Give the name of a new file beside a target, empty and readable by its owner only; remove it at the end.

    Raises OSError.
    """
    path = target.with_name(f".{target.name}.unfinished-{os.getpid()}")
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        yield path
    finally:
        for name in (path, _beside(path, "-journal"), _beside(path, "-wal"), _beside(path, "-shm")):
            name.unlink(missing_ok=True)


def copy_database(source: Path, target: Path) -> CopiedDatabase:
    """Copy a database into an empty file, verify the copy and make it durable.

    The copy is one file, complete without a write-ahead log. The source may be in use. Raises
    DatabaseRefused if either can't be read or written, or if the copy is damaged.
    """
    try:
        with closing(_opened(source, "ro")) as reader, closing(_opened(target, "rw")) as writer:
            reader.execute("PRAGMA query_only = ON")
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            # It is thrown away if it isn't finished, and made durable at the end.
            writer.execute("PRAGMA synchronous = OFF")
            reader.backup(writer, pages=_PAGES_A_STEP, progress=_Pauses())
            reader.execute("ROLLBACK")
            writer.execute("PRAGMA journal_mode = DELETE")
            copied = _verified(source, target, writer)
    except sqlite3.Error as error:
        raise DatabaseRefused(f"the database {source} can't be copied to {target.parent}: {error}") from error
    _sync(target)
    return copied


def _opened(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=_BUSY_TIMEOUT_SECONDS,
    )


class _Pauses:
    """Called after each step of a copy."""

    def __init__(self) -> None:
        self._step_began = time.monotonic()

    def __call__(self, status: int, left: int, pages: int) -> None:
        if left:
            time.sleep((time.monotonic() - self._step_began) * _PAUSE)
        self._step_began = time.monotonic()


def _verified(source: Path, target: Path, copy: sqlite3.Connection) -> CopiedDatabase:
    ((answer,), *_) = copy.execute("PRAGMA quick_check(1)").fetchall()
    if answer != "ok":
        raise DatabaseRefused(f"the database {source} is damaged: {' '.join(answer.split())}")

    def one(query: str) -> object:
        row = copy.execute(query).fetchone()
        return row[0] if row is not None else ""

    return CopiedDatabase(
        schema_version=str(one("SELECT version_num FROM alembic_version")),
        database_id=str(one("SELECT value FROM database_facts WHERE name = 'database_id'")),
        commit_version=int(str(one("SELECT value FROM counters WHERE name = 'commit_version'") or 0)),
        transactions=int(str(one("SELECT count(*) FROM transactions"))),
        size_bytes=target.stat().st_size,
    )


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Make names in a folder durable: those given, changed and removed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
