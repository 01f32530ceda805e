"""The writer's statements where values are sealed: each row is sealed as it is handed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsInt

from sqlalchemy import Table

from agenttx_server.engine.ports import ExtraOperation
from agenttx_server.store import schema
from agenttx_server.store.batch_connection import BatchStatements, RowStatement
from agenttx_server.store.event_pages import PagedEvents
from agenttx_server.store.payload_codec import PayloadCodec
from agenttx_server.store.payload_columns import LOOKED_FOR, PAYLOADS
from agenttx_server.store.payload_queries import bound_name, identity_columns, metadata_token, sealed_value

__all__ = ["sealing"]

_WITH_VALUES = (ExtraOperation.INSERT, ExtraOperation.UPSERT)


def sealing(statements: BatchStatements, codec: PayloadCodec, tables: Sequence[Table]) -> BatchStatements:
    """Return a database's statements, those of ``tables`` too, with the values of their rows sealed."""
    extra = {table.name: table for table in tables}
    heads = [column.name for column in schema.transactions.columns][1:]
    return replace(
        statements,
        payloads=codec,
        guarded_insert=_sealing(statements.guarded_insert, "transactions", heads, codec, 1),
        guarded_update=_sealing(statements.guarded_update, "transactions", heads, codec, 1),
        insert_rows={
            name: _sealing(statement, name, _written(name), codec)
            for name, statement in statements.insert_rows.items()
        },
        extra_rows={
            (name, operation): _sealing_rows(statement, extra[name], codec)
            if operation in _WITH_VALUES
            else statement
            for (name, operation), statement in statements.extra_rows.items()
        },
    )


def _sealing_rows(statement: RowStatement, table: Table, codec: PayloadCodec) -> RowStatement:
    columns = [column.name for column in table.columns]
    if isinstance(statement, PagedEvents):
        # Pages are made of plain events, and sealed as they are.
        return statement.with_insertion(
            lambda rows, width: _sealing(rows, table.name, columns, codec, width - len(columns))
        )
    return _sealing(statement, table.name, columns, codec)


def _written(name: str) -> list[str]:
    """Return the columns that are written of one of the engine's tables; rows begin with the transaction's id."""
    columns = [column.name for column in schema.METADATA.tables[name].columns]
    return columns[:-1] if name == "state_writes" else columns  # its base is the database's to find


def _sealing(
    statement: RowStatement, name: str, columns: Sequence[str], codec: PayloadCodec, behind: int = 0
) -> RowStatement:
    if name in LOOKED_FOR:
        return _Tokens(statement, codec)
    if name not in PAYLOADS:
        return statement
    places = {column: place for place, column in enumerate(columns)}
    identity = [places[column] for column in identity_columns(schema.METADATA.tables[name])]
    return _Sealing(
        statement,
        len(columns) + behind,
        {places[column]: bound_name(name, column) for column in PAYLOADS[name]},
        identity,
        codec,
    )


class _Sealing:
    """A RowStatement that is given plain values (batch_connection.RowStatement)."""

    def __init__(
        self,
        statement: RowStatement,
        width: int,
        payloads: Mapping[int, str],
        identity: Sequence[int],
        codec: PayloadCodec,
    ) -> None:
        self._statement = statement
        self._width = width
        self._payloads = list(payloads.items())
        self._identity = identity
        self._codec = codec

    def execute(self, connection: Any, values: Sequence[Any], expected: int | None = None) -> SupportsInt:
        """Run over rows sealed."""
        stored = list(values)
        for start in range(0, len(stored), self._width):
            identity = [stored[start + place] for place in self._identity]
            for place, name in self._payloads:
                text = stored[start + place]
                if text is not None:
                    stored[start + place] = sealed_value(self._codec, name, identity, text)
        return self._statement.execute(connection, stored, expected)

    def query(self, connection: Any, values: Sequence[Any]) -> Any:
        """Return the one row of a query over rows, which has no payloads."""
        return self._statement.query(connection, values)


class _Tokens:
    """The statement of ``transaction_metadata``: rows of a transaction's id, a name and a value."""

    def __init__(self, statement: RowStatement, codec: PayloadCodec) -> None:
        self._statement = statement
        self._codec = codec

    def execute(self, connection: Any, values: Sequence[Any], expected: int | None = None) -> SupportsInt:
        """Run over rows of tokens."""
        stored: list[Any] = []
        for start in range(0, len(values), 3):
            transaction_id, name, value = values[start : start + 3]
            stored += (transaction_id, *metadata_token(self._codec, name, value))
        return self._statement.execute(connection, stored, expected)

    def query(self, connection: Any, values: Sequence[Any]) -> Any:
        """Return the one row of a query over rows."""
        return self._statement.query(connection, values)
