"""Named points at which a server can be made to die or to wait, for tests of what a crash leaves behind.

    AGENTTX_FAILPOINTS="write.after:intent=kill@3"           SIGKILL to itself at the third hit
    AGENTTX_FAILPOINTS="tool.after:irreversible=kill%0.05"   the same at any hit, with probability 0.05
    AGENTTX_FAILPOINTS="commit.before=sleep:0.2"             0.2 s of waiting at each hit

Several are separated by commas. ``AGENTTX_FAILPOINTS_SEED`` seeds the probabilities. Where the
variable is not set nothing is wrapped and :func:`hit` is one look at an empty dictionary.

The points, in :data:`NAMES`: ``write.before:KIND`` and ``write.after:KIND`` around a write of the
engine, by what it is about (:data:`WRITE_KINDS`); ``commit.before`` and ``commit.after`` around the
COMMIT of a batch, in the writer's thread; ``tool.before:CLASS`` and ``tool.after:CLASS`` around a
tool's call; ``undo.before``, ``undo.after``, ``deliver.before``, ``deliver.after``.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from dataclasses import dataclass, field
from itertools import count

__all__ = [
    "NAMES",
    "SEED_VARIABLE",
    "TOOL_CLASSES",
    "VARIABLE",
    "WRITE_KINDS",
    "BadFailpoints",
    "arm",
    "hit",
    "hit_in_loop",
    "is_armed",
]

VARIABLE = "AGENTTX_FAILPOINTS"
SEED_VARIABLE = "AGENTTX_FAILPOINTS_SEED"

WRITE_KINDS = (
    "begin",
    "intent",
    "undo_registration",
    "member",
    "step",
    "doubt",
    "superseded",
    "rewind_start",
    "undo_outcome",
    "rewind_held",
    "rewind_end",
    "publication",
    "delivery",
    "answer",
    "other",
)
TOOL_CLASSES = ("read_only", "transactional", "idempotent", "compensatable", "irreversible")
NAMES = (
    *(f"write.{when}:{kind}" for kind in WRITE_KINDS for when in ("before", "after")),
    *(f"tool.{when}:{name}" for name in TOOL_CLASSES for when in ("before", "after")),
    *(f"{what}.{when}" for what in ("undo", "deliver", "commit") for when in ("before", "after")),
)

_ACTION = re.compile(
    r"kill@(?P<hit>[1-9][0-9]*)|kill%(?P<chance>[01](\.[0-9]+)?)|sleep:(?P<seconds>[0-9]+(\.[0-9]+)?)"
)


class BadFailpoints(ValueError):
    """The variable names a point or an action that there is not; the message is one line."""


@dataclass(slots=True)
class _Point:
    """What to do at a point: die at one hit, die at any with a chance, or wait at each."""

    kill_at: int = 0
    chance: float = 0.0
    seconds: float = 0.0
    random: random.Random = field(default_factory=random.Random)
    # Its next() is atomic: points of the store are hit by several threads.
    hits: count[int] = field(default_factory=lambda: count(1))


# Of the process, as what they do is: it dies as a whole, and the writer's thread knows of no settings.
_points: dict[str, _Point] = {}


def arm(text: str, seed: str = "") -> None:
    """Have the points that ``text`` names, and no others, act from now on. Raises BadFailpoints."""
    points = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = item.partition("=")
        if name not in NAMES:
            raise BadFailpoints(f"{VARIABLE}: there is no failpoint {name!r}; they are {', '.join(NAMES)}")
        points[name] = _point(name, action, seed)
    _points.clear()
    _points.update(points)


def is_armed() -> bool:
    """Whether any point acts, so that the ports have to be wrapped."""
    return bool(_points)


def hit(name: str) -> None:
    """Do what was asked for at this point; blocks if that is to wait."""
    if _points:
        time.sleep(_act(name))


async def hit_in_loop(name: str) -> None:
    """Do the same within an event loop."""
    seconds = _act(name)
    if seconds:
        await asyncio.sleep(seconds)


def _point(name: str, action: str, seed: str) -> _Point:
    found = _ACTION.fullmatch(action)
    if found is None:
        raise BadFailpoints(f"{VARIABLE}: {name} can't do {action!r}; write kill@N, kill%P or sleep:SECONDS")
    return _Point(
        kill_at=int(found["hit"] or 0),
        chance=float(found["chance"] or 0),
        seconds=float(found["seconds"] or 0),
        random=random.Random(f"{seed}:{name}"),  # noqa: S311 — repeatable is what it has to be
    )


def _act(name: str) -> float:
    """Die if it is time to; else return how long to wait, in seconds."""
    point = _points.get(name)
    if point is None:
        return 0.0
    if next(point.hits) == point.kill_at or (point.chance and point.random.random() < point.chance):
        os.kill(os.getpid(), signal.SIGKILL)
    return point.seconds
