"""From what went wrong in a step to its hint and to the raw text kept for people.

Pure. A structured error keeps its own category and keys; any other exception is printed
as Python prints it, causes included, and read by the hint rules.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from agenttx_server.engine import hints
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import ValueRefused
from agenttx_server.engine.ports import ReportedFailure, SubStepFailed, ToolFailure, UndoUnavailable
from agenttx_server.engine.records import Hint, HintCategory
from agenttx_server.engine.references import UnresolvedReference

__all__ = [
    "UNDO_UNAVAILABLE",
    "StepFailure",
    "cancelled",
    "diverged",
    "from_exception",
    "from_tool_failure",
    "interrupted",
    "needs_approval_by_now",
    "needs_step_of_its_own",
    "not_approved",
    "outcome_unknown",
    "output_refused",
    "output_too_large",
    "refused_arguments",
    "reported",
    "sibling_conflict",
    "sub_step_in_doubt",
    "sub_step_not_undone",
    "timed_out",
    "tool_absent",
    "tool_changed",
    "tool_replaced",
    "undo_unavailable",
    "unknown_tool",
    "unresolved",
]

RAW_ERROR_CHARACTERS = 64 * 1024
MAX_FRAMES = 40
UNDO_UNAVAILABLE = "undo_unavailable"


@dataclass(frozen=True, slots=True)
class StepFailure:
    """Why a step failed: the agent's line, and the masked raw error for people.

    ``sub_step`` is the one whose failure it was, 0 if it was the step's own.
    """

    hint: Hint
    raw_error: str
    sub_step: int = 0


def _structured(category: HintCategory, message: str, keys: Sequence[str] = ()) -> StepFailure:
    return StepFailure(hints.from_structured(category, message, tuple(keys)), hints.mask_secrets(message))


def from_exception(error: BaseException, clean: Callable[[str], Hint]) -> StepFailure:
    """Read what a tool raised."""
    if isinstance(error, SubStepFailed):
        return StepFailure(error.hint, hints.mask_secrets(error.hint.text), error.sub_step)
    if isinstance(error, ToolFailure):
        return from_tool_failure(error)
    if isinstance(error, ReportedFailure):
        return reported(error.raw_error, clean)
    if isinstance(error, asyncio.CancelledError):
        return _structured(HintCategory.CANCELLED, "The tool was cancelled from inside. Run the step again.")
    printed = "".join(
        traceback.TracebackException.from_exception(error, limit=-MAX_FRAMES, compact=True).format()
    )
    bounded = hints.bound(printed, RAW_ERROR_CHARACTERS)
    return StepFailure(clean(bounded), hints.mask_secrets(bounded))


def from_tool_failure(error: ToolFailure) -> StepFailure:
    """Read a structured error."""
    category = error.category if error.category in set(HintCategory) else HintCategory.UNKNOWN
    raw = hints.mask_secrets(hints.bound(error.message, RAW_ERROR_CHARACTERS))
    return StepFailure(hints.from_structured(category, error.message, error.keys), raw)


def refused_arguments(refused: ValueRefused, text: str) -> StepFailure:
    """Arguments that are no plain JSON."""
    key = refused.key
    if key is None:
        category, message = HintCategory.INVALID_JSON, f"arguments are refused at {refused}"
    else:
        category, message = HintCategory.INVALID_VALUE, f"argument {refused}"
    failure = _structured(category, message, (key,) if key else ())
    return StepFailure(failure.hint, hints.mask_secrets(hints.bound(f"{message}\n{text}", 4096)))


def unresolved(error: UnresolvedReference) -> StepFailure:
    """A reference that leads nowhere."""
    hint = Hint(error.message, error.category, None, (error.key,) if error.key else ())
    return StepFailure(hint, hints.mask_secrets(error.message))


def unknown_tool(name: str, known: Sequence[str]) -> StepFailure:
    """A tool that nobody offers, with the nearest name that somebody does."""
    near = get_close_matches(name, known, n=1)
    advice = f"Did you mean '{near[0]}'?" if near else "ListTools names the tools."
    return _structured(HintCategory.UNKNOWN_TOOL, f"There is no tool '{name[:64]}'. {advice}")


def tool_absent(name: str) -> StepFailure:
    """A tool that was there before, and that nobody offers now."""
    return _structured(
        HintCategory.CONNECTION,
        f"No worker offers '{name[:64]}' now. Start the one that does, then run the step again.",
    )


def tool_changed(tool_name: str, refused: ToolFailure) -> StepFailure:
    """A recorded call whose arguments its tool refuses since it was changed."""
    message = f"{tool_name} was changed since this step was recorded and refuses it: {refused.message}"
    return _structured(HintCategory(refused.category), message, refused.keys)


def tool_replaced(tool_name: str) -> StepFailure:
    """A tool that became one of another effect class after its step had begun."""
    return _structured(
        HintCategory.UNKNOWN_TOOL,
        f"{tool_name} was replaced by another version while the step waited for it. Run the step again.",
    )


def not_approved(tool_name: str, comment: str) -> StepFailure:
    """A call that a person was asked about and refused; what they said goes on to the agent."""
    said = " ".join(comment.split())
    told = f": {said}" if said else "."
    message = f"{tool_name} was not approved{told}"
    if message[-1] not in ".!?":
        message += "."
    return _structured(
        HintCategory.PERMISSION_DENIED, f"{message} Ask for something else, or go on without it."
    )


def undo_unavailable(error: UndoUnavailable) -> StepFailure:
    """An undo action that was not tried: it is again, once somebody who has it is there."""
    failure = _structured(HintCategory.CONNECTION, f"{error}. It is run once a worker that has it is back.")
    return StepFailure(replace(failure.hint, rule=UNDO_UNAVAILABLE), failure.raw_error)


def timed_out(tool_name: str, seconds: float) -> StepFailure:
    """A tool that did not end within its deadline."""
    return _structured(
        HintCategory.TIMEOUT,
        f"{tool_name} did not end within {seconds:g} s. Ask for less at once, or give the step a longer timeout.",
    )


def cancelled(tool_name: str, why: str) -> StepFailure:
    """A step that was stopped because something else was asked for."""
    return _structured(HintCategory.CANCELLED, f"{tool_name} was cancelled: {why}")


def reported(error: str, clean: Callable[[str], Hint]) -> StepFailure:
    """An error that somebody else saw and tells of."""
    bounded = hints.bound(
        error or "the step is said to have failed; no error was given", RAW_ERROR_CHARACTERS
    )
    return StepFailure(clean(bounded), hints.mask_secrets(bounded))


def interrupted(tool_name: str) -> StepFailure:
    """A step whose server stopped in the middle of it."""
    return _structured(
        HintCategory.UNKNOWN,
        f"{tool_name} was interrupted when its server stopped; whether its effect happened is not known. "
        "Find out and settle the step.",
    )


def outcome_unknown(tool_name: str, error: BaseException) -> StepFailure:
    """A tool that can't tell whether its effect happened."""
    failure = _structured(
        HintCategory.UNKNOWN,
        f"{tool_name} can't tell whether its effect happened. Find out before the step is repeated.",
    )
    printed = "".join(traceback.TracebackException.from_exception(error, limit=-MAX_FRAMES).format())
    return StepFailure(failure.hint, hints.mask_secrets(hints.bound(printed, RAW_ERROR_CHARACTERS)))


