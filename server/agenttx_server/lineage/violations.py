"""What is wrong with a pipeline's definition: all of it at once, each in one sentence."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches

__all__ = ["Violation", "suggestion", "violation", "warning"]

MAX_MESSAGE: int = 500


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing found.

    Attributes:
        code: what kind of thing, in capitals: the same for the same mistake.
        where: ``pipeline`` or ``action NAME`` with the clause, as in ``action combine, guard``.
        message: one sentence that names what is wrong and how to mend it.
        is_warning: whether the pipeline may run nevertheless.
    """

    code: str
    where: str
    message: str
    is_warning: bool = False


def violation(code: str, where: str, message: str) -> Violation:
    """Return what refuses the pipeline; texts are cut and kept on one line, whatever they hold."""
    return Violation(code, _one_line(where, 300), _one_line(message, MAX_MESSAGE))


def warning(code: str, where: str, message: str) -> Violation:
    """Return what its writer should know."""
    return Violation(code, _one_line(where, 300), _one_line(message, MAX_MESSAGE), is_warning=True)


def suggestion(name: str, known: Collection[str]) -> str:
    """`` - did you mean 'x'?`` where one of the known names is close."""
    close = get_close_matches(name[:200], sorted(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _one_line(text: str, limit: int) -> str:
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line) <= limit else line[: limit - 1] + "…"
