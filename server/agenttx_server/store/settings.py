"""What can be set about the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["PostgresSettings", "StoreSettings", "WriterSettings"]


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """How batches are made.

    ``linger_seconds`` is the longest wait for further sets before a COMMIT. It is made only
    after batches of several, and no more once it brought nothing: a lone step never waits.
    ``batch_sets`` and ``batch_bytes`` bound a batch. ``busy_timeout_seconds`` is how long the
    writer waits for another process's lock before its batch is unavailable.
    """

    linger_seconds: float = 0.002
    batch_sets: int = 256
    batch_bytes: int = 16 * 1024 * 1024
    busy_timeout_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """How PostgreSQL is used.

    ``writers`` is how many connections write at once; the sets of one transaction all go to one of
    them. A statement may take ``statement_timeout_seconds``, of which it may wait
    ``lock_timeout_seconds`` for another server's lock.
    """

    writers: int = 4
    connect_timeout_seconds: int = 10
    statement_timeout_seconds: float = 30.0
    lock_timeout_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How the store uses its database.

    ``lock_wait_seconds`` is how long to wait for another process that migrates. The rest, but for
    ``writer``, ``reader_threads`` and ``postgres``, is SQLite's:
    ``synchronous`` FULL: an answered write is on disk. NORMAL: a power cut (not a crash of
    the process) may lose the last writes answered. ``checkpoint_pages`` is the length
    of the write-ahead log at which it is copied into the database, ``wal_limit_bytes`` the size of the
    write-ahead log beyond which it is emptied as soon as no old reader is in the way.
    """

    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    writer: WriterSettings = field(default_factory=WriterSettings)
    reader_threads: int = 4
    cache_kib: int = 32 * 1024
    checkpoint_pages: int = 4_000
    wal_limit_bytes: int = 64 * 1024 * 1024
    lock_wait_seconds: float = 60.0
    postgres: PostgresSettings = field(default_factory=PostgresSettings)
