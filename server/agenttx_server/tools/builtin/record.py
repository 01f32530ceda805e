"""``record.*``: rows with primary and foreign keys, part of the transaction's state.

Where things are (ids are encoded, so that 1 and "1" differ and "/" separates)::

    record/<table>/<id>                                            the row and its references
    record-ref/<parent table>/<parent id>/<table>/<id>/<column>    one for each reference that holds

A step checks against what its transaction sees; ``require_exists`` and ``require_none`` have
the commit check again against what others have committed meanwhile.
"""

# ruff: noqa: D417 — ctx is not an argument of the tool

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ConfigDict
from typing_extensions import TypedDict

from agenttx.tools.argument_problems import json_kind
from agenttx.tools.call_context import StateStore, ToolCallContext
from agenttx.tools.definition import AnyTool, tool
from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import HintCategory
from agenttx_server.tools.builtin.record_errors import (
    duplicate_key,
    foreign_key_column_missing,
    null_in_primary_key,
    parent_key_is_not_unique,
    parent_missing,
    referenced_meanwhile,
    still_referenced,
)
from agenttx_server.tools.builtin.wording import shown

__all__ = ["MAX_ID_BYTES", "RECORD_TOOLS"]

MAX_ID_BYTES = 128  # two ids and three names must fit into one state key, also when escaped

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

Record = dict[str, Any]
Id = str | int


class Reference(TypedDict):
    """A foreign key's target: the table and its primary key column."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    table: str
    column: str


@dataclass(frozen=True, slots=True)
class _Row:
    """A row as stored. ``references`` maps a column to (parent table, parent column or empty)."""

    table: str
    primary_key: str
    record: Record
    references: Mapping[str, tuple[str, str]]

    @property
    def id(self) -> Id:
        identity: Id = self.record[self.primary_key]
        return identity

    def stored(self) -> dict[str, Any]:
        return {
            "primary_key": self.primary_key,
            "record": self.record,
            "references": {column: list(target) for column, target in self.references.items()},
        }

    def holding(self) -> dict[str, tuple[str, Id]]:
        """Return for each foreign key that is not null the parent's table and id."""
        return {
            column: (parent, self.record[column])
            for column, (parent, _) in self.references.items()
            if self.record.get(column) is not None
        }


@tool("record.insert", effects="transactional")
async def insert(
    ctx: ToolCallContext,
    table: str,
    record: Record,
    primary_key: str = "id",
    references: dict[str, str | Reference] | None = None,
) -> Record:
    """Insert a row into a table. A table exists as soon as it has a row.

    Fails as PostgreSQL does if the primary key is taken or null, or if a referenced row is missing.
    The foreign keys given here hold from then on: they are checked on every update and again at
    commit, and the referenced row can't be deleted while this one refers to it.

    Args:
        table: the table's name (letters, digits, _).
        record: the row's columns and values; the primary key is a string (at most 128 bytes) or an integer.
        primary_key: the primary key's column.
        references: foreign keys: column to referenced table, for example {"customer_id": "customers"},
            or to {"table": "customers", "column": "id"}.

    Returns:
        The row.
    """
    _check_identifier(table, "table", "table")
    _check_identifier(primary_key, "column", "primary_key")
    for column in record:
        _check_identifier(column, "column", "record")
    row = _Row(table, primary_key, record, _read_references(references or {}, record))
    if record.get(primary_key) is None:
        raise null_in_primary_key(table, primary_key, record)
    identity = _check_id(record[primary_key], primary_key)
    rows = ctx.store.namespace("record")
    if await rows.get(_row_key(table, identity)) is not None:
        raise duplicate_key(table, primary_key, identity)
    await _check_parents(rows, row, row.holding())
    await rows.put(_row_key(table, identity), row.stored())
    await _index(ctx, row, row.holding())
    return record


@tool("record.get", effects="read_only")
async def get(ctx: ToolCallContext, table: str, id: Id) -> Record:
    """Read a row by its primary key. Fails (missing_record) if there is none.

    Args:
        table: the table's name.
        id: the primary key's value; 1 and "1" are different keys.

    Returns:
        The row.
    """
    return (await _find(ctx, table, id)).record


@tool("record.update", effects="transactional")
async def update(ctx: ToolCallContext, table: str, id: Id, changes: Record) -> Record:
    """Change columns of a row; the others stay. Fails (missing_record) if there is no such row.

    Foreign keys declared when the row was inserted are checked as PostgreSQL does. The primary key
    can't be changed.

    Args:
        table: the table's name.
        id: the primary key's value.
        changes: columns to set and their new values; null empties a column.

    Returns:
        The whole row after the change.
    """
    before = await _find(ctx, table, id)
    for column in changes:
        _check_identifier(column, "column", "changes")
    key = before.primary_key
    if key in changes and (changes[key] != before.id or type(changes[key]) is not type(before.id)):
        if changes[key] is None:
            raise null_in_primary_key(table, key, {**before.record, key: None})
        raise ToolFailure(
            HintCategory.INVALID_VALUE,
            f'primary key "{key}" of table "{table}" can\'t be changed. Insert a new row and delete this one',
            (key,),
        )
    after = _Row(table, key, {**before.record, **changes}, before.references)
    _check_foreign_keys(after.references, after.record)
    held, holding = before.holding(), after.holding()
    taken = {column: parent for column, parent in holding.items() if not _same(held.get(column), parent)}
    dropped = {column: parent for column, parent in held.items() if not _same(holding.get(column), parent)}
    rows = ctx.store.namespace("record")
    await _check_parents(rows, after, taken)
    await rows.put(_row_key(table, id), after.stored())
    await _unindex(ctx, before, dropped)
    await _index(ctx, after, taken)
    return after.record


