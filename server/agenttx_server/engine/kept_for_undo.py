"""Whether what tools keep for undoing a transaction, backups and claims, may be let go.

Tools are told when a transaction ends. A server that dies just then never tells them; whoever
finds what was left behind asks here.
"""

from __future__ import annotations

from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import TransactionId, UndoState

__all__ = ["is_over"]

_UNSETTLED = frozenset({UndoState.FAILED, UndoState.LATE})


async def is_over(store: TransactionStore, transaction_id: TransactionId) -> bool:
    """Return whether a transaction has ended, or is gone, and none of its undo may be run any more.

    Raises StoreUnavailable.
    """
    record = await store.load_record(transaction_id)
    if record is None:
        return True
    if not record.status.is_terminal:
        return False
    page = await store.list_compensations("", transaction_id, _UNSETTLED, "", 1)
    return not page.undo
