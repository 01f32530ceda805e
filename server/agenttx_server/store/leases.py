"""Servers' leases, and who works on what: takeover of transactions, claims on the outbox, words to an owner.

Written for every database. ``now`` is the time by which leases are counted, in microseconds: the
caller takes it from the engine's clock, or from the database where several servers share it. What
writes runs inside a write transaction of its own; ``FOR UPDATE SKIP LOCKED`` is nothing on SQLite,
whose write transactions exclude each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    delete,
    insert,
    literal_column,
    select,
    text,
    update,
)

from agenttx_server.engine.records import MicrosecondsUtc, ServerId, StopKind, StopRequest, TransactionId
from agenttx_server.store import schema
from agenttx_server.store.numbers import THIS
from agenttx_server.store.payload_queries import Sealing
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.read_pool import one_statement

__all__ = [
    "claim_orphans",
    "claim_outbox",
    "is_alive",
    "list_outbox_of",
    "list_servers",
    "list_unsettled_of",
    "next_outbox_due",
    "note_unrecovered",
    "register_server",
    "renew_lease",
    "request_stop",
    "retire_server",
    "take_stop_requests",
]

transactions, servers, stop_requests = schema.transactions, schema.servers, schema.stop_requests
problems = schema.recovery_problems

# Written out: a bound value would hide from the planner that the partial indexes will do.
_NOBODY: ColumnElement[str] = literal_column("''")
_IS_OWNED = transactions.c.owner != _NOBODY
_IS_DUE_SOME_TIME = transactions.c.outbox_due_at.is_not(None)

_SERVER = servers.c.server_id == bindparam("server_id")
_HOLDS_LEASE = servers.c.lease_until > bindparam("now")


def _has_no_lease(owner: ColumnElement[Any]) -> ColumnElement[bool]:
    # NOT IN and not NOT EXISTS: PostgreSQL makes that a join, and when a claim finds a row that another
    # server has claimed since, it asks the conditions again but not what the row is joined to: both had it.
    return owner.not_in(select(servers.c.server_id).where(_HOLDS_LEASE))


# --- leases -------------------------------------------------------------------------------------------

# A lease that has ended tells nothing that no row doesn't tell.
_FORGET_ENDED = PreparedQuery(delete(servers).where(servers.c.lease_until <= bindparam("now")))
_FORGET_ALL = PreparedQuery(delete(servers))
_FORGET = PreparedQuery(delete(servers).where(_SERVER))
_REGISTER = PreparedQuery(
    insert(servers).values(
        server_id=bindparam("server_id"),
        lease_until=bindparam("lease_until"),
        registered_at=bindparam("now"),
    )
)
_RENEW = PreparedQuery(update(servers).where(_SERVER, _HOLDS_LEASE).values(lease_until=bindparam("until")))
_IS_ALIVE = PreparedQuery(select(servers.c.server_id).where(_SERVER, _HOLDS_LEASE))
_ALIVE = PreparedQuery(select(servers.c.server_id).where(_HOLDS_LEASE).order_by(servers.c.server_id))


def register_server(
    calls: WriteCalls, server_id: ServerId, lease_seconds: float, now: int, *, alone: bool
) -> None:
    """Give a server a lease; ``alone``: every other one is dead."""
    if alone:
        calls.change(_FORGET_ALL)
    else:
        calls.change(_FORGET_ENDED, now=now)
        calls.change(_FORGET, server_id=server_id)
    calls.change(_REGISTER, server_id=server_id, lease_until=_end(lease_seconds, now), now=now)


def renew_lease(calls: WriteCalls, server_id: ServerId, lease_seconds: float, now: int) -> bool:
    """Prolong a lease that has not ended; False if it had."""
    return calls.change(_RENEW, server_id=server_id, until=_end(lease_seconds, now), now=now) == 1


def is_alive(connection: Connection, server_id: ServerId, now: int) -> bool:
    """Return whether a server holds a lease."""
    return _IS_ALIVE.run(connection, server_id=server_id, now=now).first() is not None


def list_servers(connection: Connection, now: int) -> Sequence[ServerId]:
    """Return the servers that hold a lease, in order of their ids."""
    return [ServerId(row[0]) for row in _ALIVE.run(connection, now=now)]


def _end(lease_seconds: float, now: int) -> int:
    return now + int(lease_seconds * 1_000_000)


_LEAVE_ACTIVE = PreparedQuery(
    update(transactions)
    .where(_IS_OWNED, transactions.c.owner == bindparam("server_id"), transactions.c.status == "ACTIVE")
    .values(owner="")
)
# A claim where nothing is due means nothing and may stay; so the index on what is due finds the rest.
_LEAVE_OUTBOX = PreparedQuery(
    update(transactions)
    .where(_IS_DUE_SOME_TIME, transactions.c.outbox_owner == bindparam("server_id"))
    .values(outbox_owner="")
)


def retire_server(calls: WriteCalls, server_id: ServerId) -> None:
    """End a lease and what goes with it."""
    calls.change(_FORGET, server_id=server_id)
    calls.change(_LEAVE_ACTIVE, server_id=server_id)
    calls.change(_LEAVE_OUTBOX, server_id=server_id)


# --- takeover -----------------------------------------------------------------------------------------

_orphans = (
    select(transactions.c.number)
    .where(_IS_OWNED, _has_no_lease(transactions.c.owner))
    # A sum, or SQLite would walk all transactions in their order to spare the sorting of a few.
    .order_by(transactions.c.created_at + literal_column("0"), transactions.c.transaction_id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
    .cte("orphans")
)
# The guard of each write set is the revision: who held the transaction can't write any more.
_CLAIM_ORPHANS = PreparedQuery(
    update(transactions)
    .where(transactions.c.number.in_(select(_orphans.c.number)))
    .values(owner=bindparam("server_id"), revision=transactions.c.revision + literal_column("1"))
    .returning(transactions.c.created_at, transactions.c.transaction_id)
)


def claim_orphans(calls: WriteCalls, server_id: ServerId, now: int, limit: int) -> list[TransactionId]:
    """Take over transactions whose owner has no lease, oldest first."""
    return _in_order(calls.rows(_CLAIM_ORPHANS, server_id=server_id, now=now, limit=limit))


def _in_order(claimed: Sequence[Sequence[Any]]) -> list[TransactionId]:
    # RETURNING has no order of its own.
    return [TransactionId(row[1]) for row in sorted(tuple(row) for row in claimed)]


# Text: both databases say it so, and Core has no word for it that both take.
_NOTE_PROBLEM = PreparedQuery(
    text(
        "INSERT INTO recovery_problems (transaction_number, reason) "
        "SELECT number, :reason FROM transactions WHERE transaction_id = :transaction_id "
        "ON CONFLICT (transaction_number) DO UPDATE SET reason = excluded.reason"
    ),
    seals={"reason": Sealing(problems, "reason", ("transaction_id",))},
)
_FORGET_PROBLEM = PreparedQuery(delete(problems).where(problems.c.transaction_number == THIS))


def note_unrecovered(calls: WriteCalls, transaction_id: TransactionId, reason: str) -> None:
    """Keep why a transaction can't be recovered; empty: it was."""
    if reason:
        calls.change(_NOTE_PROBLEM, transaction_id=transaction_id, reason=reason)
    else:
        calls.change(_FORGET_PROBLEM, transaction_id=transaction_id)