def output_too_large(tool_name: str, size: int, limit: int) -> StepFailure:
    """A result over the limit."""
    return _structured(
        HintCategory.RESOURCE_EXHAUSTED,
        f"{tool_name} returned {size} bytes, the limit is {limit} bytes. Ask for less, or in parts.",
    )


def output_refused(tool_name: str, refused: ValueRefused) -> StepFailure:
    """A result that is no plain JSON."""
    return _structured(
        HintCategory.INVALID_VALUE,
        f"{tool_name} returned a value that is not plain JSON at {refused.path}: {refused.reason}",
    )


def sub_step_in_doubt(step_id: int, sub_step: int, tool_name: str) -> StepFailure:
    """A step that can't go on, because what became of a call that it made is not known."""
    return _structured(
        HintCategory.UNKNOWN,
        f"Whether step {step_id}.{sub_step} ({tool_name}) had its effect is not known. Find out and settle it.",
    )


def sub_step_not_undone(step_id: int, sub_step: int, tool_name: str) -> StepFailure:
    """A step that can't go on, because an undo action of a call that it made failed."""
    return _structured(
        HintCategory.UNKNOWN,
        f"Step {step_id}.{sub_step} ({tool_name}) could not be undone, so the step ends here.",
    )


def needs_approval_by_now(tool_name: str) -> StepFailure:
    """A call that came to need a person's approval after its step had begun."""
    return _structured(
        HintCategory.PERMISSION_DENIED,
        f"'{tool_name[:64]}' needs a person's approval by now, and its step began without one. Send the step again to ask.",
    )


def needs_step_of_its_own(tool_name: str) -> StepFailure:
    """A call made inside a step whose tool a person has to be asked about."""
    return _structured(
        HintCategory.PERMISSION_DENIED,
        f"'{tool_name[:64]}' needs a person's approval, which a call made inside a step can't wait for. Send it as a step.",
    )


def diverged(step_id: int, sub_step: int, tool_name: str) -> StepFailure:
    """A step that did not make a call again that it made before, and that can't be undone."""
    return _structured(
        HintCategory.CONFLICT,
        f"This run of step {step_id} did not repeat its call {sub_step} ({tool_name}), which can't be undone. Have the "
        "step make the same calls in the same order.",
    )


def sibling_conflict(key: str, sibling: int) -> StepFailure:
    """Two members of one group that touched one key."""
    name = key.partition("/")[2] or key
    return _structured(
        HintCategory.CONFLICT,
        f"Step {sibling} of the same group also used '{name[:64]}'. Run steps that share a key one after the other.",
    )
