"""What the engine asks of the layer whose runs own transactions (the graph runtime)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agenttx_server.engine.ports import ExtraRows
from agenttx_server.engine.records import PendingRewind, TransactionRecord

__all__ = ["CommitRecorder", "RunOwner"]


class RunOwner(Protocol):
    """Answers for the runs that own transactions; made before the engine starts, which recovers first."""

    async def rows_when_rewound(
        self, record: TransactionRecord, pending: PendingRewind
    ) -> Sequence[ExtraRows]:
        """Return rows for the last commit of a rewind, or of an abort, of a run's transaction.

        ``record`` is the head before it. Asked by whoever makes that commit, perhaps after a crash, perhaps on
        another server, and again if it fails: the same rows each time, from what is durable.
        """

    def settled(self, record: TransactionRecord) -> None:
        """Note that a person settled a step in doubt of a run's transaction, or undo that held it: it may go on."""


class CommitRecorder(Protocol):
    """Makes what a transaction that keeps records leaves of its steps."""

    async def rows_when_committed(self, record: TransactionRecord) -> Sequence[ExtraRows]:
        """Return rows for a transaction's commit, from what is durable of it. Raises StoreUnavailable."""
