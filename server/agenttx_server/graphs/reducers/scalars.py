"""Reducers of single values: overwrite and its relatives, add, min, max."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from agenttx_server.engine.json_values import LARGEST_INTEGER, MISSING, SMALLEST_INTEGER, JsonValue, Missing
from agenttx_server.graphs.channel_types import CHANNEL_TYPES, type_name
from agenttx_server.graphs.reducers.reduction import Mismatch, Reduced, Reducer, ReducerFailed, WriteContext

__all__ = ["SCALAR_REDUCERS"]

_NUMBER_OR_TEXT: Final = frozenset({"integer", "number", "string"})


@dataclass(frozen=True, slots=True)
class _Replacing:
    """The newest value, whatever was there."""

    name: str
    one_writer: bool = True
    ephemeral: bool = False
    untracked: bool = False
    version: str = ""
    types: frozenset[str] = CHANNEL_TYPES

    def reduce(self, current: JsonValue | Missing, update: JsonValue, write: WriteContext) -> Reduced:
        return Reduced(update, None, update)


@dataclass(frozen=True, slots=True)
class _Combining:
    """Two numbers, or two texts, made one. The first write is taken as it is."""

    name: str
    numbers: Callable[[int | float, int | float], int | float]
    texts: Callable[[str, str], str]
    one_writer: bool = field(default=False, init=False)
    ephemeral: bool = field(default=False, init=False)
    untracked: bool = field(default=False, init=False)
    version: str = field(default="", init=False)
    types: frozenset[str] = field(default=_NUMBER_OR_TEXT, init=False)

    def reduce(self, current: JsonValue | Missing, update: JsonValue, write: WriteContext) -> Reduced:
        if current is MISSING:
            if not _is_number(update) and not isinstance(update, str):
                raise Mismatch("number or string", type_name(update))
            return Reduced(update, None, update)
        if isinstance(current, str):
            if not isinstance(update, str):
                raise Mismatch("string", type_name(update))
            return Reduced(self.texts(current, update), None, update)
        if not isinstance(current, int | float) or isinstance(current, bool):
            raise Mismatch("number or string", type_name(current))
        if not isinstance(update, int | float) or isinstance(update, bool):
            raise Mismatch("number", type_name(update))
        return Reduced(_kept(self.numbers(current, update)), None, update)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kept(number: int | float) -> int | float:
    if isinstance(number, float):
        if number - number != 0.0:
            raise ReducerFailed("the sum is too large for a double")
    elif not SMALLEST_INTEGER <= number <= LARGEST_INTEGER:
        raise ReducerFailed("the sum is an integer outside -2^63 … 2^64-1")
    return number


def _sum(left: int | float, right: int | float) -> int | float:
    return left + right


# Exact between integers and doubles, as Python compares; of equal ones the first stays.
def _least(left: int | float, right: int | float) -> int | float:
    return right if right < left else left


def _greatest(left: int | float, right: int | float) -> int | float:
    return right if right > left else left


SCALAR_REDUCERS: Final[tuple[Reducer, ...]] = (
    _Replacing("overwrite"),
    _Replacing("any_value", one_writer=False),
    _Replacing("ephemeral", ephemeral=True),
    _Replacing("untracked", untracked=True),
    _Combining("add", _sum, lambda left, right: left + right),
    _Combining("min", _least, min),
    _Combining("max", _greatest, max),
)
