"""A transaction's head and history; each function takes a connection with a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    bindparam,
    exists,
    func,
    select,
    tuple_,
    union,
)

from agenttx_server.engine.ports import AttemptPage, StoredTransaction
from agenttx_server.engine.records import (
    AttemptRecord,
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
from agenttx_server.store.numbers import THIS
from agenttx_server.store.pages import read_page
from agenttx_server.store.prepared_query import PreparedQuery
from agenttx_server.store.record_codec import RecordCodec, parse_json

__all__ = [
    "find_attempt",
    "find_response",
    "list_attempts",
    "list_events",
    "load",
    "load_context",
    "load_output",
    "load_record",
]

_EVENT_PAGE_BYTES = 1024 * 1024

attempts, responses, reads, writes = (
    schema.attempts,
    schema.recorded_responses,
    schema.state_reads,
    schema.state_writes,
)


def _columns(codec: RecordCodec[Any], table: Table) -> list[ColumnElement[Any]]:
    return [table.c[name] for name in codec.columns]


_ATTEMPT_COLUMNS = _columns(rows.ATTEMPT, attempts)
_REWOUND = exists().where(
    schema.rewinds.c.transaction_number == attempts.c.transaction_number,
    schema.rewinds.c.generation >= attempts.c.generation,
    schema.rewinds.c.to_step <= attempts.c.step_id,
)

_RECORD = PreparedQuery(
    select(*_columns(rows.TRANSACTION, schema.transactions)).where(
        schema.transactions.c.transaction_id == bindparam("transaction_id")
    )
)


def load_record(connection: Connection, transaction_id: TransactionId) -> TransactionRecord | None:
    """Return the head row."""
    row = _RECORD.run(connection, transaction_id=transaction_id).first()
    return None if row is None else rows.TRANSACTION.record(row)


# --- everything, to rebuild a transaction from ----------------------------------------------------

_LIVE_ATTEMPTS = PreparedQuery(
    select(*_ATTEMPT_COLUMNS)
    .where(attempts.c.transaction_number == THIS, ~_REWOUND)
    .order_by(attempts.c.step_id, attempts.c.attempt)
)
_ATTEMPT_COUNTS = PreparedQuery(
    select(attempts.c.step_id, func.count())
    .where(attempts.c.transaction_number == THIS)
    .group_by(attempts.c.step_id)
)
_UNDO = PreparedQuery(
    select(*_columns(rows.UNDO, schema.undo_actions))
    .where(schema.undo_actions.c.transaction_number == THIS)
    .order_by(schema.undo_actions.c.sequence)
)
_REQUEST_IDS = PreparedQuery(
    union(
        select(attempts.c.request_id).where(
            attempts.c.transaction_number == THIS, attempts.c.request_key.is_not(None)
        ),
        select(responses.c.request_id).where(responses.c.scope == bindparam("transaction_id")),
    )
)
_GROUP_READS = PreparedQuery(
    select(*_columns(rows.STATE_READ, reads))
    .where(reads.c.transaction_number == THIS, reads.c.step_id.between(bindparam("first"), bindparam("last")))
    .order_by(reads.c.step_id, reads.c.key, reads.c.is_prefix, reads.c.version)
)
_GROUP_WRITES = PreparedQuery(
    select(*_columns(rows.STATE_WRITE, writes))
    .where(
        writes.c.transaction_number == THIS, writes.c.step_id.between(bindparam("first"), bindparam("last"))
    )
    .order_by(writes.c.step_id, writes.c.sequence)
)


def load(connection: Connection, transaction_id: TransactionId) -> StoredTransaction | None:
    """Return everything that an open transaction is rebuilt from."""
    record = load_record(connection, transaction_id)
    if record is None:
        return None
    # Of several live attempts of a step the last one stays.
    newest = {row[0]: row for row in _LIVE_ATTEMPTS.run(connection, transaction_id=transaction_id)}
    counts = _ATTEMPT_COUNTS.run(connection, transaction_id=transaction_id)
    group_reads, group_writes = _touched_by_group(connection, record)
    return StoredTransaction(
        transaction=record,
        attempts=[rows.ATTEMPT.record(row) for row in newest.values()],
        undo=[rows.UNDO.record(row) for row in _UNDO.run(connection, transaction_id=transaction_id)],
        attempt_counts={row[0]: row[1] for row in counts},
        group_reads=group_reads,
        group_writes=group_writes,
        request_ids=[row[0] for row in _REQUEST_IDS.run(connection, transaction_id=transaction_id)],
    )


def _touched_by_group(
    connection: Connection, record: TransactionRecord
) -> tuple[Sequence[StateRead], Sequence[StateWrite]]:
    if record.open_group is None:
        return (), ()
    first, size = record.open_group
    group = {"transaction_id": record.transaction_id, "first": first, "last": first + size - 1}
    return (
        [rows.STATE_READ.record(row) for row in _GROUP_READS.run(connection, **group)],
        [rows.STATE_WRITE.record(row) for row in _GROUP_WRITES.run(connection, **group)],
    )


# --- single rows ------------------------------------------------------------------------------------

_ATTEMPT_OF_REQUEST = PreparedQuery(
    select(*_ATTEMPT_COLUMNS, _REWOUND)
    .where(
        attempts.c.transaction_number == THIS,
        attempts.c.request_key == bindparam("request_key"),
        attempts.c.request_id == bindparam("request_id"),
    )
    .order_by(attempts.c.generation.desc(), attempts.c.attempt.desc())
    .limit(1)
)
_RESPONSE = PreparedQuery(
    select(*_columns(rows.RESPONSE, responses)).where(
        responses.c.scope == bindparam("scope"), responses.c.request_id == bindparam("request_id")
    )
)
_OUTPUT = PreparedQuery(
    select(attempts.c.output).where(
        attempts.c.transaction_number == THIS,
        attempts.c.step_id == bindparam("step_id"),
        attempts.c.attempt == bindparam("attempt"),
    )
)


def find_attempt(
    connection: Connection, transaction_id: TransactionId, request_id: str
) -> tuple[AttemptRecord, bool] | None:
    """Return the newest attempt of a request and whether it was rewound; an empty id finds nothing."""
    if not request_id:
        return None
    row = _ATTEMPT_OF_REQUEST.run(
        connection,
        transaction_id=transaction_id,
        request_key=request_key(request_id),
        request_id=request_id,
    ).first()
    return None if row is None else (rows.ATTEMPT.record(row), bool(row[-1]))


def find_response(connection: Connection, scope: str, request_id: str) -> RecordedResponse | None:
    """Return the recorded answer of a changing call."""
    row = _RESPONSE.run(connection, scope=scope, request_id=request_id).first()
    return None if row is None else rows.RESPONSE.record(row)


def load_output(
    connection: Connection, transaction_id: TransactionId, step_id: int, attempt: int
) -> str | None:
    """Return an attempt's output."""
    found = _OUTPUT.run(connection, transaction_id=transaction_id, step_id=step_id, attempt=attempt)
    output: str | None = found.scalar()
    return output


