"""What a tool, an undo action or a delivery raised, as the message that tells of it."""

from __future__ import annotations

import traceback

from agenttx.errors import InvalidValue
from agenttx.tools.errors import ArgumentsRefused, ContextClosed, DeliveryFailed, SubStepFailed, ToolFailure
from agenttx.tools.hint_category import HintCategory
from agenttx.v1 import tool_pb2 as pb

__all__ = ["failure_of"]

RAW_ERROR_CHARACTERS = 64 << 10
MAX_FRAMES = 40


def failure_of(error: BaseException, *, not_called: bool = False) -> pb.CallFailure:
    """Return the failure that an error is. Structured ones keep their words, others are sent as Python prints them."""
    match error:
        case SubStepFailed():
            return pb.CallFailure(
                category=str(error.category),
                message=error.message,
                keys=error.keys,
                failed_sub_step=error.sub_step,
            )
        case ArgumentsRefused() | ToolFailure():
            return pb.CallFailure(
                category=str(error.category),
                message=error.message,
                keys=error.keys,
                raw_error=error.message,
                not_called=not_called,
            )
        case DeliveryFailed():
            failure = pb.CallFailure(
                category=HintCategory.UNKNOWN, message=error.message, permanent=error.permanent
            )
            if error.retry_after_seconds is not None:
                failure.retry_after.FromMicroseconds(round(error.retry_after_seconds * 1_000_000))
            return failure
        case ContextClosed():
            return pb.CallFailure(
                category=HintCategory.CANCELLED, message=f"the call is over: {error}", raw_error=str(error)
            )
        case InvalidValue():
            path = error.path.rpartition(".")[2]
            return pb.CallFailure(
                category=HintCategory.INVALID_VALUE,
                message=f"the value is not plain JSON: {error}",
                keys=(path,) if path and not path.isdecimal() else (),
                raw_error=_printed(error),
            )
        case _:
            return pb.CallFailure(raw_error=_printed(error))


def _printed(error: BaseException) -> str:
    text = "".join(
        traceback.TracebackException.from_exception(error, limit=-MAX_FRAMES, compact=True).format()
    )
    if len(text) > RAW_ERROR_CHARACTERS:  # the end says what, the beginning where it began
        half = RAW_ERROR_CHARACTERS // 2
        text = f"{text[:half]}\n...\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()
