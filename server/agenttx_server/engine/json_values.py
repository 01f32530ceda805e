"""JSON values: the strict reading of what agents send, and our own canonical text.

Two texts are told apart. What comes from outside is read by :func:`parse`, which refuses,
naming the place, whatever would change on its way (a duplicate key, an integer that no
store keeps, NaN). What we keep, compare and hash is the text that :func:`canonical`
writes: sorted keys, no blanks, one text for one value; :func:`load` reads it back.

``orjson`` alone would not do for the first: it rounds integers beyond 64 bits and keeps
the last of two equal keys, silently. So that side is the standard ``json`` with hooks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import Enum
from itertools import accumulate
from typing import Any, Final, NoReturn, TypeAlias

import orjson

__all__ = [
    "LARGEST_INTEGER",
    "MAX_DEPTH",
    "MISSING",
    "SMALLEST_INTEGER",
    "JsonValue",
    "Missing",
    "ValueRefused",
    "canonical",
    "load",
    "parse",
    "parse_canonical",
]

JsonValue: TypeAlias = dict[str, "JsonValue"] | list["JsonValue"] | str | int | float | bool | None


class Missing(Enum):
    """The type of :data:`MISSING`."""

    MISSING = "MISSING"


MISSING: Final = Missing.MISSING
"""No value at all, where ``None`` is the JSON value ``null``."""

MAX_DEPTH: Final = 100
"""Containers may stand inside one another this many times; a scalar has depth 0, ``[]`` depth 1."""

SMALLEST_INTEGER: Final = -(2**63)
LARGEST_INTEGER: Final = 2**64 - 1

_INTEGER_OUT_OF_RANGE: Final = "integer outside -2^63 … 2^64-1; send it as a string"
_NUMBER_OVERFLOWS: Final = "number too large for a double; send it as a string"
_LONE_SURROGATE: Final = "text with a lone surrogate, which no UTF-8 text can hold"
_LONE_SURROGATE_IN_KEY: Final = "key with a lone surrogate, which no UTF-8 text can hold"


class ValueRefused(Exception):
    """A value that is not kept as it is. ``str()`` is ``path: reason``.

    ``path`` says where, as in JSONPath: ``$`` the whole, ``$.a.b[0]``, ``$["odd key"]``;
    keys are cut after 64 characters, and never a *value* is shown, for it may be secret.
    ``key`` is the nearest field's name, None at the top. ``reason`` says what is wrong.
    """

    def __init__(self, path: str, reason: str, key: str | None = None) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.key = key


# --- reading what was sent ----------------------------------------------------------------


def parse(text: str, *, max_depth: int = MAX_DEPTH) -> JsonValue:
    """Read JSON that an agent sent, keeping every value exactly or refusing the text.

    Refused with their path: nesting deeper than ``max_depth`` (1 … 200), a key that an object
    has twice, NaN and Infinity, integers outside −2^63 … 2^64−1, numbers that overflow a
    double, lone surrogates. Other numbers with a fraction or an exponent become the nearest
    double. Text that is no JSON is refused with line and column.

    Raises:
        ValueRefused: and nothing else, whatever the text.
    """
    return parse_canonical(text, max_depth=max_depth)[0]


def parse_canonical(text: str, *, max_depth: int = MAX_DEPTH) -> tuple[JsonValue, str]:
    """Return what :func:`parse` does and the value's :func:`canonical` text, which is often what was sent."""
    _refuse_deep_text(text, max_depth)
    known = _read_compact(text)
    if known is not None:
        return known
    value = _parse_strictly(text)
    return value, orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _parse_strictly(text: str) -> JsonValue:
    try:
        value: JsonValue = _STRICT_DECODER.decode(text)
    except _Suspicious:
        _explain(text)
    except json.JSONDecodeError as error:
        _refuse_malformed(error)
    if _may_hold_surrogates(text) and not _is_encodable(value):
        _refuse_flawed(value, _Place())
    return value


def _refuse_deep_text(text: str, max_depth: int) -> None:
    # Before the parser sees it: that one recurses. Few brackets can't nest deeply.
    if text.count("[") + text.count("{") <= max_depth:
        return
    unescaped = text.replace("\\\\", "").replace('\\"', "") if "\\" in text else text
    outside_strings = "".join(unescaped.split('"')[::2])
    brackets = outside_strings.encode("ascii", "ignore").translate(None, _ALL_BUT_BRACKETS)
    if max(accumulate(map(_NESTING.__getitem__, brackets)), default=0) > max_depth:
        place = _place_of_depth(text, max_depth)
        raise ValueRefused(str(place), f"nested deeper than {max_depth}", place.key)


def _read_compact(text: str) -> tuple[JsonValue, str] | None:
    """Return value and canonical text of a text that is what orjson would write of its value, None for any other.

    Such a text lost nothing when it was read: a key that stood twice, digits that no double or 64 bits hold
    would be missing from what is written. SDKs send arguments like this, and reading them so costs a fifth.
    """
    try:
        value: JsonValue = orjson.loads(text)
        canonical_text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
        if canonical_text == text or orjson.dumps(value).decode() == text:
            return value, canonical_text
    except (TypeError, ValueError):  # whatever it is, the strict reading finds it and says where
        pass
    return None


