"""What an error looks like on the wire: a ``google.rpc.Status`` with typed details.

Codes of graph errors, which tell by their reason what they are, are in the numbers of error_reason.proto.

Details are, in this order: ``ErrorInfo`` always, ``RetryInfo`` where a retry helps,
``BadRequest`` with one violation a bad field. Codes come from the error's class by one table;
no message is ever read.

Status and details travel in the trailing metadata, of which clients accept 8 KiB: larger ones
arrive as a stream error that hides the real code. So both are bounded here, and what was left
out is said.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from datetime import timedelta

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from agenttx.v1 import error_reason_pb2
from agenttx_server.access.errors import PermissionDenied, Unauthenticated
from agenttx_server.engine.errors import (
    CommitConflict,
    EngineError,
    FieldViolation,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    NotSupported,
    PreconditionFailed,
    Unavailable,
)
from agenttx_server.engine.ports import StoredValueDamaged, StoreUnavailable
from agenttx_server.graphs.errors import GraphError

__all__ = ["DOMAIN", "code_of", "is_our_fault", "status_of"]

DOMAIN = "agenttx"
LARGEST_STATUS_BYTES = 4096
LARGEST_MESSAGE_BYTES = 1536  # percent-encoded, as it travels beside the details
LARGEST_METADATA_VALUE_BYTES = 256
LARGEST_METADATA_ENTRIES = 16
LARGEST_DESCRIPTION_BYTES = 512
LARGEST_FIELD_BYTES = 128

CODES: dict[type[EngineError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    PreconditionFailed: grpc.StatusCode.FAILED_PRECONDITION,
    CommitConflict: grpc.StatusCode.ABORTED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    LimitExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NotSupported: grpc.StatusCode.UNIMPLEMENTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}
CODE_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


def code_of(status: status_pb2.Status) -> grpc.StatusCode:
    """Return a status's code as grpc's enumeration."""
    return CODE_BY_NUMBER[status.code]


def is_our_fault(error: BaseException) -> bool:
    """Whether an error has no meaning for the caller: it is answered INTERNAL or DATA_LOSS and must be logged."""
    return not isinstance(error, EngineError | GraphError | TimeoutError | StoreUnavailable | DecodeError)


def status_of(error: BaseException, error_id: str = "") -> status_pb2.Status:
    """Return the status for an error.

    Args:
        error: any exception; one that isn't meant for callers gives INTERNAL without its text, DATA_LOSS where what
            was stored can't be read.
        error_id: named in these, to be found in the log.
    """
    if isinstance(error, EngineError):
        return _engine_status(error)
    if isinstance(error, GraphError):
        return _status(_code_of_reason(error.reason), error.message, error.reason, error.metadata)
    if isinstance(error, StoreUnavailable):
        return _engine_status(Unavailable("the database does not answer now; send the same request again"))
    if isinstance(error, DecodeError):
        return _status(
            grpc.StatusCode.INVALID_ARGUMENT,
            "the request is no valid message of its type: its bytes don't parse, or a string in it isn't UTF-8",
            "INVALID_REQUEST",
        )
    if isinstance(error, TimeoutError):
        return _status(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "the call took longer than it may; what it began goes on, the same request_id gets its result",
            "DEADLINE_EXCEEDED",
        )
    if isinstance(error, StoredValueDamaged):
        return _status(
            grpc.StatusCode.DATA_LOSS,
            f"a stored value can't be read: it was changed outside the server, or its key is missing; error {error_id} in the server's log",
            "STORED_VALUE_DAMAGED",
            {"error_id": error_id},
        )
    return _status(
        grpc.StatusCode.INTERNAL,
        f"internal error {error_id}; the server's log tells more under this id",
        "INTERNAL_ERROR",
        {"error_id": error_id},
    )


def _code_of_reason(reason: str) -> grpc.StatusCode:
    """The code in the number of a reason; FAILED_PRECONDITION for one that is in no proto."""
    try:
        number = error_reason_pb2.ErrorReason.Value(f"ERROR_REASON_{reason}")
    except ValueError:
        return grpc.StatusCode.FAILED_PRECONDITION
    return CODE_BY_NUMBER[number // 100]


def _engine_status(error: EngineError) -> status_pb2.Status:
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), grpc.StatusCode.INTERNAL)
    return _status(
        code,
        error.message,
        error.reason,
        error.metadata,
        retry_after_seconds=getattr(error, "retry_after_seconds", None),
        violations=error.violations if isinstance(error, InvalidRequest) else (),
    )


def _status(
    code: grpc.StatusCode,
    text: str,
    reason: str,
    metadata: dict[str, str] | None = None,
    *,
    retry_after_seconds: float | None = None,
    violations: Sequence[FieldViolation] = (),
) -> status_pb2.Status:
    status = status_pb2.Status(code=code.value[0], message=_travelling(text))
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)
    for name, value in list((metadata or {}).items())[:LARGEST_METADATA_ENTRIES]:
        info.metadata[_cut(name, LARGEST_FIELD_BYTES)] = _cut(value, LARGEST_METADATA_VALUE_BYTES)
    if not _add(status, info):
        info.metadata.clear()
        info.metadata["truncated"] = "metadata left out for its size"
        _add(status, info)
    if retry_after_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromTimedelta(timedelta(seconds=retry_after_seconds))
        _add(status, retry)
    if violations:
        _add_violations(status, violations)
    return status


def _add(status: status_pb2.Status, detail: Message) -> bool:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)
    if status.ByteSize() > LARGEST_STATUS_BYTES:
        del status.details[-1]
        return False
    return True


def _add_violations(status: status_pb2.Status, violations: Sequence[FieldViolation]) -> None:
    """Add as many violations as fit, and a last one that counts the others."""
    bad_request = error_details_pb2.BadRequest()
    room = LARGEST_STATUS_BYTES - status.ByteSize() - 256  # for the Any around it and the last entry
    for number, violation in enumerate(violations):
        entry = error_details_pb2.BadRequest.FieldViolation(
            field=_cut(violation.field, LARGEST_FIELD_BYTES),
            description=_cut(violation.description, LARGEST_DESCRIPTION_BYTES),
        )
        room -= entry.ByteSize() + 4
        if room < 0:
            left_out = len(violations) - number
            bad_request.field_violations.add(
                field="…", description=f"and {left_out} more, left out for their size"
            )
            break
        bad_request.field_violations.append(entry)
    _add(status, bad_request)


def _cut(text: str, limit: int) -> str:
    """Return at most ``limit`` bytes of valid UTF-8, with an ellipsis where something is missing."""
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - 3].decode("utf-8", "ignore") + "…"


def _travelling(text: str) -> str:
    """Return a message that fits its header, where every byte outside printable ASCII takes three."""
    text = _cut(text, LARGEST_MESSAGE_BYTES)
    if text.isascii() and text.isprintable():
        return text
    while len(urllib.parse.quote(text, safe=" !\"#$&'()*+,/:;<=>?@[\\]^`{|}")) > LARGEST_MESSAGE_BYTES:
        text = _cut(text, len(text.encode()) * 3 // 4)
    return text
