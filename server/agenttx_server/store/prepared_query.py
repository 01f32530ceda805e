"""Queries compiled once.

SQLAlchemy finds a statement's compiled form by walking all of it, on each execution: for a
read of one key 0.4 ms with the interpreter lock held, ten times the query. A
:class:`PreparedQuery` is written as Core once, with ``bindparam`` for what changes, and runs
as the text that Core made of it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ClauseElement, Connection, CursorResult

__all__ = ["PreparedQuery"]


class PreparedQuery:
    """A query of fixed shape; ``IN`` with a list is not."""

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        # Text, names in the order of its parameters, values of those that are part of it.
        self._compiled: tuple[str, tuple[str, ...], dict[str, Any]] | None = None

    def run(self, connection: Connection, **values: Any) -> CursorResult[*tuple[Any, ...]]:
        """Run with a value for each bindparam."""
        if self._compiled is None:
            self._compiled = self._compile(connection)
        text, names, fixed = self._compiled
        return connection.exec_driver_sql(
            text, tuple([values[name] if name in values else fixed[name] for name in names])
        )

    def _compile(self, connection: Connection) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        compiled = self._statement.compile(dialect=connection.dialect)
        names = tuple(getattr(compiled, "positiontup", None) or ())
        fixed = {name: value for name, value in compiled.params.items() if value is not None}
        return str(compiled), names, fixed
