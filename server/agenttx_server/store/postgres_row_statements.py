"""Statements over rows, as PostgreSQL takes them.

A :class:`RowStatement` takes any number of rows as one array a column, so a table's rows of a
whole batch are one statement of one fixed text, prepared once a connection. The values are
made into arrays here and not by psycopg, whose way costs several times as much processor time
(docs/decisions/0007-postgresql-store.md). A few rows, which is what a caller alone writes, are a VALUES
list: server and client then need about half the time for them (docs/decisions/0029-round-trips-to-postgresql.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsInt

if TYPE_CHECKING:
    from agenttx_server.store.postgres_connection import PostgresConnection

__all__ = [
    "GUARD_FAILED",
    "INTEGER",
    "TEXT",
    "U0000_REFUSED",
    "GuardStatement",
    "RowStatement",
    "SingleStatement",
    "UpsertStatement",
    "encoded",
    "guard",
]

# The driver would take it for the text's end. The engine refuses it before, but for JSON, which has an escape.
U0000_REFUSED: Final = "a text holds U+0000, which PostgreSQL can't keep"

TEXT: Final = "text"
INTEGER: Final = "bigint"

# Each number of rows is a text, and so a plan, of its own, on every connection.
_MOST_ROWS_OF_VALUES = 8
_MOST_VALUES = 100

# The error by which guards fail: a division by zero, of which there is no other here.
GUARD_FAILED: Final = "22012"


class RowStatement:
    """A statement over rows with columns of given types, written with ``{rows}`` where the list stands.

    ``{count}`` stands for how many they are. ``text`` is the one of arrays; ``few`` are those of VALUES lists, of one
    row and more.
    """

    def __init__(self, types: Sequence[str], template: str) -> None:
        self._types = tuple(types)
        arrays = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(types, start=1))
        columns = ", ".join(f"column{number}" for number in range(1, len(types) + 1))
        self.text = template.replace("{rows}", f"unnest({arrays}) AS v({columns})").replace(
            "{count}", "cardinality($1)"
        )
        self.few = [
            template.replace("{rows}", f"(VALUES {_values_list(types, rows)}) AS v({columns})").replace(
                "{count}", str(rows)
            )
            for rows in range(1, min(_MOST_ROWS_OF_VALUES, _MOST_VALUES // len(types)) + 1)
        ]

    def execute(
        self, connection: PostgresConnection, values: Sequence[Any], expected: int | None = None
    ) -> SupportsInt:
        """Send for rows given one behind the other; return the number of rows changed."""
        assert expected is None, "only a GuardStatement knows what it did to how many"
        return connection.send(*self._call(values))

    def query(self, connection: PostgresConnection, values: Sequence[Any]) -> Any:
        """Return the one row of a query over rows."""
        return connection.first_of(*self._call(values))

    def _call(self, values: Sequence[Any]) -> tuple[str, Sequence[bytes | None]]:
        rows = len(values) // len(self._types)
        if 0 < rows <= len(self.few):
            return self.few[rows - 1], [encoded(value) for value in values]
        return self.text, self._arrays(values)

    def _arrays(self, values: Sequence[Any]) -> list[bytes]:
        width = len(self._types)
        return [
            _integers(values[index::width]) if kind == INTEGER else _texts(values[index::width])
            for index, kind in enumerate(self._types)
        ]


def _values_list(types: Sequence[str], rows: int) -> str:
    # The types of the first row are those of the columns.
    width = len(types)
    typed = ", ".join(f"${number}::{kind}" for number, kind in enumerate(types, start=1))
    others = (", ".join(f"${row * width + place}" for place in range(1, width + 1)) for row in range(1, rows))
    return ", ".join(f"({row})" for row in (typed, *others))


def encoded(value: str | int | bool | None) -> bytes | None:
    """Return a parameter as it is sent."""
    if value is None:
        return None
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError(U0000_REFUSED)
        return value.encode()
    return str(value).encode()


def _integers(column: Sequence[int | None]) -> bytes:
    return ("{" + ",".join(["NULL" if value is None else str(value) for value in column]) + "}").encode()


def _texts(column: Sequence[str | None]) -> bytes:
    joined = "".join([value for value in column if value is not None])
    if "\0" in joined:
        raise ValueError(U0000_REFUSED)
    if "\\" in joined or '"' in joined:
        column = [value and value.replace("\\", "\\\\").replace('"', '\\"') for value in column]
    return ("{" + ",".join(["NULL" if value is None else f'"{value}"' for value in column]) + "}").encode()


class GuardStatement(RowStatement):
    """A RowStatement that must change every row it is given: else it fails, and nothing behind it is done.

    The server finds that out, so that COMMIT can be sent behind it.
    """

    def __init__(self, types: Sequence[str], template: str) -> None:
        super().__init__(
            types,
            f"WITH changed AS ({template} RETURNING 1) SELECT {guard('{count}')} FROM changed",  # noqa: S608
        )

    def execute(
        self, connection: PostgresConnection, values: Sequence[Any], expected: int | None = None
    ) -> SupportsInt:
        """Send for rows given one behind the other, as many as are expected to be changed."""
        assert expected == len(values) // len(self._types)
        return connection.send(*self._call(values), guards=True)


def guard(count: str) -> str:
    """Return an expression that fails (GUARD_FAILED) unless there are so many rows."""
    return f"1 / (count(*) = {count})::integer"


class UpsertStatement(RowStatement):
    """A RowStatement that may get a row several times, by the columns of its key, and takes the last of each.

    PostgreSQL updates no row twice in one statement.
    """

    def __init__(self, types: Sequence[str], template: str, key_places: Sequence[int]) -> None:
        super().__init__(types, template)
        self._key_places = key_places

    def _call(self, values: Sequence[Any]) -> tuple[str, Sequence[bytes | None]]:
        width = len(self._types)
        if len(values) == width:
            return super()._call(values)
        keys = [values[index::width] for index in self._key_places]
        last = {key: number for number, key in enumerate(zip(*keys, strict=True))}
        if len(last) * width != len(values):
            values = [
                value
                for number in sorted(last.values())
                for value in values[number * width : (number + 1) * width]
            ]
        return super()._call(values)


class SingleStatement:
    """A statement that is sent once a row, with the row's values as its parameters.

    Rewinds are few, and so what each removes is surely found as one range of an index: where rows lead,
    the planner may as well go through all that a transaction has.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._width = text.count("$")

    def execute(
        self, connection: PostgresConnection, values: Sequence[Any], expected: int | None = None
    ) -> SupportsInt:
        """Send for rows given one behind the other; return the number of rows changed by the last."""
        changed: SupportsInt = 0
        for start in range(0, len(values), self._width):
            changed = connection.execute(self.text, values[start : start + self._width])
        return changed

    def query(self, connection: PostgresConnection, values: Sequence[Any]) -> Any:
        """Return the one row of a query of one row."""
        return connection.first(self.text, values)
