"""Snowflake, BigQuery, ClickHouse, Elasticsearch and GraphQL schemas; PostgREST's own codes."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "snowflake.object",
        "object table schema database view",
        r"(?:Object|Table|View|Database|Schema|Warehouse|Stage|Role|Function|Sequence) "
        r"'(?P<object>[^'\n]{1,200})' does not exist or not authorized|Object does not exist, or "
        r"operation cannot be performed",
        C.MISSING_SCHEMA_OBJECT,
        (
            "{object} does not exist or not authorized",
            "the object does not exist, or the operation cannot be performed",
        ),
        "Check the name and the role's grants.",
    ),
    rule(
        "snowflake.identifier",
        "identifier",
        r"invalid identifier '\"?(?P<object>[^'\n]{1,160}?)\"?'",
        C.MISSING_SCHEMA_OBJECT,
        "invalid identifier {object}",
        "Use a column that exists.",
    ),
    rule(
        "snowflake.null",
        "nullable",
        r"(?:DML operation to table (?P<table>[\w.\"$]{1,255}) failed on column (?P<column>[\w\"$]{1,255}) with error: )?"
        r"NULL result in a non-nullable column",
        C.NOT_NULL_VIOLATION,
        (
            "NULL result in a non-nullable column: {column} of {table}",
            "NULL result in a non-nullable column",
        ),
        "Pass a value for every required column.",
        "column",
    ),
    rule(
        "snowflake.value",
        "value",
        r"(?P<what>Numeric|Timestamp|Date|Boolean|Time) value '(?P<value>[^'\n]{0,200})' is (?:not "
        r"recognized|out of range)",
        C.INVALID_VALUE,
        ("{what} value '{value}' is not recognized", "{what} value is not recognized"),
        "Pass a valid value.",
    ),
    rule(
        "snowflake.warehouse",
        "warehouse",
        r"No active warehouse selected in the current session",
        C.MISSING_ARGUMENT,
        "no active warehouse is selected",
        "Select a warehouse first.",
    ),
    rule(
        "bigquery.unrecognized",
        "unrecognized",
        r"Unrecognized name: (?P<object>[\w.]{1,160})(?P<detail>; Did you mean \S{1,100})?",
        C.MISSING_SCHEMA_OBJECT,
        "unrecognized name: {object}{detail}",
        "Use a column that exists.",
    ),
    rule(
        "bigquery.signature",
        "signature",
        r"No matching signature for (?P<detail>(?:operator|function|aggregate)[^\n]{1,200})",
        C.INVALID_VALUE,
        "no matching signature for {detail}",
        "Cast the arguments to types it takes.",
    ),
    rule(
        "bigquery.not_found",
        "found",
        r"Not found: (?P<kind>Table|Dataset|Project|Job|Routine|Model|View) (?P<object>[\w:.\-]{1,200})",
        C.MISSING_SCHEMA_OBJECT,
        "{kind} {object} was not found",
        "Check the name and the location.",
    ),
    rule(
        "clickhouse.unknown",
        "unknown",
        r"Unknown (?:table expression identifier|expression identifier|expression or function "
        r"identifier|identifier:?|table) [`'](?P<object>[^'`\n]{1,160})[`']",
        C.MISSING_SCHEMA_OBJECT,
        "unknown identifier {object}",
        "Check the name against the schema.",
    ),
    rule(
        "clickhouse.no_table",
        "table",
        r"Table (?P<object>[\w.`]{1,160}) (?:doesn't|does not) exist",
        C.MISSING_SCHEMA_OBJECT,
        "table {object} doesn't exist",
        "Check the name, or create it first.",
    ),
    rule(
        "spark.unresolved",
        "resolved",
        r"A column[^\n]{0,60} with name `(?P<object>[^`\n]{1,160})` cannot be resolved\.?(?P<detail> "
        r"Did you mean[^\n]{1,160})?",
        C.MISSING_SCHEMA_OBJECT,
        "column {object} cannot be resolved. {detail}",
        "Use a column that exists.",
    ),
    rule(
        "sql.missing_object",
        "exist exists found resolved",
        r"\b(?P<kind>[Tt]able|[Cc]olumn|[Vv]iew|[Ss]chema|[Rr]elation|[Ii]ndex|[Cc]ollection|"
        r"[Kk]eyspace|[Cc]atalog|[Dd]ataset|[Mm]easurement)(?: with name)? "
        r"[`'\"]?(?P<object>[\w.:\-]{1,160})[`'\"]? (?:does not exist|doesn't exist|not found|was not "
        r"found|cannot be resolved|could not be found)",
        C.MISSING_SCHEMA_OBJECT,
        "{line}",
        "Check the name against the schema.",
        weight=LIKELY,
    ),
    rule(
        "elasticsearch.no_index",
        "index",
        r"no such index \[(?P<object>[^\]\n]{1,200})\]",
        C.MISSING_SCHEMA_OBJECT,
        "no such index [{object}]",
        "Check the name, or create it first.",
    ),
    rule(
        "elasticsearch.version",
        "version",
        r"\[(?P<id>[^\]\n]{1,200})\]: version conflict, (?P<detail>[^\n'\"]{1,200})",
        C.CONFLICT,
        "[{id}]: version conflict, {detail}",
        "Read the document again, then retry.",
    ),
    rule(
        "elasticsearch.field",
        "field",
        r"failed to parse field \[(?P<name>[^\]\n]{1,128})\] of type \[(?P<type>[^\]\n]{1,60})\](?: in "
        r"document with id '(?P<id>[^'\n]{1,100})')?(?:\. Preview of field's value: "
        r"'(?P<value>[^'\n]{0,200})')?",
        C.INVALID_VALUE,
        (
            "field {name} of type {type} can't hold '{value}' (document {id})",
            "field {name} of type {type} can't hold the value",
        ),
        "Pass a {type} for {name}.",
        "name",
    ),
    rule(
        "elasticsearch.mapping",
        "mapping",
        r"No mapping found for \[(?P<name>[^\]\n]{1,128})\]|mapping set to strict, dynamic "
        r"introduction of \[(?P<name2>[^\]\n]{1,128})\]",
        C.MISSING_SCHEMA_OBJECT,
        ("no mapping found for [{name}]", "the mapping is strict and has no field [{name2}]"),
        "Use a field that is mapped.",
    ),
    rule(
        "postgrest.column",
        "column",
        r"Could not find the '(?P<object>[^'\n]{1,128})' column of '(?P<table>[^'\n]{1,128})' in the "
        r"schema cache",
        C.MISSING_SCHEMA_OBJECT,
        "column {object} of {table} does not exist in the schema cache",
        "Use a column that the table has.",
    ),
    rule(
        "postgrest.object",
        "schema",
        r"Could not find (?:the table|the function|a relationship between) (?P<detail>[^\n]{1,200}?) "
        r"in the schema cache",
        C.MISSING_SCHEMA_OBJECT,
        "could not find {detail} in the schema cache",
        "Check the name against the schema.",
    ),
    rule(
        "graphql.required_field",
        "required",
        r"Field \"(?P<name>[^\"\n]{1,128})\" of required type \"(?P<type>[^\"\n]{1,80})\" was not provided",
        C.MISSING_ARGUMENT,
        'field "{name}" of required type "{type}" was not provided',
        "Pass {name}.",
        "name",
    ),
    rule(
        "graphql.required_argument",
        "required",
        r"(?:Field|Directive) \"(?P<field>[^\"\n]{1,128})\" argument \"(?P<name>[^\"\n]{1,128})\" of "
        r"type \"(?P<type>[^\"\n]{1,80})\" is required",
        C.MISSING_ARGUMENT,
        'argument "{name}" of type "{type}" of field "{field}" is required',
        "Pass {name}.",
        "name",
    ),
    rule(
        "graphql.required_variable",
        "variable",
        r"Variable \"\$(?P<name>\w{1,128})\" of (?:required|non-null) type \"(?P<type>[^\"\n]{1,80})\" "
        r"(?:was not provided|must not be null)",
        C.MISSING_ARGUMENT,
        'variable "${name}" of required type "{type}" was not provided',
        "Pass {name}.",
        "name",
    ),
    rule(
        "graphql.variable_value",
        "variable",
        r"Variable \"\$(?P<variable>\w{1,128})\" got invalid value (?P<detail>[^;\n]{1,160}?)(?: at "
        r"\"(?P<path>[\w.\[\]$]{1,160})\")?; (?P<why>[^\n]{1,200})",
        C.INVALID_VALUE,
        ("{key}: invalid value {detail}; {why}", "{key}: {why}"),
        "Correct {key}.",
        "key",
        read=lambda match, cause: {
            "key": _graphql_field(match["why"]) or match["path"] or match["variable"],
            "path": None,
        },
    ),
    rule(
        "graphql.unknown_field",
        "query",
        r"Cannot query field \"(?P<object>[^\"\n]{1,128})\" on type "
        r"\"(?P<type>[^\"\n]{1,128})\"(?P<detail>\. Did you mean [^\n]{1,100})?",
        C.MISSING_SCHEMA_OBJECT,
        ('cannot query field "{object}" on type "{type}"{detail}',),
        "Use a field that the type has.",
    ),
    rule(
        "graphql.unknown_argument",
        "unknown",
        r"Unknown argument \"(?P<name>[^\"\n]{1,128})\" on field \"(?P<field>[^\"\n]{1,128})\"",
        C.INVALID_VALUE,
        'unknown argument "{name}" on field "{field}"',
        "Leave it out, or correct its name.",
        "name",
    ),
)


def _graphql_field(why: str) -> str | None:
    if why.startswith('Field "'):
        return why.split('"')[1]
    return None
