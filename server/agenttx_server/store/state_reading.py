"""State: a transaction's own writes over committed state; each function takes a connection with a snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
    union_all,
)

from agenttx_server.engine.ports import CommittedPage, StateView
from agenttx_server.engine.records import CommitCheckKind, CommittedEntry, EffectState, TransactionId
from agenttx_server.store import rows, schema
from agenttx_server.store.cursors import decode_cursor, encode_cursor
from agenttx_server.store.keys import prefix_end
from agenttx_server.store.numbers import THIS
from agenttx_server.store.pages import read_page
from agenttx_server.store.prepared_query import PreparedQuery
from agenttx_server.store.read_pool import one_statement

__all__ = [
    "commit_version",
    "count_touched",
    "database_id",
    "first_use",
    "read_committed",
    "read_state",
    "rows_by_step",
    "scan_committed",
    "scan_state",
]

_TOUCHED_KEYS = 1000

writes, committed, effects = schema.state_writes, schema.committed_state, schema.effects

_MINE = and_(writes.c.transaction_number == THIS, writes.c.step_id < bindparam("before_step"))


# --- one key ----------------------------------------------------------------------------------------

_own_value = (
    select(literal(1).label("own"), writes.c.value, literal(0).label("version"))
    .where(_MINE, writes.c.key == bindparam("key"))
    .order_by(writes.c.step_id.desc(), writes.c.sequence.desc())
    .limit(1)
    .subquery()
)
_committed_value = select(literal(0), committed.c.value, committed.c.version).where(
    committed.c.key == bindparam("key")
)
_VIEW = PreparedQuery(
    union_all(select(_own_value), _committed_value), returns=(None, committed.c.value, None)
)
_COMMITTED = PreparedQuery(
    select(committed.c.key, committed.c.value, committed.c.version).where(committed.c.key == bindparam("key"))
)


@one_statement
def read_state(
    connection: Connection, transaction_id: TransactionId, key: str, before_step: int
) -> StateView:
    """Return a key as one step sees it."""
    found = _VIEW.run(connection, transaction_id=transaction_id, key=key, before_step=before_step).all()
    own = next((row for row in found if row[0]), None)
    public = next((row for row in found if not row[0]), None)
    seen = own or public
    return StateView(seen[1] if seen else None, own is not None, public[2] if public else 0)


@one_statement
def read_committed(connection: Connection, key: str) -> CommittedEntry:
    """Return a key of committed state; a tombstone has its version."""
    row = _COMMITTED.run(connection, key=key).first()
    return CommittedEntry(key, None, 0) if row is None else rows.COMMITTED.record(row)


# --- prefixes -----------------------------------------------------------------------------------------


def _range(key: Column[Any], bounded: bool) -> Iterable[ColumnElement[bool]]:
    """Restrict a key to a prefix, bound as ``prefix`` and ``end``, and to what lies behind ``after``."""
    yield key >= bindparam("prefix")
    yield key > bindparam("after")
    if bounded:
        yield key < bindparam("end")


@cache
def _scan(bounded: bool) -> PreparedQuery:
    # Each part is read in key order and stops at the limit.
    newer = writes.alias("newer")
    own = (
        select(
            writes.c.key,
            writes.c.value,
            literal(1).label("own"),
            func.coalesce(committed.c.version, 0).label("version"),
        )
        .select_from(writes.outerjoin(committed, committed.c.key == writes.c.key))
        .where(
            _MINE,
            writes.c.value.is_not(None),
            *_range(writes.c.key, bounded),
            ~exists().where(
                newer.c.transaction_number == writes.c.transaction_number,
                newer.c.key == writes.c.key,
                newer.c.step_id < bindparam("before_step"),
                tuple_(newer.c.step_id, newer.c.sequence) > tuple_(writes.c.step_id, writes.c.sequence),
            ),
        )
        .order_by(writes.c.key)
        .limit(bindparam("limit"))
        .subquery()
    )
    others = (
        select(committed.c.key, committed.c.value, literal(0).label("own"), committed.c.version)
        .where(
            committed.c.value.is_not(None),
            *_range(committed.c.key, bounded),
            ~exists().where(_MINE, writes.c.key == committed.c.key),
        )
        .order_by(committed.c.key)
        .limit(bindparam("limit"))
        .subquery()
    )
    return PreparedQuery(
        union_all(select(own), select(others)), returns=(committed.c.key, committed.c.value, None, None)
    )


@one_statement
def scan_state(
    connection: Connection,
    transaction_id: TransactionId,
    prefix: str,
    before_step: int,
    after: str,
    limit: int,
) -> Sequence[tuple[str, StateView]]:
    """Return present keys with a prefix, in key order after ``after``, as one step sees them."""
    end = prefix_end(prefix)
    found = _scan(end is not None).run(
        connection,
        transaction_id=transaction_id,
        before_step=before_step,
        prefix=prefix,
        after=after,
        end=end,
        limit=limit,
    )
    merged = sorted(found, key=lambda row: str(row[0]))[:limit]
    return [(row[0], StateView(row[1], bool(row[2]), row[3])) for row in merged]


@cache
def _committed_range(bounded: bool) -> PreparedQuery:
    return PreparedQuery(
        select(committed.c.key, committed.c.value, committed.c.version)
        .where(committed.c.value.is_not(None), *_range(committed.c.key, bounded))
        .order_by(committed.c.key)
        .limit(bindparam("limit"))
    )


def scan_committed(
    connection: Connection, prefix: str, cursor: str, limit: int, byte_limit: int
) -> CommittedPage:
    """Return a page of present keys, cut by number and by bytes."""
    after = decode_cursor("state", cursor, str)[0] if cursor else ""
    end = prefix_end(prefix)
    found = _committed_range(end is not None).stream(
        connection, prefix=prefix, after=after, end=end, limit=limit + 1
    )
    page, more = read_page(found, limit, byte_limit)
    entries = [rows.COMMITTED.record(row) for row in page]
    return CommittedPage(entries, encode_cursor("state", entries[-1].key) if more else "")


# --- counts -------------------------------------------------------------------------------------------

_touched = and_(writes.c.transaction_number == THIS, writes.c.step_id >= bindparam("from_step"))
_TOUCHED_COUNT = PreparedQuery(select(func.count()).select_from(writes).where(_touched))
_TOUCHED = PreparedQuery(
    select(writes.c.key).where(_touched).distinct().order_by(writes.c.key).limit(_TOUCHED_KEYS)
)
_STAGED_COUNT = PreparedQuery(
    select(func.count())
    .select_from(effects)
    .where(
        effects.c.transaction_number == THIS,
        effects.c.step_id >= bindparam("from_step"),
        effects.c.state == EffectState.STAGED.value,
    )
)
_DATABASE_ID = PreparedQuery(
    select(schema.database_facts.c.value).where(schema.database_facts.c.name == "database_id")
)
_COMMIT_VERSION = PreparedQuery(
    select(schema.counters.c.value).where(schema.counters.c.name == "commit_version")
)


def count_touched(
    connection: Connection, transaction_id: TransactionId, from_step: int
) -> tuple[int, Sequence[str], int]:
    """Return what a rewind to a step would drop: state rows, their keys (the first 1,000), staged effects."""
    which = {"transaction_id": transaction_id, "from_step": from_step}
    return (
        int(_TOUCHED_COUNT.run(connection, **which).scalar_one()),
        [row[0] for row in _TOUCHED.run(connection, **which)],
        int(_STAGED_COUNT.run(connection, **which).scalar_one()),
    )


def rows_by_step(
    connection: Connection, transaction_id: TransactionId, from_step: int
) -> Sequence[tuple[int, int]]:
    """Return the steps from one on that have state rows, ascending, and how many."""
    found: Counter[int] = Counter()
    for query in _ROWS_BY_STEP:
        for step, rows_of_step in query.run(connection, transaction_id=transaction_id, from_step=from_step):
            found[step] += rows_of_step
    return sorted(found.items())


def database_id(connection: Connection) -> str:
    """Return the id that the database was given when it was made."""
    return str(_DATABASE_ID.run(connection).scalar_one())


_reads, _checks = schema.state_reads, schema.commit_checks
_ROWS_BY_STEP = [
    PreparedQuery(
        select(table.c.step_id, func.count())
        .where(table.c.transaction_number == THIS, table.c.step_id >= bindparam("from_step"))
        .group_by(table.c.step_id)
    )
    for table in (writes, _reads)
]


def _concerns(rows_of: Table) -> ColumnElement[bool]:
    """Whether a row with a key or a prefix is about the key bound as ``key``."""
    bound: BindParameter[str] = bindparam("key")
    within = and_(rows_of.c.key <= bound, or_(rows_of.c.key_end == "", rows_of.c.key_end > bound))
    is_prefix = (
        rows_of.c.is_prefix == 1
        if rows_of is _reads
        else rows_of.c.kind == CommitCheckKind.NONE_WITH_PREFIX.value
    )
    return and_(
        rows_of.c.transaction_number == THIS,
        or_(and_(~is_prefix, rows_of.c.key == bound), and_(is_prefix, within)),
    )


_uses = union_all(
    select(func.min(writes.c.step_id).label("step_id")).where(
        writes.c.transaction_number == THIS, writes.c.key == bindparam("key")
    ),
    select(func.min(_reads.c.step_id)).where(_concerns(_reads)),
    select(func.min(_checks.c.step_id)).where(_concerns(_checks)),
).subquery()
_FIRST_USE = PreparedQuery(select(func.min(_uses.c.step_id)))


def first_use(connection: Connection, transaction_id: TransactionId, key: str) -> int | None:
    """Return the first step in force that read, wrote, scanned or checked a key."""
    found = _FIRST_USE.run(connection, transaction_id=transaction_id, key=key).scalar()
    return None if found is None else int(found)


@one_statement
def commit_version(connection: Connection) -> int:
    """Return the version of the newest publication."""
    return int(_COMMIT_VERSION.run(connection).scalar_one())
