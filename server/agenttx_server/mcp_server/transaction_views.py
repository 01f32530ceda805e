"""What a model is told of a transaction as it stands, and of one of its steps."""

from __future__ import annotations

from typing import Any

from agenttx import StepAttempt, TransactionInfo, TransactionStatus
from agenttx_server.mcp_server import answers, next_calls
from agenttx_server.mcp_server.bounds import compact, shown
from agenttx_server.mcp_server.step_answers import kept
from agenttx_server.mcp_server.wording import with_rest

__all__ = ["next_of", "step_shown", "transaction_shown", "transaction_text"]

MOST_UNDO = 20


def transaction_shown(info: TransactionInfo, steps: list[answers.StepShown]) -> answers.TransactionShown:
    """Return the fields of the answer."""
    return answers.TransactionShown(
        transaction_id=info.transaction_id,
        status=str(info.status),
        next_step=0 if info.status.is_terminal else info.next_step_id,
        steps_completed=info.steps_completed,
        steps=steps,
        constraints=list(info.constraints),
        failed_undo=[
            f"step {each.step_id} ({each.tool_name}): {each.hint}"
            for each in info.failed_compensations[:MOST_UNDO]
        ],
        kept_effects=kept(info.kept_effects),
        pending_effects=info.pending_effects,
        abort_reason=info.abort_reason,
        next=next_of(info),
    )


def next_of(info: TransactionInfo) -> list[answers.NextCall]:
    """Return what can be called of a transaction as it stands."""
    transaction_id = info.transaction_id
    match info.status:
        case TransactionStatus.ACTIVE:
            return [
                next_calls.run(transaction_id, info.next_step_id, "to go on"),
                next_calls.commit(transaction_id, info.steps_completed, "if the task is done"),
            ]
        case TransactionStatus.ROLLING_BACK if info.rollback_incomplete:
            to_step = info.next_step_id or 1
            return [
                next_calls.rewind(transaction_id, to_step, "to try the undo again, once its cause is gone")
            ]
        case status if status.is_terminal:
            return [next_calls.begin("if there is anything else to do")]
    return [next_calls.get(transaction_id, "again later")]


_STATUS_IN_WORDS = {
    "ACTIVE": "is open and waits for the next step",
    "EXECUTING": "is running a step; send that run_step call again, exactly as it was, to get its result",
    "AWAITING_APPROVAL": "has a step that waits for a person's approval",
    "IN_DOUBT": "has a step of which it is not known whether it took effect; a person must say so with "
    "`agenttx steps resolve`",
    "ROLLING_BACK": "is being rolled back",
    "COMMITTING": "is being committed",
    "COMMITTED": "is committed",
    "ROLLED_BACK": "was rolled back",
    "FAILED": "was aborted, and everything undone",
}


def transaction_text(answer: answers.TransactionShown, asked: int | None) -> str:
    """Return the answer as text; ``asked`` is the step that is shown in full."""
    because = f" ({answer.abort_reason})" if answer.abort_reason else ""
    status = _STATUS_IN_WORDS.get(answer.status, answer.status)
    lines = [f"Transaction {answer.transaction_id} {status}{because}."]
    if answer.next_step:
        lines[0] += f" Next step: {answer.next_step}; {answer.steps_completed} are done."
    if answer.steps:
        lines.append(
            "Steps: " + ", ".join(f"{each.step} {each.tool} {each.state}" for each in answer.steps) + "."
        )
    for each in answer.steps:
        if each.step == asked:
            lines.append(f"Step {each.step} was called with {compact(each.arguments)}.")
            whole = each.output_cut is None
            shown_as = (
                compact(each.output) if whole else f"(cut, {each.output_bytes:,} bytes) {each.output_cut}"
            )
            lines.append(each.hint or f"Output: {shown_as}")
    if answer.constraints:
        lines.append("Keep to this:")
        lines += [f"- {constraint}" for constraint in answer.constraints]
    return with_rest("\n".join(lines), answer.kept_effects, answer.failed_undo, answer.next)


def step_shown(attempt: StepAttempt, path: str) -> answers.StepShown:
    """Return a step with its arguments and its output, or the part of it that a path leads to."""
    arguments = shown(attempt.arguments)
    output = shown(_part(attempt.output, path))
    return answers.StepShown(
        step=attempt.step_id,
        tool=attempt.tool_name,
        state="REWOUND" if attempt.rewound else str(attempt.state),
        arguments=arguments.value if arguments.cut is None else arguments.cut,
        output=output.value,
        output_cut=output.cut,
        output_bytes=output.size,
        hint=attempt.hint,
    )


def _part(value: Any, path: str) -> Any:
    """Return what a path as in references leads to; None where it leads nowhere."""
    for segment in filter(None, path.split(".")):
        if isinstance(value, dict):
            value = value.get(segment)
        elif isinstance(value, list) and segment.isdecimal() and int(segment) < len(value):
            value = value[int(segment)]
        else:
            return None
    return value
