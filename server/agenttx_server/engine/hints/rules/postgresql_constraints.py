"""PostgreSQL's constraints in English, whichever driver printed them: psql, psycopg, asyncpg, JDBC, pgx, Npgsql, PDO."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import Cause, Facts, Rule, rule

__all__ = ["RULES"]

# \\? lets the same patterns read text whose quotes were escaped by a logger.
_Q: Final = r"\\?[\"']"
_FK_DEFAULT_NAME: Final = re.compile(r"(?P<column>[a-z0-9]{1,40}|[a-z0-9_]{1,50}_id)_fkey\d?\Z")


def _from_default_constraint_name(match: re.Match[str], cause: Cause) -> Facts | None:
    """PostgreSQL names an unnamed constraint ``<table>_<column>_fkey``: with the table known, the column is."""
    table, constraint = match["table"], match["constraint"]
    named = (
        _FK_DEFAULT_NAME.match(constraint.removeprefix(f"{table}_"))
        if constraint.startswith(f"{table}_")
        else None
    )
    if named is not None and named["column"].count("_id_") == 0:
        return {"column": named["column"]}
    return {}


RULES: Final[tuple[Rule, ...]] = (
    rule(
        "postgres.foreign_key_absent",
        "foreign present",
        rf"violates foreign key constraint "
        rf"{_Q}(?P<constraint>[^\"'\\\n]{{1,80}}){_Q}[^\n]{{0,200}}\s{{1,12}}[^\n]{{0,40}}?"
        rf"Key \((?P<column>[^()=\n]{{1,200}})\)=\((?P<value>[^\n]{{0,300}}?)\) is not present in table "
        rf"{_Q}(?P<table>[^\"'\\\n]{{1,80}})",
        C.FOREIGN_KEY_VIOLATION,
        (
            "{column} {value} is not present in table {table}",
            "the given {column} is not present in table {table}",
        ),
        "Create that {table} row first, or pass an existing {column}.",
        "column",
    ),
    rule(
        "postgres.foreign_key_referenced",
        "referenced",
        rf"on table {_Q}(?P<parent>[^\"'\\\n]{{1,80}}){_Q} violates [^\n]{{0,200}}?constraint "
        rf"{_Q}(?P<constraint>[^\"'\\\n]{{1,80}}){_Q}[^\n]{{0,200}}\s{{1,12}}[^\n]{{0,40}}?"
        rf"Key \((?P<column>[^()=\n]{{1,200}})\)=\((?P<value>[^\n]{{0,300}}?)\) is (?:still "
        rf")?referenced from table {_Q}(?P<table>[^\"'\\\n]{{1,80}})",
        C.FOREIGN_KEY_VIOLATION,
        (
            "{parent} row with {column} {value} is still referenced from table {table}",
            "{parent} row is still referenced from table {table}",
        ),
        "Delete or re-point its {table} rows first.",
        "column",
    ),
    rule(
        "postgres.foreign_key_detail",
        "key",
        rf"Key \((?P<column>[^()=\n]{{1,200}})\)=\((?P<value>[^\n]{{0,300}}?)\) is not present in table "
        rf"{_Q}(?P<table>[^\"'\\\n]{{1,80}})",
        C.FOREIGN_KEY_VIOLATION,
        (
            "{column} {value} is not present in table {table}",
            "the given {column} is not present in table {table}",
        ),
        "Create that {table} row first, or pass an existing {column}.",
        "column",
        phrases="is not present in table",
    ),
    rule(
        "postgres.foreign_key_referenced_detail",
        "referenced",
        rf"Key \((?P<column>[^()=\n]{{1,200}})\)=\((?P<value>[^\n]{{0,300}}?)\) is (?:still "
        rf")?referenced from table {_Q}(?P<table>[^\"'\\\n]{{1,80}})",
        C.FOREIGN_KEY_VIOLATION,
        (
            "the row with {column} {value} is still referenced from table {table}",
            "the row is still referenced from table {table}",
        ),
        "Delete or re-point its {table} rows first.",
        "column",
    ),
    rule(
        "postgres.foreign_key_parent_no_detail",
        "foreign",
        rf"update or delete on table {_Q}(?P<parent>[^\"'\\\n]{{1,80}}){_Q} violates "
        rf"[^\n]{{0,60}}?foreign key constraint {_Q}(?P<constraint>[^\"'\\\n]{{1,80}}){_Q}(?: on table "
        rf"{_Q}(?P<table>[^\"'\\\n]{{1,80}}))?",
        C.FOREIGN_KEY_VIOLATION,
        (
            "a {parent} row is still referenced from table {table} (constraint {constraint})",
            "a {parent} row is still referenced (constraint {constraint})",
        ),
        "Delete or re-point the rows that refer to it first.",
    ),
    rule(
        "postgres.foreign_key_no_detail",
        "foreign",
        rf"insert or update on table {_Q}(?P<table>[^\"'\\\n]{{1,80}}){_Q} violates foreign key "
        rf"constraint {_Q}(?P<constraint>[^\"'\\\n]{{1,80}}){_Q}",
        C.FOREIGN_KEY_VIOLATION,
        (
            "a {table} row refers by {column} to a row that does not exist (constraint {constraint})",
            "a {table} row refers to a row that does not exist (constraint {constraint})",
        ),
        "Create the referenced row first, or pass an existing id.",
        "column",
        read=_from_default_constraint_name,
    ),
    rule(
        "postgres.unique",
        "unique",
        rf"unique constraint {_Q}(?P<constraint>[^\"'\\\n]{{1,80}}){_Q}[^\n]{{0,200}}\s{{1,12}}[^\n]"
        rf"{{0,40}}?Key \((?P<column>[^()=\n]{{1,200}}(?:\([^()\n]{{0,60}}\)[^()=\n]{{0,100}})?)\)=\((?"
        rf"P<value>[^\n]{{0,300}}?)\) already exists",
        C.UNIQUE_VIOLATION,
        (
            "{column} {value} already exists (constraint {constraint})",
            "that {column} already exists (constraint {constraint})",
        ),
        "Use another {column}, or update the existing row.",
        "column",
        read=lambda match, cause: {"column": _unwrapped(match["column"])},
    ),
    rule(
        "postgres.unique_detail",
        "key",
        r"Key \((?P<column>[^()=\n]{1,200}(?:\([^()\n]{0,60}\)[^()=\n]{0,100})?)\)=\((?P<value>[^\n]{0"
        r",300}?)\) already exists",
        C.UNIQUE_VIOLATION,
        ("{column} {value} already exists", "that {column} already exists"),
        "Use another {column}, or update the existing row.",
        "column",
        read=lambda match, cause: {"column": _unwrapped(match["column"])},
        phrases="already exists",
    ),
    rule(
        "postgres.unique_no_detail",
        "unique",
        rf"duplicate key value violates unique constraint {_Q}(?P<constraint>[^\"'\\\n]{{1,80}}){_Q}",
        C.UNIQUE_VIOLATION,
        "a row with this value already exists (unique constraint {constraint})",
        "Use another value, or update the existing row.",
    ),
    rule(
        "postgres.unique_index_build",
        "unique",
        rf"could not create unique index "
        rf"{_Q}(?P<constraint>[^\"'\\\n]{{1,80}}){_Q}(?:\s{{1,12}}[^\n]{{0,40}}?Key "
        rf"\((?P<column>[^()=\n]{{1,200}})\)=\((?P<value>[^\n]{{0,300}}?)\) is duplicated)?",
        C.UNIQUE_VIOLATION,
        (
            "unique index {constraint} can't be created: {column} {value} is there more than once",
            "unique index {constraint} can't be created: values are duplicated",
        ),
        "Remove the duplicates first.",
        "column",
    ),
    rule(
        "postgres.exclusion",
        "exclusion",
        rf"violates exclusion constraint "
        rf"{_Q}(?P<constraint>[^\"'\\\n]{{1,80}}){_Q}(?:(?: \(SQLSTATE 23P01\))?\s{{1,12}}[^\n]{{0,40}}?Key "
        rf"\((?P<column>[^()=\n]{{1,200}})\)=\((?P<value>[^\n]{{0,300}})\) conflicts with existing "
        rf"key)?",
        C.CONFLICT,
        (
            "{column} {detail} overlaps an existing row (exclusion constraint {constraint})",
            "the row overlaps an existing one (exclusion constraint {constraint})",
        ),
        "Choose values that don't overlap.",
        "column",
        read=lambda match, cause: {"detail": match["value"]},
    ),
    rule(
        "postgres.not_null",
        "null",
        rf"null value in column {_Q}(?P<column>[^\"'\\\n]{{1,80}}){_Q}(?: of relation "
        rf"{_Q}(?P<table>[^\"'\\\n]{{1,80}}){_Q})? violates not-null",
        C.NOT_NULL_VIOLATION,
        ("{column} of {table} must not be null", "column {column} must not be null"),
        "Pass a value for {column}.",
        "column",
    ),
    rule(
        "postgres.column_contains_nulls",
        "contains",
        rf"column {_Q}(?P<column>[^\"'\\\n]{{1,80}}){_Q} of relation "
        rf"{_Q}(?P<table>[^\"'\\\n]{{1,80}}){_Q} contains null values",
        C.NOT_NULL_VIOLATION,
        "column {column} of {table} contains null values",
        "Fill them in before the column is made NOT NULL.",
        "column",
    ),
    rule(
        "postgres.check",
        "check",
        rf"(?:new row for relation {_Q}(?P<table>[^\"'\\\n]{{1,80}}){_Q} violates|value for domain "
        rf"(?P<domain>\S{{1,80}}) violates|violates|violated) check constraint "
        rf"{_Q}(?P<constraint>[^\"'\\\n]{{1,80}}){_Q}",
        C.CHECK_VIOLATION,
        (
            "the {table} row violates check constraint {constraint}",
            "the value of type {domain} violates check constraint {constraint}",
            "a value violates check constraint {constraint}",
        ),
        "Pass values that the constraint allows.",
    ),
    rule(
        "postgres.row_security",
        "security",
        rf"new row violates row-level security policy (?:{_Q}(?P<policy>[^\"'\\\n]{{1,80}}){_Q} )?for "
        rf"table {_Q}(?P<table>[^\"'\\\n]{{1,80}}){_Q}",
        C.PERMISSION_DENIED,
        (
            "row-level security policy {policy} forbids this row in table {table}",
            "row-level security forbids this row in table {table}",
        ),
        "Write a row that you own, or ask for access.",
    ),
)


def _unwrapped(column: str) -> str:
    """The column of an expression index: ``lower(email::text)`` → ``email``."""
    call = re.match(
        r"\s*(?:lower|upper|md5|date|trim|btrim)\(+\s*\"?([A-Za-z_]\w{0,62})\"?[^,]{0,40}\)\s*\Z", column
    )
    return call[1] if call else re.sub(r"::[\w ]{1,30}", "", column)
