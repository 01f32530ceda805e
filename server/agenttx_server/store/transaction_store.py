"""The TransactionStore of the engine on SQL: writes through the commit writer, reads through the pool."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing

from agenttx_server.engine.ports import (
    AttemptPage,
    CommittedPage,
    StateView,
    StoredTransaction,
    TransactionFilter,
    TransactionPage,
    WriteReceipt,
    WriteSet,
)
from agenttx_server.engine.records import (
    AttemptRecord,
    CommittedEntry,
    EffectRecord,
    EventRecord,
    RecordedResponse,
    TransactionId,
    TransactionRecord,
)
from agenttx_server.store import history_reading, state_reading, transaction_listing
from agenttx_server.store.commit_writer import CommitWriter
from agenttx_server.store.database import (
    database_file,
    reader_engine,
)
from agenttx_server.store.lock_file import LockFile
from agenttx_server.store.migrating import migrate_file
from agenttx_server.store.read_pool import ReadPool
from agenttx_server.store.served_file import ServedFile
from agenttx_server.store.settings import StoreSettings
from agenttx_server.store.sqlite_connection import WriteConnection
from agenttx_server.store.storage_errors import DatabaseRefused, is_busy
from agenttx_server.store.wal import WalKeeper
from agenttx_server.store.write_set_encoding import encode_write_set

__all__ = ["SqlTransactionStore", "open_store"]


@asynccontextmanager
async def open_store(
    database_url: str, settings: StoreSettings | None = None
) -> AsyncIterator[SqlTransactionStore]:
    """Open a database for serving: take its lock, migrate it, start the writer; close on leaving.

    Leaving writes what is queued. Raises DatabaseRefused, whose text is one clear line, if the
    database is in use, newer than this program or not ours.
    """
    store = SqlTransactionStore(database_url, settings or StoreSettings())
    await asyncio.to_thread(store.open)
    try:
        yield store
    finally:
        await asyncio.to_thread(store.close)


class SqlTransactionStore:
    """Durable memory of transactions in one database file. Made by :func:`open_store`."""

    def __init__(self, database_url: str, settings: StoreSettings) -> None:
        path = database_file(database_url)
        self._path = path
        self._settings = settings
        self._file = ServedFile(path)
        self._lock = LockFile(path, "serving", wait_seconds=settings.lock_wait_seconds)
        self._writer = CommitWriter(
            lambda: WriteConnection(path, settings),
            settings.writer,
            WalKeeper(path, settings.wal_limit_bytes),
            self._file.check,
        )
        self._pool = ReadPool(reader_engine(path, settings), settings.reader_threads, self._file.check)

    def open(self) -> None:
        """Take the lock, migrate, start; blocks. Raises DatabaseRefused."""
        self._lock.acquire()
        try:
            migrate_file(self._path, self._settings)
            self._prove_writable()
            self._file.remember()
            self._writer.start()
            self._pool.start()
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

    def close(self) -> None:
        """Write what is queued, let running reads end, release the lock; blocks."""
        self._writer.close()
        self._pool.close()
        self._lock.release()

    # --- writing -------------------------------------------------------------------------

    async def write(self, write_set: WriteSet) -> WriteReceipt:
        # A caller that goes away cancels its future and nothing else: the set stays queued.
        return await self._writer.submit(encode_write_set(write_set))

    @property
    def written(self) -> tuple[int, int]:
        """How many write sets were answered after how many COMMITs, since the store was opened."""
        return self._writer.written

    # --- reading -------------------------------------------------------------------------

    async def load(self, transaction_id: TransactionId) -> StoredTransaction | None:
        return await self._pool.read(history_reading.load, transaction_id)

    async def load_record(self, transaction_id: TransactionId) -> TransactionRecord | None:
        return await self._pool.read(history_reading.load_record, transaction_id)

    async def find_attempt(
        self, transaction_id: TransactionId, request_id: str
    ) -> tuple[AttemptRecord, bool] | None:
        return await self._pool.read(history_reading.find_attempt, transaction_id, request_id)

    async def find_response(self, scope: str, request_id: str) -> RecordedResponse | None:
        return await self._pool.read(history_reading.find_response, scope, request_id)

    async def read_state(self, transaction_id: TransactionId, key: str, before_step: int) -> StateView:
        return await self._pool.read(state_reading.read_state, transaction_id, key, before_step)

    async def scan_state(
        self, transaction_id: TransactionId, prefix: str, before_step: int, after: str, limit: int
    ) -> Sequence[tuple[str, StateView]]:
        return await self._pool.read(
            state_reading.scan_state, transaction_id, prefix, before_step, after, limit
        )

    async def read_committed(self, key: str) -> CommittedEntry:
        return await self._pool.read(state_reading.read_committed, key)

    async def scan_committed(self, prefix: str, cursor: str, limit: int, byte_limit: int) -> CommittedPage:
        return await self._pool.read(state_reading.scan_committed, prefix, cursor, limit, byte_limit)

    async def list_transactions(self, which: TransactionFilter, cursor: str, limit: int) -> TransactionPage:
        return await self._pool.read(transaction_listing.list_transactions, which, cursor, limit)

    async def list_attempts(
        self,
        transaction_id: TransactionId,
        cursor: str,
        limit: int,
        byte_limit: int,
        step_id: int | None = None,
        include_rewound: bool = True,
    ) -> AttemptPage:
        return await self._pool.read(
            history_reading.list_attempts, transaction_id, cursor, limit, byte_limit, step_id, include_rewound
        )

    async def list_events(
        self, transaction_id: TransactionId, from_sequence: int, limit: int
    ) -> Sequence[EventRecord]:
        return await self._pool.read(history_reading.list_events, transaction_id, from_sequence, limit)

    async def load_context(
        self, transaction_id: TransactionId, byte_limit: int
    ) -> tuple[Sequence[tuple[int, str, str]], bool]:
        return await self._pool.read(history_reading.load_context, transaction_id, byte_limit)

    async def load_output(self, transaction_id: TransactionId, step_id: int, attempt: int) -> str | None:
        return await self._pool.read(history_reading.load_output, transaction_id, step_id, attempt)

    async def list_effects(
        self, transaction_id: TransactionId, states: frozenset[str]
    ) -> Sequence[EffectRecord]:
        return await self._pool.read(transaction_listing.list_effects, transaction_id, states)

    async def count_touched(
        self, transaction_id: TransactionId, from_step: int
    ) -> tuple[int, Sequence[str], int]:
        return await self._pool.read(state_reading.count_touched, transaction_id, from_step)

    async def count_open(self, principal: str) -> int:
        return await self._pool.read(transaction_listing.count_open, principal)

    async def commit_version(self) -> int:
        """Return the version of the newest publication, for a scan that a serializable commit validates."""
        return await self._pool.read(state_reading.commit_version)

    async def check(self) -> None:
        await self._pool.read(state_reading.commit_version)
