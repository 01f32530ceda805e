"""Undo actions between the wire and the engine: listed, failed, retried, resolved."""

from __future__ import annotations

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.message_conversion.enumerations import from_wire, to_wire
from agenttx_server.api.message_conversion.request_reader import PageRequest, RequestReader
from agenttx_server.api.message_conversion.values import timestamp_from_microseconds
from agenttx_server.engine.records import TransactionId, UndoRecord, UndoResolution
from agenttx_server.engine.requests import (
    CompensationAnswer,
    CompensationListing,
    CompensationState,
    ResolveCompensationRequest,
    RetryCompensationRequest,
    compensation_id,
)

__all__ = [
    "compensation",
    "failed_compensation",
    "list_request",
    "list_response",
    "resolve_request",
    "resolve_response",
    "retry_request",
    "retry_response",
]

_NEEDING_SOMEONE = frozenset({CompensationState.FAILED, CompensationState.AWAITING_AGENT})


def list_request(
    message: pb.ListCompensationsRequest,
) -> tuple[TransactionId | None, frozenset[CompensationState], PageRequest]:
    """Return whose undo actions ListCompensations asks for, in which states, and which page of them."""
    reader = RequestReader()
    transaction_id = reader.transaction_id(message.transaction_id) if message.transaction_id else None
    states = set()
    for index, number in enumerate(message.states):
        state = from_wire(CompensationState, number)
        if state is not None:
            states.add(state)
        else:
            reader.refuse(f"states[{index}]", f"is {number}, which is no value of CompensationState")
    wanted = frozenset(states) if message.states else _NEEDING_SOMEONE
    page = reader.page(message.page_size, message.page_token)
    reader.check()
    return transaction_id, wanted, page


def list_response(listing: CompensationListing) -> pb.ListCompensationsResponse:
    """Return the answer of ListCompensations."""
    return pb.ListCompensationsResponse(
        compensations=[compensation(*found) for found in listing.undo], next_page_token=listing.next_cursor
    )


def retry_request(message: pb.RetryCompensationRequest, principal: str) -> RetryCompensationRequest:
    """Return what RetryCompensation asks."""
    reader = RequestReader()
    request = RetryCompensationRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        compensation_id=message.compensation_id,
        request_id=message.request_id,
        principal=principal,
    )
    reader.check()
    return request


def retry_response(answer: CompensationAnswer) -> pb.RetryCompensationResponse:
    """Return the answer of RetryCompensation."""
    return pb.RetryCompensationResponse(
        compensation=compensation(answer.transaction_id, answer.undo, answer.state),
        rollback_incomplete=answer.rollback_incomplete,
        next_step_id=answer.next_step_id,
        generation=answer.generation,
    )


def resolve_request(message: pb.ResolveCompensationRequest, principal: str) -> ResolveCompensationRequest:
    """Return what ResolveCompensation asks."""
    reader = RequestReader()
    resolution = reader.enumeration("resolution", UndoResolution, message.resolution)
    if message.resolution == pb.COMPENSATION_RESOLUTION_UNSPECIFIED:
        reader.refuse("resolution", "is unset; say UNDONE or KEPT")
    request = ResolveCompensationRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        compensation_id=message.compensation_id,
        resolution=resolution or UndoResolution.KEPT,
        note=message.note,
        request_id=message.request_id,
        principal=principal,
    )
    reader.check()
    return request


def resolve_response(answer: CompensationAnswer) -> pb.ResolveCompensationResponse:
    """Return the answer of ResolveCompensation."""
    return pb.ResolveCompensationResponse(
        compensation=compensation(answer.transaction_id, answer.undo, answer.state),
        rollback_incomplete=answer.rollback_incomplete,
        next_step_id=answer.next_step_id,
        generation=answer.generation,
    )


def compensation(
    transaction_id: TransactionId, undo: UndoRecord, state: CompensationState
) -> pb.Compensation:
    """Return an undo action."""
    message = pb.Compensation(
        compensation_id=compensation_id(undo),
        transaction_id=transaction_id,
        step_id=undo.step_id,
        sub_step=undo.sub_step,
        attempt=undo.attempt,
        tool_name=undo.tool_name,
        sequence=undo.sequence,
        action=undo.undo_name,
        arguments_json=undo.arguments,
        state=to_wire(state),
        tries=undo.attempts,
        raw_error=undo.raw_error,
        late_effect=undo.late,
        idempotency_key=undo.idempotency_key,
        registered_at=timestamp_from_microseconds(undo.registered_at),
        updated_at=timestamp_from_microseconds(undo.ended_at or undo.registered_at),
        note=undo.note,
        by_agent=undo.by_agent,
    )
    if undo.hint is not None:
        message.hint = undo.hint.text
        message.category = undo.hint.category.value
    if undo.resolution is not None:
        message.resolution = to_wire(undo.resolution)
    return message


def failed_compensation(undo: UndoRecord) -> pb.FailedCompensation:
    """Return an undo action that failed, in short."""
    failed = pb.FailedCompensation(
        compensation_id=compensation_id(undo),
        step_id=undo.step_id,
        sub_step=undo.sub_step,
        attempt=undo.attempt,
        tool_name=undo.tool_name,
        action=undo.undo_name,
        tries=undo.attempts,
        late_effect=undo.late,
    )
    if undo.hint is not None:
        failed.hint = undo.hint.text
        failed.category = undo.hint.category.value
    if undo.ended_at is not None:
        failed.failed_at.CopyFrom(timestamp_from_microseconds(undo.ended_at))
    return failed
