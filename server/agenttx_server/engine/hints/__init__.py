"""Clean Hints: any raw error becomes one true line, its category and the keys it is about.

Pure and deterministic, without a model: a text is split into its chain of causes, stack frames and
terminal codes are dropped, JSON bodies are parsed, and a table of rules (:mod:`.rules`) reads what is
left. Work is linear in the text, whose reading is bounded to 64 KiB.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from agenttx_server.engine.operator_files import FileRefused
from agenttx_server.engine.records import Hint

from .cleaner import Cleaner, Explanation
from .masking import mask_secrets
from .plain_text import bound
from .rule import Rule
from .rule_files import RuleSet, load_rules_file
from .structured import from_structured

__all__ = [
    "Cleaner",
    "Explanation",
    "FileRefused",
    "Hint",
    "Rule",
    "RuleSet",
    "bound",
    "clean",
    "explain",
    "from_structured",
    "load_cleaner",
    "load_rules_file",
    "mask_secrets",
]


def load_cleaner(path: str | Path) -> Cleaner:
    """A cleaner that tries the rules of the file at ``path`` before the default ones.

    Raises:
        FileRefused: one line names the file, the rule and what is wrong with it.
    """
    own = load_rules_file(path)
    try:
        return Cleaner(own.rules)
    except ValueError as error:
        raise FileRefused(f"{own.source}: {error}") from error


@cache
def _default() -> Cleaner:
    return Cleaner()


def clean(raw: str) -> Hint:
    """One true line about ``raw`` under the default rules. Total: any text gives a hint, none raises."""
    return _default().clean(raw)


def explain(raw: str) -> Explanation:
    """The hint of :func:`clean`, with the rule that matched and the passage it matched."""
    return _default().explain(raw)
