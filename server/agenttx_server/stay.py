"""Whether the work of a call is in the server's own hands or waits for somebody's tool: known to every layer.

A server that has more to do than it can is told from one whose callers' tools take long by this alone. Set by api/ for
each step it lets in; what the step starts inherits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

__all__ = ["Stay", "outside", "stays"]


class Stay(Protocol):
    """One step's stay in the server."""

    def go_out(self) -> None:
        """A tool begins; several may at once."""

    def come_back(self) -> None:
        """A tool has ended."""


_current: ContextVar[Stay | None] = ContextVar("agenttx_stay", default=None)


def stays(stay: Stay) -> None:
    """Make a stay that of the work under way."""
    _current.set(stay)


@contextmanager
def outside() -> Iterator[None]:
    """Say that the work under way waits for something that is not the server's."""
    stay = _current.get()
    if stay is None:
        yield
        return
    stay.go_out()
    try:
        yield
    finally:
        stay.come_back()
