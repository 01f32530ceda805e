"""Go: its runtime, strconv, database/sql and validator."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "go.nil",
        "nil",
        r"invalid memory address or nil pointer dereference|assignment to entry in nil map",
        C.NULL_REFERENCE,
        "{detail}",
        "Make sure the value exists before it is used.",
        read=lambda match, cause: {"detail": match[0]},
    ),
    rule(
        "go.index",
        "index bounds",
        r"(?P<detail>(?:index|slice bounds) out of range \[[^\n]{1,80}|index out of bounds: the len is "
        r"\d{1,12} but the index is \d{1,20})",
        C.MISSING_KEY,
        "{detail}",
        "Use an index within the bounds.",
    ),
    rule(
        "go.strconv",
        "strconv",
        r"strconv\.(?P<function>\w{1,30}): parsing \"(?P<value>[^\"\n]{0,200})\": (?P<what>invalid "
        r"syntax|value out of range)",
        C.INVALID_VALUE,
        ('strconv.{function}: parsing "{value}": {what}', "strconv.{function}: {what}"),
        "Pass a value of that type.",
    ),
    rule(
        "go.no_rows",
        "rows",
        r"(?:sql: )?no rows in result set",
        C.MISSING_RECORD,
        "no rows in result set",
        "Check what it is looked up by, or create it first.",
        weight=LIKELY,
    ),
    rule(
        "go.validator",
        "validation",
        r"Key: '(?P<path>[\w.\[\]]{1,160})' Error:Field validation for '(?P<name>[\w.\[\]]{1,128})' "
        r"failed on the '(?P<tag>\w{1,60})' tag(?P<detail>(?:\nKey: '[^\n]{1,300}){0,3})",
        C.INVALID_VALUE,
        "{path}: validation for '{name}' failed on the '{tag}' tag",
        "Correct {name}.",
        "name",
        read=lambda match, cause: {
            "category": C.MISSING_ARGUMENT.value if match["tag"].startswith("required") else None
        },
    ),
    rule(
        "go.nil_interface",
        "nil",
        r"interface conversion: (?P<detail>interface \{[^}\n]{0,60}\} is nil, not [^\n]{1,80})|nil "
        r"can't be coerced into (?P<type>\w{1,60})|no implicit conversion (?:from|of) nil (?:to|into) "
        r"(?P<type2>\w{1,60})",
        C.NULL_REFERENCE,
        (
            "interface conversion: {detail}",
            "nil can't be coerced into {type}",
            "nil can't be converted to {type2}",
        ),
        "Make sure the value exists before it is used.",
    ),
    rule(
        "go.deadlock",
        "deadlock asleep",
        r"all goroutines are asleep - deadlock!",
        C.UNKNOWN,
        "all goroutines are asleep - deadlock",
        "Break the wait.",
        weight=LIKELY,
    ),
)
