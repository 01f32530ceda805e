"""Values in the notations that errors print: JSON, Python ``repr``, JavaScript and Ruby inspection.

``json`` reads JSON; the rest is read by a small tolerant reader, because ``ast.literal_eval`` refuses
``ErrorDetail(string='…')``, ``{ code: 'ENOENT' }`` and ``{:a=>1}``, and builds a syntax tree first.
Both go forward only, with bounded depth and size.
"""

from __future__ import annotations

import json
import re
from typing import Final

__all__ = ["Json", "find_bodies", "read_literal"]

Json = object  # None, bool, int, float, str, list[Json] or dict[str, Json]

_BODIES_LIMIT: Final = 3
_ATTEMPTS_LIMIT: Final = 6
_LITERAL_LIMIT: Final = 4000  # characters read by the tolerant reader
_DEPTH_LIMIT: Final = 24
_TOKENS_LIMIT: Final = 200  # values read by it in a text; what follows them is taken for cut off
_TOLERANT_LIMIT: Final = 2
_FAILED_LIMIT: Final = 16_000  # characters of JSON read in vain; what is tried after them must be short
_SHORT: Final = 4000
_BROKEN_OFF_LIMIT: Final = 16_000  # characters of JSON read of a body whose brackets don't close

_DECODER: Final = json.JSONDecoder(strict=False)
_START: Final = re.compile(r"[\[{](?=\s{0,40}[\[{\"'\]}:A-Za-z_])")
_SPACE: Final = re.compile(r"[\s]{0,2000}")
_STRING: Final = re.compile(
    r"\"((?:[^\"\\]|\\.){0,4000})\"|'((?:[^'\\]|\\.){0,4000})'|`([^`]{0,4000})`", re.DOTALL
)
_ATOM: Final = re.compile(r"[^\s,:{}\[\]()=<>\"'`]{1,400}(?::(?=[^\s])[^\s,:{}\[\]()=<>\"'`]{1,200}){0,4}")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_CALL: Final = re.compile(r"([A-Za-z_][\w.]{0,60})\(")
_NAMED: Final = re.compile(r"[A-Za-z_]\w{0,60}=(?!=)")
_OBJECT: Final = re.compile(r"<[^<>]{0,400}>")
_BARE_KEY: Final = re.compile(r":?[A-Za-z_$][\w$.\-]{0,120}")
_ELLIPSIS: Final = re.compile(
    r"\.\.\.(?: \d+ more items?)?|\[(?:Object|Array|Circular[^\]]{0,20}|Function[^\]]{0,60})\]"
)
_WORDS: Final = {
    "None": None, "null": None, "nil": None, "undefined": None, "True": True, "true": True, "False": False,
    "false": False,
}  # fmt: skip


def find_bodies(text: str) -> tuple[tuple[int, int, Json], ...]:
    """Objects and lists of objects written in ``text``: start, end and value of each, at most three."""
    found: list[tuple[int, int, Json]] = []
    position = tolerant = failed = 0
    tokens = _TOKENS_LIMIT
    for _ in range(_ATTEMPTS_LIMIT):
        start = _START.search(text, position)
        if start is None:
            break
        if failed >= _FAILED_LIMIT:
            looked_at = text[: start.start() + _SHORT]
        elif len(text) > _BROKEN_OFF_LIMIT and _is_broken_off(text, start.start()):
            looked_at = text[: start.start() + _BROKEN_OFF_LIMIT]
        else:
            looked_at = text
        try:
            read: tuple[Json, int] | None = _DECODER.raw_decode(looked_at, start.start())
        except json.JSONDecodeError as error:
            read = None
            failed += error.pos - start.start()
        except (ValueError, RecursionError):
            read = None
        if read is None and tolerant < _TOLERANT_LIMIT:
            tolerant += 1
            read, tokens = _read_literal(text, start.start(), tokens)
        if read is None:
            position = start.end()
            continue
        value, end = read
        if isinstance(value, (dict, list)) and value:
            found.append((start.start(), end, value))
            if len(found) == _BODIES_LIMIT:
                break
        position = end
    return tuple(found)


def read_literal(text: str, start: int = 0) -> tuple[Json, int] | None:
    """The value written at ``start`` and where it ends; None if there is none that can be read.

    Of a value that the text breaks off in, as logs and terminals do, what stands before is read.
    """
    return _read_literal(text, start, _TOKENS_LIMIT)[0]


def _read_literal(text: str, start: int, tokens: int) -> tuple[tuple[Json, int] | None, int]:
    """The value, and how many of ``tokens`` are left."""
    reader = _Reader(text[: start + _LITERAL_LIMIT], tokens)
    try:
        return reader.value(start, 0), reader.left
    except _Unreadable:
        return None, max(reader.left, 0)


def _is_broken_off(text: str, start: int) -> bool:
    return text.count("{", start) > text.count("}", start) or text.count("[", start) > text.count("]", start)


class _Unreadable(Exception):
    pass


