"""Validators' plain-text reports: pydantic 1 and 2, jsonschema, ajv, serde, Bean Validation, Rails, click and argparse."""

from __future__ import annotations

import re
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..fields import FieldError, field_sentences
from ..masking import is_secret_name
from ..rule import LIKELY, Cause, Facts, Rule, rule
from ..vocabulary import category_of_complaint

__all__ = ["RULES"]

_PYDANTIC_FIELD: Final = re.compile(
    r"^(?P<path>[^\s\[(].{0,200})\n {2}(?P<complaint>[^\n]{1,400}?)(?: "
    r"\[type=(?P<code>[\w.]{1,60}),? ?(?:input_value=(?P<value>[^\n]{0,600}?), "
    r"input_type=[^\n\]]{1,40})?\]| \(type=(?P<code1>[\w.]{1,60})[^\n)]{0,200}\))?$",
    re.MULTILINE,
)
_RAILS_WORDS: Final = (
    "has already been taken",
    "can't be blank",
    "must be",
    "is invalid",
    "is too short",
    "is too long",
    "is not a number",
    "is not included in the list",
    "must exist",
    "is reserved",
    "doesn't match",
    "is the wrong length",
    "can't be empty",
    "must not",
    "is not valid",
    "does not",
    "is not an integer",
    "should",
    "cannot",
    "is already",
    "has",
    "is missing",
    "is required",
    "isn't",
    "exceeds",
    "must",
    "can't",
    "is",
)
_RAILS_PART: Final = re.compile(
    r"(?P<name>[A-Z][\w ./'-]{0,60}?) (?P<complaint>(?:"
    + "|".join(map(re.escape, _RAILS_WORDS))
    + r")\b[^\n]{0,140})"
)


def _pydantic(match: re.Match[str], cause: Cause) -> Facts | None:
    report = cause.text[match.end() :]
    fields = list(_PYDANTIC_FIELD.finditer(report))
    if not fields:
        whole = " ".join(report.partition(" [type=")[0].split())
        return {
            "fields": whole or cause.message,
            "name": None,
            "category": None,
            "advice": "Correct it and retry.",
        }
    said, first = [], fields[0]
    for found in fields[:5]:
        value = found["value"]
        shown_value = (
            f" (got {value})"
            if value
            and len(value) <= 40
            and not is_secret_name(found["path"])
            and "=missing" not in found[0]
            and "{" not in value
            else ""
        )
        said.append(f"{found['path']}: {found['complaint']}{shown_value}")
    more = f"; and {len(fields) - 5} more" if len(fields) > 5 else ""
    many = f"{len(fields)} fields: " if len(fields) > 1 else ""
    category = category_of_complaint(first["complaint"], first["code"] or first["code1"] or "")
    return {
        "fields": many + "; ".join(said) + more,
        "name": first["path"].split(" -> ")[-1],
        "category": category.value,
        "advice": "Correct each." if len(fields) > 1 else "Correct it and retry.",
    }


def _rails(match: re.Match[str], cause: Cause) -> Facts | None:
    parts = re.split(r", (?=[A-Z])", match["rest"])
    first = _RAILS_PART.match(parts[0])
    if first is None:
        return {"fields": match["rest"], "name": None, "category": None}
    name = (
        re.sub(r"[ .]+", "_", first["name"].strip()).lower()
        if " " in first["name"]
        else first["name"].lower()
    )
    return {
        "fields": "; ".join(_with_attribute(part) for part in parts[:5]),
        "name": name,
        "category": category_of_complaint(first["complaint"]).value,
    }


def _with_attribute(part: str) -> str:
    found = _RAILS_PART.match(part)
    return f"{re.sub(r'[ .]+', '_', found['name']).lower()} {found['complaint']}" if found else part


def _missing_name(match: re.Match[str], cause: Cause) -> Facts | None:
    """The name that is missing; not a word of the sentence: ``missing parameter in the request``."""
    name = match["name"]
    if name.startswith("--"):
        return {"key": name.lstrip("-").replace("-", "_")}
    before, after = match.string[match.start("name") - 1], match.string[match.end("name") :][:1]
    set_apart = before in "\"'`<" or match[0][: match.start("name") - match.start()].rstrip(
        "\"'`< "
    ).endswith(":")
    looks_like_a_name = re.search(r"[_.\-\d]|[a-z][A-Z]|^[A-Z]{2}", name) is not None
    if not (set_apart or looks_like_a_name or after in ("", "\n")):
        return None
    return {"key": name.lstrip("-")}


