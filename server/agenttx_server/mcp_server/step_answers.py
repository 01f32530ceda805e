"""What a model is told about a step that was run: what happened, and what to call next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agenttx import Decision, KeptEffect, StepAttempt, StepOutcome, StepStatus
from agenttx_server.mcp_server import next_calls
from agenttx_server.mcp_server.answers import CauseElement, NextCall, RootCause, StepRan
from agenttx_server.mcp_server.bounds import compact, cut, shown

__all__ = ["SentStep", "kept", "root_cause", "step_answer", "step_text"]

MOST_CONSTRAINTS = 16


@dataclass(frozen=True, slots=True)
class SentStep:
    """A step as the model sent it."""

    transaction_id: str
    step: int
    tool: str
    arguments: dict[str, Any]


def kept(effects: tuple[KeptEffect, ...]) -> list[str]:
    """Name effects that were not undone."""
    return [f"step {each.step_id} ({each.tool_name}): {each.reason}" for each in effects]


def root_cause(decision: Decision | None) -> RootCause | None:
    """Return where the failing value came from, if the decision traced it to another step."""
    if decision is None or not decision.path:
        return None
    cause = decision.path[-1]
    if cause.step_id == decision.failed_step:
        return None
    path = [CauseElement(step=each.step_id, key=each.key) for each in decision.path]
    return RootCause(step=cause.step_id, key=cause.key, path=path)


def step_answer(sent: SentStep, outcome: StepOutcome, target: StepAttempt | None) -> StepRan:
    """Return the answer; ``target`` is how the step that was gone back to was last run."""
    output = shown(outcome.output)
    failed = outcome.status in (StepStatus.ROLLBACK_TRIGGERED, StepStatus.FAILED)
    return StepRan(
        transaction_id=sent.transaction_id,
        step=sent.step,
        tool=sent.tool,
        status=str(outcome.status),
        output=output.value,
        output_cut=output.cut,
        output_bytes=output.size,
        hint=outcome.hint,
        error_category=outcome.error_category,
        root_cause=root_cause(outcome.decision),
        rolled_back_to=outcome.rollback_to_step if failed else None,
        kept_effects=kept(outcome.kept_effects),
        failed_undo=list(outcome.compensation_errors),
        rollback_incomplete=outcome.rollback_incomplete,
        context_reset=outcome.context_reset,
        constraints=list(outcome.constraints[-MOST_CONSTRAINTS:]),
        next_step=outcome.next_step_id,
        repeated=outcome.replayed,
        approval_id=outcome.approval.approval_id if outcome.approval is not None else "",
        next=_next(sent, outcome, target, output.cut is not None),
    )


def step_text(sent: SentStep, answer: StepRan, outcome: StepOutcome) -> str:
    """Return the answer as text."""
    lines = [*_told(sent, answer, outcome)]
    if answer.kept_effects:
        lines.append("Not undone, and still in effect: " + "; ".join(answer.kept_effects) + ".")
    if answer.failed_undo:
        lines.append("Undo that failed: " + "; ".join(answer.failed_undo) + ".")
    if answer.constraints and outcome.status is not StepStatus.SUCCESS:
        lines.append("Keep to this from now on:")
        lines += [f"- {constraint}" for constraint in answer.constraints]
    if answer.repeated:
        lines.append("(This call had been made before; this is its answer again, nothing was run.)")
    lines.append(next_calls.sentence(answer.next))
    return "\n".join(lines)


def _told(sent: SentStep, answer: StepRan, outcome: StepOutcome) -> list[str]:
    name = f"Step {sent.step} ({sent.tool})"
    match outcome.status:
        case StepStatus.SUCCESS:
            return [f"{name} succeeded.", *_output(sent, answer)]
        case StepStatus.ROLLBACK_TRIGGERED:
            return [f"{name} failed. {outcome.hint}", *_rolled_back(sent, answer, outcome)]
        case StepStatus.FAILED:
            ending = (
                "The transaction is to be ended, and its effects are being undone, which is not complete."
                if outcome.rollback_incomplete
                else "Everything was undone and the transaction has ended."
            )
            return [f"{name} failed. {outcome.hint}", f"{ending} Reason: {outcome.abort_reason}."]
        case StepStatus.AWAITING_APPROVAL:
            return _awaiting_approval(name, sent, outcome)
        case StepStatus.IN_DOUBT:
            return [
                f"{name} is in doubt: it is not known whether it took effect. {outcome.hint}".rstrip(),
                "It is not run again by itself; don't repeat its effect by other means. Ask the user to find out and "
                f"to run `agenttx steps resolve {sent.transaction_id} {sent.step} succeeded`, `failed` or `retry`.",
            ]
    return [f"{name} ended as {outcome.status}."]


def _awaiting_approval(name: str, sent: SentStep, outcome: StepOutcome) -> list[str]:
    question = outcome.approval
    lines = [f"{name} has not run: a person has to approve it first."]
    if question is not None and question.reason:
        lines[0] += f" {question.reason}"
    if question is not None and not question.arguments_omitted:
        lines.append(f"It would be called with {cut(compact(question.arguments), 1000)}.")
    what = f"{sent.transaction_id} {question.approval_id if question is not None else 'ID'}"
    lines.append(
        f"Tell the user so, and that they decide with `agenttx tx approve {what}` or `agenttx tx reject {what}`. Don't do "
        "it by other means."
    )
    return lines


def _output(sent: SentStep, answer: StepRan) -> list[str]:
    reference = f'"${{steps.{sent.step}}}"'
    if answer.output_cut is None:
        text = compact(answer.output)
        return [f"Output, which later steps can refer to as {reference} or a part of it: {text}"]
    return [
        f"Its output has {answer.output_bytes:,} bytes and is not shown in full. Later steps can use all of it as "
        f'{reference}, or a part of it as {reference[:-2]}.FIELD}}". It begins: {answer.output_cut}'
    ]


def _rolled_back(sent: SentStep, answer: StepRan, outcome: StepOutcome) -> list[str]:
    cause, target = answer.root_cause, outcome.next_step_id
    lines = []
    if cause is not None:
        way = " ← ".join(f"step {each.step} ({each.key})" for each in cause.path)
        lines.append(f"The cause is step {cause.step}, whose {cause.key} is wrong: {way}.")
    undone = "was undone" if target == sent.step else f"and everything back to step {target} was undone"
    if outcome.rollback_incomplete:
        lines.append(
            f"The transaction is going back to step {target}, but an undo action failed, so nothing goes on yet."
        )
    elif outcome.context_reset:
        lines.append(
            "All steps were undone, and the transaction starts over at step 1. Forget what its steps told you; only "
            "what is said below still holds."
        )
    else:
        lines.append(f"Step {sent.step} {undone}. The next step is {target}.")
    return lines


def _next(sent: SentStep, outcome: StepOutcome, target: StepAttempt | None, is_cut: bool) -> list[NextCall]:
    transaction_id, step = sent.transaction_id, outcome.next_step_id
    if outcome.rollback_incomplete:
        return [
            next_calls.get(transaction_id, "to see which undo action failed"),
            next_calls.rewind(transaction_id, step or 1, "to try the undo again, once its cause is gone"),
        ]
    match outcome.status:
        case StepStatus.SUCCESS:
            calls = [
                next_calls.run(transaction_id, step, "for the next tool call"),
                next_calls.commit(transaction_id, step - 1, "if the task is done"),
            ]
            if is_cut:
                calls.append(
                    next_calls.get(transaction_id, 'with "path" too, to read a part of the output', sent.step)
                )
            return calls
        case StepStatus.ROLLBACK_TRIGGERED:
            return [
                _again(transaction_id, step, target, sent),
                next_calls.rollback(transaction_id, "to give up and undo everything"),
            ]
        case StepStatus.FAILED:
            return [next_calls.begin("to try once more from the beginning, in another way")]
    waits = "exactly so once that is decided; it runs nothing twice"
    return [
        next_calls.retry_step(transaction_id, sent.step, sent.tool, sent.arguments, waits),
        next_calls.get(transaction_id, "to see where it stands"),
    ]


def _again(transaction_id: str, step: int, target: StepAttempt | None, sent: SentStep) -> NextCall:
    """Return the call of the step that was gone back to, as it was last made."""
    if step == sent.step:
        return next_calls.run(
            transaction_id, step, "with its arguments corrected as the hint says", sent.tool, sent.arguments
        )
    if target is None:
        return next_calls.run(transaction_id, step, "to do it differently")
    was = cut(compact(target.arguments), 200)
    return next_calls.run(
        transaction_id,
        step,
        f"(that is how it was run: {was}) corrected as the hint says, and then the steps after it again",
        target.tool_name,
        target.arguments,
    )
