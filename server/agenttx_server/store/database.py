"""Opening a SQLite database: address, lock, version check, migration, connections."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from agenttx_server.store.settings import StoreSettings
from agenttx_server.store.storage_errors import DatabaseRefused

__all__ = [
    "BUSY_TIMEOUT_SECONDS",
    "database_file",
    "reader_engine",
    "writer_engine",
    "writer_pragmas",
]

# For what opens a connection and for reads, which wait for other processes next to never.
BUSY_TIMEOUT_SECONDS = 5.0


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
    event.listen(engine, "connect", _Pragmas(writer_pragmas(settings)))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def reader_engine(path: Path, settings: StoreSettings) -> Engine:
    """Return an engine for reading; a statement outside BEGIN is a snapshot of its own."""
    engine = _engine(path)
    event.listen(engine, "connect", _Pragmas(_reader_pragmas(settings)))
    return engine


def _engine(path: Path) -> Engine:
    return create_engine(
        URL.create("sqlite+pysqlite", database=str(path)),
        # The threads keep their connections themselves.
        poolclass=NullPool,
        connect_args={
            "isolation_level": None,
            "timeout": BUSY_TIMEOUT_SECONDS,
            "check_same_thread": False,
        },
    )


def writer_pragmas(settings: StoreSettings) -> Sequence[str]:
    """Return what a connection that writes begins with."""
    return (
        "PRAGMA journal_mode = WAL",
        f"PRAGMA synchronous = {settings.synchronous}",
        f"PRAGMA journal_size_limit = {settings.wal_limit_bytes}",
        f"PRAGMA wal_autocheckpoint = {settings.checkpoint_pages}",
        f"PRAGMA cache_size = -{settings.cache_kib}",
        "PRAGMA temp_store = MEMORY",
    )


def _reader_pragmas(settings: StoreSettings) -> Sequence[str]:
    return (
        "PRAGMA query_only = ON",
        f"PRAGMA cache_size = -{settings.cache_kib // 4}",
        "PRAGMA temp_store = MEMORY",
    )


class _Pragmas:
    """Runs on each new connection of an engine."""

    def __init__(self, pragmas: Sequence[str]) -> None:
        self._pragmas = pragmas

    def __call__(self, connection: sqlite3.Connection, record: Any) -> None:
        for pragma in self._pragmas:
            connection.execute(pragma)
