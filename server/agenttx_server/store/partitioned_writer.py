"""Several commit writers side by side, each with a connection of its own.

Where the database takes several writers, one connection waiting for the disk need not hold up the
others. Sets of a transaction that are under way all go to one of them, so they keep their order; sets of
different transactions have none. What is not tied so goes to the writer that is least busy, the first of several:
a caller alone always finds the same connection, whose statements are prepared and whose caches are warm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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


class PartitionedWriter:
    """Writers by transaction (served_database.DatabaseWriter), and one for all that is no write set."""

    def __init__(
        self, connect: Callable[[], BatchConnection], settings: WriterSettings, partitions: int
    ) -> None:
        self._partitions = [CommitWriter(connect, settings) for _ in range(partitions)]
        # Leases are renewed however long the others wait for a lock.
        self._jobs = CommitWriter(connect, settings)

    def start(self) -> None:
        """Start the threads."""
        for writer in (*self._partitions, self._jobs):
            writer.start()

    def submit(self, encoded: EncodedWriteSet) -> asyncio.Future[WriteReceipt]:
        transaction_id = encoded.transaction_id
        chosen = self._partitions[0]
        for writer in self._partitions:
            if writer.is_at(transaction_id):
                return writer.submit(encoded)
            if writer.under_way < chosen.under_way:
                chosen = writer
        return chosen.submit(encoded)

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
