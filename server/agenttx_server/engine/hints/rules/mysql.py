"""MySQL and MariaDB, by any client: ``ERROR 1062 (23000)``, ``(1452, '…')``, ``ER_DUP_ENTRY``, PDO, JDBC."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Cause, Facts, Rule, rule

__all__ = ["RULES"]

_AFFIXED: Final = re.compile(
    r"(?i)(?:^|_)(?:uq|uk|ux|ix|idx|index|unique|uniq|key|pk|primary|constraint|ui|un|per|by|and|for|with|in)(?:_|"
    r"\d{0,3}$|\d{0,3}_)|^(?:uq|uk|ux|ix|idx|unq)|(?:idx|unique|uniq)$"
)


def _column_of_index(match: re.Match[str], cause: Cause) -> Facts | None:
    """MySQL names an unnamed index after its first column; a name with an affix is somebody's choice."""
    index = match["index"].rpartition(".")[2]
    value = match["value"]
    plain = not _AFFIXED.search(index) and "-" not in value
    return {"column": index if plain else None, "place": match["index"]}


RULES: Final[tuple[Rule, ...]] = (
    rule(
        "mysql.foreign_key_child",
        "foreign",
        r"Cannot add or update a child row: a foreign key constraint fails "
        r"\(`?(?P<schema>[^`.\n]{1,64})`?\.`(?P<child>[^`\n]{1,64})`, CONSTRAINT "
        r"`(?P<constraint>[^`\n]{1,64})` FOREIGN KEY \((?P<column>[^()\n]{1,300})\) REFERENCES "
        r"(?:`[^`\n]{1,64}`\.)?`(?P<table>[^`\n]{1,64})` \((?P<parent>[^()\n]{1,300})\)",
        C.FOREIGN_KEY_VIOLATION,
        "{column} of {child} has no matching row in {table} (constraint {constraint})",
        "Create the {table} row first, or pass an existing {column}.",
        "column",
        read=lambda match, cause: {"column": match["column"].replace("`", "")},
    ),
    rule(
        "mysql.foreign_key_parent",
        "foreign",
        r"Cannot delete or update a parent row: a foreign key constraint fails "
        r"\(`?(?P<schema>[^`.\n]{1,64})`?\.`(?P<table>[^`\n]{1,64})`, CONSTRAINT "
        r"`(?P<constraint>[^`\n]{1,64})` FOREIGN KEY \((?P<column>[^()\n]{1,300})\) REFERENCES "
        r"(?:`[^`\n]{1,64}`\.)?`(?P<parent>[^`\n]{1,64})`",
        C.FOREIGN_KEY_VIOLATION,
        "the {parent} row is still referenced by {column} of {table} (constraint {constraint})",
        "Delete or re-point its {table} rows first.",
        "column",
        read=lambda match, cause: {"column": match["column"].replace("`", "")},
    ),
    rule(
        "mysql.foreign_key_bare",
        "foreign",
        r"Cannot (?P<what>add or update a child|delete or update a parent) row: a foreign key "
        r"constraint fails",
        C.FOREIGN_KEY_VIOLATION,
        "cannot {what} row: a foreign key constraint fails",
        "Create the referenced row first, or remove what refers to it.",
    ),
    rule(
        "mysql.duplicate",
        "duplicate",
        r"Duplicate entry '(?P<value>[^\n]{0,300}?)' for key \\?'(?P<index>[^'\\\n]{1,130})",
        C.UNIQUE_VIOLATION,
        ("{value} already exists for key {place}", "the value already exists for key {place}"),
        "Use another value, or update the existing row.",
        "column",
        read=_column_of_index,
    ),
    rule(
        "mysql.not_null",
        "null",
        r"Column '(?P<column>[^'\\\n]{1,64})\\?' cannot be null",
        C.NOT_NULL_VIOLATION,
        "column {column} cannot be null",
        "Pass a value for {column}.",
        "column",
    ),
    rule(
        "mysql.no_default",
        "default",
        r"Field '(?P<column>[^'\\\n]{1,64})\\?' doesn\\?'t have a default value",
        C.NOT_NULL_VIOLATION,
        "column {column} has no default value and was not given",
        "Pass a value for {column}.",
        "column",
    ),
    rule(
        "mysql.check",
        "check constraint",
        r"Check constraint '(?P<constraint>[^'\\\n]{1,64})\\?' is violated|CONSTRAINT "
        r"`(?P<constraint2>[^`\n]{1,64})` failed for `",
        C.CHECK_VIOLATION,
        "check constraint {name} is violated",
        "Pass values that the constraint allows.",
        read=lambda match, cause: {"name": match["constraint"] or match["constraint2"]},
    ),
    rule(
        "mysql.unknown_column",
        "unknown",
        r"Unknown column '(?P<column>[^'\\\n]{1,130})\\?' in '?\\?'?(?P<clause>[\w ]{1,30})",
        C.MISSING_SCHEMA_OBJECT,
        "unknown column {column} in {clause}",
        "Use a column that the table has.",
    ),
    rule(
        "mysql.unknown_table",
        "exist unknown",
        r"(?:Table '(?P<table>[^'\\\n]{1,130})\\?' doesn\\?'t exist|Unknown (?P<kind>table|database|"
        r"storage engine|procedure) '(?P<object>[^'\\\n]{1,130})|(?:PROCEDURE|FUNCTION) "
        r"(?P<routine>[\w.]{1,130}) does not exist)",
        C.MISSING_SCHEMA_OBJECT,
        ("table {table} doesn't exist", "unknown {kind} {object}", "routine {routine} does not exist"),
        "Check the name and the database, or create it first.",
        phrases="t exist|unknown ",
    ),
    rule(
        "mysql.too_long",
        "long",
        r"Data too long for column '(?P<column>[^'\\\n]{1,64})\\?'(?: at row (?P<row>\d{1,9}))?",
        C.INVALID_VALUE,
        ("data too long for column {column} at row {row}", "data too long for column {column}"),
        "Shorten {column}.",
        "column",
    ),
    rule(
        "mysql.out_of_range",
        "range",
        r"Out of range value for column '(?P<column>[^'\\\n]{1,64})\\?'",
        C.INVALID_VALUE,
        "out of range value for column {column}",
        "Pass a {column} that fits the column's type.",
        "column",
    ),
    rule(
        "mysql.incorrect_value",
        "incorrect truncated",
        r"Incorrect (?P<type>[\w ]{1,40}) value: '(?P<value>[^\n]{0,200}?)\\?' for column "
        r"(?:`[^`\n]{1,64}`\.){0,2}['`]?\\?'?(?P<column>[^'`\\\n. ]{1,64})",
        C.INVALID_VALUE,
        ("{value} is not a valid {type} for column {column}", "not a valid {type} for column {column}"),
        "Pass a valid {type} for {column}.",
        "column",
    ),
    rule(
        "mysql.truncated",
        "truncated",
        r"Data truncated for column '(?P<column>[^'\\\n]{1,64})\\?'(?: at row (?P<row>\d{1,9}))?",
        C.INVALID_VALUE,
        ("data truncated for column {column} at row {row}", "data truncated for column {column}"),
        "Pass a value that column {column} allows.",
        "column",
    ),
    rule(
        "mysql.incorrect_operand",
        "incorrect truncated",
        r"(?:Incorrect|Truncated incorrect) (?P<type>[\w ]{1,40}) value: "
        r"'(?P<value>[^\n]{0,200}?)\\?'(?!\s?for column)",
        C.INVALID_VALUE,
        ("{value} is not a valid {type}", "not a valid {type}"),
        "Pass a valid {type}.",
    ),
    rule(
        "mysql.deadlock",
        "deadlock",
        r"Deadlock found when trying to get lock",
        C.CONFLICT,
        "deadlock found when trying to get lock",
        "Retry the whole transaction.",
    ),
    rule(
        "mysql.lock_wait",
        "lock",
        r"Lock wait timeout exceeded",
        C.TIMEOUT,
        "lock wait timeout exceeded",
        "Another transaction holds the rows; retry the whole transaction.",
    ),
    rule(
        "mysql.access_denied",
        "denied",
        r"Access denied for user '(?P<user>[^'\\\n]{0,80})\\?'@\\?'(?P<host>[^'\\\n]{0,130})\\?'(?: to "
        r"database '(?P<database>[^'\\\n]{1,64})| \(using password: (?P<used>YES|NO)\))?",
        C.AUTHENTICATION,
        (
            "access denied for user {user}@{host} to database {database}",
            "access denied for user {user}@{host} (using password: {used})",
            "access denied for user {user}@{host}",
        ),
        "Correct the credentials or the grants of the connection.",
    ),
    rule(
        "mysql.command_denied",
        "denied",
        r"(?P<what>[A-Z ,]{1,60}) command denied to user "
        r"'(?P<user>[^'\\\n]{0,80})\\?'@\\?'[^'\\\n]{0,130}\\?' for (?P<kind>table|column|routine) "
        r"[`'\\]{0,2}(?P<object>[^`'\\\n]{1,130}(?:`\.`[^`\n]{1,64})?)",
        C.PERMISSION_DENIED,
        "{what} command denied to user {user} for {kind} {object}",
        "Ask for the privilege.",
        phrases=" command denied to user ",
    ),
    rule(
        "mysql.gone",
        "gone lost",
        r"MySQL server has gone away|Lost connection to (?:MySQL|MariaDB) server[^\n\"]{0,80}|Server "
        r"has gone away",
        C.CONNECTION,
        "{message}",
        "Reconnect and retry.",
    ),
    rule(
        "mysql.connect",
        "connect",
        r"Can\\?'t connect to (?:local )?(?:MySQL |MariaDB )?server (?:on|through socket|through) "
        r"'(?P<host>[^'\\\n]{1,200})\\?'(?::(?P<port>\d{1,5}))?(?P<detail> \([^\n]{1,100}?\))?",
        C.CONNECTION,
        (
            "can't connect to MySQL server on {host}:{port}{detail}",
            "can't connect to MySQL server on {host} {detail}",
            "can't connect to MySQL server on {host}",
        ),
        "Check that it is up and the address right, then retry.",
    ),
    rule(
        "mysql.too_many_connections",
        "many exceeded already",
        r"Too many connections|has exceeded the 'max_\w{1,40}' resource|User \S{1,80} already has more "
        r"than 'max_user_connections'",
        C.RESOURCE_EXHAUSTED,
        "{message}",
        "Close connections or wait, then retry.",
    ),
    rule(
        "mysql.syntax",
        "syntax",
        r"You have an error in your SQL syntax;[^\n]{0,160}? near \\?'(?P<detail>[^\n]{0,80}?)\\?' at "
        r"line (?P<line>\d{1,6})",
        C.INVALID_VALUE,
        "SQL syntax error near {detail} at line {line}",
        "Correct the statement.",
    ),
    rule(
        "mysql.packet",
        "packet",
        r"Got a packet bigger than 'max_allowed_packet' bytes|Packet for query is too large "
        r"\([^()\n]{1,60}\)",
        C.RESOURCE_EXHAUSTED,
        "{message}",
        "Send less in one statement.",
    ),
    rule(
        "mysql.table_exists",
        "exists duplicate",
        r"Table '(?P<table>[^'\\\n]{1,130})\\?' already exists|Can\\?'t create database "
        r"'(?P<database>[^'\\\n]{1,64})\\?'; database exists|Duplicate column name "
        r"'(?P<column>[^'\\\n]{1,64})",
        C.CONFLICT,
        (
            "table {table} already exists",
            "database {database} already exists",
            "column {column} already exists",
        ),
        "Use the existing one, or another name.",
    ),
    rule(
        "mysql.table_full",
        "full",
        r"The table '(?P<table>[^'\\\n]{1,130})\\?' is full",
        C.RESOURCE_EXHAUSTED,
        "the table {table} is full",
        "Free space on the database server.",
    ),
    rule(
        "mysql.query_interrupted",
        "interrupted execution",
        r"Query execution was interrupted, maximum statement execution time exceeded|"
        r"max_statement_time exceeded",
        C.TIMEOUT,
        "maximum statement execution time exceeded",
        "Do less in one statement, or raise the limit.",
    ),
    rule(
        "mysql.query_killed",
        "interrupted",
        r"Query execution was interrupted",
        C.CANCELLED,
        "query execution was interrupted",
        "Run it again if it is still wanted.",
        weight=LIKELY,
    ),
    rule(
        "mysql.column_count",
        "count",
        r"Column count doesn\\?'t match value count at row (?P<row>\d{1,9})",
        C.INVALID_VALUE,
        "column count doesn't match value count at row {row}",
        "Pass one value for each column.",
    ),
    rule(
        "mysql.read_only",
        "read",
        r"running with the --(?P<what>(?:super-)?read-only) option|running with the --read_only",
        C.PERMISSION_DENIED,
        "the MySQL server is read-only",
        "Write to the primary.",
    ),
)
