"""Why a call on a transaction is refused: the preconditions, each with its reason.

Pure checks on a head or an aggregate; each raises PreconditionFailed (or InvalidRequest)
and changes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from agenttx_server.engine.errors import FieldViolation, InvalidRequest, PreconditionFailed
from agenttx_server.engine.records import (
    ApprovalRecord,
    ApprovalState,
    AttemptRecord,
    AttemptState,
    EffectClass,
    TransactionRecord,
)
from agenttx_server.engine.saga import undo_error_line
from agenttx_server.engine.transaction import LiveStep, Transaction

__all__ = [
    "approval_decided",
    "check_generation",
    "check_no_approval_pending",
    "check_not_ended",
    "check_not_held",
    "check_not_in_doubt",
    "check_not_owned",
    "check_not_passed",
    "check_order",
    "check_rewind_target",
    "check_settled",
    "step_executing",
    "step_not_executing",
    "step_not_in_doubt",
    "sub_step_in_doubt",
]


def check_not_ended(record: TransactionRecord) -> None:
    """Refuse a change of an ended transaction (TRANSACTION_ENDED)."""
    if record.status.is_terminal:
        metadata = {"status": record.status, "transaction_id": record.transaction_id}
        if record.abort_reason:
            metadata["abort_reason"] = record.abort_reason
        raise PreconditionFailed(
            f"the transaction has ended: it is {record.status}; begin a new one",
            reason="TRANSACTION_ENDED",
            metadata=metadata,
        )


def check_not_held(transaction: Transaction) -> None:
    """Refuse to go on while a rewind is held by undo that failed or that the agent has to do (ROLLBACK_INCOMPLETE)."""
    pending = transaction.record.pending_rewind
    if pending is None:
        return
    failed = transaction.failed_undo(pending.to_step)
    awaited = transaction.awaited_undo(pending.to_step)
    counts = {"to_step": str(pending.to_step), "failed": str(len(failed))}
    if awaited:
        undo = awaited[0]
        raise PreconditionFailed(
            f"a rewind is not complete: the agent has to undo step {undo.step_id} ({undo.tool_name}) by "
            f"'{undo.undo_name}' and say so with AcknowledgeUndo (compensation {undo.sequence}); ListCompensations "
            f"names all {len(awaited)} that wait for it",
            reason="ROLLBACK_INCOMPLETE",
            metadata=counts | {"awaiting_agent": str(len(awaited)), "compensation_id": str(undo.sequence)},
        )
    first = undo_error_line(failed[0]) if failed else "its undo actions have not all run"
    raise PreconditionFailed(
        f"a rewind is not complete: {first} Send Rewind again to go on with it, or RetryCompensation or "
        "ResolveCompensation.",
        reason="ROLLBACK_INCOMPLETE",
        metadata=counts,
    )


def check_not_in_doubt(transaction: Transaction) -> None:
    """Refuse while a step's outcome is unknown (STEP_IN_DOUBT)."""
    doubts = transaction.unsettled_doubts()
    if doubts:
        step = doubts[0]
        tool_name = transaction.steps[step].tool_name
        raise PreconditionFailed(
            f"the outcome of step {step} ({tool_name}) is unknown; settle it with ResolveStep, or rewind or roll back "
            "with accept_irreversible",
            reason="STEP_IN_DOUBT",
            metadata={"step_id": str(step), "tool_name": tool_name},
        )


def step_executing(step_id: int, live: LiveStep | None) -> PreconditionFailed:
    """The refusal of another request for a step whose recorded intent is not settled."""
    metadata = {"step_id": str(step_id)}
    if live is not None and live.request_id:
        metadata["request_id"] = live.request_id
    name = live.tool_name if live else "unknown"
    if live is not None and live.state is not AttemptState.EXECUTING:
        text = f"step {step_id} ({name}) belongs to a group that is not settled; send the same group again, or rewind"
    else:
        text = f"step {step_id} ({name}) began and is not settled; a rewind to step {step_id} takes it back"
    return PreconditionFailed(
        text,
        reason="STEP_EXECUTING",
        metadata=metadata,
    )


