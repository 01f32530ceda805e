"""Tools of pipelines for tests that kill the server: all they do goes to the log of tests.support.crash_tools."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.support.crash_tools import LOG_VARIABLE, log_line

from agenttx_server.tools import ToolCallContext, ToolFailure, UndoContext, tool


def _log() -> str:
    log = Path(os.environ[LOG_VARIABLE])
    return log.read_text() if log.exists() else ""


@tool("kill.keep", effects="read_only")
async def keep(ctx: ToolCallContext, n: int) -> dict[str, int]:
    """Answer what it was given."""
    log_line(ctx, "called", f"keep {n}")
    return {"n": n}


@tool("kill.chunk", effects="read_only")
async def chunk(ctx: ToolCallContext, n: int) -> list[dict[str, int]]:
    """Three rows."""
    log_line(ctx, "called", f"chunk {n}")
    return [{"n": 10 * n + index} for index in range(3)]


@tool("kill.choose", effects="read_only")
async def choose(ctx: ToolCallContext, n: int) -> dict[str, Any]:
    """A customer: for an odd row one that is not there, the first time that anybody asks."""
    asked = f'"choose {n}"' in _log()
    log_line(ctx, "called", f"choose {n}")
    return {"customer": "nobody" if n % 2 and not asked else "anna"}


@tool("kill.book", effects="compensatable")
async def book(ctx: ToolCallContext, n: int) -> dict[str, int]:
    """An effect whose undo is registered before it."""
    await ctx.register_undo("kill.unbook", n=n)
    log_line(ctx, "effect", f"seat {n}")
    return {"booked": n}


@book.undo("kill.unbook")
async def unbook(ctx: UndoContext, n: int) -> None:
    """Take it back."""
    log_line(ctx, "undo", f"seat {n}")


@tool("kill.bill", effects="read_only")
async def bill(ctx: ToolCallContext, customer: str, n: int) -> dict[str, str]:
    """Fails where the customer is not there, naming that key."""
    log_line(ctx, "called", f"bill {n}")
    if customer == "nobody":
        raise ToolFailure("foreign_key_violation", "customer 'nobody' is not there", ["customer"])
    return {"billed": customer}


@tool("kill.total", effects="read_only")
async def total(ctx: ToolCallContext, records: list[dict[str, Any]]) -> dict[str, int]:
    """How many there are."""
    log_line(ctx, "called", "total")
    return {"count": len(records)}


@tool("kill.first", effects="read_only")
async def first(ctx: ToolCallContext, records: list[dict[str, Any]]) -> dict[str, Any]:
    """A FILE tool that keeps the first record and sums all up."""
    log_line(ctx, "called", "first")
    return {
        "records": [
            {"source_index": 0, "data": {"kept": True}},
            {"source_index": None, "data": {"all": len(records)}},
        ]
    }
