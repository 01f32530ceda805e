"""PostgreSQL in English, whichever driver printed it: psql, psycopg, asyncpg, JDBC, pgx, Npgsql, PDO."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Cause, Facts, Rule, rule

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
        rf"{_Q}(?P<constraint>[^\"'\\\n]{{1,80}}){_Q}(?:\s{{1,12}}[^\n]{{0,40}}?Key "
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
    rule(
        "postgres.undefined_column",
        "column",
        rf"column (?:{_Q})?(?P<column>[\w.$\"]{{1,130}}?)(?:{_Q})? (?:of relation "
        rf"{_Q}(?P<table>[^\"'\\\n]{{1,80}}){_Q} )?does not "
        rf"exist(?:[^\n]{{0,80}}\n[^\n]{{0,300}}\n?[^\n]{{0,100}}\n?HINT:\s{{1,4}}(?P<detail_hint>[^\n]"
        rf"{{1,200}}))?",
        C.MISSING_SCHEMA_OBJECT,
        (
            "column {column} of {table} does not exist. {detail_hint}",
            "column {column} does not exist. {detail_hint}",
            "column {column} of {table} does not exist",
            "column {column} does not exist",
        ),
        "Use a column that the table has.",
    ),
    rule(
        "postgres.undefined_object",
        "relation table schema database function type sequence index extension view operator trigger "
        "publication",
        rf"(?P<kind>relation|table|schema|database|type|sequence|index|extension|view|materialized view|"
        rf"trigger|collation|tablespace|publication|constraint) {_Q}(?P<object>[^\"\\\n]{{1,130}}?){_Q} "
        rf"(?:of relation {_Q}(?P<table>[^\"'\\\n]{{1,80}}){_Q} )?does not exist",
        C.MISSING_SCHEMA_OBJECT,
        "{kind} {object} does not exist",
        "Check the name and the schema, or create it first.",
    ),
    rule(
        "postgres.undefined_function",
        "function operator procedure",
        r"(?P<what>(?:function|operator|procedure|aggregate) [^\n]{1,160}?) (?:does not exist|is not "
        r"unique)",
        C.MISSING_SCHEMA_OBJECT,
        "{what} does not exist",
        "Check the name and the argument types; add casts if needed.",
    ),
    rule(
        "postgres.missing_from",
        "from",
        rf"missing FROM-clause entry for table {_Q}(?P<table>[^\"'\\\n]{{1,80}}){_Q}",
        C.MISSING_SCHEMA_OBJECT,
        "missing FROM-clause entry for table {table}",
        "Join that table, or use the right alias.",
    ),
    rule(
        "postgres.duplicate_object",
        "exists",
        rf"(?P<kind>relation|table|schema|database|type|index|extension|role|function|column|constraint|"
        rf"trigger|policy) {_Q}(?P<object>[^\"\\\n]{{1,130}}){_Q}(?: (?:of|for) relation "
        rf"{_Q}(?P<table>[^\"'\\\n]{{1,80}}){_Q})? already exists",
        C.CONFLICT,
        ("{kind} {object} of {table} already exists", "{kind} {object} already exists"),
        "Use the existing one, or another name.",
    ),
    rule(
        "postgres.invalid_text",
        "syntax",
        rf"invalid input (?:syntax|value) for (?:type |enum )?(?P<type>[\w ]{{1,60}}?): "
        rf"{_Q}(?P<value>[^\"\\\n]{{0,300}}){_Q}",
        C.INVALID_VALUE,
        ("{value} is not a valid {type}", "the value is not a valid {type}"),
        "Pass a {type} (invalid input).",
    ),
    rule(
        "postgres.datetime",
        "date time",
        rf"(?P<what>date/time field value out of range|time zone displacement out of range|invalid "
        rf"value for (?:datetime|timestamp)[^:\n]{{0,40}}): {_Q}(?P<value>[^\"\\\n]{{0,100}}){_Q}",
        C.INVALID_VALUE,
        "{what}: {value}",
        "Pass a date that exists, as YYYY-MM-DD.",
    ),
    rule(
        "postgres.too_long",
        "long",
        r"value too long for type (?P<type>[\w ]{1,40}\(\d{1,9}\))",
        C.INVALID_VALUE,
        "value too long for type {type}",
        "Shorten it.",
    ),
    rule(
        "postgres.out_of_range",
        "range overflow",
        r"(?:(?:integer|bigint|smallint|real|double precision|interval|timestamp|date|oid|value "
        r"\"[^\"\n]{1,60}\" is) out of range(?: for type [\w ]{1,30})?|numeric field overflow|value "
        r"overflows numeric format)(?:[^\n]{0,60}\s{1,12}DETAIL:\s{1,4}(?P<detail>[^\n]{1,200}))?",
        C.INVALID_VALUE,
        ("{line}: {detail}", "{line}"),
        "Pass a smaller value.",
        weight=LIKELY,
    ),
    rule(
        "postgres.division",
        "division",
        r"division by zero",
        C.INVALID_VALUE,
        "division by zero",
        "Make sure the divisor is not zero.",
        weight=LIKELY,
    ),
    rule(
        "postgres.syntax",
        "syntax",
        rf"syntax error at or near "
        rf"{_Q}(?P<token>[^\"\\\n]{{1,80}}){_Q}(?:[^\n]{{0,60}}\n(?P<detail_line>LINE \d{{1,6}}: "
        rf"[^\n]{{1,80}}))?",
        C.INVALID_VALUE,
        ("SQL syntax error at or near {token} ({detail_line})", "SQL syntax error at or near {token}"),
        "Correct the statement.",
    ),
    rule(
        "postgres.query_argument",
        "argument",
        r"invalid input for query argument (?P<place>\$\d{1,4}): (?P<detail>[^\n]{1,160})",
        C.INVALID_VALUE,
        "invalid input for query argument {place}: {detail}",
        "Pass a value of the right type.",
    ),
    rule(
        "postgres.ambiguous",
        "ambiguous",
        rf"column reference {_Q}(?P<column>[^\"'\\\n]{{1,80}}){_Q} is ambiguous",
        C.INVALID_VALUE,
        "column reference {column} is ambiguous",
        "Qualify it with its table.",
    ),
    rule(
        "postgres.permission",
        "permission owner superuser member",
        r"(?P<what>permission denied (?:for|to) [^\n]{1,120}|must be (?:owner of|superuser|member "
        r"of)[^\n]{0,120})",
        C.PERMISSION_DENIED,
        "{detail}",
        "Ask for the privilege, or use an object you may access.",
        read=lambda match, cause: {"detail": match["what"]},
    ),
    rule(
        "postgres.authentication",
        "authentication",
        rf"(?P<what>password|peer|ident|Peer|Ident|GSSAPI|certificate|LDAP|SCRAM) authentication failed "
        rf"for user {_Q}(?P<user>[^\"'\\\n]{{1,80}}){_Q}",
        C.AUTHENTICATION,
        "{what} authentication failed for user {user}",
        "Correct the credentials of the connection.",
    ),
    rule(
        "postgres.role",
        "role",
        rf"role {_Q}(?P<user>[^\"'\\\n]{{1,80}}){_Q} (?P<what>does not exist|is not permitted to log in)",
        C.AUTHENTICATION,
        "role {user} {what}",
        "Connect as a role that exists.",
    ),
    rule(
        "postgres.hba",
        "hba pg_hba pg",
        r"no pg_hba\.conf entry for (?P<detail>[^\n]{1,160})",
        C.AUTHENTICATION,
        "no pg_hba.conf entry for {detail}",
        "Connect from an allowed host, as an allowed user, with TLS if it is required.",
    ),
    rule(
        "postgres.deadlock",
        "deadlock",
        r"(?<!ORA-00060: )deadlock detected(?:[^\n]{0,80}\n\s{0,8}DETAIL:\s{1,4}(?P<detail>[^\n]{1,200}))?",
        C.CONFLICT,
        ("deadlock detected: {detail}", "deadlock detected"),
        "Retry the whole transaction.",
    ),
    rule(
        "postgres.serialization",
        "serialize",
        r"could not serialize access[^\n\"]{0,120}",
        C.CONFLICT,
        "{message}",
        "Retry the whole transaction.",
    ),
    rule(
        "postgres.lock_not_available",
        "lock",
        rf"could not obtain lock on (?P<what>row in relation|relation|advisory lock|tuple)(?: "
        rf"{_Q}(?P<table>[^\"'\\\n]{{1,80}}){_Q})?",
        C.CONFLICT,
        ("could not obtain lock on {what} {table}", "could not obtain lock on {what}"),
        "Another transaction holds it; retry in a moment.",
    ),
    rule(
        "postgres.cancelled_by_timeout",
        "canceling terminating",
        r"(?:canceling statement|terminating connection|terminating transaction) due to "
        r"(?P<what>statement timeout|lock timeout|idle-in-transaction timeout|idle-session timeout|"
        r"transaction timeout)[^\n]{0,80}",
        C.TIMEOUT,
        "cancelled due to {what}",
        "Do less in one statement, or raise the timeout.",
    ),
    rule(
        "postgres.cancelled",
        "canceling",
        r"canceling statement due to (?P<what>user request|conflict with recovery)",
        C.CANCELLED,
        "canceling statement due to {what}",
        "Run it again if it is still wanted.",
    ),
    rule(
        "postgres.shutdown",
        "terminating recovery starting shutting accepting",
        r"(?:terminating connection due to (?P<what>administrator command|unexpected postmaster exit|"
        r"conflict with recovery)|the database system is (?P<state>starting up|shutting down|in "
        r"recovery mode|not yet accepting connections))",
        C.CONNECTION,
        ("terminating connection due to {what}", "the database system is {state}"),
        "Reconnect and retry in a moment.",
    ),
    rule(
        "postgres.too_many_connections",
        "clients connections slots",
        rf"(?P<what>sorry, too many clients already|remaining connection slots are "
        rf"reserved[^\n]{{0,100}}|too many connections for (?:role|database) "
        rf"{_Q}[^\"'\\\n]{{1,80}}{_Q}?|no more connections allowed[^\n]{{0,60}})",
        C.RESOURCE_EXHAUSTED,
        "{detail}",
        "Close connections or wait, then retry.",
        read=lambda match, cause: {"detail": match["what"]},
    ),
    rule(
        "postgres.disk_full",
        "space extend memory write",
        r"(?P<what>could not (?:extend|write)[^\n]{1,120}(?:No space left on device)?|out of shared "
        r"memory|out of memory\n?[^\n]{0,20}DETAIL:[^\n]{0,120})",
        C.RESOURCE_EXHAUSTED,
        "{detail}",
        "Free space on the database server, or do less.",
        read=lambda match, cause: {"detail": match["what"]},
    ),
    rule(
        "postgres.aborted_transaction",
        "aborted",
        r"current transaction is aborted, commands ignored until end of transaction block",
        C.CONFLICT,
        "the current transaction is aborted by an earlier error",
        "Roll it back and start again; fix the earlier error.",
    ),
    rule(
        "postgres.read_only",
        "read",
        r"cannot execute (?P<what>[A-Z ]{1,40}) in a read-only transaction",
        C.PERMISSION_DENIED,
        "cannot execute {what} in a read-only transaction",
        "Use a writable connection.",
    ),
    rule(
        "postgres.generated_column",
        "generated identity default",
        rf"(?:cannot insert a non-DEFAULT value into column {_Q}(?P<column>[^\"'\\\n]{{1,80}}){_Q}|"
        rf"column {_Q}(?P<column2>[^\"'\\\n]{{1,80}}){_Q} can only be updated to DEFAULT)",
        C.INVALID_VALUE,
        "column {name} is generated and takes no value",
        "Leave {name} out.",
        "name",
        read=lambda match, cause: {"name": match["column"] or match["column2"]},
    ),
    rule(
        "postgres.datatype_mismatch",
        "type",
        rf"column {_Q}(?P<column>[^\"'\\\n]{{1,80}}){_Q} is of type (?P<type>[\w ]{{1,60}}) but "
        rf"expression is of type (?P<got>[\w ]{{1,60}})",
        C.INVALID_VALUE,
        "column {column} is of type {type} but the value is of type {got}",
        "Pass a {type}.",
        "column",
    ),
    rule(
        "postgrest.no_row",
        "rows",
        r"(?:The result contains|Results contain) 0 rows",
        C.MISSING_RECORD,
        "no row matches: {line}",
        "Check what it is looked up by, or create it first.",
    ),
)


def _unwrapped(column: str) -> str:
    """The column of an expression index: ``lower(email::text)`` → ``email``."""
    call = re.match(
        r"\s*(?:lower|upper|md5|date|trim|btrim)\(+\s*\"?([A-Za-z_]\w{0,62})\"?[^,]{0,40}\)\s*\Z", column
    )
    return call[1] if call else re.sub(r"::[\w ]{1,30}", "", column)
