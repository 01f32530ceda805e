"""A transaction's id to the number that its rows carry."""

from __future__ import annotations

from typing import Final

from sqlalchemy import ScalarSelect, bindparam, select

from agenttx_server.store.schema import transactions

__all__ = ["THIS"]

# The number of the transaction bound as ``transaction_id``, NULL if there is none.
THIS: Final[ScalarSelect[int]] = (
    select(transactions.c.number)
    .where(transactions.c.transaction_id == bindparam("transaction_id"))
    .scalar_subquery()
)
