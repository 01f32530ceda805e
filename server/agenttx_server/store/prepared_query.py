"""Queries compiled once.

SQLAlchemy finds a statement's compiled form by walking all of it, on each execution: for a
read of one key 0.4 ms with the interpreter lock held, ten times the query. A
:class:`PreparedQuery` is written as Core once, with ``bindparam`` for what changes, and runs
as the text that Core made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from sqlalchemy import ClauseElement, Connection, CursorResult, Dialect

__all__ = ["STREAMED", "PreparedQuery", "WriteCalls"]

# A row may hold megabytes: few are fetched beyond what is read.
STREAMED: Final = {"stream_results": True, "max_row_buffer": 20}


class PreparedQuery:
    """A statement of fixed shape, for any database; an ``IN`` with a list of values keeps its length."""

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        # By driver: text, names in the order of its parameters (none: it takes them by name),
        # values of those that are part of it.
        self._compiled: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {}

    def run(self, connection: Connection, **values: Any) -> CursorResult[*tuple[Any, ...]]:
        """Run with a value for each bindparam."""
        return connection.exec_driver_sql(*self.call(connection.dialect, values))

    def stream(self, connection: Connection, **values: Any) -> CursorResult[*tuple[Any, ...]]:
        """Run, to read rows that may be large until they are enough; needs a transaction around it.

        SQLite gives rows one by one anyway, PostgreSQL all at once unless a cursor is declared.
        """
        return connection.exec_driver_sql(*self.call(connection.dialect, values), execution_options=STREAMED)

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
