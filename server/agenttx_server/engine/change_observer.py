"""Who is told what the engine did, once it is durable: whoever counts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from agenttx_server.engine.records import PendingRewind, TransactionRecord

if TYPE_CHECKING:
    from agenttx_server.engine.transaction_writer import Rows

__all__ = ["ChangeObserver"]


class ChangeObserver(Protocol):
    """Is given facts that the engine has at hand. Called in the middle of its work: it must be quick, and never raise."""

    def change_written(self, record: TransactionRecord, rows: Rows) -> None:
        """Take in a change that is durable: the head as it is now, and the rows with their events."""

    def rewound(self, before: TransactionRecord, after: TransactionRecord, rewind: PendingRewind) -> None:
        """Take in a rewind or an abort that was completed; ``before`` is the head as it was until then."""
