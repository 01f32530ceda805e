"""What a rule is, and what it finds.

A rule is one row of a table: the words that make it worth trying, a pattern, a category, the
groups that are keys, and the sentence to say. Adding one takes five lines and a sample::

    rule("postgres.lock_not_available", "lock",
         r'could not obtain lock on (?:row in )?relation "(?P<table>[^"]{1,64})"',
         C.CONFLICT, "table {table} is locked by another transaction", "Retry the step in a moment.")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from agenttx_server.engine.records import HintCategory

__all__ = ["ANY_WORD", "CERTAIN", "LIKELY", "WEAK", "Cause", "Facts", "Finding", "Read", "Rule", "rule"]

ANY_WORD: Final = "*"  # a trigger that every text has

WEAK: Final = 1  # the kind of error is known from a class name or a status, nothing else
LIKELY: Final = 2  # the message names the fact, but wrappers of a deeper cause look the same
CERTAIN: Final = 3  # the message is one system's own words, with its facts


@dataclass(frozen=True, slots=True)
class Cause:
    """One error of a chain: its class name (empty where none is printed), its message, and both as printed."""

    type_name: str
    message: str
    text: str


Facts = Mapping[str, str | None]
Read = Callable[[re.Match[str], Cause], Facts | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table.

    ``triggers``: lower-case words, one of which must occur in the text. ``says`` and ``advice`` are
    templates over the named groups of ``pattern``; the first ``says`` all of whose fields are known is
    used. ``keys``: the groups that name offending fields. ``read`` may add or correct facts, or refuse
    the match with None. The fact ``line`` is the line that the match begins in, ``message`` the cause's.

    ``phrases``: lower-case literals, one of which must occur before the pattern is tried; for patterns
    that have no literal beginning and are slow to fail. ``folded``: the pattern is searched in the
    lower-cased text.
    """

    name: str
    triggers: tuple[str, ...]
    pattern: re.Pattern[str]
    category: HintCategory
    says: tuple[str, ...]
    advice: str
    keys: tuple[str, ...] = ()
    weight: int = CERTAIN
    read: Read | None = None
    phrases: tuple[str, ...] = ()
    folded: bool = False
    opening: tuple[str, ...] = ()  # the first fixed words of ``says``


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found in one cause. ``says`` and ``advice`` are complete sentences, not yet cut to length."""

    rule: str | None
    category: HintCategory
    says: str
    advice: str
    keys: tuple[str, ...] = ()
    weight: int = CERTAIN
    excerpt: str = ""


def rule(
    name: str,
    triggers: str,
    pattern: str,
    category: HintCategory,
    says: str | tuple[str, ...],
    advice: str,
    keys: str = "",
    *,
    weight: int = CERTAIN,
    read: Read | None = None,
    phrases: str = "",
    folded: bool = False,
    flags: int = 0,
) -> Rule:
    """A :class:`Rule` from its short form: ``triggers`` and ``keys`` parted by blanks, ``phrases`` by bars."""
    sayings = (says,) if isinstance(says, str) else says
    return Rule(
        name=name,
        triggers=tuple(triggers.split()),
        pattern=re.compile(pattern, flags),
        category=category,
        says=sayings,
        advice=advice,
        keys=tuple(keys.split()),
        weight=weight,
        read=read,
        phrases=tuple(phrases.split("|")) if phrases else (),
        folded=folded,
        opening=tuple(opening for said in sayings if (opening := _opening(said))),
    )


def _opening(template: str) -> str:
    """The first words of a template, two or three, before its first field; empty if there are fewer."""
    words = template.partition("{")[0].rpartition(" ")[0] if "{" in template else template
    opening = " ".join(words.split(" ", 3)[:3])
    return opening if " " in opening and opening.islower() else ""
