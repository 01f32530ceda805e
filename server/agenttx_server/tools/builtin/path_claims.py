"""Which open transaction changed which path: nobody else changes it until that one has ended.

A file of SQLite beside the backups, because it must outlive the server, be seen by every server that
shares the sandbox, and never let two of them take one path. A claim is durable before the change that
it is for, like the backup.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import HintCategory
from agenttx_server.tools.builtin.sandbox_path import SandboxPath
from agenttx_server.tools.builtin.wording import shown

__all__ = ["PathClaimed", "PathClaims"]

FILE_NAME: Final = ".agenttx-claims.db"
# How long a change waits for those of other servers to write down theirs, each of which takes milliseconds.
BUSY_SECONDS: Final = 20.0

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS claims (
    path TEXT NOT NULL PRIMARY KEY, transaction_id TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS claims_by_transaction ON claims (transaction_id);
"""
_FIND_ABOVE: Final = "SELECT path, transaction_id FROM claims WHERE path = ? AND transaction_id <> ?"
# "0" follows "/": what is below a path, and nothing else that begins with its name.
_FIND_BELOW: Final = (
    "SELECT path, transaction_id FROM claims WHERE path > ? || '/' AND path < ? || '0' AND transaction_id <> ? "
    "ORDER BY path LIMIT 1"
)


class PathClaimed(ToolFailure):
    """Another transaction, ``holder``, changed this path, or one above or below it, and has not ended."""

    def __init__(self, path: SandboxPath, claimed: str, holder: str) -> None:
        what = "" if claimed == str(path) else f" ({shown(claimed)})"
        super().__init__(
            HintCategory.CONFLICT,
            f"{shown(str(path))} was changed by transaction {holder[:64]}{what}, which has not ended. Use another path, "
            "or wait until it has",
            (path.argument,),
        )
        self.holder = holder


class PathClaims:
    """Claims by path, under one directory. Everything blocks, one call at a time; errors are ToolFailure.

    Making it raises OSError or sqlite3.Error for a directory that can't be used.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        # Of its own, so that SQLite's files get no other permissions.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        # No write-ahead log: its index is memory that servers of several machines don't share. The
        # rollback journal is kept, which saves a change of the directory for each claim.
        self._connection.execute("PRAGMA journal_mode = PERSIST")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(_SCHEMA)

    def check(self, transaction_id: str, paths: Sequence[SandboxPath]) -> None:
        """Raise PathClaimed if another transaction's claim is in the way of changing one of these paths."""
        with self._working():
            self._refuse_claimed(transaction_id, paths)

    def claim(self, transaction_id: str, paths: Sequence[SandboxPath]) -> None:
        """Claim paths, all or none, durably; raise PathClaimed if another transaction's claim is in the way."""
        rows = [(str(path), transaction_id) for path in paths]
        with self._working():
            if all(self._holds(*row) for row in rows):
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._refuse_claimed(transaction_id, paths)
                self._connection.executemany("INSERT OR IGNORE INTO claims VALUES (?, ?)", rows)
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def release(self, transaction_id: str) -> None:
        """Let go of all claims of a transaction; no error, and nothing written, if it has none."""
        with self._working():
            found = self._connection.execute(
                "SELECT 1 FROM claims WHERE transaction_id = ? LIMIT 1", (transaction_id,)
            )
            if found.fetchone() is not None:
                self._connection.execute("DELETE FROM claims WHERE transaction_id = ?", (transaction_id,))

    def holders(self) -> list[str]:
        """Return the transactions that have claims."""
        with self._working():
            rows = self._connection.execute("SELECT DISTINCT transaction_id FROM claims").fetchall()
        return [row[0] for row in rows]

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise ToolFailure(
                    HintCategory.RESOURCE_EXHAUSTED,
                    f"the server can't keep account of changed paths ({error}). Try again later",
                ) from error

    def _holds(self, path: str, transaction_id: str) -> bool:
        found = self._connection.execute("SELECT transaction_id FROM claims WHERE path = ?", (path,))
        row = found.fetchone()
        return row is not None and row[0] == transaction_id

    def _refuse_claimed(self, transaction_id: str, paths: Sequence[SandboxPath]) -> None:
        for path in paths:
            for depth in range(1, len(path.names) + 1):
                above = "/".join(path.names[:depth])
                self._refuse(path, self._connection.execute(_FIND_ABOVE, (above, transaction_id)))
            text = str(path)
            self._refuse(path, self._connection.execute(_FIND_BELOW, (text, text, transaction_id)))

    def _refuse(self, path: SandboxPath, found: sqlite3.Cursor) -> None:
        row = found.fetchone()
        if row is not None:
            raise PathClaimed(path, *row)
