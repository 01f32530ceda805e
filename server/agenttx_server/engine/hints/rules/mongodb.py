"""MongoDB, by its drivers."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "mongo.duplicate",
        "e11000",
        r"E11000 duplicate key error collection: (?P<collection>[\w.\-$]{1,130}) index: "
        r"(?P<index>[\w.\-$]{1,130}) dup key: \{ (?P<pairs>[^{}\n]{0,400}) ?\}",
        C.UNIQUE_VIOLATION,
        (
            "{column} {value} already exists in {collection} (index {index})",
            "{column} already exists in {collection} (index {index})",
            "the value already exists in {collection} (index {index})",
        ),
        "Use another value, or update the existing document.",
        "column",
        read=lambda match, cause: _mongo_pairs(match["pairs"], match["index"]),
    ),
    rule(
        "mongo.duplicate_bare",
        "e11000",
        r"E11000 duplicate key error[^\n]{0,200}",
        C.UNIQUE_VIOLATION,
        "{message}",
        "Use another value, or update the existing document.",
    ),
    rule(
        "mongo.validation",
        "document",
        r"Document failed validation",
        C.CHECK_VIOLATION,
        "document failed validation{detail}",
        "Correct the document so that it fits the collection's validator.",
        "column",
        read=lambda match, cause: _mongo_validation(cause.text),
    ),
    rule(
        "mongo.write_conflict",
        "writeconflict conflict",
        r"WriteConflict(?: error)?[^\n]{0,120}|Write conflict during plan execution[^\n]{0,80}",
        C.CONFLICT,
        "write conflict: the document was changed by another operation",
        "Retry the whole transaction.",
    ),
    rule(
        "mongo.namespace",
        "ns",
        r"ns (?:not found|does not exist)(?:: (?P<object>[\w.\-]{1,130}))?",
        C.MISSING_SCHEMA_OBJECT,
        ("collection {object} does not exist", "the collection does not exist (ns not found)"),
        "Check the collection's name.",
    ),
    rule(
        "mongo.selection",
        "serverselectiontimeouterror mongoserverselectionerror",
        r"(?:ServerSelectionTimeoutError|MongoServerSelectionError): (?P<detail>[^\n,]{1,160})",
        C.CONNECTION,
        "no MongoDB server answered: {detail}",
        "Check that it is up and the address right, then retry.",
    ),
)


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