RULES: Final[tuple[Rule, ...]] = (
    rule(
        "pydantic.errors",
        "validation",
        r"\b(?P<count>\d{1,6}) validation errors? for (?P<model>[\w.\[\], ()'-]{1,120})",
        C.INVALID_VALUE,
        "{model}: {fields}",
        "{advice}",
        "name",
        read=_pydantic,
    ),
    rule(
        "msgspec.value",
        "expected object",
        r"(?P<what>Expected `[^`\n]{1,80}`[^\n]{0,120}?|Object (?:missing required|contains unknown) field `(?P<name>[^`\n]{1,80})`)"
        r"(?: - at `(?:key in )?(?P<path>\$[^`\n]{0,160})`|\Z)",
        C.INVALID_VALUE,
        ("{what} at {path}", "{what}"),
        "Correct it and retry.",
        "field",
        read=lambda match, cause: {
            "category": C.MISSING_ARGUMENT.value if "missing required" in match["what"] else None,
            "field": match["name"] or (match["path"] or "").removeprefix("$").replace("[...]", ""),
        },
    ),
    rule(
        "jsonschema.required",
        "property",
        r"'(?P<name>[^'\n]{1,128})' is a required property",
        C.MISSING_ARGUMENT,
        ("'{name}' is a required property{place_said}",),
        "Pass {name}.",
        "name",
        read=lambda match, cause: {"place_said": _on_instance(cause.text)},
    ),
    rule(
        "jsonschema.additional",
        "additional",
        r"Additional properties are not allowed \((?P<detail>'(?P<name>[^'\n]{1,128})'[^()\n]{0,200}) "
        r"(?:was|were) unexpected\)",
        C.INVALID_VALUE,
        "unexpected property {detail}",
        "Leave it out, or correct its spelling.",
        "name",
    ),
    rule(
        "jsonschema.instance",
        "instance",
        r"On instance(?P<path>(?:\[(?:'[^'\n]{1,128}'|"
        r"\d{1,9})\]){1,12}):(?:\n\s{1,8}(?P<value>[^\n]{1,200}))?",
        C.INVALID_VALUE,
        ("{name_said}: {complaint}",),
        "Correct {name} and retry.",
        "name",
        read=lambda match, cause: _instance(match, cause),
    ),
    rule(
        "serde.missing_field",
        "missing",
        r"missing field `(?P<name>[^`\n]{1,128})`(?P<detail> at line \d{1,9} column \d{1,9})?",
        C.MISSING_KEY,
        ("missing field {name} {detail}", "missing field {name}"),
        "Add {name}.",
        "name",
    ),
    rule(
        "serde.unknown_field",
        "unknown",
        r"unknown (?P<kind>field|variant) `(?P<name>[^`\n]{1,128})`, (?P<detail>(?:expected|there "
        r"are)[^\n]{1,200})",
        C.INVALID_VALUE,
        "unknown {kind} {name}, {detail}",
        "Use an expected name.",
        "field",
        read=lambda match, cause: {"field": match["name"] if match["kind"] == "field" else None},
    ),
    rule(
        "serde.invalid_type",
        "invalid",
        r"(?<![\w.\[\]])(?:(?P<path>[\w.\[\]]{1,128}): )?invalid (?P<kind>type|value|length): "
        r"(?P<detail>[^\n]{1,160}?, expected [^\n]{1,120})",
        C.INVALID_VALUE,
        ("{path}: invalid {kind}: {detail}", "invalid {kind}: {detail}"),
        "Pass what is expected.",
        "name",
        # serde_yaml and figment print the path; a plain word may be a wrapper's, as in `parse: invalid type`.
        read=lambda match, cause: {
            "name": match["path"] if match["path"] and re.search(r"[._\[]", match["path"]) else None
        },
    ),
    rule(
        "rails.record_invalid",
        "failed",
        r"Validation failed: (?P<rest>[^\n]{1,400}?)(?= \(\w+::RecordInvalid\)|\n|$)",
        C.INVALID_VALUE,
        "{fields}",
        "Correct each named attribute.",
        "name",
        read=_rails,
    ),
    rule(
        "bean_validation.field_error",
        "field",
        r"Field error in object '(?P<object>[^'\n]{1,80})' on field '(?P<name>[^'\n]{1,128})': "
        r"rejected value \[(?P<value>[^\]\n]{0,200})\][^\n]{0,1200}default message "
        r"\[(?P<detail>(?!\w{1,60}\])[^\]\n]{1,160})\]",
        C.INVALID_VALUE,
        ("{name}: {detail} (rejected value {value})", "{name}: {detail}"),
        "Correct {name} and retry.",
        "name",
        read=lambda match, cause: {"category": category_of_complaint(match["detail"]).value},
    ),
    rule(
        "bean_validation.violation",
        "interpolatedmessage",
        r"ConstraintViolationImpl\{interpolatedMessage='(?P<detail>[^'\n]{1,160})', "
        r"propertyPath=(?P<name>[\w.\[\]<> ]{1,128})",
        C.INVALID_VALUE,
        "{name}: {detail}",
        "Correct it and retry.",
        "name",
        read=lambda match, cause: {"category": category_of_complaint(match["detail"]).value},
    ),
    rule(
        "validation.sentences",
        "must should required invalid missing expected size length",
        r"(?:(?:Validation|Constraint|Invalid|BadRequest|Argument)\w{0,60}: |"
        r"\A(?:Error: )?(?=(?:data|request|body|instance|params|query(?:string)?|headers)(?:/[\w/.\-]{1,160})? must )|[Vv]alidation failed: )(?P<rest>[\s\S]{1,800})",
        C.INVALID_VALUE,
        "{fields}",
        "{advice}",
        "name",
        read=lambda match, cause: _sentences(match["rest"]),
    ),
    rule(
        "mongoose.failed",
        "failed",
        r"\b\w{1,80} validation failed: (?P<rest>[^\n]{1,600})",
        C.INVALID_VALUE,
        "{fields}",
        "{advice}",
        "name",
        read=lambda match, cause: _mongoose(match["rest"]),
    ),
    rule(
        "arguments.required",
        "arguments argument option options flag flags parameter parameters field fields property "
        "properties key input attribute header column param variable",
        r"(?:the following (?:required )?arguments (?:are required|were not provided):\s{1,8}|"
        r"[Mm]issing (?:required )?(?:option|argument|parameter|flag|field|property|key|input|"
        r"attribute|header|column|param|value(?: for)?(?: the)?(?: environment variable| parameter| field)?|"
        r"environment variable)s? ?(?:\(s\))?:? |required (?:flag|"
        r"option|argument)\(?s?\)? |[Rr]equired parameter "
        r")[\"'`<]{0,2}(?P<name>-{0,2}[A-Za-z][\w.\-]{0,80})[\"'`>]{0,2}(?P<detail>(?:,? "
        r"?[\"'`<]?-{0,2}[\w\-]{1,40}[\"'`>]?){0,6})",
        C.MISSING_ARGUMENT,
        "{message}",
        "Pass {name}.",
        "key",
        weight=LIKELY,
        read=_missing_name,
    ),
    rule(
        "arguments.clap_value",
        "invalid",
        r"invalid value '(?P<value>[^'\n]{0,200})' for '(?P<name>-{0,2}[\w\-]{1,60})(?: "
        r"<[^>\n]{1,60}>)?'(?P<detail>: [^\n]{1,160})?",
        C.INVALID_VALUE,
        ("invalid value '{value}' for {name}{detail}", "invalid value for {name}"),
        "Correct {name}.",
        "key",
        read=lambda match, cause: {"key": match["name"].lstrip("-").replace("-", "_")},
    ),
    rule(
        "arguments.unknown",
        "unknown unrecognized unexpected",
        r"(?:unknown|unrecognized|unexpected|[Nn]o such) (?:long |shorthand )?(?:flag|option|"
        r"argument)s?:? ['\"`]?(?P<name>-{1,2}[\w\-]{1,60})",
        C.INVALID_VALUE,
        "{line}",
        "Leave it out, or correct its name.",
        "key",
        read=lambda match, cause: {"key": match["name"].lstrip("-").replace("-", "_")},
    ),
    rule(
        "arguments.option_value",
        "invalid argument",
        r"(?:argument|[Ii]nvalid value for|option) "
        r"[\"']?(?P<name>-{1,2}[\w\-]{1,60}(?:/-{1,2}[\w\-]{1,60})?)[^:\n]{0,40}: "
        r"(?P<detail>[^\n]{1,160})",
        C.INVALID_VALUE,
        "{name}: {detail}",
        "Correct {name}.",
        "key",
        read=lambda match, cause: {"key": match["name"].split("/")[-1].lstrip("-").replace("-", "_")},
    ),
)


