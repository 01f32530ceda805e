"""Go: its runtime, strconv, database/sql and validator."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Facts, Rule, rule

__all__ = ["RULES"]

_NEXT_FIELD: Final = re.compile(r"Field validation for '([\w.\[\]]{1,128})' failed on the '(\w{1,60})' tag")


def _validator(match: re.Match[str]) -> Facts:
    others = [f"'{name}' ('{tag}')" for name, tag in _NEXT_FIELD.findall(match["rest"])]
    return {
        "category": C.MISSING_ARGUMENT.value if match["tag"].startswith("required") else None,
        "others": ", ".join(others[:6]) or None,
    }


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
        "go.time",
        "parsing",
        r"parsing time \"(?P<value>[^\"\n]{0,100})\"(?: as \"(?P<format>[^\"\n]{1,60})\")?: (?P<what>[^\n]{1,120})",
        C.INVALID_VALUE,
        (
            'parsing time "{value}" as "{format}": {what}',
            'parsing time "{value}": {what}',
            "parsing time: {what}",
        ),
        "Pass a time in that format.",
    ),
    rule(
        "go.closed",
        "eof",
        r"\b(?:Get|Post|Put|Patch|Delete|Head) \"(?P<url>[^\"\n]{1,300})\": (?:unexpected )?EOF",
        C.CONNECTION,
        "the connection was closed before an answer came from {url} (EOF)",
        "Check that the service is up, then retry.",
    ),
    rule(
        "go.no_rows",
        "rows",
        r"(?:sql: )?no rows in result set",
        C.MISSING_RECORD,
        "{line}",
        "Check what it is looked up by, or create it first.",
        weight=LIKELY,
    ),
    rule(
        "go.validator",
        "validation",
        r"Key: '(?P<path>[\w.\[\]]{1,160})' Error:Field validation for '(?P<name>[\w.\[\]]{1,128})' "
        r"failed on the '(?P<tag>\w{1,60})' tag(?P<rest>(?:\nKey: '[^\n]{1,300}){0,8})",
        C.INVALID_VALUE,
        (
            "{path}: validation for '{name}' failed on the '{tag}' tag; also {others}",
            "{path}: validation for '{name}' failed on the '{tag}' tag",
        ),
        "Correct each named field.",
        "name",
        read=lambda match, cause: _validator(match),
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
