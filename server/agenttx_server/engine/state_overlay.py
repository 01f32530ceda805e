"""What a running step and its sub-steps have written so far, as both see it.

Durable are the writes of sub-steps; the step's own are once it has succeeded. What stands for a key is the
latest write by the order of :mod:`.write_order`, not by the time at which concurrent sub-steps end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agenttx_server.engine.write_order import own_span, sub_step_span

__all__ = ["StateOverlay"]


class StateOverlay:
    """Values by key over the state before the step's group; None is a deletion."""

    __slots__ = ("_found", "_made", "own_spans")

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str | None]] = {}
        self._made = 0
        # By key of the step's own writes: the sequence below them.
        self.own_spans: dict[str, int] = {}

    def begin_sub_step(self, sub_step: int) -> None:
        """Note that a sub-step was asked for: what the step writes from now on is later than what that one does."""
        self._made = max(self._made, sub_step)

    def write_own(self, key: str, value: str | None) -> None:
        """Take in a write of the step's own code."""
        span = own_span(self._made)
        self.own_spans[key] = span
        self._found[key] = (span, value)

    def take_sub_step(self, sub_step: int, writes: Iterable[tuple[str, str | None]]) -> None:
        """Take in what a sub-step wrote."""
        span = sub_step_span(sub_step)[0]
        for key, value in writes:
            known = self._found.get(key)
            if known is None or known[0] <= span:
                self._found[key] = (span, value)

    def copy(self) -> StateOverlay:
        """Return another one that begins with what is here."""
        other = StateOverlay()
        other._found = dict(self._found)
        other._made = self._made
        return other

    def take_all(self, other: StateOverlay) -> None:
        """Take in all that another one has."""
        for key, found in other._found.items():
            known = self._found.get(key)
            if known is None or known[0] <= found[0]:
                self._found[key] = found

    def find(self, key: str) -> tuple[bool, str | None]:
        """Return whether the key was written, and its value."""
        found = self._found.get(key)
        return (False, None) if found is None else (True, found[1])

    def values(self) -> Mapping[str, str | None]:
        """Return all that was written, by key."""
        return {key: value for key, (_, value) in self._found.items()}
