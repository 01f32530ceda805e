"""The JSON types that a channel may declare, and whether a value has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from agenttx_server.engine.json_values import JsonValue

__all__ = ["CHANNEL_TYPES", "has_type", "type_name"]


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: JsonValue) -> bool:
    # As in JSON Schema: 1.0 is an integer.
    return _is_number(value) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


_TYPES: Final[Mapping[str, Callable[[JsonValue], bool]]] = {
    "any": lambda value: True,
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_integer,
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}

CHANNEL_TYPES: Final = frozenset(_TYPES)


def has_type(value: JsonValue, name: str) -> bool:
    """Whether a value has the type of this name, one of :data:`CHANNEL_TYPES`."""
    return _TYPES[name](value)


def type_name(value: JsonValue) -> str:
    """The most telling type name of a value, for errors."""
    return next(
        name
        for name in ("null", "boolean", "integer", "number", "string", "array", "object")
        if _TYPES[name](value)
    )