def check_no_approval_pending(transaction: Transaction) -> None:
    """Refuse while a person is asked about a step (STEP_AWAITING_APPROVAL)."""
    pending = next(
        (item for item in transaction.live_approvals() if item.state is ApprovalState.PENDING), None
    )
    if pending is not None:
        raise PreconditionFailed(
            f"step {pending.step_id} ({pending.tool_name}) waits for approval {pending.sequence}; it is decided on "
            f"with Approve or Reject, and a rewind to step {pending.step_id} withdraws it",
            reason="STEP_AWAITING_APPROVAL",
            metadata={"step_id": str(pending.step_id), "approval_id": str(pending.sequence)},
        )


_COMMENT_CHARACTERS = 500  # error details travel in headers


def approval_decided(approval: ApprovalRecord) -> PreconditionFailed:
    """The refusal of a second decision: who made the first one, when and why (APPROVAL_DECIDED)."""
    metadata = {"approval_id": str(approval.sequence), "state": approval.state}
    if approval.state is ApprovalState.WITHDRAWN:
        told = f"was withdrawn: {approval.withdrawn_reason}"
        metadata["withdrawn_reason"] = approval.withdrawn_reason
    else:
        told = f"was {approval.state.lower()} by {approval.decided_by}"
    if approval.decided_at is not None:
        metadata |= {
            "decided_by": approval.decided_by,
            "decided_at": _iso(approval.decided_at),
            "comment": approval.comment[:_COMMENT_CHARACTERS],
        }
    return PreconditionFailed(
        f"approval {approval.sequence} of step {approval.step_id} ({approval.tool_name}) {told}",
        reason="APPROVAL_DECIDED",
        metadata=metadata,
    )


