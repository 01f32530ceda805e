"""What becomes of an approval: asked for, used by one attempt, given back, withdrawn.

An approval covers one step and exactly the arguments that were shown. It is used in the write that
begins the step (with the intent, or with the effect where the two are one commit), so a crash leaves both
or neither. Pure but for the aggregate, which takes each change in at once.
"""

from __future__ import annotations

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.records import (
    ApprovalRecord,
    ApprovalState,
    AttemptRecord,
    EffectClass,
    EventType,
    MicrosecondsUtc,
)
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows

__all__ = ["approval_id", "ask", "asked", "give_back", "use", "withdraw", "withdraw_from"]


def approval_id(approval: ApprovalRecord) -> str:
    """Return what callers name an approval by: unique in its transaction, the same for ever."""
    return str(approval.sequence)


def ask(
    transaction: Transaction,
    step_id: int,
    attempt: int,
    tool_name: str,
    effect_class: EffectClass,
    arguments: str,
    reason: str,
    now: MicrosecondsUtc,
) -> ApprovalRecord:
    """Ask a person about a call; :func:`asked` has to be written."""
    sequence = transaction.record.approval_sequence + 1
    approval = ApprovalRecord(sequence, step_id, attempt, tool_name, effect_class, arguments, reason, now)
    transaction.record = replace(transaction.record, approval_sequence=sequence)
    transaction.note_approval(approval)
    return approval


def asked(approval: ApprovalRecord, rows: Rows) -> None:
    """Add a question's row and its event."""
    rows.approvals.append(approval)
    rows.event(
        EventType.STEP_AWAITING_APPROVAL,
        approval.step_id,
        approval.attempt,
        approval_id=approval_id(approval),
        tool_name=approval.tool_name,
        effect_class=approval.effect_class,
        reason=approval.reason,
    )


def use(
    transaction: Transaction, approval: ApprovalRecord, attempt: int, rows: Rows, now: MicrosecondsUtc
) -> None:
    """Have an attempt begin under an approval, which serves no other from here on."""
    used = replace(approval, used_attempt=attempt, used_at=now)
    transaction.approvals[used.sequence] = used
    rows.approvals.append(used)


def give_back(transaction: Transaction, attempt: AttemptRecord, rows: Rows) -> None:
    """Let the call be begun once more under its approval: of this attempt nothing counts any more."""
    used = transaction.used_approval(attempt.step_id, attempt.attempt)
    if used is not None:
        unused = replace(used, used_attempt=0, used_at=None)
        transaction.note_approval(unused)
        rows.approvals.append(unused)


def withdraw(
    transaction: Transaction, approval: ApprovalRecord, why: str, rows: Rows, now: MicrosecondsUtc
) -> None:
    """Ask no more, or take back what was given and not used."""
    gone = replace(approval, state=ApprovalState.WITHDRAWN, withdrawn_at=now, withdrawn_reason=why)
    transaction.note_approval(gone)
    rows.approvals.append(gone)
    rows.event(
        EventType.APPROVAL_WITHDRAWN,
        approval.step_id,
        approval.attempt,
        approval_id=approval_id(approval),
        reason=why,
    )


def withdraw_from(
    transaction: Transaction, from_step: int, why: str, rows: Rows, now: MicrosecondsUtc
) -> None:
    """Withdraw every approval of steps >= ``from_step`` that was not used: they are rewound, or all has ended."""
    for approval in transaction.live_approvals(from_step):
        withdraw(transaction, approval, why, rows, now)
