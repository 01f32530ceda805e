"""Validation errors of every shape, brought to one: where, what, and the validator's code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agenttx_server.engine.records import HintCategory

from .rule import CERTAIN, Finding
from .vocabulary import category_of_complaint
from .wording import key_names, safe_message

__all__ = [
    "FieldError",
    "dotted",
    "field_errors",
    "field_errors_finding",
    "field_sentences",
    "joined_path",
    "judges_a_value",
    "names_a_field",
]

# `and` and a comma begin the next sentence only where a field name and a predicate follow.
_PREDICATE: Final = (
    r"(?:must|should|shall|is required|is a required|is not|is invalid|is missing|is too|may not|"
    r"cannot be|can't be|can not be|has to|has wrong|size must|length must"
    r"|does not match|doesn't match|needs to|each value in|may only|has already)\b"
)
_BETWEEN: Final = re.compile(r"(?:, (?:and )?|; |\n)(?=[A-Za-z_$][\w.\[\]/$-]{0,120}:? " + _PREDICATE + ")")
_SENTENCE: Final = re.compile(
    r"\s{0,8}[\"'`]?(?P<path>[A-Za-z_$][\w.\[\]/$-]{0,120})[\"'`]?(?::? )(?P<said>"
    + _PREDICATE
    + r"[^\n]{0,200})"
)
# Where in the request a field stands: no part of its name.
_REQUEST_PART: Final = re.compile(
    r"\A(?:request/)?(?:(?:body|data|instance|params|querystring|query|headers)/|body\.)?"
)
_FIELD_PATH: Final = re.compile(r"[^\s\"'<>=,;!?]{1,160}(?: -> [^\s\"'<>=,;!?]{1,80}){0,8}")
_WEAK_PLACE_NAMES: Final = frozenset(("name", "key", "target", "location", "source"))
_JUDGEMENT: Final = re.compile(
    r"(?i)must|should|required|valid|expected|missing|allowed|unknown|blank|empty|at (?:least|most)|greater|less|between"
    r"|one of|too |supported|already|exist|null|not an? |mandatory|format|length|match"
)
_REQUIRED_PROPERTY: Final = re.compile(r"required property ['\"]([^'\"\n]{1,120})")
_FIELDS_SHOWN: Final = 4
_COMPLAINT_LIMIT: Final = 90
_DEPTH_LIMIT: Final = 6
_WALK_LIMIT: Final = 64
_ENVELOPES: Final = frozenset(
    (
        "body",
        "query",
        "path",
        "header",
        "cookie",
        "json",
        "form",
        "root",
        "__root__",
        "args",
        "data",
        "input",
        "$",
    )
)
_PLACE_NAMES: Final = tuple(
    (
        "pointer field instancePath dataPath path param parameter parameterName property propertyPath "
        "propertyName fieldPath argument name attribute fieldName field_name key target location source "
        "loc context_path argument_name"
    ).split()
)
_COMPLAINT_NAMES: Final = tuple(
    (
        "message msg detail reason description defaultMessage error issue errorMessage error_message "
        "title note text cause messages constraints"
    ).split()
)
_CODE_NAMES: Final = (
    "code",
    "type",
    "keyword",
    "error_code",
    "errorCode",
    "rule",
    "reason",
    "kind",
    "validator",
)
_NOT_FIELDS: Final = frozenset(
    (
        "message code status type title error errors detail details instance traceid timestamp success "
        "ok request_id data hint non_field_errors __all__ _schema stack headers url reason description "
        "result content trace id jsonrpc meta response cause name config links index metadata"
    ).split()
)


@dataclass(frozen=True, slots=True)
class FieldError:
    """``path`` as the error prints it, dotted; ``complaint`` one sentence; ``code`` may be empty."""

    path: str
    complaint: str
    code: str = ""

    @property
    def category(self) -> HintCategory:
        return category_of_complaint(self.complaint, self.code)


def field_errors(value: object, *, named_errors: bool = False) -> list[FieldError]:
    """The field errors in a parsed list or mapping; empty if it isn't one of either kind.

    ``named_errors``: the value stood under a name such as ``errors``, so a key like ``title`` in it is a field.
    """
    if isinstance(value, list):
        found: list[FieldError] = []
        for item in value[:_WALK_LIMIT]:
            if isinstance(item, dict):
                found += _from_entry(item)
            elif isinstance(item, str):
                found += field_sentences(item)
            else:
                return []
        return found
    if isinstance(value, dict) and value and _is_mapping_of_complaints(value, 1 if named_errors else 0):
        return list(_from_mapping(value, (), 0))
    return []


def field_sentences(text: str) -> list[FieldError]:
    """Field errors written as sentences: ``nights must not be less than 1``, ``book.email: must be an email``."""
    found = []
    for sentence in _BETWEEN.split(text[:2000]):
        match = _SENTENCE.match(sentence)
        if match is None:
            return []
        path = _REQUEST_PART.sub("", match["path"]).replace("/", ".")
        missing = _REQUIRED_PROPERTY.search(match["said"])
        found.append(FieldError(f"{path}.{missing[1]}" if missing else path, match["said"]))
    return found


def field_errors_finding(rule: str, errors: Sequence[FieldError], excerpt: str = "") -> Finding:
    """One finding for all of ``errors``: the first decides category and key, none is dropped silently."""
    first = errors[0]
    shown = [_said(error) for error in errors[:_FIELDS_SHOWN]]
    more = len(errors) - len(shown)
    says = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
    if len(errors) > 1:
        says = f"{len(errors)} fields: {says}"
        advice = "Correct each."
    else:
        advice = _ADVICE.get(first.category, "Correct it and retry.")
    return Finding(
        rule,
        first.category,
        says,
        advice,
        key_names(first.path.replace(",", "_")),
        CERTAIN,
        excerpt or first.complaint,
    )


_ADVICE: Final = {
    HintCategory.MISSING_ARGUMENT: "Pass it.",
    HintCategory.UNIQUE_VIOLATION: "Use another value.",
    HintCategory.MISSING_RECORD: "Pass an existing one, or create it first.",
}


def _said(error: FieldError) -> str:
    complaint = safe_message(error.complaint, _COMPLAINT_LIMIT).rstrip(".")
    path = safe_message(error.path, 80)
    last = key_names(error.path)
    if (
        not path
        or path in complaint
        or (last and f"'{last[0]}'" in complaint)
        or (last and f'"{last[0]}"' in complaint)
    ):
        return complaint
    return (
        f"{path} "
        f"{complaint[:1].lower() + complaint[1:] if _starts_as_predicate(complaint) else '— ' + complaint}"
    )


def _starts_as_predicate(complaint: str) -> bool:
    return complaint.split(" ", 1)[0].lower() in (
        "must",
        "is",
        "has",
        "should",
        "can't",
        "cannot",
        "may",
        "does",
        "was",
        "are",
        "needs",
    )


def _from_entry(entry: dict[str, object]) -> Iterator[FieldError]:
    if "extensions" in entry or "locations" in entry:
        return  # GraphQL: `path` is a place in the answer, not a field that was given
    inner = entry.get("error") if isinstance(entry.get("error"), dict) else None
    if isinstance(inner, dict):
        entry = {**entry, **inner}
    complaint = _complaint(entry)
    code = next((v for name in _CODE_NAMES if isinstance(v := entry.get(name), str)), "")
    params = entry.get("params")
    if not complaint and not isinstance(params, dict):
        return
    path = _place(entry, complaint)
    if isinstance(params, dict):
        for name in ("missingProperty", "additionalProperty", "propertyName"):
            if isinstance(params.get(name), str):
                path = f"{path}.{params[name]}" if path else str(params[name])
                break
        allowed = params.get("allowedValues")
        if isinstance(allowed, list) and allowed:
            complaint = f"{complaint}: {', '.join(map(str, allowed[:8]))}"
    names = entry.get("keys") if code == "unrecognized_keys" else entry.get("fields")
    if (
        isinstance(names, list)
        and names
        and isinstance(names[0], str)
        and (not path or code == "unrecognized_keys")
    ):
        path = names[0]
    if path and complaint:
        yield FieldError(path, complaint, code)


def _complaint(entry: dict[str, object]) -> str:
    for name in _COMPLAINT_NAMES:
        value = entry.get(name)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value and isinstance(value[0], str):
            return "; ".join(str(item) for item in value[:3])
        if isinstance(value, dict) and name == "constraints" and value:
            return "; ".join(str(item) for item in list(value.values())[:3])
    return ""


def _place(entry: dict[str, object], complaint: str) -> str:
    for name in _PLACE_NAMES:
        value = entry.get(name)
        if value is None:
            continue
        if name in _WEAK_PLACE_NAMES and not (
            isinstance(value, (list, dict)) or judges_a_value(complaint, value)
        ):
            continue
        if isinstance(value, dict):
            value = next(
                (v for key in ("pointer", "parameter", "header") if isinstance(v := value.get(key), str)),
                None,
            )
        if isinstance(value, list):
            value = joined_path(value)
        if isinstance(value, str) and names_a_field(value):
            return dotted(value)
    return ""


def judges_a_value(complaint: str, name: object) -> bool:
    """Whether the complaint is about a value given under ``name``; jobs and hosts have names too."""
    return isinstance(name, str) and "-" not in name and _JUDGEMENT.search(complaint) is not None


def names_a_field(text: str) -> bool:
    """Whether ``text`` can be a field's name or path; not a URL, a sentence or an error's class."""
    return (
        _FIELD_PATH.fullmatch(text) is not None
        and "://" not in text
        and not text.endswith(("Error", "Exception"))
        and text.strip("/#$.") != ""
    )


def joined_path(segments: Sequence[object]) -> str:
    """A path given as a list, without the envelope it starts in (``body``, ``query`` …)."""
    if len(segments) > 1 and segments[0] in _ENVELOPES:
        segments = segments[1:]
    return ".".join(str(segment) for segment in segments[:12])


def dotted(path: str) -> str:
    """A JSON pointer or JSONPath in dots: ``#/a/0/b`` → ``a.0.b``, ``$.a.b`` → ``a.b``."""
    if path.startswith(("/", "#/")):
        path = (
            path.lstrip("#")
            .strip("/")
            .replace("~1", "\x00")
            .replace("/", ".")
            .replace("~0", "~")
            .replace("\x00", "/")
        )
        return path.removeprefix("data.attributes.").removeprefix("body.")
    return path.removeprefix("$.").removeprefix("body.").strip(".")


