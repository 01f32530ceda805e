"""Why a call on a transaction is refused: the preconditions, each with its reason.

Pure checks on a head or an aggregate; each raises PreconditionFailed (or InvalidRequest)
and changes nothing.
"""

from __future__ import annotations

from agenttx_server.engine.errors import FieldViolation, InvalidRequest, PreconditionFailed
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    EffectClass,
    TransactionRecord,
    TransactionStatus,
)
from agenttx_server.engine.saga import undo_error_line
from agenttx_server.engine.transaction import LiveStep, Transaction

__all__ = [
    "check_generation",
    "check_not_ended",
    "check_not_held",
    "check_not_in_doubt",
    "check_not_passed",
    "check_order",
    "check_rewind_target",
    "check_settled",
    "step_executing",
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
    """Refuse to go on while a rewind is held by a failed undo (ROLLBACK_INCOMPLETE)."""
    if transaction.record.pending_rewind is None:
        return
    failed = transaction.failed_undo()
    first = undo_error_line(failed[0]) if failed else "its undo actions have not all run"
    raise PreconditionFailed(
        f"a rewind is not complete: {first} Send Rewind again to go on with it.",
        reason="ROLLBACK_INCOMPLETE",
        metadata={"to_step": str(transaction.record.pending_rewind.to_step), "failed": str(len(failed))},
    )


def check_not_in_doubt(transaction: Transaction) -> None:
    """Refuse while a step's outcome is unknown (STEP_IN_DOUBT)."""
    if transaction.record.status is TransactionStatus.IN_DOUBT:
        step = transaction.in_doubt_steps()[0]
        tool_name = transaction.steps[step].tool_name
        raise PreconditionFailed(
            f"the outcome of step {step} ({tool_name}) is unknown; rewind or roll back with accept_irreversible",
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
    """Refuse a commit, or another step, while a group is open (STEP_EXECUTING)."""
    group = transaction.record.open_group
    if group is not None:
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
