"""The tools that every server has: ``kv.*``, ``record.*`` and ``effect.stage``."""

from __future__ import annotations

from agenttx_server.tools.builtin.effect import EFFECT_TOOLS
from agenttx_server.tools.builtin.kv import KV_TOOLS
from agenttx_server.tools.builtin.record import RECORD_TOOLS
from agenttx_server.tools.definition import AnyTool

__all__ = ["builtin_tools"]


def builtin_tools() -> list[AnyTool]:
    """Return the built-in tools."""
    return [*KV_TOOLS, *RECORD_TOOLS, *EFFECT_TOOLS]
