"""The table of rules is well formed."""

from __future__ import annotations

import re

import pytest

from agenttx_server.engine.hints import Cleaner
from agenttx_server.engine.hints.rule import ANY_WORD, rule
from agenttx_server.engine.hints.rules import DEFAULT_RULES
from agenttx_server.engine.records import HintCategory

# What the cleaner adds to a match's own groups, and what readers add.
_GIVEN = {"message", "line", "advice"}


@pytest.mark.parametrize("entry", DEFAULT_RULES, ids=[entry.name for entry in DEFAULT_RULES])
def test_rule_is_well_formed(entry) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*", entry.name)
    assert entry.triggers
    assert all(trigger == ANY_WORD or trigger == trigger.lower() for trigger in entry.triggers)
    assert entry.says
    assert entry.read is not None or _fields(entry.says) <= _GIVEN | set(entry.pattern.groupindex)


def _fields(templates: tuple[str, ...]) -> set[str]:
    return {field for template in templates for field in re.findall(r"\{(\w+)\}", template)}


def test_rule_names_are_unique() -> None:
    names = [entry.name for entry in DEFAULT_RULES]

    assert len(names) == len(set(names))


def test_a_name_used_twice_is_refused() -> None:
    extra = rule(DEFAULT_RULES[0].name, "word", "word", HintCategory.CONFLICT, "x", "y")

    with pytest.raises(ValueError, match=re.escape(DEFAULT_RULES[0].name)):
        Cleaner([extra])


def test_extra_rules_come_before_the_default_ones() -> None:
    raw = "ERROR: deadlock detected"
    extra = rule(
        "ours.deadlock", "deadlock", "deadlock detected", HintCategory.TIMEOUT, "our deadlock", "Wait."
    )

    assert Cleaner().clean(raw).rule == "postgres.deadlock"
    assert Cleaner([extra]).clean(raw).rule == "ours.deadlock"


def test_patterns_repeat_no_group_without_bound() -> None:
    nested = re.compile(r"(?<!\\)[*+]\)(?:[*+]|\{\d*,\})")

    assert [entry.name for entry in DEFAULT_RULES if nested.search(entry.pattern.pattern)] == []
