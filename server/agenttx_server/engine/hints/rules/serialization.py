"""Serialization and schema libraries beside the validators: kotlinx, protovalidate."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import CERTAIN, Rule, rule
from ..vocabulary import category_of_complaint

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "kotlin.missing_field",
        "field",
        r"Field '(?P<name>\w{1,128})' is required for type with serial name '(?P<type>[\w.$]{1,160})', "
        r"but it was missing",
        C.MISSING_ARGUMENT,
        "field '{name}' is required and was missing",
        "Pass {name}.",
        "name",
    ),
    rule(
        "protovalidate.field",
        "validation",
        r"validation errors?:\s{1,8}(?:- )?(?P<name>[\w.\[\]]{1,128}): (?P<detail>[^\n]{1,200})",
        C.INVALID_VALUE,
        "{name}: {detail}",
        "Correct {name}.",
        "name",
        weight=CERTAIN,
        read=lambda match, cause: {"category": category_of_complaint(match["detail"]).value},
    ),
)
