"""Queries compiled once.

SQLAlchemy finds a statement's compiled form by walking all of it, on each execution: for a
read of one key 0.4 ms with the interpreter lock held, ten times the query. A
:class:`PreparedQuery` is written as Core once, with ``bindparam`` for what changes, and runs
as the text that Core made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqlalchemy import ClauseElement, Column, Connection, Dialect, Select

from agenttx_server.store.payload_queries import OpenedRows, Opening, Sealing, opening_of

if TYPE_CHECKING:
    from agenttx_server.store.payload_codec import PayloadCodec

__all__ = ["STREAMED", "PreparedQuery", "Rows", "WriteCalls", "executed", "payloads_of"]

# A row may hold megabytes: few are fetched beyond what is read.
STREAMED: Final = {"stream_results": True, "max_row_buffer": 20}


class Rows(Protocol):
    """What a query found; its rows are read as they are asked for."""

    def __iter__(self) -> Iterator[Sequence[Any]]: ...

    def __enter__(self) -> Rows: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None, /
    ) -> None: ...

    def all(self) -> Sequence[Sequence[Any]]:
        """Return all rows."""

    def first(self) -> Sequence[Any] | None:
        """Return the first row."""

    def scalar(self) -> Any:
        """Return the first value of the first row, None if there is none."""

    def scalar_one(self) -> Any:
        """Return the only value."""


def payloads_of(connection: Connection) -> PayloadCodec | None:
    """Return what seals the values of a connection's database, None where they are plain."""
    codec: PayloadCodec | None = connection.get_execution_options().get("payloads")
    return codec


def executed(connection: Connection, query: Select[Any], *, streamed: bool = False) -> Rows:
    """Run a query whose shape depends on what is asked for, its values in it."""
    options = STREAMED if streamed else {}
    codec = payloads_of(connection)
    if codec is None:
        return connection.execute(query, execution_options=options)
    statement, opening = opening_of(query, None)
    found = connection.execute(statement, execution_options=options)  # type: ignore[call-overload]
    return found if opening is None else OpenedRows(found, opening, codec, {})


class PreparedQuery:
    """A statement of fixed shape, for any database; an ``IN`` with a list of values keeps its length.

    Where values are sealed (:mod:`.payload_queries`) a select tells by itself what it gives. Other statements say which columns
    their rows are of, where they have payloads (``returns``; None for what is no column), and which parameters are values of
    payloads (``seals``).
    """

    def __init__(
        self,
        statement: ClauseElement,
        *,
        returns: Sequence[Column[Any] | None] | None = None,
        seals: Mapping[str, Sealing] | None = None,
    ) -> None:
        self._statement = statement
        self._returns = returns
        self._seals = seals or {}
        # By driver: text, names in the order of its parameters (none: it takes them by name),
        # values of those that are part of it.
        self._compiled: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {}

    def run(self, connection: Connection, **values: Any) -> Rows:
        """Run with a value for each bindparam."""
        codec = payloads_of(connection)
        if codec is not None:
            return self._run_sealed(connection, codec, values, {})
        return connection.exec_driver_sql(*self.call(connection.dialect, values))

    def stream(self, connection: Connection, **values: Any) -> Rows:
        """Run, to read rows that may be large until they are enough; needs a transaction around it.

        SQLite gives rows one by one anyway, PostgreSQL all at once unless a cursor is declared.
        """
        codec = payloads_of(connection)
        if codec is not None:
            return self._run_sealed(connection, codec, values, STREAMED)
        return connection.exec_driver_sql(*self.call(connection.dialect, values), execution_options=STREAMED)

    # --- where values are sealed ---------------------------------------------------------------------

    @cached_property
    def _opening(self) -> tuple[PreparedQuery, Opening | None]:
        """What is run in place of this, and what is opened of its rows."""
        statement, opening = opening_of(self._statement, self._returns)
        return (self if statement is self._statement else PreparedQuery(statement)), opening

    def sealed_call(
        self, codec: PayloadCodec, dialect: Dialect, values: Mapping[str, Any]
    ) -> tuple[str, Any]:
        """As :meth:`call`, with parameters sealed."""
        if self._seals:
            stored = {name: sealing.value(codec, name, values) for name, sealing in self._seals.items()}
            values = {**values, **stored}
        return self._opening[0].call(dialect, values)

    def opened(
        self, codec: PayloadCodec, found: Sequence[Sequence[Any]], values: Mapping[str, Any]
    ) -> Sequence[Sequence[Any]]:
        """Return the rows that a :meth:`sealed_call` gave, opened. Raises StoredValueDamaged."""
        opening = self._opening[1]
        return found if opening is None else [opening.row(codec, row, values) for row in found]

    def _run_sealed(
        self, connection: Connection, codec: PayloadCodec, values: Mapping[str, Any], options: dict[str, Any]
    ) -> Rows:
        text, parameters = self.sealed_call(codec, connection.dialect, values)
        found = connection.exec_driver_sql(text, parameters, execution_options=options)
        opening = self._opening[1]
        return found if opening is None else OpenedRows(found, opening, codec, values)

    def call(self, dialect: Dialect, values: Mapping[str, Any]) -> tuple[str, Any]:
        """Return the text for a database's driver and the parameters, a tuple or a dict as it takes them."""
        compiled = self._compiled.get(dialect.driver)
        if compiled is None:
            compiled = self._compiled[dialect.driver] = self._compile(dialect)
        text, names, fixed = compiled
        if not names:
            return text, {**fixed, **values} if fixed or values else ()
        return text, tuple([values[name] if name in values else fixed[name] for name in names])

    def _compile(self, dialect: Dialect) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        compiled = self._statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        names = tuple(getattr(compiled, "positiontup", None) or ())
        fixed = {name: value for name, value in compiled.params.items() if value is not None}
        return str(compiled), names, fixed


class WriteCalls(Protocol):
    """A connection inside a write transaction, as what is rarely written needs it.

    Leases, claims, notes and purges are few beside write sets, so they are written once, for every
    database, as :class:`PreparedQuery`; write sets are not.
    """

    def rows(self, query: PreparedQuery, **values: Any) -> Sequence[Sequence[Any]]:
        """Run with a value for each bindparam and return all rows (of a query, or of RETURNING)."""

    def change(self, query: PreparedQuery, **values: Any) -> int:
        """Run with a value for each bindparam and return how many rows were changed."""
