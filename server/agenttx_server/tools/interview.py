"""What one run of a node asks people, and what they answered before it was started again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from agenttx_server.engine import json_values
from agenttx_server.engine.json_values import MISSING, JsonValue, Missing
from agenttx_server.engine.records import HintCategory
from agenttx_server.worker_messages import Failure, Output, Waits

__all__ = ["Interview", "StoredAnswer"]


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer, and the hash of the question as it was asked: SHA-256 of its canonical JSON."""

    asked: str
    value: JsonValue


class Interview:
    """The questions of one run of a node, in order: answered ones are answered again, the next one waits.

    Attributes:
        pending: what it waits with; MISSING while it doesn't.
        deviation: the ordinal at which it asked something else than the first time; None while it didn't.
    """

    def __init__(self, answers: Sequence[StoredAnswer]) -> None:
        self.pending: JsonValue | Missing = MISSING
        self.deviation: int | None = None
        self._answers = answers
        self._asked = 0

    @property
    def is_over(self) -> bool:
        """Whether the node is to end: it waits, or asked something else."""
        return self.pending is not MISSING or self.deviation is not None

    def ask(self, payload: str) -> Output | Waits | Failure:
        """Ask; ``payload`` is JSON text. Nothing more is asked once one waits."""
        if self.pending is not MISSING:
            return Waits()
        try:
            asked = json_values.parse(payload)
        except json_values.ValueRefused as refused:
            return Failure(HintCategory.INVALID_VALUE, f"the question is not plain JSON at {refused}")
        if self._asked == len(self._answers):
            self.pending = asked
            return Waits()
        known = self._answers[self._asked]
        if hashlib.sha256(json_values.canonical(asked).encode()).hexdigest() != known.asked:
            self.deviation = self._asked
            return Failure(HintCategory.INVALID_VALUE, deviated(self._asked))
        self._asked += 1
        return Output(json_values.canonical(known.value))


def deviated(ordinal: int) -> str:
    """Say that a node that was started again asked something else."""
    return (
        f"question {ordinal + 1} of the node was answered, and the node asks something else in its place now. "
        "What a node asks must follow from its state, its sub-steps and earlier answers alone"
    )
