"""The tools of a server: as a table, and one with its arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from agenttx.records import Tool
from agenttx_server.cli.rendering.tables import cell, facts_grid, lined_table
from agenttx_server.cli.rendering.times import duration

__all__ = ["tool_details", "tool_table"]


def tool_table(tools: Iterable[Tool]) -> RenderableType:
    """Return tools as a table, in the order given."""
    table = lined_table("TOOL", "EFFECTS", "RUNS IN", "ARGUMENTS", "WHAT IT DOES")
    table.columns[0].no_wrap = True
    for tool in tools:
        table.add_row(
            cell(tool.name, "bold"),
            tool.effect_class,
            tool.location.lower(),
            cell(", ".join(_arguments(tool.arguments_schema))),
            cell(_first_sentence(tool.description)),
        )
    return table


def tool_details(tool: Tool) -> RenderableType:
    """Return all that is known of one tool."""
    schema = json.dumps(tool.arguments_schema, indent=2, ensure_ascii=False)
    return Group(
        cell(tool.name, "bold"),
        Padding(facts_grid(_facts(tool)), (0, 0, 0, 2)),
        Text("\nArguments (JSON Schema)", style="bold"),
        Padding(Text("\n").join(cell(line) for line in schema.splitlines()), (0, 0, 0, 2)),
    )


def _facts(tool: Tool) -> Iterator[tuple[str, str | Text]]:
    yield "effects", tool.effect_class
    yield "runs in", tool.location.lower() + (", blocking a thread" if tool.blocking else "")
    yield "timeout", duration(tool.timeout_seconds) if tool.timeout_seconds else "the transaction's"
    yield "approval", "a person is asked before each call" if tool.needs_approval else ""
    yield "retries", f"{tool.retries} in place" if tool.retries else ""
    yield "", Text("\n").join(cell(line) for line in tool.description.splitlines())


def _arguments(schema: Any) -> Iterator[str]:
    """Yield the arguments' names as they are called: optional ones in brackets."""
    if not isinstance(schema, Mapping):
        return
    required = schema.get("required", ())
    for name in schema.get("properties", ()):
        yield name if name in required else f"[{name}]"


def _first_sentence(description: str) -> str:
    return description.partition("\n")[0].strip()
