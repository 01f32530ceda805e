"""Errors known by their class name only: the name's words give the category, the message is repeated."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import WEAK, Cause, Facts, Rule, rule
from ..vocabulary import ADVICE, category_of_code

__all__ = ["RULES"]

_NAMES: Final[dict[str, C]] = {
    "ValueError": C.INVALID_VALUE,
    "TypeError": C.INVALID_VALUE,
    "IllegalArgumentException": C.INVALID_VALUE,
    "ArgumentException": C.INVALID_VALUE,
    "ArgumentError": C.INVALID_VALUE,
    "RangeError": C.INVALID_VALUE,
    "InvalidArgumentException": C.INVALID_VALUE,
    "FormatException": C.INVALID_VALUE,
    "ValidationError": C.INVALID_VALUE,
    "ValidationException": C.INVALID_VALUE,
    "OverflowError": C.INVALID_VALUE,
    "ArithmeticException": C.INVALID_VALUE,
    "InvalidOperation": C.INVALID_VALUE,
    "DataError": C.INVALID_VALUE,
    "ZodError": C.INVALID_VALUE,
    "DomainException": C.INVALID_VALUE,
    "ParamValidationError": C.INVALID_VALUE,
    "BadRequest": C.INVALID_VALUE,
    "BadRequestError": C.INVALID_VALUE,
    "DivideByZeroException": C.INVALID_VALUE,
    "ZeroDivisionError": C.INVALID_VALUE,
    "LookupError": C.MISSING_KEY,
    "KeyNotFoundException": C.MISSING_KEY,
    "IndexError": C.MISSING_KEY,
    "AttributeError": C.MISSING_KEY,
    "PermissionError": C.PERMISSION_DENIED,
    "UnauthorizedAccessException": C.PERMISSION_DENIED,
    "SecurityException": C.PERMISSION_DENIED,
    "PermissionDenied": C.PERMISSION_DENIED,
    "AuthorizationError": C.PERMISSION_DENIED,
    "FileNotFoundError": C.FILE_NOT_FOUND,
    "FileExistsError": C.CONFLICT,
    "ConnectionError": C.CONNECTION,
    "ConnectError": C.CONNECTION,
    "InterfaceError": C.CONNECTION,
    "RemoteProtocolError": C.CONNECTION,
    "MemoryError": C.RESOURCE_EXHAUSTED,
    "RecursionError": C.RESOURCE_EXHAUSTED,
    "AssertionError": C.ASSERTION,
    "AssertionFailedError": C.ASSERTION,
    "AssertionError [ERR_ASSERTION]": C.ASSERTION,
    "NullReferenceException": C.NULL_REFERENCE,
    "NullPointerException": C.NULL_REFERENCE,
    "NotImplementedError": C.UNKNOWN,
    "InvalidOperationException": C.UNKNOWN,
    "InvalidStateError": C.CONFLICT,
    "IllegalStateException": C.UNKNOWN,
    "StateError": C.UNKNOWN,
    "RuntimeError": C.UNKNOWN,
    "Exception": C.UNKNOWN,
    "Error": C.UNKNOWN,
    "UnboundLocalError": C.UNRESOLVED_REFERENCE,
    "NameError": C.UNRESOLVED_REFERENCE,
    "ReferenceError": C.UNRESOLVED_REFERENCE,
    "Http404": C.MISSING_RECORD,
    "ObjectDoesNotExist": C.MISSING_RECORD,
}
_ENDINGS: Final = "error exception errors"


def _by_name(match: re.Match[str], cause: Cause) -> Facts | None:
    name = re.split(r"[.:\\]", cause.type_name)[-1]
    if not name:
        return None
    category = _NAMES.get(name)
    if category is None:
        stem = re.sub(r"(?:Error|Exception)\Z", "", name)
        category = category_of_code(stem) if stem else None
    if category is None or category is C.UNKNOWN:
        return None
    first = " ".join(line.strip() for line in cause.message.split("\n")[:3])
    return {"category": category.value, "name": name, "detail": first or None, "advice": ADVICE[category]}


RULES: Final[tuple[Rule, ...]] = (
    rule(
        "exception.by_name",
        "*",
        r"\A",
        C.UNKNOWN,
        ("{name}: {detail}", "{name}"),
        "{advice}",
        weight=WEAK,
        read=_by_name,
    ),
)
