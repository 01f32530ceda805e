"""What a tool's docstring tells: the description of the tool and of each argument.

Google's ``Args:`` section and Sphinx's ``:param name:`` fields are understood, which is what
a tool needs of the larger docstring parsers; everything else stays in the description,
because a model that reads the tool list profits from ``Returns`` and ``Raises`` too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Docstring", "read_docstring"]

_SECTION = re.compile(r"(?:Args|Arguments|Parameters):")
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_FIELD = re.compile(r":param\s+(?:[^:]+\s)?(\w+):\s*(.*)")


@dataclass(frozen=True, slots=True)
class Docstring:
    """A description, and one for each argument that has one."""

    description: str
    arguments: Mapping[str, str] = field(default_factory=dict)


def read_docstring(docstring: str | None) -> Docstring:
    """Split a docstring into the tool's description and its arguments' descriptions."""
    reader = _Reader()
    for line in inspect.cleandoc(docstring or "").splitlines():
        reader.read(line)
    return Docstring(
        description=re.sub(r"\n{3,}", "\n\n", "\n".join(reader.kept)).strip(),
        arguments={name: " ".join(filter(None, parts)) for name, parts in reader.arguments.items()},
    )


class _Reader:
    def __init__(self) -> None:
        self.kept: list[str] = []
        self.arguments: dict[str, list[str]] = {}
        self._section_indent: int | None = None
        self._argument_indent: int | None = None
        self._open: list[str] | None = None  # the argument whose description may go on

    def read(self, line: str) -> None:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if self._section_indent is not None and (not text or indent > self._section_indent):
            self._read_in_section(text, indent)
            return
        self._section_indent = None
        if _SECTION.fullmatch(text):
            self._section_indent, self._argument_indent, self._open = indent, None, None
        elif match := _FIELD.fullmatch(text):
            self._begin(match)
        elif self._open is not None and text and indent:
            self._open.append(text)
        else:
            self._open = None
            self.kept.append(line)

    def _read_in_section(self, text: str, indent: int) -> None:
        if not text:
            return
        if self._argument_indent is None:
            self._argument_indent = indent
        match = _ARGUMENT.fullmatch(text)
        if match and indent <= self._argument_indent:
            self._begin(match)
        elif self._open is not None:
            self._open.append(text)

    def _begin(self, match: re.Match[str]) -> None:
        self._open = self.arguments.setdefault(match[1], [])
        self._open.append(match[2])
