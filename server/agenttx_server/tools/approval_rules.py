"""Which calls a person is asked about: a deployment's own rules, from a TOML or JSON file, checked at start.

Example, in TOML::

    [[approvals]]
    tools = ["payments.*", "http.request"]
    when = "args.amount_cents > 50000"
    reason = "more than 500 euros"

``tools`` is a pattern or several, in which ``*`` stands for any text. ``when`` is an expression (CEL) over ``args``,
the call's arguments with references replaced, and ``tool``, its name; without it every call of the tools is asked
about. The first rule that holds gives the reason. One that can't be judged for a call holds: to ask is the safe side.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agenttx_server.engine.operator_files import Table, read_entries
from agenttx_server.expressions import (
    EvaluationFailed,
    Expression,
    ExpressionInvalid,
    Kind,
    compile_expression,
)

__all__ = ["ApprovalRules", "load_approval_rules"]

_RULES_LIMIT: Final = 500
_PATTERNS_LIMIT: Final = 100
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.:/@*-]{1,128}")
_REASON_CHARACTERS: Final = 200
_KEYS: Final = ("tools", "when", "reason")
_VARIABLES: Final = {"args": Kind.OBJECT, "tool": Kind.ANY}


@dataclass(frozen=True, slots=True)
class _Rule:
    patterns: tuple[str, ...]
    when: Expression | None
    reason: str

    def why(self, tool_name: str, arguments: Any) -> str:
        if not any(fnmatch.fnmatchcase(tool_name, pattern) for pattern in self.patterns):
            return ""
        if self.when is None:
            return self.reason
        try:
            holds = self.when.evaluate({"args": arguments, "tool": tool_name})
        except EvaluationFailed as failed:
            return f"{self.reason} (asked because it can't be judged: {failed.reason})"
        return self.reason if holds else ""


class ApprovalRules:
    """Rules in their order; implements :class:`.ports.ApprovalPolicy`."""

    def __init__(self, rules: Sequence[_Rule]) -> None:
        self._rules = tuple(rules)

    def why(self, tool_name: str, arguments: Any) -> str:
        """Return the reason of the first rule that holds for a call, empty if none does."""
        return next((why for rule in self._rules if (why := rule.why(tool_name, arguments))), "")


def load_approval_rules(path: Path) -> ApprovalRules:
    """Return the rules in the ``.toml`` or ``.json`` file at ``path``. Raises FileRefused."""
    return ApprovalRules(read_entries(path, "approvals", _KEYS, _rule, least=0, most=_RULES_LIMIT))


def _rule(table: Table) -> _Rule:
    patterns = _patterns(table.get("tools"))
    when = _condition(table.get("when")) if "when" in table else None
    reason = table.text("reason", "")
    if len(reason) > _REASON_CHARACTERS or not reason.isprintable():
        raise ValueError(f"`reason` is one line of at most {_REASON_CHARACTERS} characters")
    return _Rule(patterns, when, reason or _told(patterns, when))


def _patterns(given: object) -> tuple[str, ...]:
    patterns = [given] if isinstance(given, str) else given
    if not isinstance(patterns, list) or not 1 <= len(patterns) <= _PATTERNS_LIMIT:
        raise ValueError(f"`tools` is a tool's name or pattern, or a list of 1 to {_PATTERNS_LIMIT}")
    for pattern in patterns:
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            raise ValueError(f"`tools`: {pattern!r:.80} is no tool's name, in which * may stand for any text")
    return tuple(patterns)


def _condition(text: object) -> Expression:
    if not isinstance(text, str):
        raise ValueError("`when` is an expression, given as a text")
    try:
        return compile_expression(text, _VARIABLES)
    except ExpressionInvalid as invalid:
        raise ValueError(f"`when`: {invalid}") from invalid


def _told(patterns: Sequence[str], when: Expression | None) -> str:
    if when is None:
        return f"calls of {patterns[0]} need approval"
    text = " ".join(when.text.split())
    return text if len(text) <= _REASON_CHARACTERS else text[: _REASON_CHARACTERS - 1] + "…"
