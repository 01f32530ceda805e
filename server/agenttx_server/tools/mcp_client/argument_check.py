"""Whether arguments fit a foreign server's JSON Schema, without doing whatever that schema says.

The schema is a stranger's text and is read on the loop that everything runs on. So only rules whose cost is known are
looked at, each in the sense in which it can't refuse more than the server would: no regular expressions (``pattern``,
``patternProperties``, ``propertyNames``, ``format``), no negation (``not``, ``if``, ``unevaluated…``), nothing fetched,
``oneOf`` as ``anyOf``, and a bounded number of steps. What is not looked at is refused by the server itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["MOST_STEPS", "Refusal", "refusal"]

MOST_STEPS: Final = 20_000
"""Rules, names and values looked at in one check, which takes some 20 ms; a longer one is left to the server."""
MOST_DEPTH: Final = 150
MOST_NAMED: Final = 8
MOST_TEXT: Final = 200

_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and value == value // 1,
}

_Limit = tuple[str, Callable[[Any], Any], Callable[[Any, Any], bool]]
_NUMBER_LIMITS: Final[tuple[_Limit, ...]] = (
    ("minimum", lambda value: value, operator.ge),
    ("maximum", lambda value: value, operator.le),
    ("exclusiveMinimum", lambda value: value, operator.gt),
    ("exclusiveMaximum", lambda value: value, operator.lt),
)
_TEXT_LIMITS: Final[tuple[_Limit, ...]] = (("minLength", len, operator.ge), ("maxLength", len, operator.le))
_ARRAY_LIMITS: Final[tuple[_Limit, ...]] = (("minItems", len, operator.ge), ("maxItems", len, operator.le))
_OBJECT_LIMITS: Final[tuple[_Limit, ...]] = (
    ("minProperties", len, operator.ge),
    ("maxProperties", len, operator.le),
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is wrong, in words, with the fields concerned. ``rule`` is the schema's keyword."""

    rule: str
    message: str
    keys: tuple[str, ...] = ()


class _TooMuch(Exception):
    """The check would take too long."""


def refusal(schema: dict[str, Any], arguments: Any) -> Refusal | None:
    """Return the first rule that arguments break; None if they break none that is looked at."""
    try:
        return _Check(schema).of(schema, arguments, "", 0)
    except _TooMuch:
        return None


