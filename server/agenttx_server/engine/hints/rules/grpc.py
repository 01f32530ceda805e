"""gRPC statuses as Python, Go, Node and Java print them. The details are the server's words; they are read first."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Cause, Facts, Rule, rule
from ..vocabulary import ADVICE, category_of_complaint

__all__ = ["RULES"]

_STATUSES: Final[dict[str, C]] = {
    "cancelled": C.CANCELLED,
    "canceled": C.CANCELLED,
    "invalidargument": C.INVALID_VALUE,
    "deadlineexceeded": C.TIMEOUT,
    "notfound": C.MISSING_RECORD,
    "alreadyexists": C.UNIQUE_VIOLATION,
    "permissiondenied": C.PERMISSION_DENIED,
    "resourceexhausted": C.RESOURCE_EXHAUSTED,
    "failedprecondition": C.CONFLICT,
    "aborted": C.CONFLICT,
    "outofrange": C.INVALID_VALUE,
    "unimplemented": C.UNKNOWN_TOOL,
    "internal": C.UNKNOWN,
    "unavailable": C.CONNECTION,
    "dataloss": C.UNKNOWN,
    "unauthenticated": C.AUTHENTICATION,
    "unknown": C.UNKNOWN,
}
_CODES: Final = (
    "CANCELLED|UNKNOWN|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|"
    "PERMISSION_DENIED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|ABORTED|OUT_OF_RANGE|UNIMPLEMENTED|"
    "INTERNAL|UNAVAILABLE|DATA_LOSS|UNAUTHENTICATED"
)
_RATE: Final = re.compile(r"(?i)rate|quota|per (?:minute|second|day)|too many requests|throttl")


def _status(match: re.Match[str], cause: Cause) -> Facts | None:
    category = _STATUSES[match["status"].replace("_", "").lower()]
    detail = (match["detail"] or "").strip().strip('"')
    if category is C.RESOURCE_EXHAUSTED and _RATE.search(detail):
        category = C.RATE_LIMITED
    return {"category": category.value, "advice": ADVICE[category], "detail": detail or None}


_INNER: Final = re.compile(
    r"caused by: invalid (?P<message>[A-Z]\w{0,80})\.(?P<field>\w{1,80})(?:\[[^\]\n]{1,60}\])?: (?P<said>[^\n|]{1,200})"
)


def _refused_field(match: re.Match[str], cause: Cause) -> Facts:
    """The innermost field of protoc-gen-validate's chain of messages within messages."""
    inner = match
    while (deeper := _INNER.match(cause.text, inner.end() + len("| "))) is not None:
        inner = deeper
    said = inner["said"].strip()
    category = category_of_complaint(said)
    return {"message": inner["message"], "field": inner["field"], "said": said, "category": category.value}


RULES: Final[tuple[Rule, ...]] = (
    rule(
        "grpc.python",
        "statuscode",
        r"status = StatusCode\.(?P<status>[A-Z_]{2,24})\s{1,8}details = (?P<detail>[^\n]{0,600})",
        C.UNKNOWN,
        ("{status}: {detail}", "{status}"),
        "{advice}",
        weight=LIKELY,
        read=_status,
    ),
    rule(
        "grpc.invalid_field",
        "invalid",
        r"\binvalid (?P<message>[A-Z]\w{0,80})\.(?P<field>\w{1,80})(?:\[[^\]\n]{1,60}\])?: (?P<said>[^\n|]{1,200})",
        C.INVALID_VALUE,
        "{message}.{field}: {said}",
        "Correct {field}.",
        "field",
        read=_refused_field,
    ),
    rule(
        "grpc.go",
        "rpc",
        r"rpc error: code = (?P<status>[A-Za-z]{2,24}) desc = (?P<detail>[^\n]{0,600})",
        C.UNKNOWN,
        ("{status}: {detail}", "{status}"),
        "{advice}",
        weight=LIKELY,
        read=lambda match, cause: _status(match, cause) if match["status"].lower() in _STATUSES else None,
    ),
    rule(
        "grpc.node",
        _CODES.lower().replace("|", " "),
        rf"(?:\b\d{{1,2}} |StatusRuntimeException: |StatusException: |RpcException: "
        rf"Status\(StatusCode=\"|^)(?P<status>{_CODES}): (?P<detail>[^\n]{{1,600}})",
        C.UNKNOWN,
        "{status}: {detail}",
        "{advice}",
        weight=LIKELY,
        read=_status,
    ),
    rule(
        "grpc.status_word",
        "invalid_argument deadline_exceeded not_found already_exists permission_denied "
        "resource_exhausted failed_precondition out_of_range unauthenticated",
        r"\b(?P<status>INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|PERMISSION_DENIED|"
        r"RESOURCE_EXHAUSTED|FAILED_PRECONDITION|OUT_OF_RANGE|UNAUTHENTICATED)\b(?:: | - |\. "
        r")(?P<detail>[^\n]{1,600})",
        C.UNKNOWN,
        "{status}: {detail}",
        "{advice}",
        weight=LIKELY,
        read=_status,
    ),
    rule(
        "grpc.dotnet",
        "statuscode",
        r"Status\(StatusCode=\"(?P<status>[A-Za-z]{2,24})\", Detail=\"(?P<detail>[^\n]{0,400}?)\"(?:\)|, )",
        C.UNKNOWN,
        ("{status}: {detail}", "{status}"),
        "{advice}",
        weight=LIKELY,
        read=lambda match, cause: _status(match, cause) if match["status"].lower() in _STATUSES else None,
    ),
)
