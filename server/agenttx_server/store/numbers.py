"""A transaction's id to the number that its rows carry."""

from __future__ import annotations

from sqlalchemy import ScalarSelect, select

from agenttx_server.engine.records import TransactionId
from agenttx_server.store.schema import transactions

__all__ = ["number_of"]


def number_of(transaction_id: TransactionId) -> ScalarSelect[int]:
    """Return the number as a subquery, NULL for a transaction that does not exist."""
    return (
        select(transactions.c.number).where(transactions.c.transaction_id == transaction_id).scalar_subquery()
    )
