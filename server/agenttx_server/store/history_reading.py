"""Queries on transactions and their history; each takes a connection and returns records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, exists, func, literal_column, select, tuple_, union

from agenttx_server.engine.ports import AttemptPage, StoredTransaction, TransactionFilter, TransactionPage
from agenttx_server.engine.records import (
    AttemptRecord,
    EffectRecord,
    EventRecord,
    RecordedResponse,
    StateRead,
    StateWrite,
    TransactionId,
    TransactionRecord,
)
from agenttx_server.store import rows, schema
from agenttx_server.store.cursors import decode_cursor, encode_cursor
from agenttx_server.store.keys import request_key
from agenttx_server.store.numbers import number_of
from agenttx_server.store.pages import read_page
from agenttx_server.store.record_codec import RecordCodec, parse_json

__all__ = [
    "count_open",
    "find_attempt",
    "find_response",
    "list_attempts",
    "list_effects",
    "list_events",
    "list_transactions",
    "load",
    "load_context",
    "load_output",
    "load_record",
]

_EVENT_PAGE_BYTES = 1024 * 1024


def _columns(codec: RecordCodec[Any], table: Table) -> list[ColumnElement[Any]]:
    return [table.c[name] for name in codec.columns]


_TRANSACTION = select(*_columns(rows.TRANSACTION, schema.transactions))
_ATTEMPT_COLUMNS = _columns(rows.ATTEMPT, schema.attempts)
_REWOUND = exists().where(
    schema.rewinds.c.transaction_number == schema.attempts.c.transaction_number,
    schema.rewinds.c.generation >= schema.attempts.c.generation,
    schema.rewinds.c.to_step <= schema.attempts.c.step_id,
)

# Written out: a bound value would hide from the planner that the partial index will do.
_IS_OPEN = schema.transactions.c.is_open == literal_column("1")


def load(connection: Connection, transaction_id: TransactionId) -> StoredTransaction | None:
    """Everything an open transaction is rebuilt from; the caller gives a snapshot."""
    record = load_record(connection, transaction_id)
    if record is None:
        return None
    counts = connection.execute(
        select(schema.attempts.c.step_id, func.count())
        .where(schema.attempts.c.transaction_number == number_of(transaction_id))
        .group_by(schema.attempts.c.step_id)
    )
    undo = connection.execute(
        select(*_columns(rows.UNDO, schema.undo_actions))
        .where(schema.undo_actions.c.transaction_number == number_of(transaction_id))
        .order_by(schema.undo_actions.c.sequence)
    )
    group_reads, group_writes = _touched_by_group(connection, record)
    return StoredTransaction(
        transaction=record,
        attempts=_live_attempts(connection, transaction_id),
        undo=[rows.UNDO.record(row) for row in undo],
        attempt_counts={row[0]: row[1] for row in counts},
        group_reads=group_reads,
        group_writes=group_writes,
        request_ids=_request_ids(connection, transaction_id),
    )


def _live_attempts(connection: Connection, transaction_id: TransactionId) -> list[AttemptRecord]:
    found = connection.execute(
        select(*_ATTEMPT_COLUMNS)
        .where(schema.attempts.c.transaction_number == number_of(transaction_id), ~_REWOUND)
        .order_by(schema.attempts.c.step_id, schema.attempts.c.attempt)
    )
    newest = {row[0]: row for row in found}
    return [rows.ATTEMPT.record(row) for row in newest.values()]


def _request_ids(connection: Connection, transaction_id: TransactionId) -> Sequence[str]:
    attempts, responses = schema.attempts, schema.recorded_responses
    return connection.scalars(
        union(
            select(attempts.c.request_id).where(
                attempts.c.transaction_number == number_of(transaction_id), attempts.c.request_id != ""
            ),
            select(responses.c.request_id).where(responses.c.scope == transaction_id),
        )
    ).all()


def _touched_by_group(
    connection: Connection, record: TransactionRecord
) -> tuple[Sequence[StateRead], Sequence[StateWrite]]:
    if record.open_group is None:
        return (), ()
    first, size = record.open_group
    reads, writes = schema.state_reads, schema.state_writes
    read_rows = connection.execute(
        select(*_columns(rows.STATE_READ, reads))
        .where(
            reads.c.transaction_number == number_of(record.transaction_id),
            reads.c.step_id.between(first, first + size - 1),
        )
        .order_by(reads.c.step_id, reads.c.key, reads.c.is_prefix, reads.c.version)
    )
    write_rows = connection.execute(
        select(*_columns(rows.STATE_WRITE, writes))
        .where(
            writes.c.transaction_number == number_of(record.transaction_id),
            writes.c.step_id.between(first, first + size - 1),
        )
        .order_by(writes.c.step_id, writes.c.sequence)
    )
    return (
        [rows.STATE_READ.record(row) for row in read_rows],
        [rows.STATE_WRITE.record(row) for row in write_rows],
    )


def load_record(connection: Connection, transaction_id: TransactionId) -> TransactionRecord | None:
    """The head row."""
    row = connection.execute(
        _TRANSACTION.where(schema.transactions.c.transaction_id == transaction_id)
    ).first()
    return None if row is None else rows.TRANSACTION.record(row)


def find_attempt(
    connection: Connection, transaction_id: TransactionId, request_id: str
) -> tuple[AttemptRecord, bool] | None:
    """The newest attempt of a request and whether it was rewound; an empty id finds nothing."""
    if not request_id:
        return None
    attempts = schema.attempts
    row = connection.execute(
        select(*_ATTEMPT_COLUMNS, _REWOUND)
        .where(
            attempts.c.transaction_number == number_of(transaction_id),
            attempts.c.request_key == request_key(request_id),
            attempts.c.request_id == request_id,
        )
        .order_by(attempts.c.generation.desc(), attempts.c.attempt.desc())
        .limit(1)
    ).first()
    return None if row is None else (rows.ATTEMPT.record(row), bool(row[-1]))


def find_response(connection: Connection, scope: str, request_id: str) -> RecordedResponse | None:
    """The recorded answer of a changing call."""
    responses = schema.recorded_responses
    row = connection.execute(
        select(*_columns(rows.RESPONSE, responses)).where(
            responses.c.scope == scope, responses.c.request_id == request_id
        )
    ).first()
    return None if row is None else rows.RESPONSE.record(row)


def load_output(
    connection: Connection, transaction_id: TransactionId, step_id: int, attempt: int
) -> str | None:
    """An attempt's output."""
    attempts = schema.attempts
    return connection.scalar(
        select(attempts.c.output).where(
            attempts.c.transaction_number == number_of(transaction_id),
            attempts.c.step_id == step_id,
            attempts.c.attempt == attempt,
        )
    )


