"""What run_step can call, as a model is told: a few lines in run_step's own description, and list_tools."""

from __future__ import annotations

from typing import Any

from agenttx import AsyncClient, EffectClass, Tool
from agenttx_server.mcp_server import next_calls
from agenttx_server.mcp_server.answers import ToolShown, ToolsListed
from agenttx_server.mcp_server.bounds import compact, cut, fits

__all__ = ["brief", "listed_tools", "listing_text"]

PAGE = 40
PAGE_BYTES = 24 * 1024
MOST_SCHEMA_BYTES = 6 * 1024
MOST_DESCRIPTION = 1_000
BRIEF_TOOLS = 60
BRIEF_CHARACTERS = 5_000

_EFFECTS = {
    EffectClass.READ_ONLY: "changes nothing",
    EffectClass.TRANSACTIONAL: "undone exactly when the transaction goes back; visible to others from the commit on",
    EffectClass.IDEMPOTENT: "acts outside at once and is not undone; the same call twice has one effect",
    EffectClass.COMPENSATABLE: "acts outside at once and is undone by an action of its own",
    EffectClass.IRREVERSIBLE: "acts outside at once and can't be undone: run it last, when sure",
}


async def listed_tools(client: AsyncClient, search: str, after: str) -> ToolsListed:
    """Return tools by name, as many as fit into one answer."""
    found: list[ToolShown] = []
    size, more_after = 0, ""
    wanted = search.casefold()
    async for tool in client.tools():
        if tool.name <= after or wanted not in f"{tool.name} {tool.description}".casefold():
            continue
        shown = _shown(tool)
        size += len(compact(shown.model_dump()))
        if found and (len(found) == PAGE or size > PAGE_BYTES):
            more_after = found[-1].name
            break
        found.append(shown)
    more = {"after": more_after} | ({"search": search} if search else {})
    return ToolsListed(
        tools=found,
        more_after=more_after,
        next=[next_calls.list_tools("for those after these", **more)] if more_after else [],
    )


def listing_text(answer: ToolsListed, search: str) -> str:
    """Return a listing as text."""
    if not answer.tools:
        return f"No tool has {search!r} in its name or description." if search else "There are no tools."
    lines = ["Tools for run_step:"]
    for tool in answer.tools:
        schema = "too large to be shown" if tool.arguments_schema is None else compact(tool.arguments_schema)
        lines.append(f"- {tool.name}: {tool.description} [{tool.effects}] Arguments: {schema}")
    lines.append(next_calls.sentence(answer.next))
    return "\n".join(filter(None, lines))


async def brief(client: AsyncClient) -> str:
    """Return the tools in a few lines: names, arguments, the first sentence of each."""
    lines: list[str] = []
    size = 0
    async for tool in client.tools():
        line = f"- {tool.name}({', '.join(_argument_names(tool.arguments_schema))}): {_first_sentence(tool)}"
        size += len(line)
        if len(lines) == BRIEF_TOOLS or size > BRIEF_CHARACTERS:
            lines.append("- and more: list_tools names all of them")
            break
        lines.append(line)
    return "\n".join(lines)


def _shown(tool: Tool) -> ToolShown:
    return ToolShown(
        name=tool.name,
        description=cut(tool.description, MOST_DESCRIPTION),
        effects=_EFFECTS.get(tool.effect_class, "acts in a way that this program does not know")
        + ("; a person must approve each call" if tool.needs_approval else ""),
        arguments_schema=tool.arguments_schema if fits(tool.arguments_schema, MOST_SCHEMA_BYTES) else None,
    )


def _argument_names(schema: Any) -> list[str]:
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return []
    required = schema.get("required") or ()
    names = [name if name in required else f"{name}?" for name in schema["properties"]]
    return names if len(names) <= 12 else [*names[:12], "…"]


def _first_sentence(tool: Tool) -> str:
    sentence = " ".join(tool.description.split()).partition(". ")[0]
    return cut(sentence, 120).rstrip(".")
