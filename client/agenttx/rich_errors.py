"""From a gRPC status and its details to the typed error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from agenttx.errors import CLASS_OF_CODE, CLASS_OF_REASON, InternalError, RpcError, Violation

if TYPE_CHECKING:
    from agenttx.v1 import transaction_pb2 as pb

__all__ = ["DOMAIN", "from_call", "from_step_error"]

DOMAIN = "agenttx"
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def from_call(failure: grpc.RpcError) -> RpcError:
    """Return the typed error of a failed call, of the synchronous or the asynchronous API."""
    # Both APIs raise an error that is also the call: code, details and trailing metadata are its methods.
    try:
        status = rpc_status.from_call(cast("grpc.Call", failure))
    except ValueError:
        # The details contradict the status, or don't parse: a proxy between us and the server made them up.
        status = None
    code: grpc.StatusCode = failure.code()
    message: str = failure.details() or code.name
    return _typed(code, message, status.details if status else ())


def from_step_error(error: pb.StepError) -> RpcError:
    """Return the typed error of one step on a stream."""
    code = _CODES.get(error.code, grpc.StatusCode.UNKNOWN)
    return _typed(code, error.message or code.name, error.details)


def _typed(code: grpc.StatusCode, message: str, details: Iterable[any_pb2.Any]) -> RpcError:
    info = error_details_pb2.ErrorInfo()
    request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    retry_after: float | None = None
    for detail in details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(request.DESCRIPTOR):
            detail.Unpack(request)
        elif detail.Is(retry.DESCRIPTOR):
            detail.Unpack(retry)
            retry_after = max(retry.retry_delay.ToNanoseconds() / 1e9, 0.0)
    # A reason of another domain is another vocabulary.
    reason = info.reason if info.domain == DOMAIN else ""
    error_class = CLASS_OF_REASON.get(reason) or CLASS_OF_CODE.get(code, InternalError)
    return error_class(
        message,
        code=code,
        reason=reason,
        metadata=dict(info.metadata),
        violations=tuple(
            Violation(violation.field, violation.description) for violation in request.field_violations
        ),
        retry_after_seconds=retry_after,
    )
