"""Which transactions there are, and their effects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, bindparam, exists, func, literal_column, select, tuple_

from agenttx_server.engine.ports import TransactionFilter, TransactionPage
from agenttx_server.engine.records import (
    EffectRecord,
    EffectState,
    TransactionId,
    TransactionRecord,
    UndoRecord,
    UndoState,
)
from agenttx_server.engine.visibility import is_everybody
from agenttx_server.store import rows, schema
from agenttx_server.store.cursors import decode_cursor, encode_cursor
from agenttx_server.store.numbers import THIS
from agenttx_server.store.payload_queries import metadata_tokens
from agenttx_server.store.prepared_query import PreparedQuery, executed, payloads_of
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.seen_owners import seen_by

if TYPE_CHECKING:
    from agenttx_server.store.payload_codec import PayloadCodec

__all__ = ["count_open", "list_effects", "list_transactions", "load_recovery_problem"]

transactions, metadata = schema.transactions, schema.transaction_metadata
effects, undo_actions = schema.effects, schema.undo_actions

# Written out: a bound value would hide from the planner that the partial index will do.
_IS_OPEN = transactions.c.is_open == literal_column("1")


def list_transactions(
    connection: Connection, which: TransactionFilter, cursor: str, limit: int
) -> TransactionPage:
    """Return a page of transactions, newest first."""
    columns = [transactions.c[name] for name in rows.TRANSACTION.columns]
    query = select(*columns).where(*_restrictions(which, payloads_of(connection)))
    if cursor:
        position = decode_cursor("transactions", cursor, int, str)
        query = query.where(tuple_(transactions.c.created_at, transactions.c.transaction_id) < position)
    query = query.order_by(transactions.c.created_at.desc(), transactions.c.transaction_id.desc())
    records = [rows.TRANSACTION.record(row) for row in executed(connection, query.limit(limit + 1))]
    next_cursor = ""
    if len(records) > limit:
        records.pop()
        next_cursor = encode_cursor("transactions", records[-1].created_at, records[-1].transaction_id)
    return TransactionPage(
        records,
        next_cursor,
        _effect_counts(connection, records),
        _undo_failed(connection, records),
        _unrecovered(connection, records),
    )


def _effect_counts(
    connection: Connection, records: Sequence[TransactionRecord]
) -> dict[TransactionId, dict[EffectState, int]]:
    ids = [record.transaction_id for record in records if record.effect_sequence]
    if not ids:
        return {}
    query = (
        select(transactions.c.transaction_id, effects.c.state, func.count())
        .join(effects, effects.c.transaction_number == transactions.c.number)
        .where(transactions.c.transaction_id.in_(ids))
        .group_by(transactions.c.transaction_id, effects.c.state)
    )
    counts: dict[TransactionId, dict[EffectState, int]] = {}
    for transaction_id, state, count in connection.execute(query):
        counts.setdefault(TransactionId(transaction_id), {})[EffectState(state)] = count
    return counts


def _undo_failed(
    connection: Connection, records: Sequence[TransactionRecord]
) -> dict[TransactionId, list[UndoRecord]]:
    ids = [record.transaction_id for record in records]
    query = (
        select(*(undo_actions.c[name] for name in rows.UNDO.columns), transactions.c.transaction_id)
        .join(transactions, undo_actions.c.transaction_number == transactions.c.number)
        .where(
            transactions.c.transaction_id.in_(ids),
            undo_actions.c.state == UndoState.FAILED,
            literal_column(f"undo_actions.{schema.UNDO_IN_QUESTION}"),
        )
        .order_by(undo_actions.c.sequence.desc())
    )
    failed: dict[TransactionId, list[UndoRecord]] = {}
    for row in executed(connection, query):
        failed.setdefault(TransactionId(row[-1]), []).append(rows.UNDO.record(row))
    return failed


def _unrecovered(connection: Connection, records: Sequence[TransactionRecord]) -> dict[TransactionId, str]:
    problems = schema.recovery_problems
    query = (
        select(transactions.c.transaction_id, problems.c.reason)
        .join(transactions, problems.c.transaction_number == transactions.c.number)
        .where(transactions.c.transaction_id.in_([record.transaction_id for record in records]))
    )
    return {TransactionId(row[0]): row[1] for row in executed(connection, query)}


def _restrictions(which: TransactionFilter, payloads: PayloadCodec | None) -> Iterable[ColumnElement[bool]]:
    if which.principal:
        yield seen_by(transactions.c.principal, which.principal)
    if which.statuses:
        yield transactions.c.status.in_(sorted(which.statuses))
        if not any(status.is_terminal for status in which.statuses):
            yield _IS_OPEN
    if which.agent_id:
        yield transactions.c.agent_id == which.agent_id
    if which.created_from is not None:
        yield transactions.c.created_at >= which.created_from
    if which.created_to is not None:
        yield transactions.c.created_at < which.created_to
    for name, value in which.metadata:
        yield exists().where(
            metadata.c.transaction_number == transactions.c.number,
            *_has_entry(name, value, payloads),
        )


def _has_entry(name: str, value: str, payloads: PayloadCodec | None) -> Iterable[ColumnElement[bool]]:
    if payloads is None:
        return metadata.c.name == name, metadata.c.value == value
    names, values = metadata_tokens(payloads, name, value)
    return metadata.c.name.in_(names), metadata.c.value.in_(values)


_PROBLEM = PreparedQuery(
    select(schema.recovery_problems.c.reason).where(schema.recovery_problems.c.transaction_number == THIS)
)


def load_recovery_problem(connection: Connection, transaction_id: TransactionId) -> str:
    """Return why a transaction can't be recovered, empty if it can."""
    return _PROBLEM.run(connection, transaction_id=transaction_id).scalar() or ""


_OPEN = PreparedQuery(select(func.count()).select_from(transactions).where(_IS_OPEN))
_OPEN_OF_PRINCIPAL = PreparedQuery(
    select(func.count())
    .select_from(transactions)
    .where(_IS_OPEN, transactions.c.principal == bindparam("principal"))
)


@one_statement
def count_open(connection: Connection, principal: str) -> int:
    """Return how many transactions of a principal or of a tenant (empty: of all) have not ended."""
    if is_everybody(principal):
        counted = select(func.count()).select_from(transactions)
        counted = counted.where(_IS_OPEN, seen_by(transactions.c.principal, principal))
        return int(connection.execute(counted).scalar_one())
    if principal:
        return int(_OPEN_OF_PRINCIPAL.run(connection, principal=principal).scalar_one())
    return int(_OPEN.run(connection).scalar_one())


_EFFECTS = PreparedQuery(
    select(*(effects.c[name] for name in rows.EFFECT.columns))
    .where(effects.c.transaction_number == THIS)
    .order_by(effects.c.sequence, effects.c.effect_id)
)


@one_statement
def list_effects(
    connection: Connection, transaction_id: TransactionId, states: frozenset[str]
) -> Sequence[EffectRecord]:
    """Return effects in staging order; empty ``states``: all."""
    found = (rows.EFFECT.record(row) for row in _EFFECTS.run(connection, transaction_id=transaction_id))
    return [effect for effect in found if not states or effect.state in states]
