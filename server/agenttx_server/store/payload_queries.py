"""How a statement is run where values are sealed: which of its parameters are sealed, which values of its rows are opened.

What a query selects tells by itself which of its values are payloads; what opens them, the identity of their rows, is selected
beside them and not given on. A statement that is text, or a union, says of itself what it gives (``returns``) and
what it takes (``seals``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import orjson
from sqlalchemy import ClauseElement, Column, ColumnElement, Select, Table, select
from sqlalchemy.sql.selectable import FromClause

from agenttx_server.store.payload_columns import IDENTITIES, PAYLOADS, SHARED_NAMES, TRANSACTION
from agenttx_server.store.schema import transactions

if TYPE_CHECKING:
    from agenttx_server.store.payload_codec import PayloadCodec

__all__ = [
    "OpenedRows",
    "Opening",
    "Sealing",
    "binding",
    "bound_name",
    "identity_columns",
    "metadata_token",
    "metadata_tokens",
    "opened_value",
    "opening_of",
    "sealed_value",
]

_HEAD: Final = "transactions.details"
_RUN: Final = '"run_id":"'
_VALUES: Final = "transaction_metadata.value"


def binding(name: str, identity: Sequence[object]) -> bytes:
    """Return what ties a value to its place: the column's name and what tells its row from others."""
    return orjson.dumps([name, *map(str, identity)])


_NAMES: Final = binding("transaction_metadata.name", [])


def bound_name(table: str, column: str) -> str:
    """Return the name of a column that its values are bound to."""
    name = f"{table}.{column}"
    return SHARED_NAMES.get(name, name)


def identity_columns(table: Table) -> Sequence[str]:
    """Return the columns that a table's values are bound to, with the transaction's number for its id."""
    return IDENTITIES.get(table.name) or [column.name for column in table.primary_key]


def sealed_value(codec: PayloadCodec, name: str, identity: Sequence[object], text: str) -> str:
    """Seal a value of a column.

    Of a transaction's head the run that owns it stays readable, for retention looks for it in SQL; it is bound to the rest.
    """
    if name != _HEAD or _RUN not in text:
        return codec.seal(text, binding(name, identity))
    run = _RUN + text.partition(_RUN)[2].partition('"')[0] + '"'
    sealed = codec.seal(text, binding(name, [*identity, run]))
    return sealed if sealed is text else f"{sealed} {run}"


def opened_value(codec: PayloadCodec, name: str, identity: Sequence[object], text: str) -> str:
    """Open a value of a column. Raises StoredValueDamaged."""
    if name == _HEAD and text.startswith("sealed:") and " " in text:
        text, _, run = text.partition(" ")
        return codec.open(text, binding(name, [*identity, run]))
    return codec.open(text, binding(name, identity))


def metadata_token(codec: PayloadCodec, name: str, value: str) -> tuple[str, str]:
    """Return what stands for an entry of a transaction's metadata: it is found by both, and read from the head."""
    return codec.token(name, _NAMES), codec.token(value, binding(_VALUES, [name]))


def metadata_tokens(codec: PayloadCodec, name: str, value: str) -> tuple[list[str], list[str]]:
    """Return all that may stand for the name and for the value of an entry."""
    return codec.tokens(name, _NAMES), codec.tokens(value, binding(_VALUES, [name]))


