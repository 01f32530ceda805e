"""SQLite, by any binding: ``sqlite3.IntegrityError: …``, ``SQLITE_CONSTRAINT: …``, ``Error: stepping, …``."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Rule, rule
from ..wording import key_names

__all__ = ["RULES"]

_COLUMNS: Final = (
    r"(?P<column>[\w$\" ]{1,64}\.[\w$\" ]{1,64}?(?:, [\w$\" ]{1,64}\.[\w$\" "
    r"]{1,64}?){0,15})(?=[\s)\]\"',;:]|$)"
)

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "sqlite.unique",
        "unique",
        r"UNIQUE constraint failed: " + _COLUMNS,
        C.UNIQUE_VIOLATION,
        "{names} already exists in {table} (UNIQUE constraint failed)",
        "Use another {names}, or update the existing row.",
        "column",
        read=lambda match, cause: {
            "names": ", ".join(key_names(match["column"])),
            "table": match["column"].split(".")[0],
        },
    ),
    rule(
        "sqlite.unique_index",
        "unique index",
        r"UNIQUE constraint failed: index '(?P<index>[^'\n]{1,80})'",
        C.UNIQUE_VIOLATION,
        "a row with this value already exists (unique index {index})",
        "Use another value, or update the existing row.",
    ),
    rule(
        "sqlite.primary_key_old",
        "unique",
        r"(?:column (?P<column>\w{1,64}) is|columns (?P<columns>[\w, ]{1,200}) are) not unique",
        C.UNIQUE_VIOLATION,
        "{names} is not unique",
        "Use another value, or update the existing row.",
        "names",
        read=lambda match, cause: {"names": match["column"] or match["columns"]},
    ),
    rule(
        "sqlite.not_null",
        "null",
        r"NOT NULL constraint failed: (?P<table>[\w$]{1,64})\.(?P<column>[\w$]{1,64})",
        C.NOT_NULL_VIOLATION,
        "{column} of {table} must not be null (NOT NULL constraint failed)",
        "Pass a value for {column}.",
        "column",
    ),
    rule(
        "sqlite.foreign_key",
        "foreign",
        r"FOREIGN KEY constraint failed",
        C.FOREIGN_KEY_VIOLATION,
        "FOREIGN KEY constraint failed",
        "Pass ids of rows that exist; delete referring rows before a row they refer to.",
    ),
    rule(
        "sqlite.check",
        "check",
        r"CHECK constraint failed: (?P<detail>[^\n]{1,120})",
        C.CHECK_VIOLATION,
        "CHECK constraint failed: {detail}",
        "Pass values that the constraint allows.",
    ),
    rule(
        "sqlite.no_such_column",
        "column",
        r"no such column: (?P<column>[\w.$\"]{1,130})|has no column named (?P<column2>[\w$]{1,64})",
        C.MISSING_SCHEMA_OBJECT,
        ("{table_said}no such column: {name}",),
        "Use a column that the table has.",
        read=lambda match, cause: {
            "name": match["column"] or match["column2"],
            "table_said": _table_said(cause.text),
        },
    ),
    rule(
        "sqlite.no_such_object",
        "such",
        r"no such (?P<kind>table|view|index|function|module|collation sequence|trigger|savepoint): "
        r"(?P<object>[\w.$\-]{1,130})",
        C.MISSING_SCHEMA_OBJECT,
        "no such {kind}: {object}",
        "Check the name, or create it first.",
    ),
    rule(
        "sqlite.locked",
        "locked busy sqlite_busy",
        r"database (?:table )?is locked|SQLITE_BUSY|database schema is locked",
        C.CONFLICT,
        "{message}",
        "Another writer holds it; retry in a moment.",
    ),
    rule(
        "sqlite.read_only",
        "readonly",
        r"attempt to write a readonly database",
        C.PERMISSION_DENIED,
        "attempt to write a readonly database",
        "Open a writable database, or correct the file's permissions.",
    ),
    rule(
        "sqlite.cannot_open",
        "open",
        r"unable to open database file(?:: (?P<path>[^\n]{1,200}))?",
        C.FILE_NOT_FOUND,
        ("unable to open database file {path}", "unable to open database file"),
        "Check that its directory exists and is writable.",
    ),
    rule(
        "sqlite.full",
        "full",
        r"database or disk is full",
        C.RESOURCE_EXHAUSTED,
        "database or disk is full",
        "Free disk space, then retry.",
    ),
    rule(
        "sqlite.malformed",
        "malformed database",
        r"database disk image is malformed|file is not a database|file is encrypted or is not a database",
        C.INVALID_VALUE,
        "{message}",
        "Restore the database file or point to the right one.",
    ),
    rule(
        "sqlite.exists",
        "exists",
        r"\b(?P<kind>table|index|view|trigger) (?P<object>[\w.$\"]{1,130}) already exists",
        C.CONFLICT,
        "{kind} {object} already exists",
        "Use the existing one, or another name.",
        phrases=" already exists",
    ),
    rule(
        "sqlite.bindings",
        "bindings binding",
        r"Incorrect number of bindings supplied\. The current statement uses (?P<wanted>\d{1,6}), and "
        r"there (?:are|is) (?P<given>\d{1,6}) supplied|did not supply a value for binding (?:parameter "
        r")?:?(?P<name>\w{1,64})",
        C.MISSING_ARGUMENT,
        (
            "no value was supplied for binding {name}",
            "the statement uses {wanted} bindings, and {given} are supplied",
        ),
        "Pass one value for each placeholder.",
        "name",
    ),
    rule(
        "sqlite.type",
        "mismatch unsupported supported binding store",
        r"datatype mismatch|Error binding parameter (?P<place>[:\w]{1,40})[^\n]{0,80}|cannot store "
        r"\w{1,10} value in \w{1,10} column (?P<column>[\w.]{1,130})",
        C.INVALID_VALUE,
        "{message}",
        "Pass a value of the column's type.",
        "column",
    ),
    rule(
        "sqlite.syntax",
        "syntax",
        r"near \"(?P<token>[^\"\n]{1,60})\": syntax error|incomplete input",
        C.INVALID_VALUE,
        ("SQL syntax error near {token}", "SQL syntax error: incomplete input"),
        "Correct the statement.",
        weight=LIKELY,
    ),
    rule(
        "sqlite.values",
        "values columns",
        r"table (?P<table>[\w$]{1,64}) has (?P<columns>\d{1,5}) columns but (?P<values>\d{1,5}) values "
        r"were supplied",
        C.INVALID_VALUE,
        "{message}",
        "Pass one value for each column.",
    ),
)


def _table_said(text: str) -> str:
    head, found, _ = text.partition(" has no column named")
    return head.rsplit(" ", 1)[-1] + ": " if found else " "