def load_context(
    connection: Connection, transaction_id: TransactionId, byte_limit: int
) -> tuple[Sequence[tuple[int, str, str]], bool]:
    """The newest contexts of live attempts, at most ``byte_limit`` bytes, and whether older ones were left out."""
    attempts = schema.attempts
    newer = attempts.alias("newer")
    query = (
        select(attempts.c.step_id, attempts.c.tool_name, attempts.c.raw_context)
        .where(
            attempts.c.transaction_number == number_of(transaction_id),
            attempts.c.raw_context.is_not(None),
            ~_REWOUND,
            ~exists().where(
                newer.c.transaction_number == attempts.c.transaction_number,
                newer.c.step_id == attempts.c.step_id,
                newer.c.attempt > attempts.c.attempt,
            ),
        )
        .order_by(attempts.c.step_id.desc())
    )
    newest: list[tuple[int, str, str]] = []
    size = 0
    with connection.execute(query) as found:
        for step_id, tool_name, raw_context in found:
            context = parse_json(raw_context)
            size += len(context.encode(errors="surrogatepass"))
            if size > byte_limit:
                return newest[::-1], True
            newest.append((step_id, tool_name, context))
    return newest[::-1], False


def list_transactions(
    connection: Connection, which: TransactionFilter, cursor: str, limit: int
) -> TransactionPage:
    """A page of transactions, newest first."""
    table = schema.transactions
    query = _TRANSACTION.where(*_restrictions(which))
    if cursor:
        position = decode_cursor("transactions", cursor, int, str)
        query = query.where(tuple_(table.c.created_at, table.c.transaction_id) < position)
    query = query.order_by(table.c.created_at.desc(), table.c.transaction_id.desc()).limit(limit + 1)
    records = [rows.TRANSACTION.record(row) for row in connection.execute(query)]
    next_cursor = ""
    if len(records) > limit:
        records.pop()
        next_cursor = encode_cursor("transactions", records[-1].created_at, records[-1].transaction_id)
    return TransactionPage(records, next_cursor)