_NESTING: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_ALL_BUT_BRACKETS: Final = bytes(set(range(256)) - set(_NESTING))


class _Suspicious(Exception):
    """The quick reading met something to refuse; the careful one finds out where."""


def _strict_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Suspicious
    return value


def _strict_integer(digits: str) -> int:
    if len(digits) < 20:
        return int(digits)
    # 21 characters can't be in range, and int() refuses more than 4,300 digits in a way of its own.
    if len(digits) > 20 or not SMALLEST_INTEGER <= int(digits) <= LARGEST_INTEGER:
        raise _Suspicious
    return int(digits)


def _strict_double(digits: str) -> float:
    value = float(digits)
    if value - value != 0.0:
        raise _Suspicious
    return value


def _strict_constant(name: str) -> NoReturn:
    raise _Suspicious


_STRICT_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_strict_object,
    parse_int=_strict_integer,
    parse_float=_strict_double,
    parse_constant=_strict_constant,
)


class _Flaw:
    """Stands in the tree for a value to refuse; ``key`` is the one an object has twice."""

    __slots__ = ("key", "reason")

    def __init__(self, reason: str, key: str | None = None) -> None:
        self.reason = reason
        self.key = key


def _marked_object(pairs: list[tuple[str, Any]]) -> Any:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            return _Flaw("the key stands twice in its object", key)
        value[key] = item
    return value


def _marked_integer(digits: str) -> Any:
    try:
        return _strict_integer(digits)
    except _Suspicious:
        return _Flaw(_INTEGER_OUT_OF_RANGE)


def _marked_double(digits: str) -> Any:
    try:
        return _strict_double(digits)
    except _Suspicious:
        return _Flaw(_NUMBER_OVERFLOWS)


def _marked_constant(name: str) -> Any:
    return _Flaw(f"{name} is not JSON; send null or a string")


_MARKING_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_marked_object,
    parse_int=_marked_integer,
    parse_float=_marked_double,
    parse_constant=_marked_constant,
)


def _explain(text: str) -> NoReturn:
    try:
        _refuse_flawed(_MARKING_DECODER.decode(text), _Place())
    except json.JSONDecodeError as error:
        _refuse_malformed(error)
    raise AssertionError("the careful reading found nothing to refuse")


def _refuse_malformed(error: json.JSONDecodeError) -> NoReturn:
    message = error.msg[:1].lower() + error.msg[1:]
    raise ValueRefused("$", f"not JSON: {message} at line {error.lineno}, column {error.colno}") from None


def _may_hold_surrogates(text: str) -> bool:
    if "\\ud" in text or "\\uD" in text:
        return True
    return not text.isascii() and _is_surrogated(text)


