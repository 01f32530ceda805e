"""``kv.*``: JSON values under keys, part of the transaction's state (namespace ``kv``)."""

# ruff: noqa: D417 — ctx is not an argument of the tool

from __future__ import annotations

from typing import Any, Final

from agenttx.tools.call_context import ToolCallContext
from agenttx.tools.definition import AnyTool, tool
from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import HintCategory
from agenttx_server.tools.builtin.wording import shown

__all__ = ["KV_TOOLS"]


class _Unset:
    """No default was given, which is not the same as the default null."""


_UNSET: Final = _Unset()
_ABSENT: Final = _Unset()


@tool("kv.put", effects="transactional")
async def put(ctx: ToolCallContext, key: str, value: Any) -> dict[str, Any]:
    """Store a JSON value under a key, replacing what was there.

    Later steps of the transaction see it at once, everybody else after commit; a rewind takes it back.

    Args:
        key: 1 to 512 bytes of UTF-8, without U+0000.
        value: any JSON value, null included.

    Returns:
        {"key", "value"}: as stored.
    """
    await ctx.store.put(key, value)
    return {"key": key, "value": value}


@tool("kv.get", effects="read_only")
async def get(ctx: ToolCallContext, key: str, default: Any = _UNSET) -> dict[str, Any]:
    """Read the value under a key.

    Fails (missing_record) if the key was never stored or was deleted, unless a default is given.

    Args:
        key: the key it was stored under.
        default: what to return if the key is absent, instead of failing; may be null.

    Returns:
        {"key", "value", "found"}: found is false if the value is the default.
    """
    value = await ctx.store.get(key, _ABSENT)
    if value is not _ABSENT:
        return {"key": key, "value": value, "found": True}
    if default is _UNSET:
        raise ToolFailure(
            HintCategory.MISSING_RECORD,
            f"nothing is stored under key {shown(key)}. Store it with kv.put first, or give a default",
            ("key",),
        )
    return {"key": key, "value": default, "found": False}


@tool("kv.delete", effects="transactional")
async def delete(ctx: ToolCallContext, key: str) -> dict[str, Any]:
    """Remove a key. Removing an absent key is no error.

    Args:
        key: the key it was stored under.

    Returns:
        {"key", "deleted"}: deleted is false if there was nothing.
    """
    existed = await ctx.store.get(key, _ABSENT) is not _ABSENT
    if existed:
        await ctx.store.delete(key)
    return {"key": key, "deleted": existed}


put.prompt = True

KV_TOOLS: Final[tuple[AnyTool, ...]] = (put, get, delete)