_UNSETTLED_OF = PreparedQuery(
    select(transactions.c.transaction_id)
    .where(
        _IS_OWNED,
        transactions.c.owner == bindparam("server_id"),
        transactions.c.status != "ACTIVE",
        transactions.c.updated_at < bindparam("updated_before"),
    )
    .order_by(transactions.c.updated_at, transactions.c.transaction_id)
    .limit(bindparam("limit"))
)


@one_statement
def list_unsettled_of(
    connection: Connection, server_id: ServerId, updated_before: MicrosecondsUtc, limit: int
) -> Sequence[TransactionId]:
    """Return transactions that a server owns and is, or should be, at work on."""
    found = _UNSETTLED_OF.run(connection, server_id=server_id, updated_before=updated_before, limit=limit)
    return [TransactionId(row[0]) for row in found]


# --- words to the owner -------------------------------------------------------------------------------

_REQUEST_STOP = PreparedQuery(
    text(
        "INSERT INTO stop_requests (transaction_number, kind, step_id, why) "
        "SELECT number, :kind, CAST(:step_id AS BIGINT), :why FROM transactions WHERE transaction_id = :transaction_id "
        "ON CONFLICT (transaction_number) DO UPDATE "
        "SET kind = excluded.kind, step_id = excluded.step_id, why = excluded.why"
    ),
    seals={"why": Sealing(stop_requests, "why", ("transaction_id",))},
)
_is_mine = stop_requests.c.transaction_number.in_(
    select(transactions.c.number).where(_IS_OWNED, transactions.c.owner == bindparam("server_id"))
)
_TAKE_STOPS = PreparedQuery(
    delete(stop_requests)
    .where(_is_mine)
    .returning(
        select(transactions.c.transaction_id)
        .where(transactions.c.number == stop_requests.c.transaction_number)
        .scalar_subquery(),
        stop_requests.c.kind,
        stop_requests.c.step_id,
        stop_requests.c.why,
    ),
    returns=(transactions.c.transaction_id, None, None, stop_requests.c.why),
)


