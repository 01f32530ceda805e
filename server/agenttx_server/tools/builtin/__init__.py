"""The tools that a server has of itself: ``kv.*``, ``record.*``, ``effect.stage`` and, where it keeps files, ``fs.*``."""

from __future__ import annotations

from agenttx.tools.definition import AnyTool
from agenttx_server.tools.builtin.database_marker import check_marker
from agenttx_server.tools.builtin.effect import EFFECT_TOOLS
from agenttx_server.tools.builtin.fs import FileTools, FsSettings
from agenttx_server.tools.builtin.kv import KV_TOOLS
from agenttx_server.tools.builtin.record import RECORD_TOOLS

__all__ = ["FileTools", "FsSettings", "builtin_tools", "check_marker"]


def builtin_tools(files: FileTools | None) -> list[AnyTool]:
    """Return the built-in tools, the ``fs.*`` ones over a sandbox if there is one."""
    return [*KV_TOOLS, *RECORD_TOOLS, *(files.tools() if files is not None else ()), *EFFECT_TOOLS]
