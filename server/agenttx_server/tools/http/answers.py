"""What came back, and the two ways in which nothing did."""

from __future__ import annotations

from dataclasses import dataclass

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import HintCategory
from agenttx_server.tools.http.target import Target

__all__ = ["Answer", "AnswerLost", "Cut", "NotDone"]


class NotDone(ToolFailure):
    """The request had no effect, for certain: it was refused here, or never reached who would act on it."""


class AnswerLost(Exception):
    """The request was sent, and no answer came: whether it had its effect is not known."""

    def __init__(self, category: HintCategory, message: str) -> None:
        super().__init__(message)
        self.category = category
        self.message = message


@dataclass(frozen=True, slots=True)
class Cut:
    """Why an answer's body is not whole."""

    category: HintCategory
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A final answer; names of ``headers`` in lower case. ``body`` is decoded, and empty where ``cut`` says why."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    target: Target
    cut: Cut | None = None

    def header(self, name: str) -> str:
        """Return a header's value, several joined by a comma, empty if it is absent."""
        return ", ".join(value for given, value in self.headers if given == name)
