"""The rest of PostgreSQL in English: schema, values, rights, locks and connections."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Rule, rule

__all__ = ["RULES"]

# \\? lets the same patterns read text whose quotes were escaped by a logger.
_Q: Final = r"\\?[\"']"

RULES: Final[tuple[Rule, ...]] = (
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
        phrases="does not exist",
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
        phrases=" already exists",
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
        phrases="out of range|numeric field overflow|overflows numeric format",
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
        phrases="deadlock detected",
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