class _Check:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = MOST_STEPS

    def of(self, schema: Any, value: Any, where: str, depth: int) -> Refusal | None:
        self._spend(1)
        if schema is False:
            return _broken("false", where)
        # A schema with an id of its own has references of its own.
        if not isinstance(schema, dict) or depth > MOST_DEPTH or (depth and "$id" in schema):
            return None
        if "$ref" in schema:  # in older drafts, what stands beside it does not count
            return self.of(self._referred(schema["$ref"]), value, where, depth + 1)
        return (
            self._type(schema, value, where)
            or self._one_of_those(schema, value, where)
            or self._inside(schema, value, where, depth)
            or self._combined(schema, value, where, depth)
        )

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _TooMuch

    def _referred(self, reference: Any) -> Any:
        """Return a definition of the schema itself; of anything else, a schema that takes all."""
        if reference == "#":
            return self._root
        for place in ("$defs", "definitions"):
            start = f"#/{place}/"
            if isinstance(reference, str) and reference.startswith(start):
                return _mapping(self._root.get(place)).get(reference[len(start) :], True)
        return True

    def _type(self, schema: dict[str, Any], value: Any, where: str) -> Refusal | None:
        named = schema.get("type")
        wanted = named if isinstance(named, list) else [named]
        self._spend(len(wanted))
        for name in wanted:
            fits = _TYPES.get(name) if isinstance(name, str) else None
            if fits is None or fits(value):
                return None
        return _mistyped([str(name) for name in wanted], where)

    def _one_of_those(self, schema: dict[str, Any], value: Any, where: str) -> Refusal | None:
        if isinstance(value, dict | list):  # comparing those may be long
            return None
        allowed = schema.get("enum")
        if isinstance(allowed, list):
            self._spend(len(allowed))
            if value not in allowed:
                shown = ", ".join(repr(each)[:40] for each in allowed[:MOST_NAMED])
                return Refusal(
                    "enum", f"{where or 'arguments'} must be one of {shown}"[:MOST_TEXT], _keys(where)
                )
        if "const" in schema and value != schema["const"]:
            return _broken("const", where)
        return None

    def _inside(self, schema: dict[str, Any], value: Any, where: str, depth: int) -> Refusal | None:
        match value:
            case dict():
                return _limit(schema, value, where, _OBJECT_LIMITS) or self._object(
                    schema, value, where, depth
                )
            case list():
                return _limit(schema, value, where, _ARRAY_LIMITS) or self._array(schema, value, where, depth)
            case str():
                return _limit(schema, value, where, _TEXT_LIMITS)
            case int() | float() if _is_number(value):
                return _limit(schema, value, where, _NUMBER_LIMITS)
        return None

    def _object(
        self, schema: dict[str, Any], value: dict[str, Any], where: str, depth: int
    ) -> Refusal | None:
        required = schema.get("required")
        if isinstance(required, list):
            self._spend(len(required))
            missing = tuple(name for name in required if isinstance(name, str) and name not in value)
            if missing:
                named = ", ".join(missing[:MOST_NAMED])[:MOST_TEXT]
                place = f" in {where}" if where else ""
                return Refusal("required", f"missing {named}{place}", missing[:MOST_NAMED])
        properties = _mapping(schema.get("properties"))
        others = schema.get("additionalProperties", True)
        if "patternProperties" in schema:  # which of them are others is for its patterns to say
            others = True
        for name, inner in value.items():
            rule = properties.get(name, others)
            if rule is False and name not in properties:
                return _broken("additionalProperties", where)
            if found := self.of(rule, inner, _within(where, name), depth + 1):
                return found
        return None

    def _array(self, schema: dict[str, Any], value: list[Any], where: str, depth: int) -> Refusal | None:
        first = schema.get("prefixItems")
        first = first if isinstance(first, list) else []
        rest = schema.get("items", True)
        for index, inner in enumerate(value):
            rule = first[index] if index < len(first) else rest
            if found := self.of(rule, inner, _within(where, str(index)), depth + 1):
                return found
        return None

    def _combined(self, schema: dict[str, Any], value: Any, where: str, depth: int) -> Refusal | None:
        for each in _list(schema.get("allOf")):
            if found := self.of(each, value, where, depth + 1):
                return found
        for rule in ("anyOf", "oneOf"):
            found_all = []
            for each in _list(schema.get(rule)):
                found = self.of(each, value, where, depth + 1)
                if found is None:
                    break
                found_all.append(found)
            else:
                if found_all:
                    return _none_fits(rule, found_all, where)
        return None


def _none_fits(rule: str, found: list[Refusal], where: str) -> Refusal:
    """Say what is wrong where no alternative fits: the types that would, or what the one of the right type refuses."""
    others = [each for each in found if each.rule != "type" or each.keys != _keys(where)]
    if others:
        return others[0] if len(others) == 1 else _broken(rule, where)
    beginning = _mistyped([], where).message
    return _mistyped([each.message.removeprefix(beginning) for each in found], where)


def _limit(schema: dict[str, Any], value: Any, where: str, limits: tuple[_Limit, ...]) -> Refusal | None:
    for rule, measured, holds in limits:
        limit = schema.get(rule)
        if _is_number(limit) and not holds(measured(value), limit):
            return _broken(rule, where)
    return None


def _mistyped(wanted: list[str], where: str) -> Refusal:
    text = f"{where or 'arguments'} must be "
    return Refusal("type", text + " or ".join(wanted[:MOST_NAMED])[:MOST_TEXT], _keys(where))


def _broken(rule: str, where: str) -> Refusal:
    return Refusal(rule, f"{where or 'arguments'} breaks the rule {rule}", _keys(where))


def _keys(where: str) -> tuple[str, ...]:
    return (where,) if where else ()


def _within(where: str, name: str) -> str:
    return f"{where}.{name}"[:MOST_TEXT] if where else name[:MOST_TEXT]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
