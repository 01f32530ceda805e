"""What time does to transactions: those past their deadline or idle, and the removal of ended ones.

Written for every database; see :mod:`.leases`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    exists,
    literal_column,
    or_,
    select,
)
from sqlalchemy.ext.compiler import compiles

from agenttx_server.engine.records import MicrosecondsUtc, TransactionId
from agenttx_server.store import schema
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.record_codec import parse_json
from agenttx_server.store.run_schema import graph_runs

__all__ = ["batches", "list_ended", "list_expired", "purge"]

transactions, effects, undo_actions = schema.transactions, schema.effects, schema.undo_actions

# --- expiry -------------------------------------------------------------------------------------------

_is_past_deadline = transactions.c.deadline_at <= bindparam("now")
_is_idle = and_(
    transactions.c.idle_timeout_us > literal_column("0"),
    or_(
        transactions.c.status == "ACTIVE",
        # Approved, and not sent again.
        and_(
            transactions.c.status == "AWAITING_APPROVAL",
            ~exists().where(
                schema.approvals.c.transaction_number == transactions.c.number,
                literal_column(f"approvals.{schema.APPROVALS_PENDING}"),
            ),
        ),
    ),
    transactions.c.updated_at + transactions.c.idle_timeout_us <= bindparam("now"),
    bindparam("serving_since") + transactions.c.idle_timeout_us <= bindparam("now"),
)
# By number, which is the order in which rows lie: of 100,000 open ones 0.1 s, in the order of the
# index 0.3 s. The literal is that index's condition: ended ones aren't looked at.
_open = transactions.alias("open")
_EXPIRED = PreparedQuery(
    select(transactions.c.transaction_id)
    .where(
        transactions.c.number.in_(select(_open.c.number).where(_open.c.is_open == literal_column("1"))),
        or_(_is_past_deadline, _is_idle),
    )
    .limit(bindparam("limit"))
)


@one_statement
def list_expired(
    connection: Connection, now: MicrosecondsUtc, serving_since: MicrosecondsUtc, limit: int
) -> Sequence[TransactionId]:
    """Return open transactions past their deadline, and idle ones, in no order."""
    found = _EXPIRED.run(connection, now=now, serving_since=serving_since, limit=limit)
    return [TransactionId(row[0]) for row in found]


# --- retention ----------------------------------------------------------------------------------------


def _has(table: Table, *conditions: str) -> ColumnElement[bool]:
    return exists().where(
        table.c.transaction_number == transactions.c.number,
        *(literal_column(f"{table.name}.{condition}") for condition in conditions),
    )


class _RunOf(ColumnElement[str]):
    """The run that owns a transaction, in its details, which are canonical JSON; some other text where none does."""

    inherit_cache = True
    type = Text()


@compiles(_RunOf, "sqlite")
def _run_of_in_sqlite(element: _RunOf, compiler: Any, **options: Any) -> str:
    behind = """substr(transactions.details, instr(transactions.details, '"run_id":"') + 10)"""
    return f"""substr({behind}, 1, instr({behind}, '"') - 1)"""


@compiles(_RunOf, "postgresql")
def _run_of_in_postgresql(element: _RunOf, compiler: Any, **options: Any) -> str:
    return """split_part(split_part(transactions.details, '"run_id":"', 2), '"', 1)"""


# A run that committed as it began to wait may go on: its next transaction answers calls from this one's journal.
_may_be_gone_on_from = and_(
    transactions.c.status == literal_column("'COMMITTED'"),
    exists().where(graph_runs.c.run_id == _RunOf(), graph_runs.c.status != literal_column("'COMPLETED'")),
)


def _may_go(ended_before: Any) -> ColumnElement[bool]:
    """What somebody must still see to stays."""
    return and_(
        transactions.c.ended_at.is_not(None),
        transactions.c.ended_at < ended_before,
        ~_may_be_gone_on_from,
        ~_has(effects, schema.EFFECTS_WAITING),
        ~_has(undo_actions, schema.UNDO_IN_QUESTION, "state <> 'RESOLVED'"),
    )


_ENDED = PreparedQuery(
    select(transactions.c.number, transactions.c.next_step_id)
    .where(_may_go(bindparam("ended_before")))
    .order_by(transactions.c.ended_at, transactions.c.number)
    .limit(bindparam("limit"))
)

# All that is keyed by a transaction's number.
_PARTS = [table for table in schema.METADATA.sorted_tables if "transaction_number" in table.c]

_FORGET_BEGIN = PreparedQuery(
    delete(schema.recorded_responses).where(
        schema.recorded_responses.c.scope == bindparam("scope"),
        schema.recorded_responses.c.request_id == bindparam("request_id"),
    )
)

# Removing a step's rows takes about 15 µs, in which nothing else is written.
_STEPS_A_BATCH = 1_000


@one_statement
def list_ended(
    connection: Connection, ended_before: MicrosecondsUtc, limit: int
) -> Sequence[tuple[int, int]]:
    """Return (number, next step) of transactions that may be removed, those that ended first first."""
    return [(row[0], row[1]) for row in _ENDED.run(connection, ended_before=ended_before, limit=limit)]


def batches(ended: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Cut what is to be removed into write transactions that are short, though each holds one at least."""
    numbers: list[int] = []
    steps = 0
    for number, next_step in ended:
        if numbers and steps + next_step > _STEPS_A_BATCH:
            yield numbers
            numbers, steps = [], 0
        numbers.append(number)
        steps += next_step
    if numbers:
        yield numbers


def purge(
    calls: WriteCalls, numbers: Sequence[int], ended_before: MicrosecondsUtc
) -> Sequence[tuple[str, str]]:
    """Remove those of some transactions that may be removed still, with all their rows; return (id, owner) of each."""
    chosen = (
        select(
            transactions.c.number,
            transactions.c.transaction_id,
            transactions.c.principal,
            transactions.c.details,
        )
        .where(transactions.c.number.in_(numbers))
        .order_by(transactions.c.transaction_id)
    )
    # Locked first and then looked at: a late effect may have been reported while another server's
    # write was waited for.
    calls.rows(PreparedQuery(chosen.with_for_update()))
    going = calls.rows(PreparedQuery(chosen.where(_may_go(ended_before))))
    if not going:
        return ()
    found = [row[0] for row in going]
    scopes = [scope for row in going for scope in (row[1], f"commit:{row[1]}")]
    responses = schema.recorded_responses
    calls.change(PreparedQuery(delete(responses).where(responses.c.scope.in_(scopes))))
    for _, _, principal, details in going:
        begun_by = parse_json(details).get("begin_request_id")
        if begun_by:
            calls.change(_FORGET_BEGIN, scope=f"principal:{principal}", request_id=begun_by)
    for table in _PARTS:
        calls.change(PreparedQuery(delete(table).where(table.c.transaction_number.in_(found))))
    calls.change(PreparedQuery(delete(transactions).where(transactions.c.number.in_(found))))
    return [(row[1], row[2]) for row in going]
