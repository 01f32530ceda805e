"""Approvals over all transactions, the one asked for first first, page by page."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, literal_column, select, tuple_

from agenttx_server.engine.ports import ApprovalPage
from agenttx_server.engine.records import ApprovalState, TransactionId
from agenttx_server.store import rows, schema
from agenttx_server.store.cursors import decode_cursor, encode_cursor
from agenttx_server.store.pages import read_page
from agenttx_server.store.prepared_query import executed
from agenttx_server.store.seen_owners import seen_by

__all__ = ["list_approvals"]

transactions, approvals = schema.transactions, schema.approvals

_HEAD = [transactions.c[name] for name in rows.TRANSACTION.columns]
_APPROVAL = [approvals.c[name] for name in rows.APPROVAL.columns]
_PLACE = (approvals.c.requested_at, approvals.c.transaction_number, approvals.c.sequence)


def list_approvals(
    connection: Connection,
    principal: str,
    transaction_id: TransactionId | None,
    states: frozenset[ApprovalState],
    cursor: str,
    limit: int,
    byte_limit: int,
) -> ApprovalPage:
    """Return a page of approvals in these states, cut by the bytes of their arguments too."""
    query: Select[Any] = (
        select(*_APPROVAL, *_HEAD, approvals.c.transaction_number)
        .select_from(approvals.join(transactions, approvals.c.transaction_number == transactions.c.number))
        .where(approvals.c.state.in_(sorted(states)))
    )
    if states == {ApprovalState.PENDING}:
        query = query.where(literal_column(f"approvals.{schema.APPROVALS_PENDING}"))
    if principal:
        query = query.where(seen_by(transactions.c.principal, principal))
    if transaction_id is not None:
        query = query.where(transactions.c.transaction_id == transaction_id)
    if cursor:
        query = query.where(tuple_(*_PLACE) > decode_cursor("approvals", cursor, int, int, int))
    query = query.order_by(*_PLACE).limit(limit + 1)
    found = executed(connection, query, streamed=True)
    page_rows, more = read_page(found, limit, byte_limit)
    width = len(_APPROVAL)
    page = [(rows.TRANSACTION.record(row[width:-1]), rows.APPROVAL.record(row[:width])) for row in page_rows]
    if not more:
        return ApprovalPage(page, "")
    last = page[-1][1]
    place = encode_cursor("approvals", last.requested_at, page_rows[-1][-1], last.sequence)
    return ApprovalPage(page, place)
