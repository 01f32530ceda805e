"""An MCP server's list of tools as the engine knows tools: names, effect classes, what changed since.

What a server says of its own tools is a default at best, and never a weaker class than the worst, unless the operator
trusts that server.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import mcp_types as types

from agenttx_server.engine import json_values
from agenttx_server.engine.ports import ArgumentsRefused
from agenttx_server.engine.records import EffectClass, HintCategory, ToolDescription, ToolLocation
from agenttx_server.mcp_servers import McpServer, McpServerRules, McpToolRules
from agenttx_server.tools.mcp_client.argument_check import refusal

__all__ = ["OfferedTool", "absent_tool", "offered", "undo_name"]

_LOGGER = logging.getLogger(__name__)

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/@-]{1,95}")
MOST_TOOLS = 2_000
MOST_SCHEMA_BYTES = 256 * 1024
MOST_DESCRIPTION = 4_096


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool, with the rules that hold for it. ``first_schema`` is what it was when this server first saw it."""

    description: ToolDescription
    name: str
    schema: dict[str, Any]
    rules: McpToolRules
    first_schema: dict[str, Any]

    def check(self, arguments: Any) -> None:
        """Raise ArgumentsRefused for arguments that the tool's schema refuses, naming a change that is to blame."""
        refused = refusal(self.schema, arguments)
        if refused is None:
            return
        name = self.description.name
        if self.schema != self.first_schema and refusal(self.first_schema, arguments) is None:
            message = (
                f"{name} was changed by its MCP server since this server saw it first, and refuses these arguments now: "
                f"{refused.message}. ListTools has its new schema"
            )
        else:
            message = f"{name} refuses its arguments: {refused.message}"
        raise ArgumentsRefused(HintCategory.INVALID_VALUE, message, refused.keys)


def undo_name(server: str, tool: str) -> str:
    """Return the name of an undo action: that of the tool that it calls, as people know it."""
    return f"{server}.{tool}"


def offered(
    server: McpServer, tools: Iterable[types.Tool], known: dict[str, OfferedTool]
) -> tuple[dict[str, OfferedTool], list[str]]:
    """Return a server's tools by their full names, and what of the operator's rules doesn't fit them, a line each.

    A tool that can't be used is left out with a warning: what a stranger lists must not keep this server from starting.
    """
    found: dict[str, OfferedTool] = {}
    for tool in tools:
        if len(found) == MOST_TOOLS:
            _leave_out(server, f"whatever comes after {MOST_TOOLS} tools")
            break
        try:
            new = _offered_tool(server, tool, known)
        except json_values.ValueRefused as flaw:
            _leave_out(
                server, f"{tool.name[:64]!r}: its schema is no JSON that is kept ({flaw.reason[:100]})"
            )
            continue
        except _Unusable as flaw:
            _leave_out(server, f"{tool.name[:64]!r}: {flaw}")
            continue
        found[new.description.name] = new
    return found, _misfits(server, found)


class _Unusable(Exception):
    """Why a tool can't be used."""


def _leave_out(server: McpServer, what: str) -> None:
    _LOGGER.warning("MCP server %s: left out is %s", server.name, what)


def _offered_tool(server: McpServer, tool: types.Tool, known: dict[str, OfferedTool]) -> OfferedTool:
    if not _TOOL_NAME.fullmatch(tool.name):
        raise _Unusable("its name can't be used")
    if len(json_values.canonical(tool.input_schema)) > MOST_SCHEMA_BYTES:
        raise _Unusable("its schema is larger than 256 KiB")
    described = _described(server, tool)
    before = known.get(described.name)
    return OfferedTool(
        described,
        tool.name,
        tool.input_schema,
        _rules(server.rules, tool.name),
        before.first_schema if before is not None else tool.input_schema,
    )


def _misfits(server: McpServer, found: dict[str, OfferedTool]) -> list[str]:
    problems: list[str] = []
    for name, rules in server.rules.tools.items():
        full = f"{server.name}.{name}"
        if full not in found:
            problems.append(
                f"servers.{server.name}.tools.{name} is no tool that it has{_nearest(name, found)}"
            )
        elif rules.undo is not None and f"{server.name}.{rules.undo.tool}" not in found:
            problems.append(
                f"servers.{server.name}.tools.{name}.undo: {rules.undo.tool} is no tool that it has"
                f"{_nearest(rules.undo.tool, found)}"
            )
    return problems


def absent_tool(server: McpServer, name: str) -> ToolDescription:
    """Return what is assumed of a tool of a server that was never there."""
    tool = types.Tool(name=name, description="", input_schema={"type": "object"})
    return replace(_described(server, tool), description="its MCP server is not there")


def _described(server: McpServer, tool: types.Tool) -> ToolDescription:
    rules = _rules(server.rules, tool.name)
    timeout = rules.timeout_seconds
    return ToolDescription(
        name=f"{server.name}.{tool.name}",
        description=(tool.description or tool.title or "")[:MOST_DESCRIPTION],
        arguments_schema=json_values.canonical(tool.input_schema),
        effect_class=_effect_class(server.rules, rules, tool.annotations),
        location=ToolLocation.MCP,
        timeout_us=None if timeout is None else round(timeout * 1_000_000),
        retries=rules.retries,
        needs_approval=rules.approval,
        undo_names=(undo_name(server.name, rules.undo.tool),) if rules.undo is not None else (),
    )


def _rules(server: McpServerRules, name: str) -> McpToolRules:
    rules = server.tools.get(name, McpToolRules())
    return rules.model_copy(
        update={
            "timeout_seconds": rules.timeout_seconds or server.timeout_seconds,
            "idle_timeout_seconds": rules.idle_timeout_seconds or server.idle_timeout_seconds,
        }
    )


def _effect_class(
    server: McpServerRules, rules: McpToolRules, annotations: types.ToolAnnotations | None
) -> EffectClass:
    if rules.effects is not None:
        return EffectClass[rules.effects.upper()]
    if rules.undo is not None:
        return EffectClass.COMPENSATABLE
    if server.trust_annotations and annotations is not None:
        if annotations.read_only_hint:
            return EffectClass.READ_ONLY
        if annotations.idempotent_hint:
            return EffectClass.IDEMPOTENT
    return EffectClass.IRREVERSIBLE


def _nearest(name: str, found: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, [full.partition(".")[2] for full in found], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
