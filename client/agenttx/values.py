"""Exact JSON: arguments to text, outputs from text, no value changed on the way.

What JSON or the server can't carry exactly is refused here, before anything is sent, naming where it is: integers
outside -2^63 … 2^64-1, NaN and infinities, lone surrogates, keys that are no strings, nesting beyond 100 levels, and
types that are not JSON's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import orjson

from agenttx.errors import InvalidValue
from agenttx.references import Reference

__all__ = ["MAX_DEPTH", "Referable", "count", "decode_json", "encode_arguments", "encode_json", "member"]

EnumT = TypeVar("EnumT", bound=StrEnum)

MAX_DEPTH: Final = 100
"""Levels of objects and arrays in a step's arguments, as the server counts them."""

_LOWEST_INTEGER: Final = -(2**63)
_HIGHEST_INTEGER: Final = 2**64 - 1
# orjson rounds integers beyond 64 bits to doubles without a word; the shortest of them has 19 digits.
_LONG_NUMBER = re.compile(r"[0-9]{19}")


@runtime_checkable
class Referable(Protocol):
    """What stands for the output of a step when it is used as an argument."""

    def ref(self, *path: str | int) -> Reference: ...


def encode_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the arguments as a JSON object, references as their text.

    Raises:
        InvalidValue: a value can't be sent exactly; its `path` says which.
    """
    return orjson.dumps(_plain(arguments, (), 1)).decode()


def encode_json(value: Any) -> str:
    """Return a value as JSON.

    Raises:
        InvalidValue: it can't be sent exactly; its `path` says where.
    """
    return orjson.dumps(_plain(value, (), 1)).decode()


def decode_json(text: str) -> Any:
    """Return the value of JSON text, integers of any size exact; None for empty text."""
    if not text:
        return None
    return json.loads(text) if _LONG_NUMBER.search(text) else orjson.loads(text)


def count(name: str, value: int, *, bits: int = 32) -> int:
    """Return an argument that is a count or a position, as it is sent.

    Raises:
        InvalidValue: it is negative or too large.
    """
    if not 0 <= value < 2**bits:
        raise InvalidValue(f"{value} is outside 0 … 2^{bits}-1", path=name, rule="integer_range")
    return value


def member(name: str, choices: type[EnumT], value: EnumT | str) -> EnumT:
    """Return an argument that is one of an enumeration's words.

    Raises:
        InvalidValue: it is none of them.
    """
    try:
        return choices(value)
    except ValueError:
        words = ", ".join(word for word in choices if word != "UNSPECIFIED")
        raise InvalidValue(f"{value!r} is none of {words}", path=name, rule="not_a_choice") from None


def _plain(value: object, path: tuple[str, ...], depth: int) -> object:
    """Return the value as orjson takes it, or refuse it."""
    match value:
        case None | bool():
            return value
        case str():
            return _text(value, path)
        case int():
            if not _LOWEST_INTEGER <= value <= _HIGHEST_INTEGER:
                raise _refusal(
                    path, "the integer is outside -2^63 … 2^64-1; send it as a string", "integer_range"
                )
            return int(value)
        case float():
            if not math.isfinite(value):
                raise _refusal(path, f"JSON has no {float(value)!r}; send null or a string", "not_finite")
            return float(value)
        case Mapping() | list() | tuple():
            if depth > MAX_DEPTH:
                raise _refusal(path[:8], f"nested deeper than {MAX_DEPTH} levels", "too_deep")
            if isinstance(value, Mapping):
                return {
                    _key(key, path): _plain(item, (*path, str(key)), depth + 1) for key, item in value.items()
                }
            return [_plain(item, (*path, str(index)), depth + 1) for index, item in enumerate(value)]
        case Reference():
            return str(value)
        case Referable():
            return str(value.ref())
        case _:
            raise _refusal(path, f"{type(value).__name__} is not a JSON type", "not_json")


def _key(key: object, path: tuple[str, ...]) -> str:
    if not isinstance(key, str):
        raise _refusal(path, f"the key {key!r} is not a string", "not_json")
    return _text(key, path)


def _text(text: str, path: tuple[str, ...]) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _refusal(
                path, "the text holds a lone surrogate, which UTF-8 can't carry", "surrogate"
            ) from None
    # A subclass (an enum's member, say) is sent as the text that it is.
    return text if type(text) is str else str.__str__(text)


def _refusal(path: tuple[str, ...], problem: str, rule: str) -> InvalidValue:
    return InvalidValue(problem, path=".".join(path), rule=rule)
