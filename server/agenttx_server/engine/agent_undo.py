"""Undo that only the agent can do: what it has to do now, and when a rewind waits for it.

The order is one for all undo of a rewind, newest registered first, whoever does it: an older action of the
server's is run only when the agent has acknowledged every newer one of its own, and the agent is asked for an
older one only when the server's newer ones have been run. An action that failed is passed, as among the server's own.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from agenttx_server.engine.records import UndoRecord, UndoState

__all__ = ["NextUndo", "next_undo", "told", "waits"]

# Named by one answer; ListCompensations has all.
_MOST_TOLD = 100
_MOST_TOLD_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class NextUndo:
    """What comes next of a rewind's undo, newest first: actions to run here, then actions to ask the agent for."""

    to_run: Sequence[UndoRecord]
    to_ask: Sequence[UndoRecord]


def next_undo(owed: Sequence[UndoRecord], *, retry_failed: bool) -> NextUndo:
    """Return what to do next of the undo that is owed, newest first.

    ``retry_failed`` is that what failed here is run again. What the agent could not do it is not asked for again
    by itself: that takes Rewind or RetryCompensation.
    """
    failed_here = () if retry_failed else (UndoState.FAILED,)
    open_undo = [
        undo for undo in owed if undo.state not in (failed_here if not undo.by_agent else (UndoState.FAILED,))
    ]
    to_run = list(takewhile(lambda undo: not undo.by_agent, open_undo))
    to_ask = list(takewhile(lambda undo: undo.by_agent, open_undo[len(to_run) :]))
    return NextUndo(to_run, to_ask)


def waits(owed: Sequence[UndoRecord]) -> bool:
    """Whether a rewind that owes this can't go on by itself: the agent has to act, or only failed ones are left."""
    untried = [undo for undo in owed if undo.state is not UndoState.FAILED]
    return untried[0].state is UndoState.AWAITING_AGENT if untried else bool(owed)


def told(awaited: Sequence[UndoRecord]) -> tuple[UndoRecord, ...]:
    """Return as much of what the agent has to do as an answer names, newest first; at least one if there is one."""
    named: list[UndoRecord] = []
    left = _MOST_TOLD_CHARACTERS
    for undo in awaited[:_MOST_TOLD]:
        left -= len(undo.arguments)
        if named and left < 0:
            break
        named.append(undo)
    return tuple(named)
