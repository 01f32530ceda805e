"""A transaction's head and history; each function takes a connection with a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from heapq import merge
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    bindparam,
    exists,
    func,
    literal_column,
    select,
    tuple_,
    union,
)

from agenttx_server.engine.ports import AttemptPage, StoredJournal, StoredTransaction
from agenttx_server.engine.records import (
    ApprovalRecord,
    AttemptRecord,
    AttemptState,
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
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.record_codec import RecordCodec, parse_json

__all__ = [
    "find_attempt",
    "find_response",
    "list_attempts",
    "list_events",
    "list_sub_step_attempts",
    "load",
    "load_approval",
    "load_context",
    "load_journal",
    "load_output",
    "load_record",
    "load_revision",
    "load_touched",
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

sub_steps = schema.sub_steps
_SUB_STEP_COLUMNS = _columns(rows.SUB_STEP, sub_steps)
_SUB_STEP_REWOUND = exists().where(
    schema.rewinds.c.transaction_number == sub_steps.c.transaction_number,
    schema.rewinds.c.generation >= sub_steps.c.generation,
    schema.rewinds.c.to_step <= sub_steps.c.step_id,
)

_RECORD = PreparedQuery(
    select(*_columns(rows.TRANSACTION, schema.transactions)).where(
        schema.transactions.c.transaction_id == bindparam("transaction_id")
    )
)


@one_statement
def load_record(connection: Connection, transaction_id: TransactionId) -> TransactionRecord | None:
    """Return the head row."""
    row = _RECORD.run(connection, transaction_id=transaction_id).first()
    return None if row is None else rows.TRANSACTION.record(row)


_REVISION = PreparedQuery(
    select(schema.transactions.c.revision).where(
        schema.transactions.c.transaction_id == bindparam("transaction_id")
    )
)


@one_statement
def load_revision(connection: Connection, transaction_id: TransactionId) -> int:
    """Return a transaction's revision, 0 if there is no such transaction."""
    return int(_REVISION.run(connection, transaction_id=transaction_id).scalar() or 0)


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
_approval_columns = _columns(rows.APPROVAL, schema.approvals)
_APPROVALS = PreparedQuery(
    select(*_approval_columns)
    .where(
        schema.approvals.c.transaction_number == THIS,
        schema.approvals.c.step_id >= bindparam("from_step"),
        # Said as text: an IN with values is compiled for psycopg only where all values are known.
        literal_column("approvals.state IN ('PENDING', 'APPROVED')"),
    )
    .order_by(schema.approvals.c.sequence)
)
_APPROVAL = PreparedQuery(
    select(*_approval_columns).where(
        schema.approvals.c.transaction_number == THIS, schema.approvals.c.sequence == bindparam("sequence")
    )
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


_LIVE_SUB_STEPS = PreparedQuery(
    select(*_SUB_STEP_COLUMNS)
    .where(sub_steps.c.transaction_number == THIS, ~_SUB_STEP_REWOUND)
    .order_by(sub_steps.c.step_id, sub_steps.c.sub_step, sub_steps.c.attempt)
)
_SUB_STEP_COUNTS = PreparedQuery(
    select(sub_steps.c.step_id, sub_steps.c.sub_step, func.count())
    .where(sub_steps.c.transaction_number == THIS)
    .group_by(sub_steps.c.step_id, sub_steps.c.sub_step)
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
    live_sub_steps: Sequence[AttemptRecord] = ()
    sub_step_counts: dict[tuple[int, int], int] = {}
    if record.has_sub_steps:
        live_sub_steps = _newest(_LIVE_SUB_STEPS.run(connection, transaction_id=transaction_id))
        found = _SUB_STEP_COUNTS.run(connection, transaction_id=transaction_id)
        sub_step_counts = {(row[0], row[1]): row[2] for row in found}
    return StoredTransaction(
        transaction=record,
        attempts=[rows.ATTEMPT.record(row) for row in newest.values()],
        undo=[rows.UNDO.record(row) for row in _UNDO.run(connection, transaction_id=transaction_id)],
        attempt_counts={row[0]: row[1] for row in counts},
        group_reads=group_reads,
        group_writes=group_writes,
        request_ids=[row[0] for row in _REQUEST_IDS.run(connection, transaction_id=transaction_id)],
        approvals=_approvals_of(connection, record),
        sub_steps=live_sub_steps,
        sub_step_counts=sub_step_counts,
    )


def _approvals_of(connection: Connection, record: TransactionRecord) -> Sequence[ApprovalRecord]:
    if not record.approval_sequence:
        return ()
    found = _APPROVALS.run(connection, transaction_id=record.transaction_id, from_step=record.next_step_id)
    return [rows.APPROVAL.record(row) for row in found]


def _newest(found: Iterable[Sequence[Any]]) -> list[AttemptRecord]:
    """Return the last attempt of each sub-step that counts."""
    newest = {(row[0], row[1]): row for row in found}
    records = [rows.SUB_STEP.record(row) for row in newest.values()]
    return [record for record in records if record.state is not AttemptState.SUPERSEDED]


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


@one_statement
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


@one_statement
def find_response(connection: Connection, scope: str, request_id: str) -> RecordedResponse | None:
    """Return the recorded answer of a changing call."""
    row = _RESPONSE.run(connection, scope=scope, request_id=request_id).first()
    return None if row is None else rows.RESPONSE.record(row)


@one_statement
def load_approval(
    connection: Connection, transaction_id: TransactionId, sequence: int
) -> ApprovalRecord | None:
    """Return one approval of a transaction."""
    row = _APPROVAL.run(connection, transaction_id=transaction_id, sequence=sequence).first()
    return None if row is None else rows.APPROVAL.record(row)


@one_statement
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


@cache
def _sub_step_history(*, of_one_step: bool, include_rewound: bool) -> PreparedQuery:
    behind = tuple_(bindparam("after_step"), bindparam("after_sub_step"), bindparam("after_attempt"))
    place = (sub_steps.c.step_id, sub_steps.c.sub_step, sub_steps.c.attempt)
    query: Select[Any] = select(*_SUB_STEP_COLUMNS, _SUB_STEP_REWOUND).where(
        sub_steps.c.transaction_number == THIS, tuple_(*place) > behind
    )
    if of_one_step:
        query = query.where(sub_steps.c.step_id == bindparam("step_id"))
    if not include_rewound:
        query = query.where(~_SUB_STEP_REWOUND)
    return PreparedQuery(query.order_by(*place).limit(bindparam("limit")))


def list_attempts(
    connection: Connection,
    transaction_id: TransactionId,
    cursor: str,
    limit: int,
    byte_limit: int,
    step_id: int | None,
    include_rewound: bool,
    include_sub_steps: bool,
) -> AttemptPage:
    """Return a page of the history in order of step, sub-step and attempt, cut by number and by bytes."""
    after = decode_cursor("attempts", cursor, int, int, int) if cursor else (0, 0, 0)
    kind = {"of_one_step": step_id is not None, "include_rewound": include_rewound}
    # Behind a sub-step all attempts of its step have been seen.
    after_attempt = after[2] if not after[1] else _BEHIND_ALL_ATTEMPTS
    asked = {"transaction_id": transaction_id, "step_id": step_id, "limit": limit + 1, "after_step": after[0]}
    found = _history(**kind).stream(connection, **asked, after_attempt=after_attempt)
    if not include_sub_steps:
        page, more = read_page(found, limit, byte_limit)
        return _history_page([(rows.ATTEMPT.record(row), bool(row[-1])) for row in page], more)
    with found:
        steps = list(_read(found, rows.ATTEMPT, byte_limit))
    behind_step = {
        "after_sub_step": after[1],
        "after_attempt": after[2] if after[1] else _BEHIND_ALL_ATTEMPTS,
    }
    with _sub_step_history(**kind).stream(connection, **asked, **behind_step) as made:
        both = merge(steps, _read(made, rows.SUB_STEP, byte_limit), key=_place)
        return _history_page(*_cut(both, limit, byte_limit))


_BEHIND_ALL_ATTEMPTS = (1 << 63) - 1
_Listed = tuple[AttemptRecord, bool, int]


def _read(
    found: Iterable[Sequence[Any]], codec: RecordCodec[AttemptRecord], byte_limit: int
) -> Iterator[_Listed]:
    """Yield records, whether each was rewound, and its size, as long as a page may need them.

    One more than fits: it tells the page that there is more.
    """
    total = 0
    for row in found:
        size = sum([len(value) for value in row if type(value) is str])
        yield codec.record(row), bool(row[-1]), size
        if total > byte_limit:
            return
        total += size


def _place(listed: _Listed) -> tuple[int, int, int]:
    return listed[0].step_id, listed[0].sub_step, listed[0].attempt


def _cut(
    found: Iterable[_Listed], limit: int, byte_limit: int
) -> tuple[list[tuple[AttemptRecord, bool]], bool]:
    page: list[tuple[AttemptRecord, bool]] = []
    total = 0
    for record, rewound, size in found:
        total += size
        if len(page) == limit or (page and total > byte_limit):
            return page, True
        page.append((record, rewound))
    return page, False


def _history_page(page: Sequence[tuple[AttemptRecord, bool]], more: bool) -> AttemptPage:
    last = page[-1][0] if more else None
    next_cursor = encode_cursor("attempts", last.step_id, last.sub_step, last.attempt) if last else ""
    return AttemptPage([record for record, _ in page], [rewound for _, rewound in page], next_cursor)


# --- what the steps of a group made ------------------------------------------------------------------

_JOURNAL = PreparedQuery(
    select(*_SUB_STEP_COLUMNS)
    .where(
        sub_steps.c.transaction_number == THIS,
        sub_steps.c.step_id == bindparam("step_id"),
        ~_SUB_STEP_REWOUND,
    )
    .order_by(sub_steps.c.sub_step, sub_steps.c.attempt)
)
_SUB_STEP_ATTEMPTS = PreparedQuery(
    select(*_SUB_STEP_COLUMNS)
    .where(
        sub_steps.c.transaction_number == THIS,
        sub_steps.c.step_id == bindparam("step_id"),
        sub_steps.c.sub_step == bindparam("sub_step"),
    )
    .order_by(sub_steps.c.attempt)
)
_KEYS_WRITTEN = PreparedQuery(
    select(writes.c.step_id, writes.c.sequence, writes.c.key)
    .where(
        writes.c.transaction_number == THIS, writes.c.step_id.between(bindparam("first"), bindparam("last"))
    )
    .order_by(writes.c.step_id, writes.c.sequence)
)


def load_journal(connection: Connection, transaction_id: TransactionId, step_id: int) -> StoredJournal:
    """Return a step's live sub-steps, the newest attempt of each, and what they wrote."""
    made = _newest(_JOURNAL.run(connection, transaction_id=transaction_id, step_id=step_id))
    if not made:
        return StoredJournal(())
    written = _GROUP_WRITES.run(connection, transaction_id=transaction_id, first=step_id, last=step_id)
    return StoredJournal(made, [rows.STATE_WRITE.record(row) for row in written])


@one_statement
def list_sub_step_attempts(
    connection: Connection, transaction_id: TransactionId, step_id: int, sub_step: int
) -> Sequence[AttemptRecord]:
    """Return all attempts of one sub-step."""
    found = _SUB_STEP_ATTEMPTS.run(
        connection, transaction_id=transaction_id, step_id=step_id, sub_step=sub_step
    )
    return [rows.SUB_STEP.record(row) for row in found]


def load_touched(
    connection: Connection, transaction_id: TransactionId, first: int, last: int
) -> tuple[Sequence[StateRead], Sequence[StateWrite]]:
    """Return what steps read and which keys they wrote."""
    steps = {"transaction_id": transaction_id, "first": first, "last": last}
    return (
        [rows.STATE_READ.record(row) for row in _GROUP_READS.run(connection, **steps)],
        [StateWrite(row[0], row[1], row[2], None) for row in _KEYS_WRITTEN.run(connection, **steps)],
    )


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
    found = _EVENTS.stream(connection, transaction_id=transaction_id, first=from_sequence, limit=limit + 1)
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
    with _CONTEXTS.stream(connection, transaction_id=transaction_id) as found:
        for step_id, tool_name, raw_context in found:
            context = parse_json(raw_context)
            size += len(context.encode(errors="surrogatepass"))
            if size > byte_limit:
                return newest[::-1], True
            newest.append((step_id, tool_name, context))
    return newest[::-1], False
