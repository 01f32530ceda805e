"""Keeps the records of plain transactions that ask for it: made of the history when they commit, in that commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from agenttx_server.engine.ports import ExtraRows, TransactionStore
from agenttx_server.engine.records import TransactionRecord
from agenttx_server.lineage.ports import RecordStore
from agenttx_server.lineage.step_records import StepLineage

__all__ = ["StepRecording"]

_PAGE: Final = 1000
_PAGE_BYTES: Final = 16 << 20


class StepRecording:
    """The engine's :class:`CommitRecorder`."""

    def __init__(self, transactions: TransactionStore, records: RecordStore, now: Callable[[], int]) -> None:
        self._transactions = transactions
        self._records = records
        self._now = now

    async def rows_when_committed(self, record: TransactionRecord) -> Sequence[ExtraRows]:
        steps = StepLineage(record.transaction_id)
        cursor = ""
        while True:
            page = await self._transactions.list_attempts(record.transaction_id, cursor, _PAGE, _PAGE_BYTES)
            for attempt, is_rewound in zip(page.attempts, page.rewound, strict=True):
                steps.add(attempt, is_rewound)
            cursor = page.next_cursor
            if not cursor:
                return self._records.rows(steps.change(record.principal, self._now()))
