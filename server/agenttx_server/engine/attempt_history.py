"""All attempts of one step, read page by page."""

from __future__ import annotations

from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import AttemptRecord, TransactionId

__all__ = ["attempts_of_step"]

_PAGE_ATTEMPTS = 1000
_PAGE_BYTES = 16 << 20


async def attempts_of_step(
    store: TransactionStore, transaction_id: TransactionId, step_id: int
) -> list[AttemptRecord]:
    """Return the attempts of a step, rewound ones too, oldest first."""
    found: list[AttemptRecord] = []
    cursor = ""
    while True:
        page = await store.list_attempts(transaction_id, cursor, _PAGE_ATTEMPTS, _PAGE_BYTES, step_id=step_id)
        found += page.attempts
        cursor = page.next_cursor
        if not cursor:
            return found
