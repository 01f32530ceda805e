"""Databases of documents, keys and wide tables: MongoDB, Redis, Elasticsearch, and SQL Server and Oracle beside them."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Rule, rule
from ..vocabulary import ADVICE

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "mssql.foreign_key", "conflicted",
        r"The (?P<what>\w{1,10}) statement conflicted with the FOREIGN KEY (?:SAME TABLE )?constraint \\?[\"'](?P<constraint>[^\"'\\\n]{1,130})\\?[\"']\. The conflict occurred in database \\?[\"'][^\"'\\\n]{1,130}\\?[\"'], table \\?[\"'](?P<table>[^\"'\\\n]{1,130})\\?[\"'](?:, column \\?[\"'](?P<column>[^\"'\\\n]{1,130}))?",
        C.FOREIGN_KEY_VIOLATION,
        ("{column} has no matching row in {table} (FOREIGN KEY {constraint})", "no matching row in {table} (FOREIGN KEY {constraint})"),
        "Create the {table} row first, or pass an existing id.", "column",
    ),
    rule(
        "mssql.reference", "conflicted",
        r"The (?P<what>\w{1,10}) statement conflicted with the (?:SAME TABLE )?REFERENCE constraint \\?[\"'](?P<constraint>[^\"'\\\n]{1,130})\\?[\"']\. The conflict occurred in database \\?[\"'][^\"'\\\n]{1,130}\\?[\"'], table \\?[\"'](?P<table>[^\"'\\\n]{1,130})\\?[\"'](?:, column \\?[\"'](?P<column>[^\"'\\\n]{1,130}))?",
        C.FOREIGN_KEY_VIOLATION,
        ("the row is still referenced by {column} of {table} (REFERENCE {constraint})", "the row is still referenced from {table} (REFERENCE {constraint})"),
        "Delete or re-point its {table} rows first.", "column",
    ),
    rule(
        "mssql.check", "conflicted",
        r"The (?P<what>\w{1,10}) statement conflicted with the CHECK constraint \\?[\"'](?P<constraint>[^\"'\\\n]{1,130})\\?[\"'](?:\. The conflict occurred in database \\?[\"'][^\"'\\\n]{1,130}\\?[\"'], table \\?[\"'](?P<table>[^\"'\\\n]{1,130})\\?[\"'](?:, column \\?[\"'](?P<column>[^\"'\\\n]{1,130}))?)?",
        C.CHECK_VIOLATION,
        ("{column} of {table} violates CHECK constraint {constraint}", "a value of {table} violates CHECK constraint {constraint}", "a value violates CHECK constraint {constraint}"),
        "Pass a value that the constraint allows.", "column",
    ),
    rule(
        "mssql.unique", "duplicate",
        r"(?:Violation of (?P<what>UNIQUE KEY|PRIMARY KEY) constraint \\?[\"'](?P<constraint>[^\"'\\\n]{1,130})\\?[\"']\. )?Cannot insert duplicate key (?:row )?in object \\?[\"'](?P<table>[^\"'\\\n]{1,130})\\?[\"'](?: with unique index \\?[\"'](?P<index>[^\"'\\\n]{1,130})\\?[\"'])?\.(?: The duplicate key value is \((?P<value>[^\n]{0,300}?)\)\.)?",
        C.UNIQUE_VIOLATION,
        ("{value} already exists in {table} ({what} {constraint})", "{value} already exists in {table} (unique index {index})", "the value already exists in {table} ({what} {constraint})", "the value already exists in {table}"),
        "Use another value, or update the existing row.",
    ),
    rule(
        "mssql.not_null", "null",
        r"Cannot insert the value NULL into column \\?[\"'](?P<column>[^\"'\\\n]{1,130})\\?[\"'], table \\?[\"'](?P<table>[^\"'\\\n]{1,200})\\?[\"']",
        C.NOT_NULL_VIOLATION, "{column} of {table} must not be null", "Pass a value for {column}.", "column",
    ),
    rule(
        "mssql.invalid_name", "invalid stored",
        r"Invalid (?P<kind>object|column) name \\?[\"'](?P<object>[^\"'\\\n]{1,130})|Could not find stored procedure \\?[\"'](?P<procedure>[^\"'\\\n]{1,130})",
        C.MISSING_SCHEMA_OBJECT, ("invalid {kind} name {object}", "could not find stored procedure {procedure}"), "Check the name against the schema.",
    ),
    rule(
        "mssql.truncated", "truncated",
        r"String or binary data would be truncated(?: in table \\?[\"'](?P<table>[^\"'\\\n]{1,130})\\?[\"'], column \\?[\"'](?P<column>[^\"'\\\n]{1,130})\\?[\"']\. Truncated value: \\?[\"'](?P<value>[^\"'\\\n]{0,300}))?",
        C.INVALID_VALUE, ("{column} of {table} is too long: it would be truncated to {value}", "{column} of {table} is too long: data would be truncated", "string or binary data would be truncated"), "Shorten it.", "column",
    ),
    rule(
        "mssql.conversion", "conversion converting",
        r"Conversion failed when converting (?P<detail>[^\n]{1,160})|Error converting data type (?P<detail2>[^\n]{1,80})", C.INVALID_VALUE,
        ("conversion failed when converting {detail}", "error converting data type {detail2}"), "Pass a value of that type.",
    ),
    rule(
        "mssql.deadlock", "deadlock deadlocked", r"(?:was )?deadlocked on \w{1,40}[^\n]{0,60} resources with another process|chosen as the deadlock victim", C.CONFLICT,
        "the transaction was chosen as the deadlock victim", "Retry the whole transaction.",
    ),
    rule(
        "mssql.snapshot", "snapshot", r"Snapshot isolation transaction aborted due to update conflict[^\n]{0,120}", C.CONFLICT, "{message}", "Retry the whole transaction.",
    ),
    rule(
        "mssql.login", "login",
        r"Login failed for user \\?[\"'](?P<user>[^\"'\\\n]{0,130})", C.AUTHENTICATION, "login failed for user {user}", "Correct the credentials of the connection.",
    ),
    rule(
        "mssql.permission", "permission",
        r"The (?P<what>[A-Z ]{1,30}) permission was denied on the (?P<kind>object|database|schema|column) \\?[\"'](?P<object>[^\"'\\\n]{1,130})", C.PERMISSION_DENIED, "the {what} permission was denied on the {kind} {object}", "Ask for the privilege.",
    ),
    rule(
        "mssql.parameter", "parameter expects",
        r"(?:Procedure or function \\?[\"'](?P<procedure>[^\"'\\\n]{1,130})\\?[\"'] expects parameter \\?[\"']@?(?P<name>[^\"'\\\n]{1,130})\\?[\"'], which was not supplied|Must declare the scalar variable \\?[\"']@(?P<variable>[^\"'\\\n]{1,130}))", C.MISSING_ARGUMENT,
        ("{procedure} expects parameter {name}, which was not supplied", "the variable {variable} is not declared"), "Pass it.", "name",
    ),
    rule(
        "mssql.lock_timeout", "lock", r"Lock request time out period exceeded", C.TIMEOUT, "lock request time out period exceeded", "Another transaction holds the rows; retry.",
    ),
    rule(
        "oracle.foreign_key", "02291",
        r"ORA-02291: (?:integrity constraint|foreign key constraint violated\.)[^\n(]{0,40}\(?(?P<constraint>[\w.$#]{1,130})\)? ?violated[^\n]{0,20}parent key not found", C.FOREIGN_KEY_VIOLATION,
        "ORA-02291: no parent row for constraint {constraint}", "Create the parent row first, or pass the id of an existing one.",
    ),
    rule(
        "oracle.child_record", "02292",
        r"ORA-02292: integrity constraint \((?P<constraint>[\w.$#]{1,130})\) violated[^\n]{0,20}child record found", C.FOREIGN_KEY_VIOLATION,
        "ORA-02292: child rows still refer to the row (constraint {constraint})", "Delete or re-point the child rows first.",
    ),
    rule(
        "oracle.unique", "00001",
        r"ORA-00001: unique constraint \((?P<constraint>[\w.$#]{1,130})\) violated(?: on table (?P<table>[\w.$#]{1,130}) columns \((?P<column>[^()\n]{1,200})\))?(?:\s{1,8}ORA-03301: \(ORA-00001 details\) row with column values \((?P<value>[^()\n]{1,200})\))?", C.UNIQUE_VIOLATION,
        ("ORA-00001: {column} of {table} already exists (constraint {constraint}): {value}", "ORA-00001: {column} of {table} already exists (constraint {constraint})", "ORA-00001: the value already exists (unique constraint {constraint})"),
        "Use another value, or update the existing row.", "column",
    ),
    rule(
        "oracle.not_null", "01400 01407",
        r"(?P<code>ORA-0140[07]): cannot (?:insert|update) (?:NULL into )?\((?P<place>\"[^()\n]{1,200}\")\)", C.NOT_NULL_VIOLATION,
        "{code}: {column} of {table} must not be null", "Pass a value for {column}.", "column",
        read=lambda match, cause: {"column": match["place"].split(".")[-1].strip('" '), "table": match["place"].split(".")[-2].strip('" ') if "." in match["place"] else "the table", "place": None},
    ),
    rule(
        "oracle.check", "02290", r"ORA-02290: check constraint \((?P<constraint>[\w.$#]{1,130})\) violated", C.CHECK_VIOLATION, "ORA-02290: check constraint {constraint} violated", "Pass values that the constraint allows.",
    ),
    rule(
        "oracle.missing_object", "00942 00904 04043 00980 02289 06550",
        r"ORA-00942: table or view (?:\"(?P<table>[^\n]{1,130})\" )?does not exist|(?P<code>ORA-00904): (?P<column>[\w.\"$#]{1,200}): invalid identifier|(?P<code2>ORA-(?:04043|02289|00980)): (?P<detail>[^\n]{1,120})", C.MISSING_SCHEMA_OBJECT,
        ("ORA-00942: table or view {table} does not exist", "{code}: invalid identifier {column}", "{code2}: {detail}", "ORA-00942: table or view does not exist"), "Check the name, the schema and the grants.",
    ),
    rule(
        "oracle.too_long", "12899",
        r"ORA-12899: value too large for column (?P<place>\"[^()\n]{1,200}\") \(actual: (?P<actual>\d{1,9}), maximum: (?P<maximum>\d{1,9})\)", C.INVALID_VALUE,
        "ORA-12899: value too large for column {column} (actual: {actual}, maximum: {maximum})", "Shorten {column}.", "column", read=lambda match, cause: {"column": match["place"].split(".")[-1].strip('" ')},
    ),
    rule(
        "oracle.codes", "ora", r"ORA-(?P<number>\d{5}): (?P<detail>[^\n]{1,200})", C.INVALID_VALUE, "ORA-{number}: {detail}", "{advice}", weight=LIKELY, read=lambda match, cause: _oracle(match["number"]),
    ),
    rule(
        "mongo.duplicate", "e11000",
        r"E11000 duplicate key error collection: (?P<collection>[\w.\-$]{1,130}) index: (?P<index>[\w.\-$]{1,130}) dup key: \{ (?P<pairs>[^{}\n]{0,400}) ?\}", C.UNIQUE_VIOLATION,
        ("{column} {value} already exists in {collection} (index {index})", "{column} already exists in {collection} (index {index})", "the value already exists in {collection} (index {index})"), "Use another value, or update the existing document.", "column",
        read=lambda match, cause: _mongo_pairs(match["pairs"], match["index"]),
    ),
    rule(
        "mongo.duplicate_bare", "e11000", r"E11000 duplicate key error[^\n]{0,200}", C.UNIQUE_VIOLATION, "{message}", "Use another value, or update the existing document.",
    ),
    rule(
        "mongo.validation", "document", r"Document failed validation", C.CHECK_VIOLATION, "document failed validation{detail}", "Correct the document so that it fits the collection's validator.", "column",
        read=lambda match, cause: _mongo_validation(cause.text),
    ),
    rule(
        "mongo.write_conflict", "writeconflict conflict", r"WriteConflict(?: error)?[^\n]{0,120}|Write conflict during plan execution[^\n]{0,80}", C.CONFLICT, "write conflict: the document was changed by another operation", "Retry the whole transaction.",
    ),
    rule(
        "mongo.namespace", "ns", r"ns (?:not found|does not exist)(?:: (?P<object>[\w.\-]{1,130}))?", C.MISSING_SCHEMA_OBJECT, ("collection {object} does not exist", "the collection does not exist (ns not found)"), "Check the collection's name.",
    ),
    rule(
        "mongo.selection", "serverselectiontimeouterror mongoserverselectionerror", r"(?:ServerSelectionTimeoutError|MongoServerSelectionError): (?P<detail>[^\n,]{1,160})", C.CONNECTION, "no MongoDB server answered: {detail}", "Check that it is up and the address right, then retry.",
    ),
    rule(
        "redis.wrongtype", "wrongtype", r"WRONGTYPE Operation against a key holding the wrong kind of value", C.INVALID_VALUE, "WRONGTYPE: the Redis key holds another kind of value than this command works on", "Use another key, or the command for its type.",
    ),
    rule(
        "redis.auth", "noauth wrongpass", r"(?P<code>NOAUTH|WRONGPASS) (?P<detail>[^\n]{1,120})", C.AUTHENTICATION, "{code} {detail}", "Correct the Redis credentials.",
    ),
    rule(
        "redis.noperm", "noperm", r"NOPERM (?P<detail>[^\n]{1,160})", C.PERMISSION_DENIED, "NOPERM {detail}", "Ask for the permission, or use another command or key.",
    ),
    rule(
        "redis.oom", "oom", r"OOM command not allowed when used memory > 'maxmemory'", C.RESOURCE_EXHAUSTED, "OOM command not allowed when used memory > 'maxmemory'", "Free memory in Redis, or store less.",
    ),
    rule(
        "redis.readonly", "readonly misconf", r"READONLY You can't write against a read only replica|MISCONF [^\n]{1,80}", C.PERMISSION_DENIED, "{message}", "Write to the primary.",
    ),
    rule(
        "redis.busy", "busykey busygroup execabort tryagain", r"(?P<code>BUSYKEY|BUSYGROUP|EXECABORT|TRYAGAIN) (?P<detail>[^\n]{1,160})", C.CONFLICT, "{code} {detail}", "Read the current state, then retry.",
    ),
    rule(
        "redis.loading", "loading clusterdown masterdown", r"(?P<code>LOADING|CLUSTERDOWN|MASTERDOWN) (?P<detail>[^\n]{1,120})", C.CONNECTION, "{code} {detail}", "Retry in a moment.",
    ),
    rule(
        "redis.noscript", "noscript nogroup", r"(?P<code>NOSCRIPT|NOGROUP) (?P<detail>[^\n]{1,160})", C.MISSING_RECORD, "{code} {detail}", "Create it first.",
    ),
    rule(
        "redis.syntax", "err responseerror replyerror", r"(?:\bERR |ResponseError: |ReplyError: )(?P<detail>(?:unknown command|wrong number of arguments|syntax error|value is not an integer|index out of range|no such key|invalid)[^\n]{0,140})", C.INVALID_VALUE, "Redis: {detail}", "Correct the command.",
    ),
)  # fmt: skip


_ORACLE: Final[dict[C, tuple[str, ...]]] = {
    C.CONFLICT: ("00060", "08177", "00054", "08176", "30006"),
    C.AUTHENTICATION: ("01017", "28000", "28001", "01005", "01045"),
    C.PERMISSION_DENIED: ("01031", "01720", "01749", "28009", "01536"),
    C.MISSING_RECORD: ("01403", "00100"),
    C.CONNECTION: ("12541", "12514", "12154", "03113", "03114", "03135", "12537", "12545", "12505", "01034", "01033", "12560", "12505"),
    C.TIMEOUT: ("12170", "12535", "02049", "01013"),
    C.RESOURCE_EXHAUSTED: ("01653", "01654", "01652", "30036", "04031", "04030", "00018", "00020", "01000", "02391"),
    C.MISSING_SCHEMA_OBJECT: ("04043", "02289", "00980", "01917", "01918", "06564", "04063"),
    C.NOT_NULL_VIOLATION: ("01400", "01407"),
    C.UNKNOWN: ("00600", "07445"),
}  # fmt: skip


def _oracle(number: str) -> dict[str, str | None]:
    category = next((category for category, numbers in _ORACLE.items() if number in numbers), None)
    if category is None and number.startswith("20"):  # raise_application_error: the application's own
        category = C.UNKNOWN
    return {"category": category.value if category else None, "advice": ADVICE[category or C.INVALID_VALUE]}


def _mongo_pairs(pairs: str, index: str) -> dict[str, str | None]:
    names, values = [], []
    for pair in pairs.split(", "):
        name, found, value = pair.partition(": ")
        if found and name.strip(" \"'").replace(".", "").replace("_", "").isalnum():
            names.append(name.strip(" \"'"))
            values.append(value.strip(" \"'"))
    if not names:
        return {"column": None, "value": None}
    return {"column": ", ".join(names), "value": ", ".join(values)}


def _mongo_validation(text: str) -> dict[str, str | None]:
    marker = text.find("propertyName")
    if marker == -1:
        return {"column": None, "detail": " "}
    name = text[marker + 12 : marker + 90].strip("'\": ").split("'")[0].split('"')[0]
    return {"column": name, "detail": f": {name}"}
