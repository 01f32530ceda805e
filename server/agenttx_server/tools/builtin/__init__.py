"""The tools that every server has: ``kv.*``, ``record.*``, ``fs.*`` and ``effect.stage``."""

from __future__ import annotations

from agenttx.tools.definition import AnyTool
from agenttx_server.tools.builtin.database_marker import check_marker
from agenttx_server.tools.builtin.effect import EFFECT_TOOLS
from agenttx_server.tools.builtin.fs import FileTools, FsSettings
from agenttx_server.tools.builtin.kv import KV_TOOLS
from agenttx_server.tools.builtin.record import RECORD_TOOLS

__all__ = ["FileTools", "FsSettings", "builtin_tools", "check_marker"]


def builtin_tools(files: FileTools) -> list[AnyTool]:
    """Return the built-in tools, the ``fs.*`` ones over a sandbox."""
    return [*KV_TOOLS, *RECORD_TOOLS, *files.tools(), *EFFECT_TOOLS]
