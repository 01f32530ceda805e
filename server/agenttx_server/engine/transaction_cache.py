"""Transactions in memory, each with its lock; a bounded cache over SQL.

An entry that a call works with is pinned: it is never evicted, so that one transaction
has one lock. Ended transactions leave as soon as nobody works with them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

from agenttx_server.engine.errors import NotFound
from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import TransactionId
from agenttx_server.engine.transaction import Transaction

if TYPE_CHECKING:
    from agenttx_server.engine.group_run import GroupRun
from agenttx_server.engine.visibility import sees

__all__ = ["CacheEntry", "TransactionCache", "not_found"]


def not_found(transaction_id: TransactionId) -> NotFound:
    """The error for an unknown transaction, and for one that belongs to somebody else."""
    return NotFound(
        f"there is no transaction '{transaction_id[:64]}'",
        reason="TRANSACTION_NOT_FOUND",
        metadata={"transaction_id": transaction_id[:64]},
    )


class CacheEntry:
    """One transaction's place in memory; ``transaction`` is None until loaded or after a failed write."""

    __slots__ = (
        "begun_at",
        "left_open",
        "lock",
        "pins",
        "rewinds_waiting",
        "running",
        "transaction",
        "transaction_id",
    )

    def __init__(self, transaction_id: TransactionId) -> None:
        self.transaction_id = transaction_id
        self.transaction: Transaction | None = None
        self.lock = asyncio.Lock()
        self.running: GroupRun | None = None
        self.rewinds_waiting = 0
        # The revision at which a group was left open for another server's rewind, and until when that is
        # waited for (monotonic).
        self.left_open: tuple[int, float] | None = None
        # When this server began it (monotonic), until its first turn.
        self.begun_at: float | None = None
        self.pins = 0


class TransactionCache:
    """Least recently used entries beyond ``capacity`` are dropped; SQL has everything."""

    def __init__(self, store: TransactionStore, capacity: int) -> None:
        self._store = store
        self._capacity = capacity
        self._entries: OrderedDict[TransactionId, CacheEntry] = OrderedDict()
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def pin(self, transaction_id: TransactionId) -> CacheEntry:
        """Return the entry of a transaction, made if need be; it stays until unpinned as often."""
        entry = self._entries.get(transaction_id)
        if entry is None:
            entry = self._entries[transaction_id] = CacheEntry(transaction_id)
        else:
            self._entries.move_to_end(transaction_id)
        entry.pins += 1
        return entry

    def unpin(self, entry: CacheEntry) -> None:
        """Let an entry go; it may now be evicted."""
        entry.pins -= 1
        if entry.pins == 0 and (entry.transaction is None or entry.transaction.record.status.is_terminal):
            self._entries.pop(entry.transaction_id, None)
        if len(self._entries) > self._capacity:
            self._evict()

    def is_running_any(self) -> bool:
        """Whether a step runs here."""
        return any(entry.running is not None for entry in self._entries.values())

    def peek(self, transaction_id: TransactionId) -> CacheEntry | None:
        """Return an entry if it is in memory, without pinning it."""
        return self._entries.get(transaction_id)

    async def loaded(self, entry: CacheEntry, principal: str) -> Transaction:
        """Return an entry's transaction, read from SQL if need be. The caller holds its lock.

        Raises NotFound for an unknown transaction and for another principal's.
        """
        transaction = await self.loaded_for_server(entry)
        if not sees(principal, transaction.record.principal):
            raise not_found(entry.transaction_id)
        return transaction

    async def loaded_for_server(self, entry: CacheEntry) -> Transaction:
        """Return an entry's transaction for the server's own work, whoever its principal is."""
        transaction = entry.transaction
        if transaction is not None:
            self.hits += 1
        else:
            self.misses += 1
            stored = await self._store.load(entry.transaction_id)
            if stored is None:
                raise not_found(entry.transaction_id)
            transaction = entry.transaction = Transaction.rebuild(stored)
        return transaction

    def _evict(self) -> None:
        surplus = len(self._entries) - self._capacity
        for transaction_id, entry in list(islice(self._entries.items(), surplus + 64)):
            if surplus <= 0:
                return
            if entry.pins == 0:
                del self._entries[transaction_id]
                surplus -= 1
