"""The parts that texts have in common."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.mcp_server import next_calls
from agenttx_server.mcp_server.answers import NextCall, Refused

__all__ = ["refusal_text", "with_rest"]


def refusal_text(answer: Refused) -> str:
    """Return a refusal as text: what is wrong, what to do, what to call."""
    line = f"{answer.message.rstrip('.')}. {answer.advice.rstrip('.')}."
    return "\n".join(part for part in (line, next_calls.sentence(answer.next)) if part)


def with_rest(
    text: str, kept_effects: Sequence[str], failed_undo: Sequence[str], calls: list[NextCall]
) -> str:
    """Return a text with what was not undone, and what to call next."""
    lines = [text]
    if kept_effects:
        lines.append("Not undone, and still in effect: " + "; ".join(kept_effects) + ".")
    if failed_undo:
        lines.append("Undo that failed: " + "; ".join(failed_undo) + ".")
    if calls:
        lines.append(next_calls.sentence(calls))
    return "\n".join(lines)
