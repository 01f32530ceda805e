"""Queries on state: a transaction's own writes over committed state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    and_,
    exists,
    func,
    literal,
    select,
    tuple_,
    union_all,
)

from agenttx_server.engine.ports import CommittedPage, StateView
from agenttx_server.engine.records import CommittedEntry, EffectState, TransactionId
from agenttx_server.store import rows, schema
from agenttx_server.store.cursors import decode_cursor, encode_cursor
from agenttx_server.store.keys import prefix_end
from agenttx_server.store.numbers import number_of
from agenttx_server.store.pages import read_page

__all__ = [
    "commit_version",
    "count_touched",
    "read_committed",
    "read_state",
    "scan_committed",
    "scan_state",
]

_TOUCHED_KEYS = 1000


def _range(key: Column[Any], prefix: str, after: str) -> Iterable[ColumnElement[bool]]:
    """Restrict a key to a prefix and to what lies behind ``after``."""
    yield key >= prefix
    end = prefix_end(prefix)
    if end is not None:
        yield key < end
    if after:
        yield key > after


def read_state(
    connection: Connection, transaction_id: TransactionId, key: str, before_step: int
) -> StateView:
    """A key as one step sees it."""
    writes, committed = schema.state_writes, schema.committed_state
    own = (
        select(writes.c.value)
        .where(
            writes.c.transaction_number == number_of(transaction_id),
            writes.c.key == key,
            writes.c.step_id < before_step,
        )
        .order_by(writes.c.step_id.desc(), writes.c.sequence.desc())
        .limit(1)
        .subquery()
    )
    rows_ = connection.execute(
        union_all(
            select(literal(1).label("own"), own.c.value, literal(0)),
            select(literal(0), committed.c.value, committed.c.version).where(committed.c.key == key),
        )
    ).all()
    value: str | None = None
    is_own = False
    version = 0
    for own_row, row_value, row_version in rows_:
        if own_row:
            is_own, value = True, row_value
        else:
            version = row_version
            if not is_own:
                value = row_value
    return StateView(value, is_own, version)


def scan_state(
    connection: Connection,
    transaction_id: TransactionId,
    prefix: str,
    before_step: int,
    after: str,
    limit: int,
) -> Sequence[tuple[str, StateView]]:
    """Present keys with a prefix as one step sees them; each arm is read in key order and stops at the limit."""
    committed = schema.committed_state
    writes = schema.state_writes
    mine = and_(writes.c.transaction_number == number_of(transaction_id), writes.c.step_id < before_step)
    newer = writes.alias("newer")
    own = (
        select(writes.c.key, writes.c.value, literal(1).label("own"), func.coalesce(committed.c.version, 0))
        .select_from(writes.outerjoin(committed, committed.c.key == writes.c.key))
        .where(
            mine,
            writes.c.value.is_not(None),
            *_range(writes.c.key, prefix, after),
            ~exists().where(
                newer.c.transaction_number == number_of(transaction_id),
                newer.c.key == writes.c.key,
                newer.c.step_id < before_step,
                tuple_(newer.c.step_id, newer.c.sequence) > tuple_(writes.c.step_id, writes.c.sequence),
            ),
        )
        .order_by(writes.c.key)
        .limit(limit)
        .subquery()
    )
    others = (
        select(committed.c.key, committed.c.value, literal(0).label("own"), committed.c.version)
        .where(
            committed.c.value.is_not(None),
            *_range(committed.c.key, prefix, after),
            ~exists().where(mine, writes.c.key == committed.c.key),
        )
        .order_by(committed.c.key)
        .limit(limit)
        .subquery()
    )
    found = connection.execute(union_all(select(own), select(others)))
    merged = sorted(
        ((row[0], StateView(row[1], bool(row[2]), row[3])) for row in found), key=lambda item: item[0]
    )
    return merged[:limit]


def read_committed(connection: Connection, key: str) -> CommittedEntry:
    """A key of committed state; a tombstone has its version."""
    committed = schema.committed_state
    row = connection.execute(
        select(committed.c.key, committed.c.value, committed.c.version).where(committed.c.key == key)
    ).first()
    return CommittedEntry(key, None, 0) if row is None else rows.COMMITTED.record(row)


def scan_committed(
    connection: Connection, prefix: str, cursor: str, limit: int, byte_limit: int
) -> CommittedPage:
    """A page of present keys, cut by number and by bytes (at least one)."""
    committed = schema.committed_state
    after = decode_cursor("state", cursor, str)[0] if cursor else ""
    query = (
        select(committed.c.key, committed.c.value, committed.c.version)
        .where(committed.c.value.is_not(None), *_range(committed.c.key, prefix, after))
        .order_by(committed.c.key)
    )
    page, more = read_page(connection, query, limit, byte_limit)
    entries = [rows.COMMITTED.record(row) for row in page]
    return CommittedPage(entries, encode_cursor("state", entries[-1].key) if more else "")


def count_touched(
    connection: Connection, transaction_id: TransactionId, from_step: int
) -> tuple[int, Sequence[str], int]:
    """What a rewind to a step would drop: state rows, their keys (the first 1,000), staged effects."""
    writes, effects = schema.state_writes, schema.effects
    touched = and_(writes.c.transaction_number == number_of(transaction_id), writes.c.step_id >= from_step)
    count = connection.scalar(select(func.count()).select_from(writes).where(touched))
    keys = connection.scalars(
        select(writes.c.key).where(touched).distinct().order_by(writes.c.key).limit(_TOUCHED_KEYS)
    ).all()
    staged = connection.scalar(
        select(func.count())
        .select_from(effects)
        .where(
            effects.c.transaction_number == number_of(transaction_id),
            effects.c.step_id >= from_step,
            effects.c.state == EffectState.STAGED,
        )
    )
    return count or 0, keys, staged or 0


def commit_version(connection: Connection) -> int:
    """The version of the newest publication."""
    counters = schema.counters
    return connection.scalar(select(counters.c.value).where(counters.c.name == "commit_version")) or 0
