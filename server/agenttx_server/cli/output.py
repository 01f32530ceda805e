"""Where results go: tables for people, JSON for programs, both on stdout.

Texts of agents and tools are shown, never obeyed: control characters are written out as escapes
and nothing in them is taken for markup.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["ReaderLeft", "console", "print_json", "print_json_line", "print_line", "print_text", "printable"]

PIPED_WIDTH = 200
"""Columns of a table that goes into a pipe or a file, where nothing says how wide a line may be."""


class ReaderLeft(Exception):
    """Whoever reads our output has read enough, as ``head`` does: a reason to end, and no failure."""


def console() -> Console:
    """Return the console for stdout."""
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, markup=False, emoji=False, width=PIPED_WIDTH if piped else None)


def print_text(shown: RenderableType, *, wrap: bool = True) -> None:
    """Print a table, a tree or a text for people; without ``wrap`` a long line stays one line."""
    out = console()
    if out.is_terminal:
        out.print(shown, soft_wrap=not wrap)
        return
    with out.capture() as capture:
        out.print(shown, soft_wrap=not wrap)
    # Tables are padded to their full width, which in a file is only noise.
    print_line("\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n")))


def printable(text: str) -> str:
    """Return a text on one line, with nothing in it that a terminal would obey."""
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def print_json(value: Any) -> None:
    """Print one JSON value over several lines: records as objects, times as RFC 3339 in UTC."""
    print_line(json.dumps(value, default=_as_json, ensure_ascii=_ascii_only(), indent=2))


def print_json_line(value: Any) -> None:
    """Print one JSON value on a line of its own, at once."""
    print_line(json.dumps(value, default=_as_json, ensure_ascii=_ascii_only(), separators=(",", ":")))


def print_line(text: str) -> None:
    """Print a line, at once."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderLeft from None


def _as_json(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _escaped(letter: str) -> str:
    if letter in "\n\r\t":
        return " "
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def _ascii_only() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
