"""What a model is told about its calls: results, and what a rollback means for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agenttx.integrations.agent_steps import Answer
from agenttx.integrations.model_calls import shown
from agenttx.records import StepOutcome, StepStatus

__all__ = ["call_result", "rollback_note"]

_MOST_SHOWN = 2_000
_MOST_STEPS = 20


def call_result(outcome: StepOutcome | None, answer: Answer[Any]) -> tuple[str, bool]:
    """Return the result of one call as text, and whether it failed."""
    if outcome is None:
        return (
            "Not run: the transaction was rolled back before this call. Ask again if it is still needed.",
            True,
        )
    if outcome.status is not StepStatus.SUCCESS:
        return rollback_note(answer, removed=False), True
    if answer.is_rolled_back and outcome.step_id >= answer.next_step_id:
        return "Undone: the call succeeded, and was undone with the rollback that another call caused.", True
    return shown(outcome.output), False


def rollback_note(answer: Answer[Any], *, removed: bool) -> str:
    """Return what a model has to know after a rollback.

    Args:
        answer: The answer that says so.
        removed: Whether what was undone was also removed from the conversation, where it was found in it.
    """
    failure = answer.failure
    if failure is not None:
        lines = [f"Step {failure.step_id} ({failure.tool_name}) failed. {failure.hint}"]
    else:
        lines = ["The transaction was rewound by somebody else."]
    undone = [
        (mark.step_id, mark.step.tool)
        for mark in answer.undone
        if failure is None or mark.step_id != failure.step_id
    ]
    if undone:
        lines.append(f"Undone, as if never called: {_steps(undone)}. What these returned is void.")
    if removed:
        lines.append("These calls were removed from this conversation.")
        if missing := [(mark.step_id, mark.step.tool) for mark in answer.undone if mark.place is None]:
            lines[-1] = (
                f"These calls were removed from this conversation, except {_steps(missing)}, which it no longer held as "
                "calls: where it still tells of them, that is void."
            )
    elif undone:
        lines.append("Call again, corrected, those that are still needed.")
    for mark in answer.standing if removed else ():
        lines.append(
            f"Done and not undone, don't call it again: {mark.step.tool} with {_bounded(dict(mark.step.arguments))}, "
            f"which returned {_bounded(mark.output)}."
        )
    if failure is not None:
        if failure.kept_effects:
            kept = [(effect.step_id, effect.tool_name) for effect in failure.kept_effects]
            lines.append(f"Effects that could not be undone and stay: {_steps(kept)}.")
        if failure.context_reset:
            lines.append("Begin the whole task anew.")
    if answer.constraints:
        lines.append("Keep to this from now on:")
        lines += [f"- {constraint.removeprefix('Hint: ')}" for constraint in answer.constraints]
    return "\n".join(lines)


def _steps(steps: Sequence[tuple[int, str]]) -> str:
    shown_ones = ", ".join(f"step {step_id} ({tool})" for step_id, tool in steps[:_MOST_STEPS])
    return shown_ones + (f" and {len(steps) - _MOST_STEPS} more" if len(steps) > _MOST_STEPS else "")


def _bounded(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
