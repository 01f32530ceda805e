"""What the agent of one transaction was told: the model that a run is judged by.

Only final answers count. A live step is one that was acknowledged and, as far as the agent was told, not rewound since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Call", "Exchange", "LiveStep", "Told"]


@dataclass(frozen=True)
class Call:
    """A tool call as it was meant: ``arguments`` as sent, ``entry`` its name in the outside world."""

    tool: str
    entry: str
    request_id: str
    arguments: dict[str, Any]

    @property
    def puts(self) -> dict[str, Any]:
        return dict(self.arguments.get("puts") or {})

    @property
    def stage(self) -> list[tuple[str, Any]]:
        return [(channel, payload) for channel, payload in self.arguments.get("stage") or []]

    @property
    def counter(self) -> str | None:
        return self.arguments.get("counter")


@dataclass(frozen=True)
class LiveStep:
    """A step that was answered as successful. ``edges`` are (from, to, source key, target key, kind)."""

    number: int
    group_first: int
    call: Call
    attempt: int
    output: Any
    edges: tuple[tuple[int, int, str, str, int], ...]
    by_word: bool = False
    """Somebody said that it succeeded: what it wrote and staged is lost, as it was never heard of."""


@dataclass(frozen=True)
class Exchange:
    """A changing call and its final answer: ``response`` or the reason it was refused for."""

    method: str
    request: Any
    response: Any = None
    refusal: str = ""


@dataclass
class Told:
    """One transaction, as its agent knows it."""

    name: str
    transaction_id: str = ""
    resumes: bool = True
    status: str = "OPEN"
    generation: int = 1
    live: list[LiveStep] = field(default_factory=list)
    calls: dict[str, Call] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    words: Counter[str] = field(default_factory=Counter)
    """Explicit words, by what they said: RETRY, SUCCEEDED, FAILED, KEPT."""
    kept: set[str] = field(default_factory=set)
    """Entries whose undo was given up by word."""
    seen_late: set[tuple[int, int]] = field(default_factory=set)
    """Attempts without undo that were told to have acted late: step and number."""
    steps: int = 0
    busy: bool = False

    @property
    def next_step(self) -> int:
        return len(self.live) + 1

    def truncate(self, to_step: int) -> None:
        """Forget the steps from one on; 0 forgets all."""
        del self.live[max(to_step - 1, 0) :]

    def state(self) -> dict[str, Any]:
        """What the live steps wrote, folded."""
        folded: dict[str, Any] = {}
        for step in self.live:
            if not step.by_word:
                folded |= step.call.puts
        return {key: value for key, value in folded.items() if value is not None}

    def staged(self) -> Iterator[tuple[int, str, Any]]:
        """What the live steps staged, in order: step, channel, payload."""
        for step in self.live:
            if not step.by_word:
                for channel, payload in step.call.stage:
                    yield step.number, channel, payload

    def counters(self) -> Counter[str]:
        """How often the live steps counted each shared counter up."""
        return Counter(step.call.counter for step in self.live if step.call.counter and not step.by_word)
