"""A deployment's own rules, from a JSON or TOML file, checked when the server starts.

Example, in TOML::

    [[rules]]
    name = "depot.closed_day"
    category = "conflict"
    pattern = "DPT-114 {field}: depot {depot} is closed on {day}"
    says = "depot {depot} is closed on {day}"
    advice = "Pick another {field}."
    keys = ["field"]

``pattern`` is literal text with named gaps, not a regular expression, so that no rule can make the
server slow: a gap matches the shortest text, on one line and of at most 200 characters, up to the
literal that follows it; a gap at the end takes the rest of the word. The pattern begins at a word.
``keys`` are gaps that take the *name* of a field, not a value: the name is what a cause is traced by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agenttx_server.engine.operator_files import Table, read_entries
from agenttx_server.engine.records import HintCategory

from .rule import CERTAIN, Rule

__all__ = ["RuleSet", "load_rules_file"]

_RULES_LIMIT: Final = 500
_TEXT_LIMIT: Final = 300
_NAME: Final = re.compile(r"[a-z0-9_]{1,60}(?:\.[a-z0-9_]{1,60}){0,3}")
_GAP: Final = re.compile(r"\{(\w{1,40})\}")
_WORD: Final = re.compile(r"[^\W_]+(?:_[^\W_]+)*")
_KEYS: Final = ("name", "category", "pattern", "says", "advice", "keys")
_REQUIRED: Final = ("name", "category", "pattern", "says")


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Checked rules, in the order in which they are tried, and where they came from."""

    rules: tuple[Rule, ...]
    source: str


def load_rules_file(path: str | Path) -> RuleSet:
    """The rules in the ``.json`` or ``.toml`` file at ``path``; :exc:`FileRefused` says what is wrong with it."""
    path = Path(path)
    names: set[str] = set()

    def read(table: Table) -> Rule:
        rule = _rule(table)
        if rule.name in names:
            raise ValueError("the name is used twice")
        names.add(rule.name)
        return rule

    rules = read_entries(path, "rules", _KEYS, read, least=0, most=_RULES_LIMIT)
    return RuleSet(tuple(rules), str(path))


def _rule(table: Table) -> Rule:
    texts = {
        key: _text(table, key, required=key in _REQUIRED)
        for key in ("name", "category", "pattern", "says", "advice")
    }
    if _NAME.fullmatch(texts["name"]) is None:
        raise ValueError("a name is lower-case words of a-z, 0-9 and _, joined by dots")
    try:
        category = HintCategory(texts["category"])
    except ValueError:
        raise ValueError(
            f"unknown category {texts['category']!r}; known are {', '.join(HintCategory)}"
        ) from None
    triggers = _triggers(texts["pattern"])
    pattern, gaps = _compiled(texts["pattern"])
    keys = table.texts("keys", (), least=0)
    for used in (*_GAP.findall(texts["says"]), *_GAP.findall(texts["advice"]), *keys):
        if used not in gaps and used != "message":
            raise ValueError(f"{{{used}}} is no gap of the pattern")
    return Rule(texts["name"], triggers, pattern, category, (texts["says"],), texts["advice"], keys, CERTAIN)


def _text(table: Table, key: str, *, required: bool) -> str:
    value = table.text(key, "")
    if len(value) > _TEXT_LIMIT or (required and not value.strip()):
        raise ValueError(f"`{key}` must be a text of {'1' if required else '0'} to {_TEXT_LIMIT} characters")
    return value


def _compiled(pattern: str) -> tuple[re.Pattern[str], frozenset[str]]:
    """Literals and gaps as a pattern without nested or unbounded repetition."""
    pieces = _GAP.split(pattern)
    gaps = pieces[1::2]
    if len(set(gaps)) != len(gaps):
        raise ValueError("a gap is named twice")
    if len(gaps) > 6:
        raise ValueError("at most 6 gaps")
    if not pieces[0].strip():
        raise ValueError("the pattern must begin with literal text")
    if any(not literal for literal in pieces[2:-1:2]):
        raise ValueError("between two gaps there must be literal text")
    source = re.escape(pieces[0])
    for gap, literal in zip(gaps, pieces[2::2], strict=True):
        if literal:
            # Atomic: the first place where the literal follows is kept, never tried against the rest again.
            source += rf"(?>(?P<{gap}>[^\n]{{1,200}}?){re.escape(literal)})"
        else:
            source += rf"(?P<{gap}>[^\s\"'`,;)\]}}]{{1,200}})"
    return re.compile(source), frozenset(gaps)


def _triggers(pattern: str) -> tuple[str, ...]:
    """The longest whole word of the literal text: a text without it can't match."""
    literal = _GAP.sub(" \x00 ", pattern)
    words = [word.lower() for word in _WORD.findall(literal) if _stands_alone(word, pattern)]
    if not words:
        raise ValueError("the literal text needs at least one whole word")
    return (max(words, key=len),)


def _stands_alone(word: str, pattern: str) -> bool:
    start = pattern.find(word)
    before = pattern[start - 1 : start]
    after = pattern[start + len(word) : start + len(word) + 1]
    return (start == 0 or before.isspace()) and (after.isspace() or after in ".,:;")