@dataclass(frozen=True, slots=True)
class Sealing:
    """A parameter that is sealed for a column, and the parameters that are the identity of its row, in its order."""

    table: Table
    column: str
    identity: Sequence[str]

    def value(self, codec: PayloadCodec, name: str, values: Mapping[str, Any]) -> str | None:
        """Return what is stored for the parameter."""
        text: str | None = values[name]
        if text is None:
            return None
        return sealed_value(
            codec, bound_name(self.table.name, self.column), [values[part] for part in self.identity], text
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """A payload of a row: where it is, and where its identity is, a place of the row or the name of a parameter."""

    place: int
    name: str
    identity: Sequence[int | str]


@dataclass(frozen=True, slots=True)
class Opening:
    """What is opened of a query's rows, and how many of their values are given on."""

    places: Sequence[_Place]
    width: int

    def row(self, codec: PayloadCodec, row: Sequence[Any], values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a row as the query was asked for it."""
        opened = list(row[: self.width])
        for place in self.places:
            text = opened[place.place]
            if text is not None:
                identity = [row[part] if isinstance(part, int) else values[part] for part in place.identity]
                opened[place.place] = opened_value(codec, place.name, identity, text)
        return tuple(opened)


def opening_of(
    statement: ClauseElement, returns: Sequence[Column[Any] | None] | None
) -> tuple[ClauseElement, Opening | None]:
    """Return a statement to run in place of one, and what is to be opened of its rows, None for nothing."""
    if returns is not None:
        return statement, _declared(returns)
    if isinstance(statement, Select):
        return _selected(statement)
    return statement, None


def _declared(returns: Sequence[Column[Any] | None]) -> Opening:
    found = {column: place for place, column in enumerate(returns) if column is not None}
    places = []
    for column, place in found.items():
        table = column.table
        if column.name in PAYLOADS.get(table.name, ()):
            # What isn't in the row is a parameter of the same name.
            identity = [
                found.get(table.c[name], name)
                if name != TRANSACTION
                else found.get(transactions.c.transaction_id, "transaction_id")
                for name in identity_columns(table)
            ]
            places.append(_Place(place, bound_name(table.name, column.name), identity))
    return Opening(places, len(returns))


def _selected(statement: Select[Any]) -> tuple[ClauseElement, Opening | None]:
    columns: list[ColumnElement[Any]] = list(statement.selected_columns)
    width = len(columns)
    places: list[_Place] = []
    added: dict[tuple[FromClause, str], int] = {}
    for place, column in enumerate(columns[:width]):
        source = getattr(column, "table", None)
        table = getattr(source, "element", source)  # of an alias
        if not isinstance(table, Table):
            _refuse_hidden(column)
            continue
        if column.name not in PAYLOADS.get(table.name, ()):
            continue
        assert source is not None
        identity = []
        for name in identity_columns(table):
            if (source, name) not in added:
                added[source, name] = len(columns)
                columns.append(_transaction_of(source) if name == TRANSACTION else source.c[name])
            identity.append(added[source, name])
        places.append(_Place(place, bound_name(table.name, column.name), identity))
    if not places:
        return statement, None
    return statement.add_columns(*columns[width:]), Opening(places, width)


def _refuse_hidden(column: ColumnElement[Any]) -> None:
    for base in column.base_columns:
        table = getattr(base, "table", None)
        if isinstance(table, Table) and base.name in PAYLOADS.get(table.name, ()):
            raise TypeError(
                f"a query that gives {table.name}.{base.name} by way of another must say what it returns"
            )


def _transaction_of(source: FromClause) -> ColumnElement[Any]:
    of = transactions.alias("sealed_for")
    found = select(of.c.transaction_id).where(of.c.number == source.c[TRANSACTION])
    return found.correlate(source).scalar_subquery()


class OpenedRows:
    """A result of a query, its rows opened as they are read."""

    def __init__(self, found: Any, opening: Opening, codec: PayloadCodec, values: Mapping[str, Any]) -> None:
        self._found = found
        self._opening = opening
        self._codec = codec
        self._values = values

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for row in self._found:
            yield self._opening.row(self._codec, row, self._values)

    def all(self) -> list[tuple[Any, ...]]:
        """Return all rows."""
        return list(self)

    def first(self) -> tuple[Any, ...] | None:
        """Return the first row."""
        row = self._found.first()
        return None if row is None else self._opening.row(self._codec, row, self._values)

    def scalar(self) -> Any:
        """Return the first value of the first row."""
        row = self.first()
        return None if row is None else row[0]

    def scalar_one(self) -> Any:
        """Return the only value."""
        (row,) = self.all()
        return row[0]

    def __enter__(self) -> OpenedRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._found.close()
