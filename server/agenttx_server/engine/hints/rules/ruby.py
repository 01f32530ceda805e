"""Ruby and Rails."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "ruby.nil_method",
        "nil",
        r"undefined method [`'](?P<name>[^'\n]{1,128})' for nil(?::NilClass)?",
        C.NULL_REFERENCE,
        "undefined method '{name}' for nil",
        "Make sure the value exists before it is used.",
    ),
    rule(
        "ruby.undefined_method",
        "undefined",
        r"undefined (?P<kind>method|local variable or method) [`'](?P<name>[^'\n]{1,128})' for "
        r"(?P<detail>[^\n]{1,120})",
        C.UNRESOLVED_REFERENCE,
        "undefined {kind} '{name}' for {detail}",
        "Use a method that exists.",
    ),
    rule(
        "ruby.uninitialized",
        "uninitialized",
        r"uninitialized constant (?P<detail>[\w:]{1,120})",
        C.UNRESOLVED_REFERENCE,
        "uninitialized constant {detail}",
        "Require it, or correct its name.",
    ),
    rule(
        "ruby.key_not_found",
        "key",
        r"key not found: :?\"?(?P<name>[\w\-]{1,128})\"?",
        C.MISSING_KEY,
        "key not found: {name}",
        "Provide {name}, or read a key that exists.",
        "name",
    ),
    rule(
        "ruby.missing_keyword",
        "keyword keywords",
        r"missing keywords?: :?(?P<name>\w{1,128})(?P<detail>(?:, :?\w{1,128}){0,8})",
        C.MISSING_ARGUMENT,
        "missing keyword: {name}{detail}",
        "Pass it.",
        "name",
    ),
    rule(
        "ruby.unknown_keyword",
        "keyword keywords",
        r"unknown keywords?: :?(?P<name>\w{1,128})(?P<detail>(?:, :?\w{1,128}){0,8})",
        C.INVALID_VALUE,
        "unknown keyword: {name}{detail}",
        "Leave it out, or correct its name.",
        "name",
    ),
    rule(
        "ruby.argument_count",
        "arguments",
        r"wrong number of arguments \((?P<detail>given \d{1,4}, expected [\d.+]{1,12})\)",
        C.MISSING_ARGUMENT,
        "wrong number of arguments ({detail})",
        "Pass the arguments it takes.",
    ),
    rule(
        "ruby.record_not_found",
        "find",
        r"Couldn't find (?P<model>[A-Z][\w:]{0,100})(?P<detail> with(?:out)? [^\n(]{1,120})?",
        C.MISSING_RECORD,
        ("couldn't find {model} {detail}", "couldn't find {model}"),
        "Check the id, or create it first.",
        read=lambda match, cause: {"detail": (match["detail"] or "").strip() or None},
    ),
    rule(
        "rails.missing_parameter",
        "param",
        r"param is missing or the value is empty(?: or invalid)?: (?P<name>\w{1,128})",
        C.MISSING_ARGUMENT,
        "param is missing or the value is empty: {name}",
        "Pass {name}.",
        "name",
    ),
)