def request_stop(calls: WriteCalls, request: StopRequest) -> None:
    """Leave word for a transaction's owner, in place of an earlier one; nothing if there is no such transaction."""
    calls.change(
        _REQUEST_STOP,
        transaction_id=request.transaction_id,
        kind=request.kind.value,
        step_id=request.step_id,
        why=request.why,
    )


def take_stop_requests(calls: WriteCalls, server_id: ServerId) -> list[StopRequest]:
    """Return and remove the words for transactions that a server owns."""
    return [
        StopRequest(TransactionId(transaction_id), StopKind(kind), step_id, why)
        for transaction_id, kind, step_id, why in calls.rows(_TAKE_STOPS, server_id=server_id)
    ]


# --- the outbox ---------------------------------------------------------------------------------------

_due = (
    select(transactions.c.number)
    .where(
        _IS_DUE_SOME_TIME,
        transactions.c.outbox_due_at <= bindparam("due_by"),
        _has_no_lease(transactions.c.outbox_owner),
    )
    .order_by(transactions.c.outbox_due_at, transactions.c.transaction_id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
    .cte("due")
)
_CLAIM_OUTBOX = PreparedQuery(
    update(transactions)
    .where(transactions.c.number.in_(select(_due.c.number)))
    .values(outbox_owner=bindparam("server_id"))
    .returning(transactions.c.outbox_due_at, transactions.c.transaction_id)
)
_NEXT_DUE = PreparedQuery(
    select(transactions.c.outbox_due_at)
    .where(_IS_DUE_SOME_TIME, transactions.c.outbox_owner == "")
    .order_by(transactions.c.outbox_due_at)
    .limit(literal_column("1"))
)


def claim_outbox(
    calls: WriteCalls, server_id: ServerId, now: int, due_by: int, limit: int
) -> list[TransactionId]:
    """Take transactions whose effects are due by ``due_by`` and that no server with a lease at ``now`` has."""
    return _in_order(calls.rows(_CLAIM_OUTBOX, server_id=server_id, now=now, due_by=due_by, limit=limit))


_OUTBOX_OF = PreparedQuery(
    select(transactions.c.transaction_id)
    .where(
        _IS_DUE_SOME_TIME,
        transactions.c.outbox_due_at <= bindparam("due_by"),
        transactions.c.outbox_owner == bindparam("server_id"),
    )
    .order_by(transactions.c.outbox_due_at, transactions.c.transaction_id)
    .limit(bindparam("limit"))
)


@one_statement
def list_outbox_of(
    connection: Connection, server_id: ServerId, due_by: MicrosecondsUtc, limit: int
) -> Sequence[TransactionId]:
    """Return transactions that a server has to deliver and that were due by a time."""
    found = _OUTBOX_OF.run(connection, server_id=server_id, due_by=due_by, limit=limit)
    return [TransactionId(row[0]) for row in found]


@one_statement
def next_outbox_due(connection: Connection) -> MicrosecondsUtc | None:
    """Return when the next effects are due that nobody delivers."""
    found: MicrosecondsUtc | None = _NEXT_DUE.run(connection).scalar()
    return found