def _sentences(rest: str) -> Facts | None:
    errors = field_sentences(rest)
    if not errors or errors[0].path.lower() in _NO_FIELDS:
        return None
    return _facts_of(errors)


# Subjects of sentences about something else than a field.
_NO_FIELDS: Final = frozenset(
    "it this that value request response server client user token object data input body payload "
    "there he they you one which operation field parameter argument".split()
)


def _mongoose(rest: str) -> Facts | None:
    parts = re.split(r", (?=[\w.]{1,128}: )", rest)
    errors = [
        FieldError(name, said) for name, found, said in (part.partition(": ") for part in parts) if found
    ]
    return _facts_of(errors) if errors else None


def _facts_of(errors: list[FieldError]) -> Facts:
    said = "; ".join(
        error.complaint if f"`{error.path}`" in error.complaint else f"{error.path} {error.complaint}"
        for error in errors[:5]
    )
    many = f"{len(errors)} fields: " if len(errors) > 1 else ""
    advice = "Correct each." if many else "Correct it and retry."
    return {
        "fields": many + said,
        "name": errors[0].path,
        "category": errors[0].category.value,
        "advice": advice,
    }


def _on_instance(text: str) -> str | None:
    found = re.search(r"On instance((?:\[(?:'[^'\n]{1,128}'|\d{1,9})\]){1,12}):", text)
    return f" of {_dotted(found[1])}" if found else None


def _dotted(path: str) -> str:
    return re.sub(r"\['?([^'\]]{1,128})'?\]", r".\1", path).lstrip(".")


def _instance(match: re.Match[str], cause: Cause) -> Facts | None:
    dotted = _dotted(match["path"])
    return {
        "path": None,
        "name": dotted,
        "name_said": dotted,
        "complaint": (cause.message or cause.text).split("\n")[0],
        "value": None,
    }