def _is_encodable(value: JsonValue) -> bool:
    # What the parser let through, orjson refuses for lone surrogates only. Escaped emoji are common, and
    # this is fifty times faster than looking at each text.
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def _is_surrogated(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _refuse_flawed(value: Any, place: _Place) -> None:
    if isinstance(value, _Flaw):
        where = place if value.key is None else place.field(value.key)
        raise ValueRefused(str(where), value.reason, where.key)
    if isinstance(value, str):
        if not value.isascii() and _is_surrogated(value):
            raise ValueRefused(str(place), _LONE_SURROGATE, place.key)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not key.isascii() and _is_surrogated(key):
                raise ValueRefused(str(place.field(key)), _LONE_SURROGATE_IN_KEY, place.key)
            _refuse_flawed(item, place.field(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_flawed(item, place.item(index))


_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{},]', re.DOTALL)


def _place_of_depth(text: str, max_depth: int) -> _Place:
    # Where the first container beyond the limit opens, read off the tokens before it.
    keys: list[str | int] = []
    last_string = ""
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark[0] == '"':
            last_string = mark
            continue
        if mark in "[{":
            if keys and keys[-1] == "":
                keys[-1] = last_string
            if len(keys) == max_depth:
                break
            keys.append(0 if mark == "[" else "")
        elif mark == ",":
            if keys:
                keys[-1] = keys[-1] + 1 if isinstance(keys[-1], int) else ""
        elif keys:
            keys.pop()
    place = _Place()
    for key in keys:
        place = place.item(key) if isinstance(key, int) else place.field(_unquoted(key))
    return place


def _unquoted(string: str) -> str:
    try:
        return str(json.loads(string, strict=False))
    except ValueError:
        return string


# --- our own text -------------------------------------------------------------------------


def canonical(value: Any) -> str:
    """Write a value as canonical JSON: sorted keys, no blanks, the shortest exact numbers.

    Equal values give equal text whatever the order of their keys; ``1`` and ``1.0`` differ.
    Tuples count as arrays, and subclasses of the JSON types (named tuples, ordered
    dictionaries, string enumerations, NumPy's float64) as what they are.

    Raises:
        ValueRefused: for anything that is not JSON, with its path: NaN and Infinity, integers
            outside −2^63 … 2^64−1, keys that are no strings, lone surrogates, nesting deeper
            than 100 (cycles too), dates, UUIDs, bytes, sets, dataclasses, other enumerations.
    """
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        text = orjson.dumps(_plain(value, _Place(), MAX_DEPTH), option=orjson.OPT_SORT_KEYS)
    else:
        # orjson writes null for NaN, and text for UUIDs, dates and dataclasses. Only the exact
        # JSON types are sure; all keys it accepts are.
        if not _is_surely_plain(value, may_hold_nan=b"null" in text):
            text = orjson.dumps(_plain(value, _Place(), MAX_DEPTH), option=orjson.OPT_SORT_KEYS)
    return text.decode()


def load(canonical_text: str) -> JsonValue:
    """Read text that :func:`canonical` wrote, exactly; other text may lose digits or keys."""
    value: JsonValue = orjson.loads(canonical_text)
    return value


_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_CONTAINERS: Final = frozenset({dict, list, tuple})
_PLAIN: Final = _SCALARS | _CONTAINERS


def _is_surely_plain(value: Any, *, may_hold_nan: bool) -> bool:
    # Level by level, so that most of the work is done in C: 5,000 leaves cost about 0.3 ms.
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        kinds = set(map(type, level))
        if not kinds <= _PLAIN:
            return False
        if (
            may_hold_nan
            and float in kinds
            and any(type(item) is float and item - item != 0.0 for item in level)
        ):
            return False
        if kinds <= _SCALARS:
            return True
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                below += item.values()
            elif kind is list or kind is tuple:
                below += item
        level = below
    return False


def _plain(value: Any, place: _Place, levels: int) -> JsonValue:
    """Copy a value into the exact JSON types, or refuse it."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        text = str.__str__(value)
        if _is_surrogated(text):
            raise ValueRefused(str(place), _LONE_SURROGATE, place.key)
        return text
    if isinstance(value, int):
        if not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
            raise ValueRefused(str(place), _INTEGER_OUT_OF_RANGE, place.key)
        return int.__index__(value)
    if isinstance(value, float):
        number = float.__float__(value)
        if number - number != 0.0:
            raise ValueRefused(str(place), "NaN and Infinity are not JSON; use null or a string", place.key)
        return number
    if isinstance(value, dict | list | tuple):
        if levels == 0:
            raise ValueRefused(str(place), f"nested deeper than {MAX_DEPTH}", place.key)
        if isinstance(value, dict):
            return _plain_object(value, place, levels - 1)
        return [_plain(item, place.item(index), levels - 1) for index, item in enumerate(value)]
    raise ValueRefused(str(place), f"{type(value).__name__} is not a JSON type", place.key)


def _plain_object(value: dict[Any, Any], place: _Place, levels: int) -> JsonValue:
    plain: dict[str, JsonValue] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise ValueRefused(
                str(place), f"the keys of an object are strings; one here is {type(key).__name__}", place.key
            )
        name = str.__str__(key)
        if _is_surrogated(name):
            raise ValueRefused(str(place.field(name)), _LONE_SURROGATE_IN_KEY, place.key)
        if name in plain:
            raise ValueRefused(str(place.field(name)), "the key stands twice in its object", name)
        plain[name] = _plain(item, place.field(name), levels)
    return plain


# --- places -------------------------------------------------------------------------------


class _Place:
    """A way down into a value; only its text is ever built, and only for a refusal."""

    __slots__ = ("_above", "_step")

    def __init__(self, above: _Place | None = None, step: str | int = "") -> None:
        self._above = above
        self._step = step

    def field(self, key: str) -> _Place:
        return _Place(self, key)

    def item(self, index: int) -> _Place:
        return _Place(self, index)

    @property
    def key(self) -> str | None:
        place: _Place | None = self
        while place is not None and place._above is not None:
            if isinstance(place._step, str):
                return place._step
            place = place._above
        return None

    def __str__(self) -> str:
        steps: list[str] = []
        place: _Place = self
        while place._above is not None:
            steps.append(_step_text(place._step))
            place = place._above
        steps.append("$")
        return "".join(_abridged(steps[::-1]))


_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LONGEST_NAME: Final = 64
_MOST_STEPS: Final = 12


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    name = step if len(step) <= _LONGEST_NAME else step[:_LONGEST_NAME] + "…"
    # As JSON writes it: one line of ASCII whatever the key holds.
    return f".{name}" if _PLAIN_NAME.fullmatch(name) else f"[{json.dumps(name)}]"


def _abridged(steps: Sequence[str]) -> Sequence[str]:
    if len(steps) <= _MOST_STEPS:
        return steps
    return (*steps[: _MOST_STEPS - 4], "…", *steps[-3:])
