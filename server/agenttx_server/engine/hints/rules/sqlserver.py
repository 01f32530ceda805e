"""SQL Server, by ODBC, SqlClient, JDBC and sqlcmd."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "mssql.foreign_key",
        "conflicted",
        r"The (?P<what>\w{1,10}) statement conflicted with the FOREIGN KEY (?:SAME TABLE )?constraint "
        r"\\?[\"'](?P<constraint>[^\"'\\\n]{1,130})\\?[\"']\. The conflict occurred in database "
        r"\\?[\"'][^\"'\\\n]{1,130}\\?[\"'], table \\?[\"'](?P<table>[^\"'\\\n]{1,130})\\?[\"'](?:, "
        r"column \\?[\"'](?P<column>[^\"'\\\n]{1,130}))?",
        C.FOREIGN_KEY_VIOLATION,
        (
            "{column} has no matching row in {table} (FOREIGN KEY {constraint})",
            "no matching row in {table} (FOREIGN KEY {constraint})",
        ),
        "Create the {table} row first, or pass an existing id.",
        "column",
    ),
    rule(
        "mssql.reference",
        "conflicted",
        r"The (?P<what>\w{1,10}) statement conflicted with the (?:SAME TABLE )?REFERENCE constraint "
        r"\\?[\"'](?P<constraint>[^\"'\\\n]{1,130})\\?[\"']\. The conflict occurred in database "
        r"\\?[\"'][^\"'\\\n]{1,130}\\?[\"'], table \\?[\"'](?P<table>[^\"'\\\n]{1,130})\\?[\"'](?:, "
        r"column \\?[\"'](?P<column>[^\"'\\\n]{1,130}))?",
        C.FOREIGN_KEY_VIOLATION,
        (
            "the row is still referenced by {column} of {table} (REFERENCE {constraint})",
            "the row is still referenced from {table} (REFERENCE {constraint})",
        ),
        "Delete or re-point its {table} rows first.",
        "column",
    ),
    rule(
        "mssql.check",
        "conflicted",
        r"The (?P<what>\w{1,10}) statement conflicted with the CHECK constraint "
        r"\\?[\"'](?P<constraint>[^\"'\\\n]{1,130})\\?[\"'](?:\. The conflict occurred in database "
        r"\\?[\"'][^\"'\\\n]{1,130}\\?[\"'], table \\?[\"'](?P<table>[^\"'\\\n]{1,130})\\?[\"'](?:, "
        r"column \\?[\"'](?P<column>[^\"'\\\n]{1,130}))?)?",
        C.CHECK_VIOLATION,
        (
            "{column} of {table} violates CHECK constraint {constraint}",
            "a value of {table} violates CHECK constraint {constraint}",
            "a value violates CHECK constraint {constraint}",
        ),
        "Pass a value that the constraint allows.",
        "column",
    ),
    rule(
        "mssql.unique",
        "duplicate",
        r"(?:Violation of (?P<what>UNIQUE KEY|PRIMARY KEY) constraint "
        r"\\?[\"'](?P<constraint>[^\"'\\\n]{1,130})\\?[\"']\. )?Cannot insert duplicate key (?:row "
        r")?in object \\?[\"'](?P<table>[^\"'\\\n]{1,130})\\?[\"'](?: with unique index "
        r"\\?[\"'](?P<index>[^\"'\\\n]{1,130})\\?[\"'])?\.(?: The duplicate key value is "
        r"\((?P<value>[^\n]{0,300}?)\)\.)?",
        C.UNIQUE_VIOLATION,
        (
            "{value} already exists in {table} ({what} {constraint})",
            "{value} already exists in {table} (unique index {index})",
            "the value already exists in {table} ({what} {constraint})",
            "the value already exists in {table}",
        ),
        "Use another value, or update the existing row.",
        phrases="cannot insert duplicate key",
    ),
    rule(
        "mssql.not_null",
        "null",
        r"Cannot insert the value NULL into column \\?[\"'](?P<column>[^\"'\\\n]{1,130})\\?[\"'], "
        r"table \\?[\"'](?P<table>[^\"'\\\n]{1,200})\\?[\"']",
        C.NOT_NULL_VIOLATION,
        "{column} of {table} must not be null",
        "Pass a value for {column}.",
        "column",
    ),
    rule(
        "mssql.invalid_name",
        "invalid stored",
        r"Invalid (?P<kind>object|column) name \\?[\"'](?P<object>[^\"'\\\n]{1,130})|Could not find "
        r"stored procedure \\?[\"'](?P<procedure>[^\"'\\\n]{1,130})",
        C.MISSING_SCHEMA_OBJECT,
        ("invalid {kind} name {object}", "could not find stored procedure {procedure}"),
        "Check the name against the schema.",
    ),
    rule(
        "mssql.truncated",
        "truncated",
        r"String or binary data would be truncated(?: in table "
        r"\\?[\"'](?P<table>[^\"'\\\n]{1,130})\\?[\"'], column "
        r"\\?[\"'](?P<column>[^\"'\\\n]{1,130})\\?[\"']\. Truncated value: "
        r"\\?[\"'](?P<value>[^\"'\\\n]{0,300}))?",
        C.INVALID_VALUE,
        (
            "{column} of {table} is too long: it would be truncated to {value}",
            "{column} of {table} is too long: data would be truncated",
            "string or binary data would be truncated",
        ),
        "Shorten it.",
        "column",
    ),
    rule(
        "mssql.conversion",
        "conversion converting",
        r"Conversion failed when converting (?P<detail>[^\n]{1,160})|Error converting data type "
        r"(?P<detail2>[^\n]{1,80})|Arithmetic overflow error (?P<detail3>(?:converting|for)[^\n]{1,120})",
        C.INVALID_VALUE,
        (
            "conversion failed when converting {detail}",
            "error converting data type {detail2}",
            "arithmetic overflow error {detail3}",
        ),
        "Pass a value of that type.",
    ),
    rule(
        "mssql.deadlock",
        "deadlock deadlocked",
        r"(?:was )?deadlocked on \w{1,40}[^\n]{0,60} resources with another process|chosen as the "
        r"deadlock victim",
        C.CONFLICT,
        "the transaction was chosen as the deadlock victim",
        "Retry the whole transaction.",
        phrases="deadlocked on |deadlock victim",
    ),
    rule(
        "mssql.snapshot",
        "snapshot",
        r"Snapshot isolation transaction aborted due to update conflict[^\n]{0,120}",
        C.CONFLICT,
        "{message}",
        "Retry the whole transaction.",
    ),
    rule(
        "mssql.login",
        "login",
        r"Login failed for user \\?[\"'](?P<user>[^\"'\\\n]{0,130})",
        C.AUTHENTICATION,
        "login failed for user {user}",
        "Correct the credentials of the connection.",
    ),
    rule(
        "mssql.permission",
        "permission",
        r"The (?P<what>[A-Z ]{1,30}) permission was denied on the (?P<kind>object|database|schema|"
        r"column) \\?[\"'](?P<object>[^\"'\\\n]{1,130})",
        C.PERMISSION_DENIED,
        "the {what} permission was denied on the {kind} {object}",
        "Ask for the privilege.",
    ),
    rule(
        "mssql.parameter",
        "parameter expects",
        r"(?:Procedure or function \\?[\"'](?P<procedure>[^\"'\\\n]{1,130})\\?[\"'] expects parameter "
        r"\\?[\"']@?(?P<name>[^\"'\\\n]{1,130})\\?[\"'], which was not supplied|Must declare the "
        r"scalar variable \\?[\"']@(?P<variable>[^\"'\\\n]{1,130}))",
        C.MISSING_ARGUMENT,
        (
            "{procedure} expects parameter {name}, which was not supplied",
            "the variable {variable} is not declared",
        ),
        "Pass it.",
        "name",
    ),
    rule(
        "mssql.lock_timeout",
        "lock",
        r"Lock request time out period exceeded",
        C.TIMEOUT,
        "lock request time out period exceeded",
        "Another transaction holds the rows; retry.",
    ),
)