def _iso(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def step_not_executing(step_id: int) -> PreconditionFailed:
    """The refusal to stop a step that does not run (STEP_NOT_EXECUTING)."""
    return PreconditionFailed(
        f"step {step_id} does not run", reason="STEP_NOT_EXECUTING", metadata={"step_id": str(step_id)}
    )


def sub_step_in_doubt(step_id: int, sub_step: int, tool_name: str) -> PreconditionFailed:
    """The refusal to settle a step while a call that it made is in doubt (STEP_IN_DOUBT)."""
    return PreconditionFailed(
        f"the outcome of step {step_id}.{sub_step} ({tool_name}) is unknown; settle it first, with sub_step",
        reason="STEP_IN_DOUBT",
        metadata={"step_id": str(step_id), "sub_step": str(sub_step), "tool_name": tool_name},
    )


def check_not_owned(record: TransactionRecord) -> None:
    """Refuse to move on from outside what a run moves on (OWNED_BY_RUN)."""
    if record.run_id:
        raise _owned_by_run(record.run_id)


def _owned_by_run(run_id: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"the transaction belongs to run '{run_id[:128]}', which alone moves it on",
        reason="OWNED_BY_RUN",
        metadata={"run_id": run_id[:128]},
    )


def step_not_in_doubt(step_id: int, live: LiveStep) -> PreconditionFailed:
    """The refusal to settle a step whose outcome is known (STEP_NOT_IN_DOUBT)."""
    return PreconditionFailed(
        f"step {step_id} ({live.tool_name}) is not in doubt: it is {live.state}",
        reason="STEP_NOT_IN_DOUBT",
        metadata={"step_id": str(step_id), "state": live.state},
    )


def check_generation(record: TransactionRecord, generation: int | None) -> None:
    """Refuse a request that was made before the last rewind (STALE_GENERATION)."""
    if generation is not None and generation != record.generation:
        raise PreconditionFailed(
            f"the request was made for generation {generation}, but the transaction is in generation "
            f"{record.generation}: rewinds count it up; the next step is {record.next_step_id}",
            reason="STALE_GENERATION",
            metadata={
                "expected_generation": str(record.generation),
                "received_generation": str(generation),
                "expected_step": str(record.next_step_id),
            },
        )


def check_not_passed(record: TransactionRecord, attempt: AttemptRecord) -> None:
    """Refuse to repeat, by its old request, an IRREVERSIBLE step that a rewind passed (STALE_GENERATION).

    The rewind was told that the effect may stay; only a request of its own may cause it once more.
    """
    is_open = attempt.state in (AttemptState.EXECUTING, AttemptState.IN_DOUBT)
    if is_open and attempt.effect_class is EffectClass.IRREVERSIBLE and not attempt.undo_registered:
        raise PreconditionFailed(
            f"step {attempt.step_id} ({attempt.tool_name}) may have taken effect and was rewound since; to run it "
            "once more use a new request_id",
            reason="STALE_GENERATION",
            metadata={
                "expected_generation": str(record.generation),
                "received_generation": str(attempt.generation),
                "expected_step": str(record.next_step_id),
            },
        )


def check_order(record: TransactionRecord, step_id: int) -> None:
    """Refuse a step that isn't next (STEP_OUT_OF_ORDER)."""
    if step_id != record.next_step_id:
        raise PreconditionFailed(
            f"step {step_id} is out of order; the next step is {record.next_step_id}",
            reason="STEP_OUT_OF_ORDER",
            metadata={
                "expected_step": str(record.next_step_id),
                "step_id": str(step_id),
                "generation": str(record.generation),
            },
        )


def check_settled(transaction: Transaction) -> None:
    """Refuse a commit, or another step, while a group is open (STEP_EXECUTING, STEP_AWAITING_APPROVAL)."""
    group = transaction.record.open_group
    if group is not None:
        if not transaction.executing_steps():
            check_no_approval_pending(transaction)
        step = next(iter(transaction.executing_steps()), group[0])
        raise step_executing(step, transaction.steps.get(step))


def check_rewind_target(
    transaction: Transaction,
    to_step: int,
    *,
    accept_irreversible: bool,
    running: tuple[int, int] | None = None,
) -> int:
    """Check where a rewind asked for may go; return the step it goes to.

    A target inside an unsettled group becomes the group's first step. Raises
    InvalidRequest for a step out of range; PreconditionFailed with IRREVERSIBLE_STEP for one
    past a pivot and STEP_IN_DOUBT for unknown outcomes, unless ``accept_irreversible``.
    ``running`` is the group (first step, size) that runs here: its outcome will be known.
    """
    record = transaction.record
    first, size = running or record.open_group or (record.next_step_id, 1)
    last = first + size - 1
    if not 1 <= to_step <= last:
        raise InvalidRequest(
            (FieldViolation("to_step", f"is {to_step}; the range is 1 to {last}"),),
            metadata={"expected_step": str(record.next_step_id)},
        )
    to_step = min(to_step, first)
    if accept_irreversible:
        return to_step
    check_not_in_doubt(transaction)
    for step in () if running else transaction.executing_steps():
        live = transaction.steps[step]
        if live.effect_class is EffectClass.IRREVERSIBLE:
            raise PreconditionFailed(
                f"step {step} ({live.tool_name}) was executing and can't be undone; its outcome is unknown; rewind "
                "with accept_irreversible",
                reason="STEP_IN_DOUBT",
                metadata={"step_id": str(step), "tool_name": live.tool_name},
            )
    pivot = transaction.pivot()
    if pivot is not None and pivot.step_id >= to_step:
        raise PreconditionFailed(
            f"step {pivot.step_id} ({pivot.tool_name}) can't be undone; rewind to step {pivot.step_id + 1} or later, "
            "or with accept_irreversible",
            reason="IRREVERSIBLE_STEP",
            metadata={"step_id": str(pivot.step_id), "tool_name": pivot.tool_name},
        )
    return to_step
