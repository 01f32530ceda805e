"""``effect.stage``: effects on the outside world that leave only with the commit."""

# ruff: noqa: D417 — ctx is not an argument of the tool

from __future__ import annotations

from typing import Any, Final

from agenttx.tools.call_context import ToolCallContext
from agenttx.tools.definition import AnyTool, tool

__all__ = ["EFFECT_TOOLS"]


@tool("effect.stage", effects="transactional")
async def stage(
    ctx: ToolCallContext, channel: str, payload: Any, idempotency_key: str | None = None
) -> dict[str, Any]:
    """Stage an outside effect (a mail, a webhook, a message) for delivery after commit.

    Nothing leaves before the commit; a rewind or an abort drops it. Delivery is at least once, in
    staging order within a channel, each time with the same idempotency key.

    Args:
        channel: where it goes, for example "mail"; 1 to 128 bytes.
        payload: any JSON value that the channel's receiver understands.
        idempotency_key: lets the receiver recognise a repeat; made up if left out.

    Returns:
        {"effect_id", "channel"}.
    """
    effect_id = await ctx.stage_effect(channel, payload, idempotency_key)
    return {"effect_id": effect_id, "channel": channel}


stage.prompt = True

EFFECT_TOOLS: Final[tuple[AnyTool, ...]] = (stage,)
