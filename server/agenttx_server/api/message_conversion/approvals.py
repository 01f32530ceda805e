"""Approvals between the wire and the engine: listed, given, refused."""

from __future__ import annotations

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.message_conversion.enumerations import to_wire
from agenttx_server.api.message_conversion.request_reader import PageRequest, RequestReader
from agenttx_server.api.message_conversion.values import timestamp_from_microseconds
from agenttx_server.engine.approvals import approval_id
from agenttx_server.engine.records import ApprovalState, TransactionId
from agenttx_server.engine.requests import ApprovalListing, ApprovalView, DecideApprovalRequest

__all__ = [
    "approval",
    "approve_request",
    "approve_response",
    "list_request",
    "list_response",
    "reject_request",
    "reject_response",
]

_WAITING = frozenset({ApprovalState.PENDING})


def list_request(
    message: pb.ListApprovalsRequest,
) -> tuple[TransactionId | None, frozenset[ApprovalState], PageRequest]:
    """Return whose approvals ListApprovals asks for, in which states, and which page of them."""
    reader = RequestReader()
    transaction_id = reader.transaction_id(message.transaction_id) if message.transaction_id else None
    states = set()
    for index, number in enumerate(message.states):
        state = reader.enumeration(f"states[{index}]", ApprovalState, number)
        if state is not None:
            states.add(state)
        elif number == pb.APPROVAL_STATE_UNSPECIFIED:
            reader.refuse(f"states[{index}]", "is unspecified; leave states empty for PENDING")
    page = reader.page(message.page_size, message.page_token)
    reader.check()
    return transaction_id, frozenset(states) or _WAITING, page


def list_response(listing: ApprovalListing) -> pb.ListApprovalsResponse:
    """Return the answer of ListApprovals."""
    return pb.ListApprovalsResponse(
        approvals=map(approval, listing.approvals), next_page_token=listing.next_cursor
    )


def approve_request(message: pb.ApproveRequest, principal: str, decided_by: str) -> DecideApprovalRequest:
    """Return what Approve asks; ``decided_by`` is who asks it."""
    return _request(message, ApprovalState.APPROVED, principal, decided_by)


def approve_response(answer: ApprovalView) -> pb.ApproveResponse:
    """Return the answer of Approve."""
    return pb.ApproveResponse(approval=approval(answer))


def reject_request(message: pb.RejectRequest, principal: str, decided_by: str) -> DecideApprovalRequest:
    """Return what Reject asks; ``decided_by`` is who asks it."""
    return _request(message, ApprovalState.REJECTED, principal, decided_by)


def reject_response(answer: ApprovalView) -> pb.RejectResponse:
    """Return the answer of Reject."""
    return pb.RejectResponse(approval=approval(answer))


def _request(
    message: pb.ApproveRequest | pb.RejectRequest, decision: ApprovalState, principal: str, decided_by: str
) -> DecideApprovalRequest:
    reader = RequestReader()
    request = DecideApprovalRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        approval_id=message.approval_id,
        decision=decision,
        decided_by=decided_by,
        claimed_by=message.decided_by,
        comment=message.comment,
        request_id=message.request_id,
        principal=principal,
    )
    reader.check()
    return request


def approval(view: ApprovalView) -> pb.Approval:
    """Return an approval."""
    record = view.approval
    message = pb.Approval(
        approval_id=approval_id(record),
        transaction_id=view.transaction_id,
        step_id=record.step_id,
        attempt=record.attempt,
        tool_name=record.tool_name,
        arguments_json=record.arguments,
        effect_class=to_wire(record.effect_class),
        agent_id=view.agent_id,
        reason=record.reason,
        state=to_wire(record.state),
        requested_at=timestamp_from_microseconds(record.requested_at),
        decided_by=record.decided_by,
        comment=record.comment,
        withdrawn_reason=record.withdrawn_reason,
        arguments_omitted=view.arguments_omitted,
    )
    for field, time in (
        ("decided_at", record.decided_at),
        ("used_at", record.used_at),
        ("withdrawn_at", record.withdrawn_at),
    ):
        if time is not None:
            getattr(message, field).CopyFrom(timestamp_from_microseconds(time))
    return message
