"""Python's own exceptions, by what their messages say."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import CERTAIN, LIKELY, WEAK, Cause, Facts, Rule, rule
from ..wording import key_names

__all__ = ["RULES"]

_NAMES: Final = re.compile(r"'([^']{1,128})'")


def _missing_arguments(match: re.Match[str], cause: Cause) -> Facts | None:
    names = _NAMES.findall(match["names"])
    return {"names": ", ".join(names), "function": match["function"]}


RULES: Final[tuple[Rule, ...]] = (
    rule(
        "python.key_error",
        "keyerror",
        r"\bKeyError: (?P<quoted>'(?P<name>[^'\n]{1,300})'|\"(?P<name2>[^\"\n]{1,300})\"|"
        r"(?P<name3>[^\s'\"][^\n]{0,200}))",
        C.MISSING_KEY,
        ("{sentence}", "key {name} is missing"),
        "Provide {name}, or read a key that exists.",
        "key",
        weight=LIKELY,
        read=lambda match, cause: _key_error(match),
    ),
    rule(
        "python.missing_argument",
        "missing",
        r"(?<![\w.<>])(?P<function>[\w.<>]{1,128})\(\) missing (?P<count>\d{1,3}) required "
        r"(?:positional|keyword-only)? ?arguments?: (?P<names>'[^\n]{1,300}')",
        C.MISSING_ARGUMENT,
        "{function}() is missing {names}",
        "Pass {names}.",
        "names",
        read=_missing_arguments,
    ),
    rule(
        "python.missing_argument_bare",
        "missing argument",
        r"(?P<detail>missing (?:a |\d{1,3} )?required (?:positional |keyword-only |keyword "
        r")?arguments?:? '(?P<name>[^'\n]{1,128})')",
        C.MISSING_ARGUMENT,
        "{message}",
        "Pass {name}.",
        "name",
    ),
    rule(
        "python.required_argument",
        "required",
        r"[Rr]equired argument '(?P<name>[^'\n]{1,128})' \(pos \d{1,3}\) not found",
        C.MISSING_ARGUMENT,
        "required argument '{name}' not found",
        "Pass {name}.",
        "name",
    ),
    rule(
        "python.unexpected_argument",
        "unexpected keyword",
        r"(?<![\w.<>])(?:(?P<function>[\w.<>]{1,128})\(\) got an unexpected keyword argument|got an "
        r"unexpected keyword argument|(?P<function2>[\w.<>]{1,128})\(\) got some positional-only "
        r"arguments passed as keyword arguments:) '(?P<name>[^'\n]{1,128})'(?:\. (?P<detail>Did you "
        r"mean [^\n]{1,80}))?",
        C.INVALID_VALUE,
        (
            "{function}() takes no argument '{name}' (unexpected keyword argument). {detail}",
            "{function}() takes no argument '{name}' (unexpected keyword argument)",
            "unexpected keyword argument '{name}'",
        ),
        "Leave {name} out, or correct its name.",
        "name",
        phrases="keyword argument",
    ),
    rule(
        "python.multiple_values",
        "multiple",
        r"(?<![\w.<>])(?P<function>[\w.<>]{1,128})\(\) got multiple values for (?:keyword )?argument "
        r"'(?P<name>[^'\n]{1,128})'",
        C.INVALID_VALUE,
        "{function}() got multiple values for argument '{name}'",
        "Pass {name} once.",
        "name",
    ),
    rule(
        "python.argument_count",
        "positional arguments",
        r"(?<![\w.<>])(?P<function>[\w.<>]{1,128})\(\) takes (?P<detail>[^\n]{1,80} positional "
        r"arguments? but \d{1,4} (?:was|were) given)",
        C.INVALID_VALUE,
        "{function}() takes {detail}",
        "Pass the arguments it takes.",
    ),
    rule(
        "python.none_attribute",
        "nonetype",
        r"'NoneType' object (?P<what>has no attribute '(?P<name>[^'\n]{1,128})'|is not "
        r"(?:subscriptable|iterable|callable|a mapping)|does not support item assignment|cannot be "
        r"interpreted as an integer)",
        C.NULL_REFERENCE,
        "a value is None: 'NoneType' object {place}",
        "Make sure the value exists before it is used.",
        read=lambda match, cause: {"place": match["what"]},
        weight=LIKELY,
    ),
    rule(
        "python.none_operand",
        "nonetype",
        r"'NoneType'",
        C.NULL_REFERENCE,
        "a value is None: {line}",
        "Make sure the value exists before it is used.",
        weight=LIKELY,
    ),
    rule(
        "python.attribute",
        "attribute",
        r"(?P<owner>'[\w.]{1,128}' object|module '[\w.]{1,128}'|type object '[\w.]{1,128}') has no "
        r"attribute '(?P<name>[^'\n]{1,128})'(?:\. (?P<detail>Did you mean:? [^\n]{1,80}))?",
        C.MISSING_KEY,
        ("{place} has no attribute '{name}'. {detail}", "{place} has no attribute '{name}'"),
        "Use an attribute that exists.",
        weight=LIKELY,
        read=lambda match, cause: {"place": match["owner"]},
    ),
    rule(
        "python.index",
        "index",
        r"IndexError: (?P<detail>[^\n]{1,120})",
        C.MISSING_KEY,
        "{detail}",
        "Use an index within the list; it may be empty.",
        weight=LIKELY,
    ),
    rule(
        "python.name",
        "defined referenced",
        r"(?:global )?name '(?P<name>[^'\n]{1,128})' is not defined(?:\. (?P<detail>Did you mean:? "
        r"[^\n]{1,60}))?|(?:cannot access )?local variable '(?P<name2>[^'\n]{1,128})' (?:where it is "
        r"not associated|referenced before)",
        C.UNRESOLVED_REFERENCE,
        (
            "name '{name}' is not defined. {detail}",
            "name '{name}' is not defined",
            "local variable '{name2}' has no value yet",
        ),
        "Define it first, or correct its spelling.",
        weight=LIKELY,
    ),
    rule(
        "python.module",
        "module import",
        r"No module named '?(?P<module>[\w.]{1,128})'?|cannot import name '(?P<name>[^'\n]{1,128})' "
        r"from (?P<partial>partially initialized module )?'(?P<module2>[\w.]{1,128})'",
        C.UNRESOLVED_REFERENCE,
        ("No module named '{module}'", "cannot import name '{name}' from {module2}"),
        "Install it, or correct the name.",
    ),
    rule(
        "python.int_literal",
        "invalid could",
        r"invalid literal for int\(\) with base \d{1,2}: '(?P<value>[^'\n]{0,200})'|could not convert "
        r"string to float: '(?P<value2>[^'\n]{0,200})'|invalid literal for (?:float|"
        r"Fraction)[^:\n]{0,20}: '?(?P<value3>[^'\n]{0,200})",
        C.INVALID_VALUE,
        (
            "'{value}' is not a whole number (invalid literal for int())",
            "'{value2}' is not a number (could not convert string to float)",
            "the value is not a number",
        ),
        "Pass a number.",
    ),
    rule(
        "python.date",
        "date isoformat time",
        r"time data '(?P<value>[^'\n]{0,100})' does not match format '(?P<format>[^'\n]{1,60})'|"
        r"[Ii]nvalid isoformat string: '(?P<value2>[^'\n]{0,100})'|(?P<detail>(?:day|month|year|hour|"
        r"minute|second) (?:is out of range for month|must be in [\d.]{1,12}|\d{1,6} is out of "
        r"range)[^\n]{0,60})|Unknown string format: (?P<value3>[^\n]{1,80})",
        C.INVALID_VALUE,
        (
            "time data '{value}' does not match format '{format}'",
            "'{value2}' is not an ISO date or time",
            "{detail}",
            "'{value3}' is not a date or time",
        ),
        "Pass a valid date or time.",
    ),
    rule(
        "python.enum",
        "valid",
        r"(?P<value>'[^'\n]{1,120}'|(?<![\w.\-])[\w.\-]{1,64}) is not (?:a valid|among the defined "
        r"enum values)\.? ?(?P<type>[A-Z]\w{0,80})?",
        C.INVALID_VALUE,
        ("{value} is not a valid {type}", "{message}"),
        "Pass one of its values.",
        weight=LIKELY,
    ),
    rule(
        "python.unpack",
        "unpack",
        r"(?P<detail>(?:not enough|too many) values to unpack \([^()\n]{1,60}\)|cannot unpack "
        r"non-iterable \w{1,60} object)",
        C.INVALID_VALUE,
        "{detail}",
        "Pass a value of the expected shape.",
        weight=LIKELY,
    ),
    rule(
        "python.unicode",
        "codec",
        r"'(?P<codec>[\w\-]{1,30})' codec can't (?P<what>decode|encode) (?P<detail>[^\n]{1,160})",
        C.INVALID_VALUE,
        "'{codec}' codec can't {what} {detail}",
        "Use the text's real encoding.",
    ),
    rule(
        "python.serializable",
        "serializable",
        r"Object of type (?P<type>\w{1,80}) is not JSON serializable|Type is not JSON serializable: "
        r"(?P<type2>\w{1,80})",
        C.INVALID_VALUE,
        (
            "a value of type {type} is not JSON serializable",
            "a value of type {type2} is not JSON serializable",
        ),
        "Convert it to text or a number first.",
    ),
    rule(
        "python.operand",
        "operand unsupported concatenate supported",
        r"unsupported operand type\(s\) for (?P<detail>[^\n]{1,100})|can only concatenate "
        r"(?P<detail2>[^\n]{1,80})|'(?P<operator>[<>=]{1,2})' not supported between instances of "
        r"(?P<detail3>[^\n]{1,80})|must be (?P<detail4>\w{1,20}, not \w{1,40})",
        C.INVALID_VALUE,
        (
            "unsupported operand types for {detail}",
            "can only concatenate {detail2}",
            "{operator} is not supported between {detail3}",
            "must be {detail4}",
        ),
        "Pass values of fitting types.",
        weight=LIKELY,
    ),
    rule(
        "python.division",
        "division modulo zerodivisionerror divisionbyzero divide zero",
        r"(?P<detail>(?:float |integer |int )?(?:division|modulo|floor division|divide)[^\n]{0,20} by "
        r"zero|\[?<class 'decimal\.DivisionByZero'>\]?)",
        C.INVALID_VALUE,
        "{detail}",
        "Make sure the divisor is not zero.",
        weight=LIKELY,
    ),
    rule(
        "python.recursion",
        "recursion recursionerror",
        r"maximum recursion depth exceeded[^\n]{0,80}",
        C.RESOURCE_EXHAUSTED,
        "{message}",
        "Break the cycle, or nest less.",
        weight=LIKELY,
    ),
    rule(
        "python.memory",
        "memoryerror allocate",
        r"Unable to allocate (?P<detail>[^\n]{1,120})|\bMemoryError\b",
        C.RESOURCE_EXHAUSTED,
        ("unable to allocate {detail}", "out of memory (MemoryError)"),
        "Work on less at a time.",
        weight=LIKELY,
    ),
    rule(
        "python.syntax",
        "syntaxerror indentationerror",
        r"(?P<type>SyntaxError|IndentationError|TabError): (?P<detail>[^\n]{1,160})",
        C.INVALID_VALUE,
        "{type}: {detail}",
        "Correct the code.",
        weight=LIKELY,
    ),
    rule(
        "python.assertion",
        "assertionerror assertionfailederror comparisonfailure",
        r"\b(?:Assertion(?:Failed)?Error|ComparisonFailure)(?: ?\[\w{1,40}\])?(?:: "
        r"?(?P<detail>[^{]{1,300}))?",
        C.ASSERTION,
        ("assertion failed: {detail}", "an assertion failed, without a message"),
        "Correct the inputs so that it holds.",
        weight=LIKELY,
    ),
    rule(
        "python.cancelled",
        "cancellederror keyboardinterrupt systemexit",
        r"\b(?:CancelledError|KeyboardInterrupt|SystemExit): (?P<detail>[^\n]{1,200})",
        C.CANCELLED,
        "cancelled: {detail}",
        "Run it again if it is still wanted.",
        weight=LIKELY,
    ),
    rule(
        # asyncio ends a wait by cancelling it: what was raised from a bare CancelledError says why.
        "python.cancelled_bare",
        "cancellederror keyboardinterrupt systemexit",
        r"\b(?P<type>CancelledError|KeyboardInterrupt|SystemExit)\b",
        C.CANCELLED,
        "cancelled ({type})",
        "Run it again if it is still wanted.",
        weight=WEAK,
    ),
    rule(
        "django.does_not_exist",
        "matching",
        r"(?P<model>[A-Z]\w{0,80}) matching query does not exist",
        C.MISSING_RECORD,
        "{model} matching query does not exist",
        "Check what it is looked up by, or create it first.",
    ),
    rule(
        "django.unknown_field",
        "keyword",
        r"Cannot resolve keyword '(?P<name>[^'\n]{1,128})' into field\. Choices are: "
        r"(?P<detail>[^\n]{1,200})",
        C.MISSING_SCHEMA_OBJECT,
        "cannot resolve keyword '{name}' into field; choices are {detail}",
        "Use one of these fields.",
        "name",
    ),
    rule(
        "django.multiple_objects",
        "more multiple",
        r"get\(\) returned more than one (?P<model>\w{1,80}) -- it returned (?P<count>[\w ]{1,20})|"
        r"Multiple rows were found when (?:exactly )?one(?: or none)? was required",
        C.CONFLICT,
        ("get() returned more than one {model}: {count}", "multiple rows were found where one was required"),
        "Look it up by something unique.",
    ),
    rule(
        "sqlalchemy.no_result",
        "row rows",
        r"No row was found when one was required",
        C.MISSING_RECORD,
        "no row was found when one was required",
        "Check what it is looked up by, or create it first.",
    ),
    rule(
        "sqlalchemy.stale",
        "statement",
        r"(?:UPDATE|DELETE) statement on table '(?P<table>[^'\n]{1,80})' expected to (?:update|delete) "
        r"(?P<wanted>\d{1,9}) row\(s\); (?P<got>\d{1,9}) were matched",
        C.CONFLICT,
        "a row of table {table} was changed or deleted meanwhile ({got} of {wanted} matched)",
        "Read it again, then retry.",
    ),
    rule(
        "sqlalchemy.pool",
        "queuepool",
        r"QueuePool limit of size (?P<size>\d{1,6}) overflow (?P<overflow>\d{1,6}) reached, connection "
        r"timed out, timeout (?P<timeout>[\d.]{1,12})",
        C.RESOURCE_EXHAUSTED,
        "QueuePool limit of size {size} overflow {overflow} reached, timeout {timeout}",
        "Close sessions, or retry later.",
    ),
    rule(
        "attrs.type",
        "must",
        r"\(\"'(?P<name>\w{1,80})' must be (?P<detail>[^\n\"]{1,160}?)(?:\.| \()",
        C.INVALID_VALUE,
        "'{name}' must be {detail}",
        "Correct {name} and retry.",
        "name",
        weight=CERTAIN,
    ),
    rule(
        "jinja.undefined",
        "undefined",
        r"'(?P<name>[\w.]{1,128}(?: object)?)' (?P<what>is undefined|has no attribute '[^'\n]{1,80}')",
        C.UNRESOLVED_REFERENCE,
        "'{name}' {place}",
        "Define it, or correct the template.",
        weight=LIKELY,
        read=lambda match, cause: {"place": match["what"]},
    ),
)


def _key_error(match: re.Match[str]) -> Facts | None:
    name = match["name"] or match["name2"] or match["name3"] or ""
    if match["name3"] is None and len(name) <= 64 and " " not in name:
        return {"name": name, "key": _exactly(name), "sentence": None}
    if match["name3"] is not None and " " not in name.strip() and len(name) <= 64:
        return {"name": name.strip(), "key": _exactly(name), "sentence": None}
    quoted = _NAMES.findall(name)
    only = quoted[0] if len(quoted) == 1 and key_names(quoted[0]) and " " not in quoted[0] else None
    return {"name": only or "it", "sentence": f"KeyError: {name}", "key": None}


def _exactly(name: str) -> str | None:
    """A dictionary key is not a path: only a plain name can be a field's."""
    return name if re.fullmatch(r"[\w\-:]{1,64}", name) else None
