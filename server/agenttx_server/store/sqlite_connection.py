"""The writer's connection to a SQLite file, without SQLAlchemy in between.

A group commit is a handful of statements, and around each of them SQLAlchemy's bookkeeping costs
more processor time than the call itself, all of it with the interpreter lock held: for a lone
step twice the time (benchmarks/store_writes.py). Nothing but the writer goes past it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy.dialects.sqlite.pysqlite import dialect as sqlite_dialect

from agenttx_server.store.batch_connection import AuditTail, BatchStatements, SomeSetRefused
from agenttx_server.store.database import BUSY_TIMEOUT_SECONDS, writer_pragmas
from agenttx_server.store.prepared_query import PreparedQuery
from agenttx_server.store.settings import StoreSettings
from agenttx_server.store.sqlite_statements import STATEMENTS

__all__ = ["WriteConnection"]

# Each table's statement in the sizes in which it is prepared (sqlite_statements.RowStatement).
_PREPARED_STATEMENTS = 256
_DIALECT = sqlite_dialect()


class WriteConnection:
    """One connection (batch_connection.BatchConnection). Raises sqlite3.Error."""

    audit_tail: AuditTail | None = None

    def __init__(self, path: Path, settings: StoreSettings, statements: BatchStatements = STATEMENTS) -> None:
        self.statements = statements
        self._driver = sqlite3.connect(
            path,
            isolation_level=None,
            timeout=BUSY_TIMEOUT_SECONDS,
            cached_statements=_PREPARED_STATEMENTS,
            check_same_thread=False,
        )
        for pragma in writer_pragmas(settings):
            self._driver.execute(pragma)
        # The writer waits by itself: SQLite sleeps up to 100 ms between two tries, too
        # seldom to get a turn beside a process that writes in a loop.
        self._driver.execute("PRAGMA busy_timeout = 0")

    @property
    def has_write_ahead_log(self) -> bool:
        """Whether the file system lets SQLite keep one; without, reads and writes would block each other."""
        return bool(self.first("PRAGMA journal_mode") == ("wal",))

    def begin(self) -> None:
        """Begin a write transaction: take the write lock at once or raise SQLITE_BUSY."""
        self._driver.execute("BEGIN IMMEDIATE")

    def settle(self) -> None:
        """Do nothing: whatever was executed has been done."""

    def commit(self) -> None:
        """Make the transaction durable."""
        self._driver.execute("COMMIT")

    def rollback(self) -> None:
        """Take the transaction back, if there is one."""
        self._driver.rollback()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Take back what is done inside, and only that, if an exception leaves it."""
        self._driver.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self._driver.execute("ROLLBACK TO part")
            self._driver.execute("RELEASE part")
            raise
        self._driver.execute("RELEASE part")

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        return self._driver.execute(statement, parameters).rowcount

    def require_none(self, query: str, parameters: Sequence[Any]) -> None:
        """Raise SomeSetRefused if a query finds a row."""
        if self.first(query, parameters) is not None:
            raise SomeSetRefused

    def ask(self, statement: str, parameters: Sequence[Any]) -> Callable[[], Any]:
        """Run a query; what is returned gives its first row."""
        row = self.first(statement, parameters)
        return lambda: row

    def first(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """Return a query's first row, None if it has none."""
        cursor = self._driver.execute(statement, parameters)
        row = cursor.fetchone()
        # An unfinished RETURNING or SELECT would keep COMMIT from ending the transaction.
        cursor.close()
        return row

    def rows(self, query: PreparedQuery, **values: Any) -> Sequence[Sequence[Any]]:
        """Return all rows of a query written as Core (prepared_query.WriteCalls)."""
        payloads = self.statements.payloads
        if payloads is not None:
            found = self._driver.execute(*query.sealed_call(payloads, _DIALECT, values)).fetchall()
            return query.opened(payloads, found, values)
        return self._driver.execute(*query.call(_DIALECT, values)).fetchall()

    def change(self, query: PreparedQuery, **values: Any) -> int:
        """Run a statement written as Core and return how many rows it changed."""
        payloads = self.statements.payloads
        if payloads is not None:
            return self._driver.execute(*query.sealed_call(payloads, _DIALECT, values)).rowcount
        return self._driver.execute(*query.call(_DIALECT, values)).rowcount

    def checkpoint(self) -> None:
        """Empty the write-ahead log unless somebody still reads from it or writes."""
        self._driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close; an open transaction is taken back."""
        self._driver.close()
