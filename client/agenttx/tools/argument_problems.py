"""Refused arguments in words for the model that sent them.

Values are never repeated: they may be secrets, and the model knows what it sent. A problem
names the argument, what it must be and what kind of value came instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import ErrorDetails

from agenttx.tools.errors import ArgumentsRefused
from agenttx.tools.hint_category import HintCategory

__all__ = ["json_kind", "refuse_arguments", "refuse_non_object"]

_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "an array",
    "tuple_type": "an array",
    "set_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dataclass_type": "an object",
    "none_required": "null",
}
_SUBJECT = re.compile(r"^(?:Input|Value|String|List|Dictionary|Tuple|Set|Data) should ")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the arguments something is wrong: the argument, and the path below it."""

    path: tuple[str | int, ...]

    @property
    def argument(self) -> str:
        return str(self.path[0])

    @property
    def shown(self) -> str:
        return ".".join(str(part) for part in self.path)

    @property
    def field(self) -> str:
        """The nearest named field: the key under which a reference that brought the value has its edge."""
        return next(str(part) for part in reversed(self.path) if isinstance(part, str))


def json_kind(value: Any) -> str:
    """Say in JSON's words what kind of value this is (``a string``, ``null``)."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number with a decimal point"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def refuse_non_object(arguments: Any) -> ArgumentsRefused:
    """Return the refusal of arguments that are no JSON object."""
    return ArgumentsRefused(
        HintCategory.INVALID_VALUE, f"the arguments must be a JSON object, not {json_kind(arguments)}"
    )


def refuse_arguments(
    errors: Iterable[ErrorDetails], arguments: dict[str, Any], accepted: Sequence[str]
) -> ArgumentsRefused:
    """Return one refusal for everything that is wrong, in the order of the tool's arguments.

    ``accepted`` are the names of the tool's arguments. Unknown arguments come last.
    """
    wrong: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    for error in errors:
        wrong.setdefault(_locate(error["loc"], arguments, missing=error["type"] == "missing"), []).append(
            error
        )
    for path in [path for path in wrong if any(len(path) < len(p) and path == p[: len(path)] for p in wrong)]:
        del wrong[path]  # another member of a union, which would not have got as deep
    order = {name: position for position, name in enumerate(accepted)}
    places = sorted(wrong, key=lambda path: (order.get(str(path[0]), len(order)), str(path[0])))
    texts: list[str] = []
    keys: list[str] = []
    for path in places:
        place = _Place(path)
        texts.append(_describe(place, wrong[path], accepted, arguments))
        keys += (key for key in (place.field, place.argument) if key not in keys)
    first = wrong[places[0]][0]["type"]
    category = HintCategory.MISSING_ARGUMENT if first == "missing" else HintCategory.INVALID_VALUE
    return ArgumentsRefused(category, "; ".join(texts), keys)


def _locate(location: tuple[int | str, ...], arguments: Any, *, missing: bool) -> tuple[str | int, ...]:
    """Drop from a location what is not in the arguments: names of union members and of validators."""
    path: list[str | int] = []
    value = arguments
    for position, part in enumerate(location):
        if _holds(value, part):
            value = value[part]
        elif not (missing and position == len(location) - 1):
            continue
        path.append(part)
    return tuple(path) or (str(location[0]),)


def _holds(value: Any, part: int | str) -> bool:
    if isinstance(value, dict):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def _describe(
    place: _Place, errors: Sequence[ErrorDetails], accepted: Sequence[str], arguments: dict[str, Any]
) -> str:
    kinds = {error["type"] for error in errors}
    if "missing" in kinds:
        return f"missing argument '{place.shown}'"
    if "extra_forbidden" in kinds:
        return _describe_unknown(place, accepted, arguments)
    required = " or ".join(dict.fromkeys(_requirement(error) for error in errors)).replace(
        " or must be ", " or "
    )
    kind_is_wrong = kinds <= _EXPECTED.keys()
    return f"argument '{place.shown}' {required}" + (
        f", not {json_kind(errors[0]['input'])}" if kind_is_wrong else ""
    )


def _requirement(error: ErrorDetails) -> str:
    expected = _EXPECTED.get(error["type"])
    if expected is not None:
        return f"must be {expected}"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return _SUBJECT.sub("must ", message)


def _describe_unknown(place: _Place, accepted: Sequence[str], arguments: dict[str, Any]) -> str:
    text = f"unknown argument '{place.shown[:64]}'"
    if len(place.path) > 1:
        return text
    free = [name for name in accepted if name not in arguments]
    if near := difflib.get_close_matches(place.argument, free, n=1):
        return f"{text} (did you mean '{near[0]}'?)"
    return f"{text} (accepted: {', '.join(accepted) or 'none'})"
