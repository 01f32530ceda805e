"""What waits for somebody, over all transactions: undo actions and effects, page by page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, literal_column, select, tuple_

from agenttx_server.engine.ports import CompensationPage, EffectPage
from agenttx_server.engine.records import EffectState, TransactionId, TransactionRecord, UndoState
from agenttx_server.store import rows, schema
from agenttx_server.store.cursors import decode_cursor, encode_cursor
from agenttx_server.store.prepared_query import executed
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.seen_owners import seen_by

__all__ = ["list_compensations", "list_effects_page"]

transactions, effects, undo_actions = schema.transactions, schema.effects, schema.undo_actions

_HEAD = [transactions.c[name] for name in rows.TRANSACTION.columns]
_UNDO = [undo_actions.c[name] for name in rows.UNDO.columns]
_EFFECT = [effects.c[name] for name in rows.EFFECT.columns]
_UNDO_IN_QUESTION = {UndoState.AWAITING_AGENT, UndoState.FAILED, UndoState.LATE, UndoState.RESOLVED}
_EFFECTS_WAITING = {EffectState.READY, EffectState.DEAD}


@one_statement
def list_compensations(
    connection: Connection,
    principal: str,
    transaction_id: TransactionId | None,
    states: frozenset[UndoState],
    cursor: str,
    limit: int,
) -> CompensationPage:
    """Return a page of undo actions: oldest transaction first, of each the newest first."""
    few = states <= _UNDO_IN_QUESTION
    query, begun = _of(undo_actions, _UNDO, principal, transaction_id, few=few)
    query = query.where(undo_actions.c.state.in_(sorted(states)))
    if few:
        query = query.where(literal_column(f"undo_actions.{schema.UNDO_IN_QUESTION}"))
    place = (begun, transactions.c.transaction_id, -undo_actions.c.sequence)
    if cursor:
        query = query.where(tuple_(*place) > decode_cursor("compensations", cursor, int, str, int))
    found = executed(connection, query.order_by(*place).limit(limit + 1)).all()
    page = [(head, rows.UNDO.record(row)) for head, row in _with_heads(found[:limit], len(rows.UNDO.columns))]
    if len(found) <= limit:
        return CompensationPage(page, "")
    record, undo = page[-1]
    return CompensationPage(
        page, encode_cursor("compensations", record.created_at, record.transaction_id, -undo.sequence)
    )


def list_effects_page(
    connection: Connection,
    principal: str,
    transaction_id: TransactionId | None,
    states: frozenset[EffectState],
    channel: str,
    cursor: str,
    limit: int,
    byte_limit: int,
) -> EffectPage:
    """Return a page of effects: oldest transaction first, of each in staging order; cut by payload bytes too."""
    few = bool(states) and states <= _EFFECTS_WAITING
    query, begun = _of(effects, _EFFECT, principal, transaction_id, few=few)
    if states:
        query = query.where(effects.c.state.in_(sorted(states)))
    if few:
        query = query.where(literal_column(f"effects.{schema.EFFECTS_WAITING}"))
    if channel:
        query = query.where(effects.c.channel == channel)
    place = (
        begun,
        transactions.c.transaction_id,
        effects.c.sequence,
        effects.c.effect_id,
    )
    if cursor:
        query = query.where(tuple_(*place) > decode_cursor("effects", cursor, int, str, int, str))
    query = query.order_by(*place).limit(limit + 1)
    with executed(connection, query, streamed=True) as found:
        page_rows, more = _cut(found, limit, byte_limit)
    page = [(head, rows.EFFECT.record(row)) for head, row in _with_heads(page_rows, len(rows.EFFECT.columns))]
    if not more:
        return EffectPage(page, "")
    record, effect = page[-1]
    return EffectPage(
        page,
        encode_cursor("effects", record.created_at, record.transaction_id, effect.sequence, effect.effect_id),
    )


def _of(
    table: Table,
    columns: Sequence[ColumnElement[Any]],
    principal: str,
    transaction_id: TransactionId | None,
    *,
    few: bool,
) -> tuple[Select[Any], ColumnElement[int]]:
    """Return the query of rows with their heads, and the time by which they are sorted first.

    What has a sum or a concatenation in it is found by no index of SQLite, so the other table leads:
    of ``few`` rows they, else the transactions in their order, where a full page ends the walk.
    """
    number, begun, owner = transactions.c.number, transactions.c.created_at, transactions.c.principal
    zero: ColumnElement[int] = literal_column("0")
    query = select(*columns, *_HEAD).select_from(
        table.join(transactions, table.c.transaction_number == (number if few else number + zero))
    )
    if principal:
        query = query.where(seen_by(owner.concat("") if few else owner, principal))
    if transaction_id is not None:
        query = query.where(transactions.c.transaction_id == transaction_id)
    return query, begun + zero if few else begun


def _with_heads(
    found: Iterable[Sequence[Any]], width: int
) -> Iterable[tuple[TransactionRecord, Sequence[Any]]]:
    """Take each row apart, a head of several rows read once."""
    head: TransactionRecord | None = None
    for row in found:
        # The head begins with its transaction's id.
        if head is None or head.transaction_id != row[width]:
            head = rows.TRANSACTION.record(row[width:])
        yield head, row[:width]


_PAYLOAD = rows.EFFECT.columns.index("payload")


def _cut(found: Iterable[Sequence[Any]], limit: int, byte_limit: int) -> tuple[list[Sequence[Any]], bool]:
    """Return rows up to both limits, at least one if there is one, and whether there are more."""
    page: list[Sequence[Any]] = []
    left = byte_limit
    for row in found:
        left -= len(row[_PAYLOAD])
        if len(page) >= limit or (page and left < 0):
            return page, True
        page.append(row)
    return page, False
