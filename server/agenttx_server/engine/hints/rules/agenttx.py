"""This server's own texts, when a tool passes one on: the words say category and key."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "agenttx.unresolved_reference",
        "output",
        r"Step (?P<step>\d{1,9}) output has no '(?P<name>[^'\n]{1,128})'",
        C.UNRESOLVED_REFERENCE,
        "Step {step} output has no '{name}'",
        "Re-run step {step} so it returns '{name}', or fix the reference.",
        "name",
    ),
    rule(
        "agenttx.reference_to_unfinished_step",
        "reference step",
        r"\$\{steps\.(?P<step>\d{1,9})(?:\.(?P<place>[\w.\-]{1,200}))?\}[^\n]{0,120}",
        C.UNRESOLVED_REFERENCE,
        "{message}",
        "Refer to a step that has completed.",
    ),
    rule(
        "agenttx.unknown_tool",
        "tool",
        r"(?:[Uu]nknown tool|[Nn]o such tool|[Tt]ool not found)(?::? named)?:? "
        r"?[\"'`]?(?P<tool>[\w.\-/]{1,128})",
        C.UNKNOWN_TOOL,
        "unknown tool: {tool}",
        "Use the name of a tool that exists.",
    ),
    rule(
        "agenttx.tool_not_found",
        "tool",
        r"[Tt]ool [\"'`]?(?P<tool>[\w.\-/]{1,128})[\"'`]? (?P<what>(?:was )?not found|does not exist|"
        r"is not registered|is not available|is unknown|not registered)",
        C.UNKNOWN_TOOL,
        "unknown tool: {tool} {what}",
        "Use the name of a tool that exists.",
    ),
)
