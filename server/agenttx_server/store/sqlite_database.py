"""A SQLite file that is served: its lock, its writer, its readers."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from sqlalchemy import Table

from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.store.commit_writer import CommitWriter
from agenttx_server.store.database import database_file, reader_engine
from agenttx_server.store.extra_tables import statements_with
from agenttx_server.store.lock_file import LockFile
from agenttx_server.store.migrating import migrate_file
from agenttx_server.store.read_pool import ReadPool
from agenttx_server.store.served_file import ServedFile
from agenttx_server.store.settings import StoreSettings
from agenttx_server.store.sqlite_connection import WriteConnection
from agenttx_server.store.sqlite_statements import STATEMENTS, extra_statement
from agenttx_server.store.storage_errors import DatabaseRefused, is_busy
from agenttx_server.store.wal import WalKeeper

if TYPE_CHECKING:
    from agenttx_server.store.payload_codec import PayloadCodec

__all__ = ["SqliteDatabase"]


class SqliteDatabase:
    """One file, one server, one writer (served_database.ServedDatabase)."""

    is_shared = False

    def __init__(
        self,
        database_url: str,
        settings: StoreSettings,
        extra_tables: Sequence[Table] = (),
        payloads: PayloadCodec | None = None,
    ) -> None:
        path = database_file(database_url)
        self._path = path
        self._settings = settings
        self._file = ServedFile(path)
        self._lock = LockFile(path, "serving", wait_seconds=settings.lock_wait_seconds)
        statements = statements_with(STATEMENTS, extra_tables, extra_statement, payloads)
        self.writer = CommitWriter(
            lambda: WriteConnection(path, settings, statements),
            settings.writer,
            WalKeeper(path, settings.wal_limit_bytes),
            self._file.check,
        )
        readers = reader_engine(path, settings).execution_options(payloads=payloads)
        self.pool = ReadPool(readers, settings.reader_threads, self._file.check)

    def open(self) -> None:
        """Take the lock, migrate, start; blocks. Raises DatabaseRefused."""
        self._lock.acquire()
        try:
            migrate_file(self._path, self._settings)
            self._prove_writable()
            self._file.remember()
            self.writer.start()
            self.pool.start()
        except BaseException:
            self._lock.release()
            raise

    def _prove_writable(self) -> None:
        # Here it is one line for the operator; later every step would fail.
        try:
            with closing(WriteConnection(self._path, self._settings)) as connection:
                if not connection.has_write_ahead_log:
                    raise DatabaseRefused(
                        f"the database {self._path} is on a file system without shared memory, which SQLite needs"
                    )
                connection.begin()
                connection.rollback()
        except sqlite3.Error as error:
            if not is_busy(error):
                raise DatabaseRefused(f"the database {self._path} can't be written: {error}") from error

    def lease_time(self, asked: object, now: MicrosecondsUtc) -> MicrosecondsUtc:
        return now

    def close(self) -> None:
        """Write what is queued, let running reads end, release the lock; blocks."""
        self.writer.close()
        self.pool.close()
        self._lock.release()
