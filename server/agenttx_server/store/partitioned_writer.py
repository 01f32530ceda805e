"""Several commit writers side by side, each with a connection of its own.

Where the database takes several writers, one connection waiting for the disk need not hold up the
others. Sets of a transaction that are under way all go to one of them, so they keep their order; sets of
different transactions have none. What is not tied so goes to the first writer that is not long about its batch:
what waits for a batch together shares the next COMMIT, and a caller alone always finds the same connection, whose
statements are prepared and whose caches are warm. Behind a slow disk the others are used too, and what waits
for a writer that is held up (a lock of another server's) is given to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import TypeVar

from agenttx_server.engine.ports import WriteReceipt
from agenttx_server.store.batch_connection import BatchConnection
from agenttx_server.store.commit_writer import CommitWriter
from agenttx_server.store.prepared_query import WriteCalls
from agenttx_server.store.settings import WriterSettings
from agenttx_server.store.write_set_encoding import EncodedWriteSet
from agenttx_server.store.writer_statistics import WriterStatistics

__all__ = ["PartitionedWriter"]

Result = TypeVar("Result")

# What a batch takes where the disk is quick: so long is waited for it, and no second one begun (docs/decisions/0040).
_SHORT_SECONDS = 0.004
# What waits behind a batch for so long is given to another writer.
_LONG_SECONDS = 0.02


class PartitionedWriter:
    """Writers by transaction (served_database.DatabaseWriter), and one for all that is no write set."""

    def __init__(
        self, connect: Callable[[], BatchConnection], settings: WriterSettings, partitions: int
    ) -> None:
        self._partitions = [CommitWriter(connect, settings) for _ in range(partitions)]
        self._watched: set[CommitWriter[BatchConnection]] = set()
        # Leases are renewed however long the others wait for a lock.
        self._jobs = CommitWriter(connect, settings)

    def start(self) -> None:
        """Start the threads."""
        for writer in (*self._partitions, self._jobs):
            writer.start()

    def submit(
        self, encoded: EncodedWriteSet, settled: Callable[[], None] | None = None
    ) -> asyncio.Future[WriteReceipt]:
        transaction_id = encoded.transaction_id
        for writer in self._partitions:
            if writer.is_at(transaction_id):
                return writer.submit(encoded, settled)
        return self._choose().submit(encoded, settled)

    def _choose(self) -> CommitWriter[BatchConnection]:
        for most_seconds in (_SHORT_SECONDS, _LONG_SECONDS, inf):
            prompt = [writer for writer in self._partitions if writer.seconds_at_work < most_seconds]
            if prompt:
                break
        chosen = prompt[0] if most_seconds == _SHORT_SECONDS else min(prompt, key=_under_way)
        if chosen.under_way and chosen not in self._watched:
            self._watched.add(chosen)
            self._look_again(chosen)
        return chosen

    def _look_again(self, writer: CommitWriter[BatchConnection]) -> None:
        asyncio.get_running_loop().call_later(_LONG_SECONDS, self._relieve, writer)

    def _relieve(self, writer: CommitWriter[BatchConnection]) -> None:
        """Give what waits behind a long batch to the others, if one of them is free to take it; look again while there is any."""
        if not writer.under_way:
            self._watched.discard(writer)
            return
        if writer.seconds_at_work >= _LONG_SECONDS and any(
            other.seconds_at_work < _LONG_SECONDS for other in self._partitions
        ):
            for ticket in writer.hand_back():
                self._choose().adopt(ticket)
        self._look_again(writer)

    def run(self, work: Callable[[WriteCalls], Result]) -> asyncio.Future[Result]:
        return self._jobs.run(work)

    @property
    def written(self) -> tuple[int, int]:
        counts = [writer.written for writer in self._partitions]
        return sum(sets for sets, _ in counts), sum(commits for _, commits in counts)

    @property
    def statistics(self) -> WriterStatistics:
        first, *others = (writer.statistics for writer in (*self._partitions, self._jobs))
        return sum(others, first)

    def close(self) -> None:
        """Write what is queued and end the threads; blocks."""
        for writer in (*self._partitions, self._jobs):
            writer.close()


def _under_way(writer: CommitWriter[BatchConnection]) -> int:
    return writer.under_way
