"""What a database says of itself, for who diagnoses: read, with nothing changed, migrated or made."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    and_,
    func,
    literal_column,
    or_,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError

from agenttx_server.engine.records import EffectState, TransactionStatus, UndoState
from agenttx_server.store import schema
from agenttx_server.store.database import database_file, reader_engine
from agenttx_server.store.migrating import stored_revision
from agenttx_server.store.payload_admission import registered_keys
from agenttx_server.store.postgres_address import PostgresAddress, is_postgresql, one_line
from agenttx_server.store.postgres_migrating import revision_of_postgres
from agenttx_server.store.settings import PostgresSettings, StoreSettings
from agenttx_server.store.storage_errors import DatabaseRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DatabaseReport", "LateThings", "report_on"]

_NAMED = 5
"""How many of each kind are named; the rest are counted."""

_transactions, _undo, _effects = schema.transactions, schema.undo_actions, schema.effects
_approvals, _problems, _servers = schema.approvals, schema.recovery_problems, schema.servers


@dataclass(frozen=True, slots=True)
class LateThings:
    """Transactions that something is wrong with: how many there are, the first few, and since when (µs UTC, None: unknown)."""

    count: int = 0
    examples: Sequence[str] = ()
    since: int | None = None


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """One look at a database.

    ``revision`` is None where nothing has been made yet, and then nothing else is known. ``time_ahead_us`` is how far
    the database's clock is ahead of this machine's; 0 on SQLite, which has none of its own. ``newest_us`` is the
    latest time that any transaction was written at. What is about transactions maps a kind to :class:`LateThings`:
    ``in_doubt``, ``held``, ``late_undo``, ``unrecovered``, ``dead_effects``, ``overdue_effects``, ``approvals``,
    ``orphans``, ``abandoned``. ``key_checks`` is for :func:`.payload_admission.keys_refused`.
    """

    address: str
    revision: str | None
    head_revision: str = schema.HEAD_REVISION
    time_ahead_us: int = 0
    newest_us: int = 0
    live_servers: int = 0
    open_transactions: int = 0
    transactions: dict[str, LateThings] = field(default_factory=dict)
    key_checks: dict[str, str] = field(default_factory=dict)


def report_on(database_url: str, *, overdue_us: int, unanswered_us: int, abandoned_us: int) -> DatabaseReport:
    """Look at a database, served or not.

    Args:
        database_url: As of the settings.
        overdue_us: Effects that are due for longer are ``overdue_effects``.
        unanswered_us: Approvals that nobody has answered for longer are ``approvals``.
        abandoned_us: Open transactions without an idle timeout that nobody wrote for longer are ``abandoned``.

    Raises:
        DatabaseRefused: It can't be reached or read, is something else's, or of a newer release.
    """
    if is_postgresql(database_url):
        address = PostgresAddress.parse(database_url, PostgresSettings())
        name, revision, engine = str(address), revision_of_postgres(address), address.engine()
    else:
        path = database_file(database_url)
        # Who makes the file makes its directory too.
        name, revision = f"SQLite database {path}", stored_revision(path) if path.exists() else None
        engine = reader_engine(path, StoreSettings())
    if revision is None:
        return DatabaseReport(name, None)
    if revision != schema.HEAD_REVISION:
        # The tables may be others; a server or `agenttx migrate` brings them over.
        return DatabaseReport(name, revision)
    with _reading(engine, name) as connection:
        now, ahead = _clocks(connection)
        alive = select(_servers.c.server_id).where(_servers.c.lease_until > now)
        kinds = _kinds(now, alive, overdue_us, unanswered_us, abandoned_us)
        return DatabaseReport(
            name,
            revision,
            time_ahead_us=ahead,
            newest_us=connection.scalar(select(func.max(_transactions.c.updated_at)).where(_IS_OPEN)) or 0,
            live_servers=_count(connection, alive),
            open_transactions=_count(connection, select(_transactions.c.number).where(_IS_OPEN)),
            transactions={kind: _late(connection, query) for kind, query in kinds.items()},
            key_checks=registered_keys(connection),
        )


@contextmanager
def _reading(engine: Engine, name: str) -> Iterator[Connection]:
    try:
        with engine.connect() as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
            yield connection
    except (DBAPIError, sqlite3.Error) as error:
        raise DatabaseRefused(f"the {name} can't be read: {one_line(error)}") from error
    finally:
        engine.dispose()


def _clocks(connection: Connection) -> tuple[int, int]:
    """Return the database's time and how far it is ahead of this machine's, in microseconds."""
    before = time.time_ns() // 1000
    if connection.dialect.name != "postgresql":
        return before, 0
    told = connection.scalar(text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"))
    after = time.time_ns() // 1000
    return int(told or 0), int(told or 0) - (before + after) // 2


# Written out, word for word as in the indexes: a bound value would hide from the planner that a partial one will do.
_IS_OPEN: ColumnElement[bool] = literal_column("is_open = 1")
_UNDO_IN_QUESTION: ColumnElement[bool] = literal_column(f"undo_actions.{schema.UNDO_IN_QUESTION}")
_EFFECTS_WAITING: ColumnElement[bool] = literal_column(f"effects.{schema.EFFECTS_WAITING}")
_APPROVALS_PENDING: ColumnElement[bool] = literal_column(f"approvals.{schema.APPROVALS_PENDING}")

_Kind = Select[tuple[str, int]]


def _kinds(now: int, alive: Any, overdue_us: int, unanswered_us: int, abandoned_us: int) -> dict[str, _Kind]:
    t = _transactions.c
    of_transaction = select(t.transaction_id, t.updated_at.label("since"))
    undo = of_transaction.join(_undo, _undo.c.transaction_number == t.number).where(
        _UNDO_IN_QUESTION, _undo.c.state == UndoState.FAILED
    )
    is_held = t.status == TransactionStatus.ROLLING_BACK
    works = t.status.in_(
        [TransactionStatus.EXECUTING, TransactionStatus.ROLLING_BACK, TransactionStatus.COMMITTING]
    )
    return {
        "in_doubt": of_transaction.where(_IS_OPEN, t.status == TransactionStatus.IN_DOUBT),
        "held": undo.where(is_held).distinct(),
        "late_undo": undo.where(or_(_undo.c.late == 1, ~is_held)).distinct(),
        "unrecovered": of_transaction.join(_problems, _problems.c.transaction_number == t.number),
        "dead_effects": of_transaction.join(_effects, _effects.c.transaction_number == t.number)
        .where(_EFFECTS_WAITING, _effects.c.state == EffectState.DEAD)
        .distinct(),
        "overdue_effects": select(t.transaction_id, t.outbox_due_at.label("since")).where(
            t.outbox_due_at.is_not(None), t.outbox_due_at < now - overdue_us
        ),
        "approvals": select(t.transaction_id, _approvals.c.requested_at.label("since"))
        .join(_approvals, _approvals.c.transaction_number == t.number)
        .where(_APPROVALS_PENDING, _approvals.c.requested_at < now - unanswered_us),
        "orphans": of_transaction.where(
            _IS_OPEN, works, t.owner != literal_column("''"), t.owner.not_in(alive)
        ),
        "abandoned": of_transaction.where(
            and_(_IS_OPEN, t.idle_timeout_us.is_(None), t.deadline_at.is_(None)),
            t.status == TransactionStatus.ACTIVE,
            t.updated_at < now - abandoned_us,
        ),
    }


def _late(connection: Connection, query: _Kind) -> LateThings:
    found = query.subquery()
    count, since = connection.execute(select(func.count(), func.min(found.c.since)).select_from(found)).one()
    if not count:
        return LateThings()
    names = connection.scalars(
        select(found.c.transaction_id).order_by(found.c.since, found.c.transaction_id).limit(_NAMED)
    )
    return LateThings(count, tuple(names), since)


def _count(connection: Connection, query: Any) -> int:
    return connection.scalar(select(func.count()).select_from(query.subquery())) or 0
