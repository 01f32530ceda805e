"""Tools that need approval, one of each effect class: `--tools tests.support.approval_tools`.

Each appends a line to the file that `log` names, durably, so that a test knows what really happened. `hold` keeps the
call under way until a file of that name is there. `APPROVAL_TOOLS_VERSION=2` is the same module after an upgrade:
`ask.pay` wants a currency then.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from agenttx_server.tools import ToolCallContext, UndoContext, tool

__all__ = ["ask_compensatable", "ask_idempotent", "ask_pay", "ask_read", "ask_write"]


def _line(log: str, text: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, text.encode() + b"\n")
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


async def _work(log: str, text: str, hold: str) -> str:
    _line(log, text)
    while hold and not Path(hold).exists():  # noqa: ASYNC110, ASYNC240 — another process makes it
        await asyncio.sleep(0.02)
    return text


@tool("ask.read", effects="read_only", approval=True)
async def ask_read(log: str, hold: str = "") -> str:
    """Read."""
    return await _work(log, "read", hold)


@tool("ask.write", effects="transactional", approval=True)
async def ask_write(ctx: ToolCallContext, log: str, hold: str = "") -> str:
    """Write state."""
    await ctx.store.put("kv/asked", "written")
    return await _work(log, "write", hold)


@tool("ask.set", effects="idempotent", approval=True)
async def ask_idempotent(log: str, hold: str = "") -> str:
    """Set something outside."""
    return await _work(log, "set", hold)


@tool("ask.book", effects="compensatable", approval=True)
async def ask_compensatable(ctx: ToolCallContext, log: str, hold: str = "") -> str:
    """Book something outside."""
    await ctx.register_undo("ask.unbook", log=log)
    return await _work(log, "book", hold)


@ask_compensatable.undo("ask.unbook")
async def ask_unbook(ctx: UndoContext, log: str) -> None:
    """Take the booking back."""
    _line(log, "unbook")


if os.environ.get("APPROVAL_TOOLS_VERSION") == "2":

    @tool("ask.pay", effects="irreversible", approval=True)
    async def ask_pay(log: str, currency: str, amount: int = 0, hold: str = "") -> str:
        """Pay, in a currency."""
        return await _work(log, f"pay {amount} {currency}", hold)

else:

    @tool("ask.pay", effects="irreversible", approval=True)
    async def ask_pay(log: str, amount: int = 0, hold: str = "") -> str:
        """Pay."""
        return await _work(log, f"pay {amount}", hold)
