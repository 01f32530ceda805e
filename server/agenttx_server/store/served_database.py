"""A database that is served, whichever it is: what the store needs of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from agenttx_server.engine.ports import WriteReceipt
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.store.prepared_query import WriteCalls
from agenttx_server.store.read_pool import ReadPool
from agenttx_server.store.write_set_encoding import EncodedWriteSet
from agenttx_server.store.writer_statistics import WriterStatistics

__all__ = ["DatabaseWriter", "ServedDatabase"]

Result = TypeVar("Result")


class DatabaseWriter(Protocol):
    """Group commit (commit_writer.CommitWriter), by one thread or by several."""

    def submit(
        self, encoded: EncodedWriteSet, settled: Callable[[], None] | None = None
    ) -> asyncio.Future[WriteReceipt]:
        """Queue a set and return the future of its receipt; sets of one transaction keep their order.

        ``settled`` is called when the set is written or refused, whoever still waits.
        """

    def run(self, work: Callable[[WriteCalls], Result]) -> asyncio.Future[Result]:
        """Have a function called in a write transaction of its own; return the future of its result.

        It may be called again if the database took the transaction back.
        """

    @property
    def written(self) -> tuple[int, int]:
        """How many sets were answered after how many COMMITs, since the start."""

    @property
    def statistics(self) -> WriterStatistics:
        """What was written since the start, and what waits."""


class ServedDatabase(Protocol):
    """Made closed; ``open`` and ``close`` block."""

    @property
    def is_shared(self) -> bool:
        """Whether other servers may serve this database at the same time."""

    @property
    def writer(self) -> DatabaseWriter:
        """What writes."""

    @property
    def pool(self) -> ReadPool:
        """What reads."""

    def lease_time(self, asked: WriteCalls | Connection, now: MicrosecondsUtc) -> MicrosecondsUtc:
        """Return the time by which leases are counted; ``now`` is the engine's."""

    def open(self) -> None:
        """Migrate and start. Raises DatabaseRefused."""

    def close(self) -> None:
        """Write what is queued, let running reads end, let the database go."""
