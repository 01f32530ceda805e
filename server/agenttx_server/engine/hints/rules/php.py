"""PHP and Laravel."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "php.undefined_key",
        "undefined",
        r"Undefined (?P<kind>array key|index|offset|property|variable):? "
        r"(?:\"(?P<name>[^\"\n]{1,128})\"|'?\$?(?P<name2>[\w:$>\-]{1,128}))",
        C.MISSING_KEY,
        ('undefined {kind} "{name}"', 'undefined {kind} "{name2}"'),
        "Provide it, or read one that exists.",
        "key",
        read=lambda match, cause: {
            "key": match["name"] or (match["name2"] if not (match["name2"] or "0").isdigit() else None)
        },
    ),
    rule(
        "php.on_null",
        "null",
        r"(?P<detail>Call to a member function [\w()]{1,128} on null|Attempt to read property "
        r"\"?[\w]{1,128}\"? on null|Trying to (?:get property|access array "
        r"offset)[^\n]{0,80}(?:non-object|null))",
        C.NULL_REFERENCE,
        "{detail}",
        "Make sure the value exists before it is used.",
    ),
    rule(
        "php.argument_type",
        "argument",
        r"(?<![\w:\\])(?P<function>[\w:\\]{1,128})\(\): Argument #(?P<number>\d{1,3}) "
        r"\(\$(?P<name>\w{1,128})\) (?P<detail>must be [^\n]{1,120}?)(?:, called in[^\n]{0,200})?$",
        C.INVALID_VALUE,
        "{function}(): ${name} {detail}",
        "Correct {name}.",
        "name",
        flags=8,
        phrases="): argument #",
    ),
    rule(
        "php.argument_count",
        "arguments",
        r"Too few arguments to function (?P<function>[\w:\\]{1,128})\(\), (?P<given>\d{1,4}) "
        r"passed[^\n]{0,300}? and (?P<detail>(?:exactly|at least) \d{1,4} expected)",
        C.MISSING_ARGUMENT,
        "too few arguments to {function}(): {given} passed, {detail}",
        "Pass the arguments it takes.",
    ),
    rule(
        "php.memory",
        "memory",
        r"Allowed memory size of (?P<limit>\d{1,15}) bytes exhausted(?P<detail> \(tried to allocate "
        r"\d{1,15} bytes\))?",
        C.RESOURCE_EXHAUSTED,
        "allowed memory size of {limit} bytes exhausted{detail}",
        "Work on less at a time.",
    ),
    rule(
        "php.execution_time",
        "execution",
        r"Maximum execution time of (?P<limit>\d{1,9} seconds?) exceeded",
        C.TIMEOUT,
        "maximum execution time of {limit} exceeded",
        "Do less at a time, or raise the limit.",
    ),
    rule(
        "php.undefined_function",
        "undefined",
        r"Call to undefined (?P<kind>function|method) (?P<name>[\w:\\]{1,160})\(\)|Class "
        r"\"(?P<class>[\w\\]{1,160})\" not found",
        C.UNRESOLVED_REFERENCE,
        ("call to undefined {kind} {name}()", "class {class} not found"),
        "Use one that exists, or load it.",
    ),
    rule(
        "laravel.model_not_found",
        "query",
        r"No query results for model \[(?P<model>[\w\\]{1,160})\](?P<detail> [^\n]{1,80})?",
        C.MISSING_RECORD,
        "no query results for model {model}{detail}",
        "Check the id, or create it first.",
        read=lambda match, cause: {"detail": " " + match["detail"].strip() if match["detail"] else None},
    ),
)
