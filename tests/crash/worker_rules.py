"""What is judged in another way where the tools are in workers, and why.

A server that was killed says no more. A worker may be given up while it lives, by a server that died or that did not hear
of it for too long, and go on with what it was at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from tests.crash.world import Line

from agenttx.v1 import event_pb2

__all__ = ["undo_recorded_twice", "undo_that_counts"]


def undo_that_counts(lines: Iterable[Line], kept: Collection[str]) -> Iterator[Line]:
    """Leave out of the log the undo that changed nothing, which may have been run at any time.

    Undo is at-least-once, under one key. In one process of a server it is recorded before the next thing is begun, and only
    a crash in between repeats it. A worker that is given up in the midst of it may do it after another one did, and after the
    transaction has gone on: the world knows the key, and nothing changes. For the same reason a failed try
    says nothing, and undo that a person gave up (``kept``) may still come.
    """
    undone: set[str] = set()
    for line in lines:
        if line.what == "undo_failed" or (line.what == "undo" and (line.key in undone or line.entry in kept)):
            continue
        if line.what == "undo":
            undone.add(line.key)
        yield line


def undo_recorded_twice(events: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the attempts whose undo the events tell of once too often as done.

    In place of the order of lines, which no longer tells whether an undo was run again that was recorded. Each
    crash tool registers one. It is run again for each time that its attempt is told to have acted late.
    """
    told: Counter[tuple[int, int]] = Counter()
    for event in events:
        told[event.step_id, event.attempt] += event.type == event_pb2.EVENT_TYPE_UNDO_COMPLETED
        told[event.step_id, event.attempt] -= event.type == event_pb2.EVENT_TYPE_LATE_EFFECT_REPORTED
    return [key for key, times in told.items() if times > 1]
