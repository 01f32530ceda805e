"""Violated constraints in PostgreSQL's own words, which models know and the hint rules read.

Texts as of PostgreSQL 16 (``src/backend/utils/adt/ri_triggers.c``, ``nbtinsert.c``,
``execMain.c``), as psycopg shows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = [
    "ForeignKeyViolation",
    "InvalidForeignKey",
    "NotNullViolation",
    "UniqueViolation",
    "duplicate_key",
    "foreign_key_column_missing",
    "null_in_primary_key",
    "parent_key_is_not_unique",
    "parent_missing",
    "referenced_meanwhile",
    "still_referenced",
]


class UniqueViolation(Exception):
    """A primary key that exists already."""


class ForeignKeyViolation(Exception):
    """A reference to a row that is missing, or the removal of a row that is referenced."""


class NotNullViolation(Exception):
    """A primary key that is null or left out."""


class InvalidForeignKey(Exception):
    """A reference declared over a column that there is not, or to one that is no key."""


def duplicate_key(table: str, column: str, value: str | int) -> UniqueViolation:
    """Return the error of an insert whose primary key is taken."""
    return UniqueViolation(
        f'duplicate key value violates unique constraint "{table}_pkey"\n'
        f"DETAIL:  Key ({column})=({value}) already exists."
    )


def null_in_primary_key(table: str, column: str, record: Mapping[str, Any]) -> NotNullViolation:
    """Return the error of an insert without a primary key."""
    row = ", ".join(_in_row(value) for value in {column: None, **record}.values())
    return NotNullViolation(
        f'null value in column "{column}" of relation "{table}" violates not-null constraint\n'
        f"DETAIL:  Failing row contains ({row})."
    )


def parent_missing(table: str, column: str, value: str | int, parent_table: str) -> ForeignKeyViolation:
    """Return the error of an insert or update that references a missing row."""
    return ForeignKeyViolation(
        f'insert or update on table "{table}" violates foreign key constraint "{table}_{column}_fkey"\n'
        f'DETAIL:  Key ({column})=({value}) is not present in table "{parent_table}".'
    )


def still_referenced(
    table: str, column: str, value: str | int, child_table: str, child_column: str
) -> ForeignKeyViolation:
    """Return the error of a deletion of a row that another row references."""
    return ForeignKeyViolation(
        f'update or delete on table "{table}" violates foreign key constraint "{child_table}_{child_column}_fkey" '
        f'on table "{child_table}"\n'
        f'DETAIL:  Key ({column})=({value}) is still referenced from table "{child_table}".'
    )


def referenced_meanwhile(table: str, column: str, value: str | int) -> str:
    """Say at commit that another transaction made a reference to a row that this one deletes."""
    return (
        f'update or delete on table "{table}" violates a foreign key constraint on another table '
        f"DETAIL:  Key ({column})=({value}) is still referenced from it."
    )


def parent_key_is_not_unique(parent_table: str) -> InvalidForeignKey:
    """Return the error of a reference to a column that is not the parent's primary key."""
    return InvalidForeignKey(
        f'there is no unique constraint matching given keys for referenced table "{parent_table}"'
    )


def foreign_key_column_missing(column: str) -> InvalidForeignKey:
    """Return the error of a reference declared over a column that the record lacks."""
    return InvalidForeignKey(f'column "{column}" referenced in foreign key constraint does not exist')


def _in_row(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "t" if value else "f"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 64 else f"{text[:64]}..."
