"""Opening a SQLite database: address, lock, version check, migration, connections."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from agenttx_server.store import sqlite_statements as sql
from agenttx_server.store.commit_writer import WriterSettings
from agenttx_server.store.storage_errors import DatabaseRefused

__all__ = ["StoreSettings", "database_file", "reader_engine", "writer_engine"]

_PREPARED_STATEMENTS = 256
# For what opens a connection and for reads, which wait for other processes next to never.
_BUSY_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How the store uses its database.

    ``synchronous`` FULL: an answered write is on disk. NORMAL: a power cut (not a crash of
    the process) may lose the last writes answered. ``wal_limit_bytes`` is the size of the
    write-ahead log beyond which it is emptied as soon as no old reader is in the way.
    """

    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    writer: WriterSettings = field(default_factory=WriterSettings)
    reader_threads: int = 4
    cache_kib: int = 32 * 1024
    wal_limit_bytes: int = 64 * 1024 * 1024
    lock_wait_seconds: float = 60.0


def database_file(database_url: str) -> Path:
    """Return the file of a ``sqlite:///`` address. Raises DatabaseRefused for any other address."""
    try:
        url = make_url(database_url)
    except ArgumentError as error:
        raise DatabaseRefused(
            "the database address is no URL such as sqlite:////var/lib/agenttx/agenttx.db"
        ) from error
    if url.get_backend_name() != "sqlite":
        raise DatabaseRefused(f"databases of the kind {url.get_backend_name()} are not supported")
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise DatabaseRefused(
            "a SQLite database must be a file, for example sqlite:////var/lib/agenttx/agenttx.db"
        )
    return Path(url.database).absolute()


def writer_engine(path: Path, settings: StoreSettings) -> Engine:
    """Return an engine whose transactions begin as write transactions."""
    engine = _engine(path)
    event.listen(engine, "connect", _WriterPragmas(settings))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(sql.BEGIN_WRITE))
    return engine


def reader_engine(path: Path, settings: StoreSettings) -> Engine:
    """Return an engine for reading; a statement outside BEGIN is a snapshot of its own."""
    engine = _engine(path)
    event.listen(engine, "connect", _ReaderPragmas(settings))
    return engine


def _engine(path: Path) -> Engine:
    return create_engine(
        URL.create("sqlite+pysqlite", database=str(path)),
        # The threads keep their connections themselves.
        poolclass=NullPool,
        connect_args={
            "isolation_level": None,
            "timeout": _BUSY_TIMEOUT_SECONDS,
            "cached_statements": _PREPARED_STATEMENTS,
            "check_same_thread": False,
        },
    )


class _WriterPragmas:
    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings

    def __call__(self, connection: sqlite3.Connection, record: Any) -> None:
        for pragma in (
            "journal_mode = WAL",
            f"synchronous = {self._settings.synchronous}",
            f"journal_size_limit = {self._settings.wal_limit_bytes}",
            f"cache_size = -{self._settings.cache_kib}",
            "temp_store = MEMORY",
            # The writer waits by itself: SQLite sleeps up to 100 ms between two tries, too
            # seldom to get a turn beside a process that writes in a loop.
            "busy_timeout = 0",
        ):
            connection.execute(f"PRAGMA {pragma}")


class _ReaderPragmas:
    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings

    def __call__(self, connection: sqlite3.Connection, record: Any) -> None:
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA cache_size = -{self._settings.cache_kib // 4}")
        connection.execute("PRAGMA temp_store = MEMORY")