# --- listings ---------------------------------------------------------------------------------------


@cache
def _history(*, of_one_step: bool, include_rewound: bool) -> PreparedQuery:
    behind = tuple_(bindparam("after_step"), bindparam("after_attempt"))
    query: Select[Any] = select(*_ATTEMPT_COLUMNS, _REWOUND).where(
        attempts.c.transaction_number == THIS, tuple_(attempts.c.step_id, attempts.c.attempt) > behind
    )
    if of_one_step:
        query = query.where(attempts.c.step_id == bindparam("step_id"))
    if not include_rewound:
        query = query.where(~_REWOUND)
    return PreparedQuery(query.order_by(attempts.c.step_id, attempts.c.attempt).limit(bindparam("limit")))


def list_attempts(
    connection: Connection,
    transaction_id: TransactionId,
    cursor: str,
    limit: int,
    byte_limit: int,
    step_id: int | None,
    include_rewound: bool,
) -> AttemptPage:
    """Return a page of the history in order of step and attempt, cut by number and by bytes."""
    after_step, after_attempt = decode_cursor("attempts", cursor, int, int) if cursor else (0, 0)
    query = _history(of_one_step=step_id is not None, include_rewound=include_rewound)
    found = query.run(
        connection,
        transaction_id=transaction_id,
        after_step=after_step,
        after_attempt=after_attempt,
        step_id=step_id,
        limit=limit + 1,
    )
    page, more = read_page(found, limit, byte_limit)
    records = [rows.ATTEMPT.record(row) for row in page]
    next_cursor = encode_cursor("attempts", records[-1].step_id, records[-1].attempt) if more else ""
    return AttemptPage(records, [bool(row[-1]) for row in page], next_cursor)


_EVENTS = PreparedQuery(
    select(*_columns(rows.EVENT, schema.events))
    .where(schema.events.c.transaction_number == THIS, schema.events.c.sequence >= bindparam("first"))
    .order_by(schema.events.c.sequence)
    .limit(bindparam("limit"))
)


def list_events(
    connection: Connection, transaction_id: TransactionId, from_sequence: int, limit: int
) -> Sequence[EventRecord]:
    """Return events from a sequence on, at most ``limit`` and about 1 MiB."""
    found = _EVENTS.run(connection, transaction_id=transaction_id, first=from_sequence, limit=limit + 1)
    page, _ = read_page(found, limit, _EVENT_PAGE_BYTES)
    return [rows.EVENT.record(row) for row in page]


_newer = attempts.alias("newer")
_CONTEXTS = PreparedQuery(
    select(attempts.c.step_id, attempts.c.tool_name, attempts.c.raw_context)
    .where(
        attempts.c.transaction_number == THIS,
        attempts.c.raw_context.is_not(None),
        ~_REWOUND,
        ~exists().where(
            _newer.c.transaction_number == attempts.c.transaction_number,
            _newer.c.step_id == attempts.c.step_id,
            _newer.c.attempt > attempts.c.attempt,
        ),
    )
    .order_by(attempts.c.step_id.desc())
)


def load_context(
    connection: Connection, transaction_id: TransactionId, byte_limit: int
) -> tuple[Sequence[tuple[int, str, str]], bool]:
    """Return the newest contexts of live attempts, up to a number of bytes, and whether older ones were left out."""
    newest: list[tuple[int, str, str]] = []
    size = 0
    with _CONTEXTS.run(connection, transaction_id=transaction_id) as found:
        for step_id, tool_name, raw_context in found:
            context = parse_json(raw_context)
            size += len(context.encode(errors="surrogatepass"))
            if size > byte_limit:
                return newest[::-1], True
            newest.append((step_id, tool_name, context))
    return newest[::-1], False