class _BrokenOff(_Unreadable):
    pass


class _Reader:
    """One pass over one text; every method takes a position and answers the next."""

    __slots__ = ("_text", "left")

    def __init__(self, text: str, tokens: int) -> None:
        self._text = text
        self.left = tokens

    def value(self, position: int, depth: int) -> tuple[Json, int]:
        self.left -= 1
        if self.left < 0:
            raise _BrokenOff
        if depth > _DEPTH_LIMIT:
            raise _Unreadable
        text = self._text
        position = self._skip(position)
        first = text[position : position + 1]
        if not first:
            raise _BrokenOff
        ellipsis = _ELLIPSIS.match(text, position) if first in ".[" else None
        if ellipsis is not None:
            return None, ellipsis.end()
        if first == "{":
            return self._mapping(position + 1, depth)
        if first in "[(":
            return self._sequence(position + 1, "]" if first == "[" else ")", depth)
        if first in "\"'`" or (first in "bru:" and text[position + 1 : position + 2] in ("'", '"')):
            return self._string(position if first in "\"'`" else position + 1)
        if first == "<":
            thing = _OBJECT.match(text, position)
            if thing is None:
                raise _Unreadable
            return thing[0], thing.end()
        call = _CALL.match(text, position) if first.isalpha() or first == "_" else None
        if call is not None:
            arguments, end = self._sequence(call.end(), ")", depth)
            assert isinstance(arguments, list)
            return (arguments[0] if arguments else call[1]), end
        atom = _ATOM.match(text, position)
        if atom is None:
            raise _Unreadable
        return self._word(atom[0]), atom.end()

    def _word(self, word: str) -> Json:
        if word in _WORDS:
            return _WORDS[word]
        try:
            return int(word) if len(word) < 20 else word
        except ValueError:
            pass
        try:
            return float(word)
        except ValueError:
            return word.lstrip(":")

    def _string(self, position: int) -> tuple[str, int]:
        match = _STRING.match(self._text, position)
        if match is None:
            raise _BrokenOff
        raw = match[match.lastindex or 0]
        text = (
            _ESCAPE.sub(lambda m: {"n": "\n", "t": "\t", "r": "\r"}.get(m[1], m[1]), raw)
            if "\\" in raw
            else raw
        )
        end = match.end()
        following = self._skip(end)  # adjacent literals, as Python wraps long ones
        if self._text[following : following + 1] in ("'", '"') and "\n" in self._text[end:following]:
            rest, end = self._string(following)
            text += rest
        return text, end

    def _sequence(self, position: int, closing: str, depth: int) -> tuple[list[Json], int]:
        items: list[Json] = []
        while True:
            position = self._skip(position)
            if self._text[position : position + 1] == closing:
                return items, position + 1
            try:
                item, position = self._item(position, depth)
            except _BrokenOff:
                if items:
                    return items, len(self._text)
                raise
            items.append(item)
            if position == len(self._text):
                return items, position
            position = self._after_item(position, closing)

    def _item(self, position: int, depth: int) -> tuple[Json, int]:
        quoted = self._text[position : position + 1] in ('"', "'", "{")
        named = None if quoted else _NAMED.match(self._text, position)
        return self.value(named.end() if named is not None else position, depth + 1)

    def _mapping(self, position: int, depth: int) -> tuple[dict[str, Json], int]:
        entries: dict[str, Json] = {}
        while True:
            position = self._skip(position)
            if self._text[position : position + 1] == "}":
                return entries, position + 1
            try:
                key, position = self._key(position, depth)
                position = self._skip(position)
                separator = self._separator(position)
                if separator:
                    entries[key], position = self.value(position + separator, depth + 1)
                else:
                    entries[key] = None
            except _BrokenOff:
                if entries:
                    return entries, len(self._text)
                raise
            if position == len(self._text):
                return entries, position
            position = self._after_item(position, "}")

    def _separator(self, position: int) -> int:
        """The length of the separator between a key and its value; 0 if there is none."""
        first = self._text[position : position + 1]
        if first == ":":
            return 1
        if first == "=":
            return 2 if self._text.startswith(">", position + 1) else 1
        return 0

    def _key(self, position: int, depth: int) -> tuple[str, int]:
        quoted = self._text[position : position + 1] in ('"', "'")
        bare = None if quoted else _BARE_KEY.match(self._text, position)
        if bare is not None and self._text[bare.end() : bare.end() + 1] != "(":
            return bare[0].lstrip(":"), bare.end()
        key, position = self.value(position, depth + 1)
        return str(key), position

    def _after_item(self, position: int, closing: str) -> int:
        position = self._skip(position)
        following = self._text[position : position + 1]
        if following == ",":
            return position + 1
        if following == closing:
            return position
        raise _Unreadable

    def _skip(self, position: int) -> int:
        if " " < self._text[position : position + 1] < "\x7f":
            return position  # most places
        space = _SPACE.match(self._text, position)
        return space.end() if space is not None else position
