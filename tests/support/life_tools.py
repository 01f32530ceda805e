"""A tool of every effect class that a test lets go when it likes: `--tools tests.support.life_tools`.

Each notes its process in `<log>.process`, logs its effect as those of `sample_tools` do, then waits until a file exists:

    {"log": …, "entry": "room", "gate": …}
"""

from __future__ import annotations

import asyncio
import os

from tests.support.sample_tools import POLL_SECONDS, log_line

from agenttx_server.tools import ToolCallContext, UndoContext, tool

PATIENCE_SECONDS = 600


async def _pass(ctx: ToolCallContext, log: str, entry: str, gate: str) -> dict[str, str]:
    _note_process(log)
    log_line(log, "effect", entry, ctx.idempotency_key)
    while not _exists(gate):  # noqa: ASYNC110 - the file is made by another process
        await asyncio.sleep(POLL_SECONDS)
    return {"entry": entry}


def _note_process(log: str) -> None:
    with open(f"{log}.process", "w") as file:
        file.write(str(os.getpid()))


def _exists(path: str) -> bool:
    return os.path.exists(path)


@tool("life.read_only", effects="read_only", timeout_seconds=PATIENCE_SECONDS)
async def read_only(ctx: ToolCallContext, log: str, entry: str, gate: str) -> dict[str, str]:
    """Wait; what it logs is no effect."""
    return await _pass(ctx, log, entry, gate)


@tool("life.transactional", effects="transactional", timeout_seconds=PATIENCE_SECONDS)
async def transactional(ctx: ToolCallContext, log: str, entry: str, gate: str) -> dict[str, str]:
    """Wait, having stored and staged something."""
    await ctx.store.put(f"life/{entry}", await ctx.store.get(f"life/{entry}", 0) + 1)
    await ctx.stage_effect("life", {"entry": entry})
    return await _pass(ctx, log, entry, gate)


@tool("life.idempotent", effects="idempotent", timeout_seconds=PATIENCE_SECONDS)
async def idempotent(ctx: ToolCallContext, log: str, entry: str, gate: str) -> dict[str, str]:
    """Log an effect that may be repeated under its key, and wait."""
    return await _pass(ctx, log, entry, gate)


@tool("life.compensatable", effects="compensatable", timeout_seconds=PATIENCE_SECONDS)
async def compensatable(ctx: ToolCallContext, log: str, entry: str, gate: str) -> dict[str, str]:
    """Register the undo, log the effect, and wait."""
    await ctx.register_undo("life.undo", log=log, entry=entry)
    return await _pass(ctx, log, entry, gate)


@compensatable.undo("life.undo")
async def undo(ctx: UndoContext, log: str, entry: str) -> None:
    """Log the undo."""
    log_line(log, "undo", entry, ctx.idempotency_key)


@tool("life.irreversible", effects="irreversible", timeout_seconds=PATIENCE_SECONDS)
async def irreversible(ctx: ToolCallContext, log: str, entry: str, gate: str) -> dict[str, str]:
    """Log an effect that nothing takes back, and wait."""
    return await _pass(ctx, log, entry, gate)
