"""What can be done about a step that runs too long or is in doubt, as operations for either client."""

from __future__ import annotations

from typing import Any

from agenttx import message_conversion as conversion
from agenttx import records
from agenttx.methods import CANCEL_STEP, LIST_STEPS, RESOLVE_STEP
from agenttx.operation import Operation, invoke
from agenttx.reads import get_transaction
from agenttx.transaction_cursor import TransactionCursor, new_request_id
from agenttx.v1 import transaction_pb2 as pb
from agenttx.values import count, encode_json, member

__all__ = ["cancel_running_step", "cancel_step", "resolve_own_step", "resolve_step"]

_SETTLING_SECONDS = 120.0
"""How long a tool that stops late, its undo, or a tool that runs once more may legitimately take by the defaults."""


def cancel_step(
    transaction_id: str, step_id: int, reason: str, generation: int | None = None
) -> Operation[records.CancelStepResult]:
    """Stop a running step and say what it was settled as."""
    request = pb.CancelStepRequest(
        transaction_id=transaction_id,
        step_id=count("step_id", step_id),
        reason=reason,
        request_id=new_request_id(),
        generation=generation,
    )
    return conversion.cancel_step_result(
        (yield from invoke(CANCEL_STEP, request, extra_seconds=_SETTLING_SECONDS))
    )


def resolve_step(
    transaction_id: str,
    step_id: int,
    resolution: records.StepResolution | str,
    output: Any,
    error: str,
    generation: int | None = None,
    sub_step: int = 0,
) -> Operation[records.ResolveStepResult]:
    """Settle a step in doubt by a person's word."""
    request = pb.ResolveStepRequest(
        transaction_id=transaction_id,
        step_id=count("step_id", step_id),
        sub_step=count("sub_step", sub_step),
        resolution=conversion.number_of(
            pb.StepResolution, "STEP_RESOLUTION_", member("resolution", records.StepResolution, resolution)
        ),
        output_json="" if output is None else encode_json(output),
        error=error,
        request_id=new_request_id(),
        generation=generation,
    )
    # The answer says neither which tool it is about nor which request had sent the step. Asked before, because a
    # failure after the step was settled would read as if it had not been.
    listing = pb.ListStepsRequest(
        transaction_id=transaction_id, step_id=request.step_id, include_rewound=False
    )
    attempts = (yield from invoke(LIST_STEPS, listing)).attempts
    newest = next((item for item in reversed(attempts) if not item.sub_step), pb.StepAttempt())
    answer = yield from invoke(RESOLVE_STEP, request, extra_seconds=_SETTLING_SECONDS)
    return conversion.resolve_step_result(
        answer,
        transaction_id=transaction_id,
        step_id=step_id,
        tool_name=newest.tool_name,
        request_id=newest.request_id,
    )


def cancel_running_step(
    cursor: TransactionCursor, step_id: int | None, reason: str
) -> Operation[records.CancelStepResult]:
    """Stop the step that a transaction's holder has sent; beside its other calls, which wait for that step."""
    awaited = bool(cursor.unsettled)
    step_id = step_id or cursor.running_step
    if not step_id:
        step_id = (yield from get_transaction(cursor.transaction_id)).next_step_id
    result = yield from cancel_step(cursor.transaction_id, step_id, reason, cursor.generation or None)
    if not awaited:  # else whoever waits for the step hears of it
        cursor.fall_behind()
    return result


def resolve_own_step(
    cursor: TransactionCursor,
    step_id: int,
    resolution: records.StepResolution | str,
    output: Any,
    error: str,
    sub_step: int = 0,
) -> Operation[records.ResolveStepResult]:
    """Settle a transaction's step in doubt and go on from where that leaves it."""
    yield from cursor.open()
    result = yield from resolve_step(
        cursor.transaction_id, step_id, resolution, output, error, cursor.generation, sub_step
    )
    yield from cursor.catch_up()
    return result
