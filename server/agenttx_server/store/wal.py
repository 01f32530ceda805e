"""Keeping the write-ahead log small.

SQLite's own checkpoints (every 1,000 pages, at COMMIT) never wait; a reader that stays open
keeps them from starting the log anew, and the file grows. Once it is over the limit it is
emptied as soon as no reader stands in the way, trying at most once a second.
"""

from __future__ import annotations

import time
from pathlib import Path

from agenttx_server.store.sqlite_connection import WriteConnection

__all__ = ["WalKeeper"]

_SECONDS_BETWEEN_TRIES = 1.0


class WalKeeper:
    """Called by the writer between batches."""

    def __init__(self, database: Path, limit_bytes: int) -> None:
        self._wal = database.with_name(database.name + "-wal")
        self._limit_bytes = limit_bytes
        self._next_try = 0.0

    def __call__(self, connection: WriteConnection) -> None:
        now = time.monotonic()
        if now < self._next_try:
            return
        self._next_try = now + _SECONDS_BETWEEN_TRIES
        try:
            size = self._wal.stat().st_size
        except FileNotFoundError:
            return
        if size > self._limit_bytes:
            connection.checkpoint()
