"""Tables of layers above the engine, whose rows are written together with its write sets.

The composition root tells the store of them. Their columns are texts and integers, the first one is never NULL,
and rows are told apart by the primary key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from sqlalchemy import BigInteger, Table, Text

from agenttx_server.engine.ports import ExtraOperation, ExtraValue
from agenttx_server.store.batch_connection import BatchConnection, BatchStatements, RowStatement
from agenttx_server.store.prepared_query import WriteCalls

if TYPE_CHECKING:
    from agenttx_server.store.payload_codec import PayloadCodec

__all__ = ["blanks", "statements_with", "write_extra"]

_ORDER = (
    ExtraOperation.UNCHANGED,
    ExtraOperation.REQUIRE,
    ExtraOperation.DELETE,
    ExtraOperation.UPSERT,
    ExtraOperation.INSERT,
)


def statements_with(
    statements: BatchStatements,
    tables: Sequence[Table],
    statement: Callable[[Table, ExtraOperation], RowStatement],
    payloads: PayloadCodec | None = None,
) -> BatchStatements:
    """Return a database's statements with those for these tables, in their order, which seal with ``payloads``.

    Raises ValueError for an unfit table.
    """
    for table in tables:
        _check(table)
    found = replace(
        statements,
        extra_rows={
            (table.name, operation): statement(table, operation) for table in tables for operation in _ORDER
        },
    )
    if payloads is None:
        return found
    # Not before: who doesn't seal needs none of it.
    from agenttx_server.store.payload_statements import sealing

    return sealing(found, payloads, tables)


def write_extra(
    calls: WriteCalls, table: str, operation: ExtraOperation, rows: Sequence[Sequence[ExtraValue]]
) -> None:
    """Do an operation on rows of a table in a job of the writer's: one statement, which is not waited for."""
    # What a writer gives its jobs is the connection that batches have.
    connection = cast("BatchConnection", calls)
    values = [value for row in rows for value in row]
    connection.statements.extra_rows[table, operation].execute(connection, values)


def blanks(table: Table) -> list[str]:
    """Return an SQL value for each column: the empty text, or nought."""
    return ["0" if isinstance(column.type, BigInteger) else "''" for column in table.columns]


def _check(table: Table) -> None:
    key = list(table.primary_key)
    first = next(iter(table.columns))
    if not key or first.nullable or key[0].nullable:
        raise ValueError(f"table {table.name} needs a primary key, and a first column that is never NULL")
    unfit = [column.name for column in table.columns if not isinstance(column.type, (BigInteger, Text))]
    if unfit:
        raise ValueError(f"table {table.name}: only BigInteger and Text can be written: {', '.join(unfit)}")
