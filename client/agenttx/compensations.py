"""What can be done about undo actions that failed, as operations for either client."""

from __future__ import annotations

from collections.abc import Iterable

from agenttx import message_conversion as conversion
from agenttx import records
from agenttx.methods import LIST_COMPENSATIONS, RESOLVE_COMPENSATION, RETRY_COMPENSATION
from agenttx.operation import Operation, invoke
from agenttx.reads import Page
from agenttx.transaction_cursor import new_request_id
from agenttx.v1 import transaction_pb2 as pb
from agenttx.values import count, member

__all__ = ["list_compensations", "resolve_compensation", "retry_compensation"]

_TRIES_SECONDS = 120.0
"""How long the tries of an undo action may legitimately take at the server's defaults."""


def list_compensations(
    token: str, *, transaction_id: str, states: Iterable[records.CompensationState | str], page_size: int
) -> Operation[Page[records.Compensation]]:
    """Read one page of undo actions."""
    request = pb.ListCompensationsRequest(
        transaction_id=transaction_id,
        states=[
            conversion.number_of(
                pb.CompensationState,
                "COMPENSATION_STATE_",
                member("states", records.CompensationState, state),
            )
            for state in states
        ],
        page_size=count("page_size", page_size),
        page_token=token,
    )
    answer = yield from invoke(LIST_COMPENSATIONS, request)
    return Page(
        tuple(conversion.compensation(entry) for entry in answer.compensations), answer.next_page_token
    )


def retry_compensation(transaction_id: str, compensation_id: str) -> Operation[records.CompensationResult]:
    """Have a failed undo action run again."""
    request = pb.RetryCompensationRequest(
        transaction_id=transaction_id, compensation_id=compensation_id, request_id=new_request_id()
    )
    answer = yield from invoke(RETRY_COMPENSATION, request, extra_seconds=_TRIES_SECONDS)
    return conversion.compensation_result(answer)


def resolve_compensation(
    transaction_id: str, compensation_id: str, resolution: records.CompensationResolution | str, note: str
) -> Operation[records.CompensationResult]:
    """Settle a failed undo action by a person's word."""
    request = pb.ResolveCompensationRequest(
        transaction_id=transaction_id,
        compensation_id=compensation_id,
        resolution=conversion.number_of(
            pb.CompensationResolution,
            "COMPENSATION_RESOLUTION_",
            member("resolution", records.CompensationResolution, resolution),
        ),
        note=note,
        request_id=new_request_id(),
    )
    return conversion.compensation_result((yield from invoke(RESOLVE_COMPENSATION, request)))