def _restrictions(which: TransactionFilter) -> Iterable[ColumnElement[bool]]:
    table, metadata = schema.transactions, schema.transaction_metadata
    if which.principal:
        yield table.c.principal == which.principal
    if which.statuses:
        yield table.c.status.in_(sorted(which.statuses))
        if not any(status.is_terminal for status in which.statuses):
            yield _IS_OPEN
    if which.agent_id:
        yield table.c.agent_id == which.agent_id
    if which.created_from is not None:
        yield table.c.created_at >= which.created_from
    if which.created_to is not None:
        yield table.c.created_at < which.created_to
    for name, value in which.metadata:
        yield exists().where(
            metadata.c.transaction_number == table.c.number,
            metadata.c.name == name,
            metadata.c.value == value,
        )


def list_attempts(
    connection: Connection,
    transaction_id: TransactionId,
    cursor: str,
    limit: int,
    byte_limit: int,
    step_id: int | None,
    include_rewound: bool,
) -> AttemptPage:
    """A page of the history in order of step and attempt, cut by number and by bytes (at least one)."""
    attempts = schema.attempts
    query = select(*_ATTEMPT_COLUMNS, _REWOUND).where(
        attempts.c.transaction_number == number_of(transaction_id)
    )
    if cursor:
        position = decode_cursor("attempts", cursor, int, int)
        query = query.where(tuple_(attempts.c.step_id, attempts.c.attempt) > position)
    if step_id is not None:
        query = query.where(attempts.c.step_id == step_id)
    if not include_rewound:
        query = query.where(~_REWOUND)
    page, more = read_page(
        connection, query.order_by(attempts.c.step_id, attempts.c.attempt), limit, byte_limit
    )
    records = [rows.ATTEMPT.record(row) for row in page]
    next_cursor = encode_cursor("attempts", records[-1].step_id, records[-1].attempt) if more else ""
    return AttemptPage(records, [bool(row[-1]) for row in page], next_cursor)


def list_events(
    connection: Connection, transaction_id: TransactionId, from_sequence: int, limit: int
) -> Sequence[EventRecord]:
    """Events from a sequence on, at most ``limit`` and about 1 MiB."""
    events = schema.events
    query = (
        select(*_columns(rows.EVENT, events))
        .where(events.c.transaction_number == number_of(transaction_id), events.c.sequence >= from_sequence)
        .order_by(events.c.sequence)
    )
    page, _ = read_page(connection, query, limit, _EVENT_PAGE_BYTES)
    return [rows.EVENT.record(row) for row in page]


def list_effects(
    connection: Connection, transaction_id: TransactionId, states: frozenset[str]
) -> Sequence[EffectRecord]:
    """Effects in staging order."""
    effects = schema.effects
    query = select(*_columns(rows.EFFECT, effects)).where(
        effects.c.transaction_number == number_of(transaction_id)
    )
    if states:
        query = query.where(effects.c.state.in_(sorted(states)))
    query = query.order_by(effects.c.sequence, effects.c.effect_id)
    return [rows.EFFECT.record(row) for row in connection.execute(query)]


def count_open(connection: Connection, principal: str) -> int:
    """How many transactions have not ended."""
    table = schema.transactions
    query = select(func.count()).select_from(table).where(_IS_OPEN)
    if principal:
        query = query.where(table.c.principal == principal)
    return connection.scalar(query) or 0
