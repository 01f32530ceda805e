"""Where the tools of a server come from, so that an error about two of one name can say whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agenttx.tools.definition import AnyTool
from agenttx_server.tools.loading import ToolLoadError

__all__ = ["ToolSource", "tools_of"]


@dataclass(frozen=True, slots=True)
class ToolSource:
    """Tools, and who brought them in words that an error can use."""

    origin: str
    tools: Sequence[AnyTool]


def tools_of(sources: Iterable[ToolSource]) -> list[AnyTool]:
    """Return all tools.

    Raises:
        ToolLoadError: two tools, or two undo actions, have one name; one line names both origins.
    """
    tools: list[AnyTool] = []
    seen: dict[tuple[str, str], str] = {}
    for source in sources:
        for tool in source.tools:
            names = [("tools", tool.name), *(("undo actions", name) for name in tool.undo_actions)]
            for kind, name in names:
                if (kind, name) in seen:
                    raise ToolLoadError(
                        f"two {kind} are named {name!r}: one from {seen[kind, name]}, one from {source.origin}; "
                        "rename one, or leave one out"
                    )
                seen[kind, name] = source.origin
            tools.append(tool)
    return tools
