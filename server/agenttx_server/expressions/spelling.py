"""What can be read off an expression's text without parsing it: names, fields, comprehensions.

The library hands out no syntax tree, and two questions need little of one: which fields of
which variables are read at all (only those are handed over: a graph's state may hold
megabytes, and converting them costs more than the evaluation), and what stands inside the
body of a comprehension (:mod:`.work`). Wherever this reading is in doubt it answers
with more: the whole variable, the bigger body. The library has accepted the text by then.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

__all__ = ["Macro", "Read", "Spelling", "read_spelling"]

MACROS: Final = frozenset({"all", "exists", "exists_one", "map", "filter"})

_TOKEN: Final = re.compile(
    r"""
      (?P<blank> \s+ | //[^\n]* )
    | (?P<string>
          [bB]?[rR][bB]? (?: \"{3}.*?\"{3} | '{3}.*?'{3} | "[^"\n]*" | '[^'\n]*' )
        | [bB]? (?: \"{3}(?:[^\\]|\\.)*?\"{3} | '{3}(?:[^\\]|\\.)*?'{3}
                  | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
      )
    | (?P<number> 0[xX][0-9a-fA-F]+[uU]? | (?: \d+ (?: \.\d+ )? | \.\d+ ) (?: [eE][+-]?\d+ )? [uU]? )
    | (?P<name> [A-Za-z_][A-Za-z0-9_]* | `[^`\n]*` )
    | (?P<mark> . )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Read:
    """A place where a variable is read. ``field`` is None where the whole variable may be."""

    variable: str
    field: str | None


@dataclass(frozen=True, slots=True)
class Macro:
    """One comprehension.

    Attributes:
        reads: where its arguments name declared variables; an iteration may touch all of each.
        own_names: how often they name its own variable.
        outer_names: how often they name a variable of a comprehension around it.
        joins: how many ``+`` and ``,`` stand in them, inner comprehensions aside; each may make values larger.
        matches: how many regular expressions stand in them.
    """

    reads: tuple[Read, ...]
    own_names: int
    outer_names: int
    joins: int
    matches: int


@dataclass(frozen=True, slots=True)
class Spelling:
    """What the text says.

    Attributes:
        reads: every place where a declared variable is read.
        macros: the comprehensions.
        joins: the ``+`` and ``,`` outside of all comprehensions.
        searches: whether a text is searched for another that is no literal.
    """

    reads: tuple[Read, ...]
    macros: tuple[Macro, ...]
    joins: int
    searches: bool

    def fields_of(self, variable: str) -> frozenset[str] | None:
        """The fields read of a variable; None where it is, or may be, used whole."""
        fields = [read.field for read in self.reads if read.variable == variable]
        named = frozenset(field for field in fields if field is not None)
        return named if len(fields) and None not in fields else None


@dataclass(slots=True)
class _OpenMacro:
    depth: int
    variable: str
    reads: list[Read]
    own_names: int = -1  # its declaration is no use
    outer_names: int = 0
    joins: int = -1  # nor is the comma behind it
    matches: int = 0

    def closed(self) -> Macro:
        return Macro(tuple(self.reads), self.own_names, self.outer_names, self.joins, self.matches)


def read_spelling(text: str, variables: AbstractSet[str]) -> Spelling:
    """Read the names and comprehensions of a text that the library compiles."""
    reading = _Reading(text, variables)
    for index in range(reading.length):
        reading.take(index)
    return reading.spelling()


class _Reading:
    """One way through the tokens, remembering which comprehensions are open."""

    def __init__(self, text: str, variables: AbstractSet[str]) -> None:
        self._variables = variables
        self._tokens = [
            (match.lastgroup or "mark", match.group())
            for match in _TOKEN.finditer(text)
            if match.lastgroup != "blank"
        ]
        self.length = len(self._tokens)
        self._tokens += [("end", "")] * 3
        self._reads: list[Read] = []
        self._open: list[_OpenMacro] = []
        self._closed: list[Macro] = []
        self._depth = 0
        self._joins = 0
        self._searches = False

    def take(self, index: int) -> None:
        kind, token = self._tokens[index]
        if kind == "mark":
            self._take_mark(token)
        elif kind == "name" and self._tokens[index + 1][1] == "(":
            self._take_call(index, token)
        elif kind == "name" and not _is_field(self._tokens, index):
            self._take_variable(index, token)

    def spelling(self) -> Spelling:
        self._closed += [macro.closed() for macro in self._open]
        return Spelling(tuple(self._reads), tuple(self._closed), self._joins, self._searches)

    def _take_mark(self, mark: str) -> None:
        if mark in "([{":
            self._depth += 1
        elif mark in ")]}":
            self._depth -= 1
            while self._open and self._open[-1].depth > self._depth:
                self._closed.append(self._open.pop().closed())
        elif mark in "+,":
            if self._open:
                self._open[-1].joins += 1
            else:
                self._joins += 1

    def _take_call(self, index: int, function: str) -> None:
        (kind, first), *_ = self._tokens[index + 2 :]
        if function in MACROS:
            self._open.append(_OpenMacro(self._depth + 1, first, []))
        elif function == "matches":
            for macro in self._open:
                macro.matches += 1
        elif function == "contains" and kind != "string":
            self._searches = True

    def _take_variable(self, index: int, name: str) -> None:
        if name in self._variables:
            read = Read(name, _field_read(self._tokens, index))
            self._reads.append(read)
            for macro in self._open:
                macro.reads.append(read)
        for place, macro in enumerate(self._open):
            if name == macro.variable:
                macro.own_names += 1
                for inner in self._open[place + 1 :]:
                    inner.outer_names += 1


def _is_field(tokens: list[tuple[str, str]], index: int) -> bool:
    # `a.b`, `f().b`, `[0].b`; a dot after anything else starts an absolute name, which is a variable.
    if index < 2 or tokens[index - 1][1] != ".":
        return False
    kind, token = tokens[index - 2]
    return kind in ("name", "string", "number") or token in (")", "]", "}")


def _field_read(tokens: list[tuple[str, str]], index: int) -> str | None:
    absolute = index > 0 and tokens[index - 1][1] == "."
    if absolute or tokens[index + 1][1] != ".":
        return None
    kind, field = tokens[index + 2]
    is_plain = kind == "name" and not field.startswith("`")
    return field if is_plain and tokens[index + 3][1] != "(" else None
