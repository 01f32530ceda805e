"""The attempts of one step, read page by page; and the one that is live, if memory is not behind."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine.ports import StaleRevision, TransactionStore
from agenttx_server.engine.records import AttemptRecord, TransactionId
from agenttx_server.engine.transaction import LiveStep

__all__ = ["attempts_like", "attempts_of_step", "live_attempt"]

_PAGE_ATTEMPTS = 1000
_PAGE_BYTES = 16 << 20


async def attempts_like(
    store: TransactionStore, transaction_id: TransactionId, attempt: AttemptRecord
) -> Sequence[AttemptRecord]:
    """Return the attempts of the step or sub-step that an attempt is of, rewound ones too, oldest first."""
    if attempt.sub_step:
        return await store.list_sub_step_attempts(transaction_id, attempt.step_id, attempt.sub_step)
    return await attempts_of_step(store, transaction_id, attempt.step_id)


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


async def live_attempt(
    store: TransactionStore, transaction_id: TransactionId, step_id: int, live: LiveStep
) -> AttemptRecord:
    """Return the row of the attempt that memory has as a step's live one.

    Raises StaleRevision where the row has gone on since: another server is at it, or was. Whoever took such
    a row for what memory says would settle, say, a step that runs.
    """
    attempts = await attempts_of_step(store, transaction_id, step_id)
    attempt = next((item for item in attempts if item.attempt == live.attempt), None)
    if attempt is None or attempt.state is not live.state:
        state = attempt.state if attempt is not None else "gone"
        raise StaleRevision(f"step {step_id} is {state}, and in memory it is {live.state}")
    return attempt
