"""Steps that wait for a person, as operations for either client: what they are, and a yes or a no."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from agenttx import message_conversion as conversion
from agenttx import records
from agenttx.methods import APPROVE, LIST_APPROVALS, REJECT
from agenttx.operation import Operation, invoke
from agenttx.reads import Page
from agenttx.transaction_cursor import TransactionCursor, new_request_id
from agenttx.v1 import transaction_pb2 as pb
from agenttx.values import count, member

__all__ = ["DecisionWait", "approve", "approve_own", "list_approvals", "reject", "reject_own"]

_SIBLINGS_SECONDS = 120.0
"""How long members of the step's group that still run, or the undo of a rejected one, may legitimately take."""

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0


def list_approvals(
    token: str, *, transaction_id: str, states: Iterable[records.ApprovalState | str], page_size: int
) -> Operation[Page[records.Approval]]:
    """Read one page of approvals."""
    request = pb.ListApprovalsRequest(
        transaction_id=transaction_id,
        states=[
            conversion.number_of(
                pb.ApprovalState, "APPROVAL_STATE_", member("states", records.ApprovalState, state)
            )
            for state in states
        ],
        page_size=count("page_size", page_size),
        page_token=token,
    )
    answer = yield from invoke(LIST_APPROVALS, request)
    return Page(tuple(conversion.approval(entry) for entry in answer.approvals), answer.next_page_token)


def approve(
    transaction_id: str, approval_id: str, comment: str, decided_by: str
) -> Operation[records.Approval]:
    """Say yes to a step that waits."""
    request = pb.ApproveRequest(
        transaction_id=transaction_id,
        approval_id=approval_id,
        comment=comment,
        request_id=new_request_id(),
        decided_by=decided_by,
    )
    answer = yield from invoke(APPROVE, request, extra_seconds=_SIBLINGS_SECONDS)
    return conversion.approval(answer.approval)


def reject(
    transaction_id: str, approval_id: str, comment: str, decided_by: str
) -> Operation[records.Approval]:
    """Say no to a step that waits."""
    request = pb.RejectRequest(
        transaction_id=transaction_id,
        approval_id=approval_id,
        comment=comment,
        request_id=new_request_id(),
        decided_by=decided_by,
    )
    answer = yield from invoke(REJECT, request, extra_seconds=_SIBLINGS_SECONDS)
    return conversion.approval(answer.approval)


def approve_own(
    cursor: TransactionCursor, approval_id: str, comment: str, decided_by: str
) -> Operation[records.Approval]:
    """Say yes to a step of a transaction that its holder has sent, or that another holder has."""
    yield from cursor.open()
    return (yield from approve(cursor.transaction_id, approval_id, comment, decided_by))


def reject_own(
    cursor: TransactionCursor, approval_id: str, comment: str, decided_by: str
) -> Operation[records.Approval]:
    """Say no likewise; where the holder has not sent the step itself, it goes on from where that leads."""
    yield from cursor.open()
    rejected = yield from reject(cursor.transaction_id, approval_id, comment, decided_by)
    if not cursor.unsettled:
        cursor.fall_behind()
    return rejected


class DecisionWait:
    """When to ask again what a person has decided: soon at first, then less often; `timeout` None is for ever."""

    def __init__(self, timeout: float | timedelta | None, now: float) -> None:
        self._until = None if timeout is None else now + conversion.seconds(timeout)
        self._pause = _FIRST_PAUSE_SECONDS

    def pause_after(self, outcomes: Sequence[records.StepOutcome], now: float) -> float | None:
        """Return how many seconds to wait before asking again; None where that is over, decided or not."""
        waits = any(outcome.status is records.StepStatus.AWAITING_APPROVAL for outcome in outcomes)
        if not waits or (self._until is not None and now >= self._until):
            return None
        pause = self._pause if self._until is None else min(self._pause, self._until - now)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)
        return pause
