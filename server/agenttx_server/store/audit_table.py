"""The table of the audit trail: what is done is written here in the transaction that does it.

On SQLite, which has one writer at a time, there is one chain. On PostgreSQL one would have every server wait for every other's
COMMIT; so there are some, a database connection always writes to the same, and who writes to one holds its lock until COMMIT. It is the last
lock that a transaction takes, so nobody waits for anything while holding it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from sqlalchemy import BigInteger, Column, Connection, PrimaryKeyConstraint, Table, Text, select, tuple_
from sqlalchemy.exc import DBAPIError

from agenttx_server.audit.chain import AuditEntry, Deed, Head, chained
from agenttx_server.engine.ports import ExtraOperation
from agenttx_server.store.administration import administered
from agenttx_server.store.batch_connection import BatchConnection
from agenttx_server.store.prepared_query import WriteCalls
from agenttx_server.store.schema import METADATA
from agenttx_server.store.storage_errors import DatabaseRefused

__all__ = ["append", "append_by_core", "audit_log", "deed_now", "entries", "entry_of", "open_audit"]

audit_log = Table(
    "audit_log",
    METADATA,
    Column("chain", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("occurred_at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("hash", Text, nullable=False),
    PrimaryKeyConstraint("chain", "sequence"),
)

_PAGE = 1_000


def append(calls: WriteCalls, deeds: Sequence[Deed]) -> None:
    """Write deeds at the end of the connection's transaction: nothing that waits for a lock may follow."""
    if not deeds:
        return
    # What a writer gives its jobs is the connection that batches have.
    connection = cast("BatchConnection", calls)
    sql = connection.statements
    if sql.lock_audit:
        connection.execute(sql.lock_audit)
    entries = chained(_head_of(connection), deeds)
    values = [value for entry in entries for value in _row(entry)]
    sql.extra_rows[audit_log.name, ExtraOperation.INSERT].execute(connection, values)
    if (tail := connection.audit_tail) is not None:
        tail.head, tail.is_sure = Head(entries[-1].chain, entries[-1].sequence, entries[-1].hash), True


def _head_of(connection: BatchConnection) -> Head:
    """Return the head of the connection's chain, whose lock it holds: as remembered, if that still is it at COMMIT, or as read."""
    tail, sql = connection.audit_tail, connection.statements
    remembered = None if tail is None else tail.head
    if tail is not None and remembered is not None and tail.is_sure and not tail.is_shared:
        connection.require_none(sql.audit_behind, (remembered.chain, remembered.sequence))
        return remembered
    head = _head(connection.first(sql.audit_head))
    if tail is not None and remembered is not None and head.sequence > remembered.sequence:
        tail.is_shared = True
    return head


def append_by_core(connection: Connection, deeds: Sequence[Deed]) -> None:
    """As :func:`append`, for who administers the database by SQLAlchemy's connection."""
    if connection.dialect.name == "postgresql":
        from agenttx_server.store.postgres_statements import STATEMENTS

        connection.exec_driver_sql(STATEMENTS.lock_audit)
    else:
        from agenttx_server.store.sqlite_statements import STATEMENTS
    row = connection.exec_driver_sql(STATEMENTS.audit_head).first()
    names = [column.name for column in audit_log.columns]
    connection.execute(
        audit_log.insert(),
        [dict(zip(names, _row(entry), strict=True)) for entry in chained(_head(row), deeds)],
    )


def deed_now(actor: str, owner: str, action: str, subject: str, detail: str = "{}") -> Deed:
    """Return a deed that is being done: of what has no event that says when."""
    return Deed(time.time_ns() // 1_000, actor, owner, action, subject, detail)


@contextmanager
def open_audit(database_url: str) -> Iterator[Iterator[AuditEntry]]:
    """Give the entries of a database's trail, by chain and in order, whether or not it is being served.

    Raises DatabaseRefused: it can't be reached or read, or is of another version and being served.
    """
    engine = administered(database_url)
    try:
        with engine.connect() as connection:
            yield entries(connection)
    except DBAPIError as error:
        raise DatabaseRefused(
            f"the audit trail can't be read: {' '.join(str(error.orig).split())}"
        ) from error
    finally:
        engine.dispose()


def entries(connection: Connection) -> Iterator[AuditEntry]:
    """Read all entries, by chain and in order; those added meanwhile may be among them."""
    chain, sequence = -1, 0
    place = tuple_(audit_log.c.chain, audit_log.c.sequence)
    while True:
        query = (
            select(*audit_log.columns)
            .where(place > tuple_(chain, sequence))
            .order_by(audit_log.c.chain, audit_log.c.sequence)
            .limit(_PAGE)
        )
        page = connection.execute(query).all()
        for row in page:
            yield entry_of(row)
        if len(page) < _PAGE:
            return
        chain, sequence = page[-1][0], page[-1][1]


def _head(row: Sequence[Any] | None) -> Head:
    return Head(0) if row is None else Head(int(row[0]), int(row[1]), str(row[2]))


def _row(entry: AuditEntry) -> tuple[Any, ...]:
    deed = entry.deed
    return (
        entry.chain,
        entry.sequence,
        deed.occurred_at,
        deed.actor,
        deed.owner,
        deed.action,
        deed.subject,
        deed.detail,
        entry.hash,
    )


def entry_of(row: Sequence[Any]) -> AuditEntry:
    """Return the entry that a row of the table is."""
    chain, sequence, *of_deed, entry_hash = row
    return AuditEntry(chain, sequence, Deed(*of_deed), entry_hash)
