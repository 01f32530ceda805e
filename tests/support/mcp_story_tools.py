"""Tools for what agents meet over MCP: counts, failures, doubts, waits, undo that fails."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import Any

from agenttx.tools import OutcomeUnknown, tool

_counts: Counter[str] = Counter()
_gates: dict[str, threading.Event] = defaultdict(threading.Event)


@tool("story.count", effects="idempotent")
def count(ctx: Any, name: str) -> dict[str, int]:
    """Count how often it was called for a name."""
    _counts[name] += 1
    return {"count": _counts[name]}


@tool("story.fail", effects="transactional")
def fail(ctx: Any, name: str) -> None:
    """Fail."""
    raise ValueError(f"story {name} has no happy end")


@tool("story.doubt", effects="irreversible")
def doubt(ctx: Any, name: str) -> None:
    """Not know whether it took effect."""
    raise OutcomeUnknown("the line went dead")


@tool("story.held", effects="idempotent", timeout_seconds=60)
def held(ctx: Any, name: str) -> dict[str, int]:
    """Wait until story.open lets it go."""
    _counts[name] += 1
    _gates[name].wait(50)
    return {"calls": _counts[name]}


@tool("story.open", effects="read_only")
def opened(ctx: Any, name: str) -> None:
    """Let story.held go."""
    _gates[name].set()


@tool("story.asked", effects="idempotent", approval=True)
def asked(ctx: Any, name: str) -> dict[str, str]:
    """Do what a person must approve."""
    return {"done": name}


@tool("story.effect", effects="compensatable")
async def effect(ctx: Any, name: str) -> dict[str, str]:
    """Do something whose undo fails."""
    await ctx.register_undo("story.broken_undo", name=name)
    return {"done": name}


@effect.undo("story.broken_undo")
async def broken_undo(ctx: Any, name: str) -> None:
    """Fail."""
    raise RuntimeError("the booking system is down")


TOOLS = [count, fail, doubt, held, opened, asked, effect]
