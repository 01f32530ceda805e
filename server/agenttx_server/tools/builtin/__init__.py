"""The tools that every server has: ``kv.*``, ``record.*``, ``fs.*`` and ``effect.stage``."""

from __future__ import annotations

from agenttx_server.tools.builtin.effect import EFFECT_TOOLS
from agenttx_server.tools.builtin.fs import FsSettings, fs_tools
from agenttx_server.tools.builtin.kv import KV_TOOLS
from agenttx_server.tools.builtin.record import RECORD_TOOLS
from agenttx_server.tools.definition import AnyTool

__all__ = ["FsSettings", "builtin_tools"]


def builtin_tools(fs_settings: FsSettings) -> list[AnyTool]:
    """Return the built-in tools, the ``fs.*`` ones over the directories of ``fs_settings``."""
    return [*KV_TOOLS, *RECORD_TOOLS, *fs_tools(fs_settings), *EFFECT_TOOLS]