def _is_mapping_of_complaints(value: dict[str, object], depth: int) -> bool:
    if depth > _DEPTH_LIMIT:
        return False
    for name, item in list(value.items())[:_WALK_LIMIT]:
        if depth == 0 and name.lower() in _NOT_FIELDS:
            return False
        if isinstance(item, dict):
            if not item or not _is_mapping_of_complaints(item, depth + 1):
                return False
        elif isinstance(item, list):
            if not item or not all(
                isinstance(entry, dict) or (isinstance(entry, str) and _is_complaint(entry)) for entry in item
            ):
                return False
            if any(
                isinstance(entry, dict) and entry and not _is_mapping_of_complaints(entry, depth + 1)
                for entry in item
            ):
                return False
        elif not (isinstance(item, str) and depth > 0 and _is_complaint(item)):
            return False
    return True


def _is_complaint(text: str) -> bool:
    return " " in text.strip() or text.strip(" .!").lower() in (
        "required",
        "invalid",
        "missing",
        "blank",
        "taken",
        "unknown",
        "forbidden",
    )


def _from_mapping(value: dict[str, object], path: tuple[str, ...], depth: int) -> Iterator[FieldError]:
    for name, item in list(value.items())[:_WALK_LIMIT]:
        here = (
            path if name in ("_schema", "non_field_errors", "__all__", "_errors") else (*path, dotted(name))
        )
        if isinstance(item, str):
            yield FieldError(".".join(here), item)
        elif isinstance(item, dict) and depth < _DEPTH_LIMIT:
            yield from _from_mapping(item, here, depth + 1)
        elif isinstance(item, list):
            complaints = [entry for entry in item if isinstance(entry, str)]
            if complaints:
                yield FieldError(".".join(here), "; ".join(complaints[:3]))
            for index, entry in enumerate(item):
                if isinstance(entry, dict) and entry and depth < _DEPTH_LIMIT:
                    if isinstance(entry.get("message"), str):
                        yield FieldError(".".join(here), str(entry["message"]), str(entry.get("code") or ""))
                    else:
                        yield from _from_mapping(entry, (*here, str(index)), depth + 1)
