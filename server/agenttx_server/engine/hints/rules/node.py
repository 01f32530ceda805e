"""JavaScript's own errors, and Node's."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import LIKELY, Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "node.null_property",
        "undefined null",
        r"Cannot (?P<what>read|set) propert(?:y|ies) (?:'(?P<old>[^'\n]{1,128})' )?of "
        r"(?P<value>undefined|null)(?: \((?P<how>reading|setting) '(?P<name>[^'\n]{1,128})'\))?",
        C.NULL_REFERENCE,
        (
            "cannot {what} '{name}' of {value}",
            "cannot {what} '{old}' of {value}",
            "cannot {what} properties of {value}",
        ),
        "Make sure the value exists before it is used.",
        weight=LIKELY,
    ),
    rule(
        "node.undefined_object",
        "undefined null",
        r"(?P<detail>(?:(?<![\w.$\[\]()])[\w.$\[\]()]{1,128} is (?:undefined|null)\b|(?:undefined|"
        r"null) is not (?:an object|iterable|a function)|Cannot (?:destructure|"
        r"convert)[^\n]{0,120}(?:undefined|null)|Right-hand side of)[^\n]{0,100})",
        C.NULL_REFERENCE,
        "{detail}",
        "Make sure the value exists before it is used.",
        weight=LIKELY,
    ),
    rule(
        "node.not_a_function",
        "function iterable constructor",
        r"(?<![\w.$\[\]()])(?P<name>[\w.$\[\]()]{1,160}) is not (?P<what>a function|iterable|a constructor)",
        C.INVALID_VALUE,
        "{name} is not {what}",
        "Pass a value of the right type.",
        weight=LIKELY,
    ),
    rule(
        "node.reference",
        "defined initialization",
        r"ReferenceError: (?P<detail>[^\n]{1,160})",
        C.UNRESOLVED_REFERENCE,
        "{detail}",
        "Define it first, or correct its spelling.",
        weight=LIKELY,
    ),
    rule(
        "node.invalid_argument_type",
        "argument property",
        r"The (?:\"(?P<name>[^\"\n]{1,128})\" (?:argument|property)|(?:argument|property) "
        r"['\"](?P<name2>[^'\"\n]{1,128})['\"]|value of \"(?P<name3>[^\"\n]{1,128})\") "
        r"(?P<detail>(?:must be|is invalid|is out of range)[^\n]{1,160})",
        C.INVALID_VALUE,
        '"{name}" {detail}',
        "Correct {name}.",
        "name",
        read=lambda match, cause: {"name": match["name"] or match["name2"] or match["name3"]},
    ),
    rule(
        "node.export",
        "export",
        r"The requested module '(?P<module>[^'\n]{1,200})' does not provide an export named '(?P<name>[^'\n]{1,128})'",
        C.UNRESOLVED_REFERENCE,
        "module '{module}' does not provide an export named '{name}'",
        "Import a name that it exports.",
    ),
    rule(
        "node.module",
        "module package",
        r"Cannot find (?:module|package) '(?P<module>[^'\n]{1,200})'|Module not found: "
        r"(?P<detail>[^\n]{1,160})",
        C.UNRESOLVED_REFERENCE,
        ("cannot find module '{module}'", "module not found: {detail}"),
        "Install it, or correct its name.",
    ),
    rule(
        "joi.field",
        "must required allowed",
        r"(?:\A|[.:,] |\n)\"(?P<name>[A-Za-z_][\w.\[\]]{0,128})\" (?P<detail>(?:is required|is not "
        r"allowed|must |length must |is not a|with value)[^\n]{0,160})",
        C.INVALID_VALUE,
        '"{name}" {detail}',
        "Correct {name}.",
        "name",
        weight=LIKELY,
        read=lambda match, cause: {
            "category": "missing_argument" if match["detail"].startswith("is required") else None
        },
    ),
    rule(
        "zod.prettified",
        "at",
        r"[\u2716\u00d7] (?P<said>[^\n]{1,200})\n\s{0,8}\u2192 at "
        r"(?P<name>[\w.\[\]$]{1,128})(?P<rest>(?:\n[^\n]{1,200}){0,6})",
        C.INVALID_VALUE,
        "{name}: {said}{more}",
        "Correct each named field.",
        "name",
        read=lambda match, cause: _prettified(match["said"], match["rest"]),
    ),
    rule(
        "mongoose.path",
        "path cast",
        r"Path `(?P<name>[^`\n]{1,128})` (?P<detail>[^\n,]{1,120})|Cast to (?P<type>\w{1,40}) failed "
        r"for value \"?(?P<value>[^\"\n]{0,120})\"? (?:\(type \w{1,20}\) )?at path "
        r"\"(?P<name2>[^\"\n]{1,128})\"",
        C.INVALID_VALUE,
        ("{name} {detail}", "{value} is not a valid {type} for {key}", "not a valid {type} for {key}"),
        "Correct it and retry.",
        "key",
        read=lambda match, cause: {
            "key": match["name"] or match["name2"],
            "category": "missing_argument" if (match["detail"] or "").startswith("is required") else None,
        },
    ),
    rule(
        "node.abort",
        "aborted aborterror",
        r"(?:AbortError|DOMException \[AbortError\])(?:: (?P<detail>[^\n]{1,120}))?|(?P<detail2>The "
        r"(?:user aborted a request|operation was aborted))(?! due to timeout)",
        C.CANCELLED,
        ("aborted: {detail}", "{detail2}", "aborted"),
        "Run it again if it is still wanted.",
        weight=LIKELY,
    ),
    rule(
        "node.call_stack",
        "stack heap",
        r"Maximum call stack size exceeded|JavaScript heap out of memory[^\n]{0,60}|Invalid (?:array|"
        r"string) length",
        C.RESOURCE_EXHAUSTED,
        "{message}",
        "Work on less at a time.",
    ),
    rule(
        "prisma.known",
        "prisma constraint",
        r"(?P<detail>Unique constraint failed on the (?:fields?|constraint): \(?`?(?P<column>[\w`, "
        r"]{1,200})`?\)?|Foreign key constraint (?:failed on the field|violated(?: on the (?:fields?|"
        r"constraint))?): \(?`?(?P<foreign>[\w`, .()]{1,200}?)`?\)?$|Null constraint violation on the "
        r"fields?: \(?`?(?P<null>[\w`, ]{1,200})`?\)?|An operation failed because it depends on one or "
        r"more records that were required but not found\.[^\n]{0,120})",
        C.UNIQUE_VIOLATION,
        "{detail}",
        "Correct the named fields, or the records they refer to.",
        "key",
        read=lambda match, cause: _prisma(match["column"], match["foreign"], match["null"]),
    ),
)


def _prettified(said: str, rest: str) -> dict[str, str | None]:
    missing = "received undefined" in said or said.startswith("Required")
    others = re.findall(r"[\u2716\u00d7] ([^\n]{1,120})\n\s{0,8}\u2192 at ([\w.\[\]$]{1,128})", rest)
    more = "".join(f"; {path}: {complaint}" for complaint, path in others)
    return {"category": "missing_argument" if missing else None, "more": more or None, "rest": None}


def _prisma(column: str | None, foreign: str | None, null: str | None) -> dict[str, str | None]:
    if column:
        return {"key": None if "constraint: " in column else column.replace("`", "").strip(" )")}
    if foreign:
        name = foreign.replace("`", "").split(" ")[0]
        return {"key": None if "_fkey" in name else name, "category": "foreign_key_violation"}
    if null:
        return {"key": null.replace("`", "").strip(" )"), "category": "not_null_violation"}
    return {"key": None, "category": "missing_record"}
