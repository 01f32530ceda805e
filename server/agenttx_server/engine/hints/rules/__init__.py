"""The default rules, most specific systems first. A new family is a module with a ``RULES`` tuple, named here."""

from __future__ import annotations

from typing import Final

from ..rule import Rule
from . import (
    agenttx,
    connections,
    documents,
    exceptions,
    filesystem,
    http,
    java,
    json_text,
    localized,
    mysql,
    node,
    postgresql,
    python,
    sqlite,
    timeouts,
    validation,
)

__all__ = ["DEFAULT_RULES"]

DEFAULT_RULES: Final[tuple[Rule, ...]] = (
    *agenttx.RULES,
    *postgresql.RULES,
    *localized.RULES,
    *mysql.RULES,
    *sqlite.RULES,
    *documents.RULES,
    *validation.RULES,
    *json_text.RULES,
    *python.RULES,
    *java.RULES,
    *node.RULES,
    *http.RULES,
    *filesystem.RULES,
    *timeouts.RULES,
    *connections.RULES,
    *exceptions.RULES,
)