@tool("record.delete", effects="transactional")
async def delete(ctx: ToolCallContext, table: str, id: Id) -> Record:
    """Delete a row. Fails as PostgreSQL does while another row refers to it, and if there is no such row.

    Args:
        table: the table's name.
        id: the primary key's value.

    Returns:
        The row as it was.
    """
    row = await _find(ctx, table, id)
    await _unindex(ctx, row, row.holding())
    referencing = ctx.store.namespace("record-ref")
    prefix = f"{_row_key(table, id)}/"
    for key, _ in await referencing.scan(prefix, limit=1):
        child_table, _child_id, child_column = key.removeprefix(prefix).split("/")
        raise still_referenced(table, row.primary_key, id, child_table, child_column)
    await referencing.require_none(prefix, referenced_meanwhile(table, row.primary_key, id))
    await ctx.store.namespace("record").delete(_row_key(table, id))
    return row.record


RECORD_TOOLS: Final[tuple[AnyTool, ...]] = (insert, get, update, delete)


async def _find(ctx: ToolCallContext, table: str, identity: Id) -> _Row:
    _check_identifier(table, "table", "table")
    _check_id(identity, "id")
    stored = await ctx.store.namespace("record").get(_row_key(table, identity))
    if stored is None:
        raise ToolFailure(
            HintCategory.MISSING_RECORD,
            f'table "{table}" has no row with primary key {_shown_id(identity)}. Insert it first, or use the id of '
            "one that exists",
            ("id",),
        )
    return _Row(
        table,
        stored["primary_key"],
        stored["record"],
        {column: (parent, target) for column, (parent, target) in stored["references"].items()},
    )


async def _check_parents(rows: StateStore, row: _Row, parents: Mapping[str, tuple[str, Id]]) -> None:
    for column, (parent_table, parent_id) in parents.items():
        if parent_table == row.table and _same((parent_table, parent_id), (row.table, row.id)):
            continue  # a row may refer to itself
        missing = parent_missing(row.table, column, parent_id, parent_table)
        parent = await rows.get(_row_key(parent_table, parent_id))
        if parent is None:
            raise missing
        if row.references[column][1] not in ("", parent["primary_key"]):
            raise parent_key_is_not_unique(parent_table)
        await rows.require_exists(_row_key(parent_table, parent_id), str(missing).replace("\n", " "))


async def _index(ctx: ToolCallContext, row: _Row, parents: Mapping[str, tuple[str, Id]]) -> None:
    for column, parent in parents.items():
        await ctx.store.namespace("record-ref").put(_reference_key(row, column, parent), True)


async def _unindex(ctx: ToolCallContext, row: _Row, parents: Mapping[str, tuple[str, Id]]) -> None:
    for column, parent in parents.items():
        await ctx.store.namespace("record-ref").delete(_reference_key(row, column, parent))


def _row_key(table: str, identity: Id) -> str:
    return f"{table}/{_encode(identity)}"


def _reference_key(row: _Row, column: str, parent: tuple[str, Id]) -> str:
    return f"{_row_key(*parent)}/{_row_key(row.table, row.id)}/{column}"


def _encode(identity: Id) -> str:
    if isinstance(identity, int):
        return f"i:{identity}"
    return "s:" + identity.replace("%", "%25").replace("/", "%2F")


def _same(one: tuple[str, Id] | None, other: tuple[str, Id]) -> bool:
    return one is not None and _row_key(*one) == _row_key(*other)


def _read_references(
    references: Mapping[str, str | Reference], record: Mapping[str, Any]
) -> dict[str, tuple[str, str]]:
    read: dict[str, tuple[str, str]] = {}
    for column, target in references.items():
        _check_identifier(column, "column", "references")
        parent, parent_column = (
            (target, "") if isinstance(target, str) else (target["table"], target["column"])
        )
        _check_identifier(parent, "table", "references")
        if not isinstance(target, str):
            _check_identifier(parent_column, "column", "references")
        if column not in record:
            raise foreign_key_column_missing(column)
        read[column] = (parent, parent_column)
    _check_foreign_keys(read, record)
    return read


def _check_foreign_keys(references: Mapping[str, tuple[str, str]], record: Mapping[str, Any]) -> None:
    for column in references:
        if record.get(column) is not None:
            _check_id(record[column], column)


def _check_identifier(name: str, what: str, argument: str) -> None:
    if not _IDENTIFIER.fullmatch(name):
        raise ToolFailure(
            HintCategory.INVALID_VALUE,
            f"{shown(name)} is no {what} name. Use letters, digits and _, not beginning with a digit, at most 63",
            (argument,),
        )


def _check_id(identity: Any, column: str) -> Id:
    if isinstance(identity, bool) or not isinstance(identity, (str, int)):
        raise ToolFailure(
            HintCategory.INVALID_VALUE,
            f"column '{column}' is a key and must be a string or an integer, not {json_kind(identity)}. Send such a value",
            (column,),
        )
    if isinstance(identity, str) and len(identity.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        raise ToolFailure(
            HintCategory.INVALID_VALUE,
            f"the key in '{column}' is longer than {MAX_ID_BYTES} bytes. Use a shorter one",
            (column,),
        )
    if isinstance(identity, str) and "\x00" in identity:
        raise ToolFailure(
            HintCategory.INVALID_VALUE,
            f"the key in '{column}' contains the character U+0000. Leave it out",
            (column,),
        )
    return identity


def _shown_id(identity: Id) -> str:
    return str(identity) if isinstance(identity, int) else shown(identity)
