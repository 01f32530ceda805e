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
from agenttx_server.engine.json_values import ValueRefused
from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import Hint, HintCategory
from agenttx_server.engine.references import UnresolvedReference

__all__ = [
    "StepFailure",
    "cancelled",
    "from_exception",
    "outcome_unknown",
    "output_refused",
    "output_too_large",
    "refused_arguments",
    "sibling_conflict",
    "timed_out",
    "unknown_tool",
    "unresolved",
]

RAW_ERROR_CHARACTERS = 64 * 1024
MAX_FRAMES = 40


@dataclass(frozen=True, slots=True)
class StepFailure:
    """Why a step failed: the agent's line, and the masked raw error for people."""

    hint: Hint
    raw_error: str


def _structured(category: HintCategory, message: str, keys: Sequence[str] = ()) -> StepFailure:
    return StepFailure(hints.from_structured(category, message, tuple(keys)), hints.mask_secrets(message))


def from_exception(error: BaseException, clean: Callable[[str], Hint]) -> StepFailure:
    """Read what a tool raised."""
    if isinstance(error, ToolFailure):
        category = error.category if error.category in set(HintCategory) else HintCategory.UNKNOWN
        raw = hints.mask_secrets(hints.bound(error.message, RAW_ERROR_CHARACTERS))
        return StepFailure(hints.from_structured(category, error.message, error.keys), raw)
    if isinstance(error, asyncio.CancelledError):
        return _structured(HintCategory.CANCELLED, "The tool was cancelled from inside. Run the step again.")
    printed = "".join(
        traceback.TracebackException.from_exception(error, limit=-MAX_FRAMES, compact=True).format()
    )
    bounded = hints.bound(printed, RAW_ERROR_CHARACTERS)
    return StepFailure(clean(bounded), hints.mask_secrets(bounded))


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


def timed_out(tool_name: str, seconds: float) -> StepFailure:
    """A tool that did not end within its deadline."""
    return _structured(
        HintCategory.TIMEOUT,
        f"{tool_name} did not end within {seconds:g} s. Ask for less at once, or give the step a longer timeout.",
    )


def cancelled(tool_name: str, why: str) -> StepFailure:
    """A step that was stopped because something else was asked for."""
    return _structured(HintCategory.CANCELLED, f"{tool_name} was cancelled: {why}")


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


def sibling_conflict(key: str, sibling: int) -> StepFailure:
    """Two members of one group that touched one key."""
    name = key.partition("/")[2] or key
    return _structured(
        HintCategory.CONFLICT,
        f"Step {sibling} of the same group also used '{name[:64]}'. Run steps that share a key one after the other.",
    )
