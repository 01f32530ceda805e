"""Tools that call other tools, for tests of sub-steps: `--tools tests.support.node_tools`.

Outside effects are lines in a log, as of tests.support.sample_tools. A node waits behind its second call until a file
`<log>.go` exists.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from tests.support.sample_tools import log_line

from agenttx_server.tools import SubStepFailed, ToolCallContext, ToolFailure, UndoContext, tool


@tool("node.book", effects="compensatable")
async def book(ctx: ToolCallContext, log: str, entry: str, fail: str = "") -> dict[str, Any]:
    """Register the undo, log the effect, and fail if told to."""
    await ctx.register_undo("node.unbook", log=log, entry=entry)
    log_line(log, "effect", entry, ctx.idempotency_key)
    if fail:
        raise ToolFailure("invalid_value", fail, ["entry"])
    return {"booked": entry}


@book.undo("node.unbook")
async def unbook(ctx: UndoContext, log: str, entry: str) -> None:
    """Log the undo."""
    log_line(log, "undo", entry, ctx.idempotency_key)


@tool("node.pay", effects="irreversible")
async def pay(ctx: ToolCallContext, log: str, entry: str, waits: bool = False) -> dict[str, Any]:
    """Log the effect, and wait if told to."""
    log_line(log, "effect", entry, ctx.idempotency_key)
    while waits and not os.path.exists(f"{log}.go"):  # noqa: ASYNC110, ASYNC240 — another process makes it
        await asyncio.sleep(0.01)
    return {"paid": entry}


@tool("node.note", effects="transactional")
async def note(ctx: ToolCallContext, key: str, value: Any) -> dict[str, Any]:
    """Write a key."""
    await ctx.store.put(key, value)
    return {"noted": key}


@tool("node.run", effects="transactional", restartable=True, timeout_seconds=60)
async def run(ctx: ToolCallContext, log: str, calls: list[Any], forgives: bool = False) -> list[Any]:
    """Make calls, [tool, arguments] each; forgive those that fail if told to."""
    outputs: list[Any] = []
    for number, (tool_name, arguments) in enumerate(calls):
        while number == 2 and not os.path.exists(f"{log}.go"):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
        try:
            outputs.append(await ctx.step(tool_name, arguments))
        except SubStepFailed as failed:
            if not forgives:
                raise
            outputs.append(failed.message)
    return outputs


@tool("node.run_in_thread", effects="transactional", restartable=True)
def run_in_thread(ctx: Any, calls: list[Any]) -> list[Any]:
    """Make calls from a plain function."""
    return [ctx.step(tool_name, arguments) for tool_name, arguments in calls]


TOOLS = [book, pay, note, run, run_in_thread]
