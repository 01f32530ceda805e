"""Reducers of arrays: append and union."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

import orjson

from agenttx_server.engine.json_values import MISSING, JsonValue, Missing, canonical
from agenttx_server.graphs.channel_types import type_name
from agenttx_server.graphs.reducers.reduction import Mismatch, Reduced, Reducer, WriteContext

__all__ = ["ARRAY_REDUCERS", "identity"]

_BOUND: Final = 2**63
_MAY_HOLD_FLOAT: Final = re.compile(rb"[0-9](?:\.|e)")
_ARRAY: Final = frozenset({"array"})


@dataclass(frozen=True, slots=True)
class _Append:
    """What is there, then what is new."""

    name: str = field(default="append", init=False)
    version: str = field(default="", init=False)
    types: frozenset[str] = field(default=_ARRAY, init=False)
    one_writer: bool = field(default=False, init=False)
    ephemeral: bool = field(default=False, init=False)
    untracked: bool = field(default=False, init=False)

    def reduce(self, current: JsonValue | Missing, update: JsonValue, write: WriteContext) -> Reduced:
        old = _elements(current)
        new = _new_elements(update, write)
        return Reduced([*old, *new], None, update, appended=len(new))


@dataclass(frozen=True, slots=True)
class _Union:
    """What is there, then what is new and not there yet. Identity is :func:`identity`."""

    name: str = field(default="union", init=False)
    version: str = field(default="", init=False)
    types: frozenset[str] = field(default=_ARRAY, init=False)
    one_writer: bool = field(default=False, init=False)
    ephemeral: bool = field(default=False, init=False)
    untracked: bool = field(default=False, init=False)

    def reduce(self, current: JsonValue | Missing, update: JsonValue, write: WriteContext) -> Reduced:
        old = _elements(current)
        seen = {identity(element) for element in old}
        new = []
        for element in _new_elements(update, write):
            key = identity(element)
            if key not in seen:
                seen.add(key)
                new.append(element)
        return Reduced([*old, *new], None, update, appended=len(new))


def identity(value: JsonValue) -> Hashable:
    """What is equal for elements that are the same: 1 is 1.0, but neither "1" nor true; keys have no order.

    Elements are compared by the hundred thousand while nobody else is served: a number or text is its own identity,
    and only what holds others is written down.
    """
    kind = type(value)
    if kind is str or kind is int:
        return value  # type: ignore[return-value]
    if kind is float:
        # Beyond 64 bits a float is no integer's equal: it has lost digits.
        return value if -_BOUND < value < _BOUND else ("float", value)  # type: ignore[operator, return-value]
    if kind is bool or value is None:
        return ("literal", value)
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return canonical(_without_fraction(value)).encode()
    return canonical(_without_fraction(value)).encode() if _MAY_HOLD_FLOAT.search(text) else text


def _without_fraction(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer() and abs(value) < _BOUND:
        return int(value)
    if isinstance(value, list):
        return [_without_fraction(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_fraction(item) for key, item in value.items()}
    return value


def _elements(current: JsonValue | Missing) -> list[JsonValue]:
    if current is MISSING:
        return []
    if not isinstance(current, list):
        raise Mismatch("array", type_name(current))
    return current


def _new_elements(update: JsonValue, write: WriteContext) -> list[JsonValue]:
    if isinstance(update, list):
        return update
    if update is None or not write.scalars:
        raise Mismatch("array", type_name(update))
    return [update]


ARRAY_REDUCERS: Final[tuple[Reducer, ...]] = (_Append(), _Union())
