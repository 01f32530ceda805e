"""Files that an operator writes, in TOML or JSON: read, and refused in one line that says where, and what is allowed there.

A reader gives its own shape only: the names of its keys, and what it makes of a table. :class:`Table` asks for
values of a kind and a range; a reader's own checks raise ValueError, and the file and the place are put before it.

    FileRefused   the one error of all such files
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

__all__ = [
    "FileRefused",
    "Table",
    "check_private",
    "read_document",
    "read_entries",
    "read_named",
]

MOST_BYTES: Final = 1 << 20
MOST_ENTRIES: Final = 10_000
_SHOWN_CHARACTERS: Final = 64
_PLACE: Final = re.compile(r"line \d+,? column \d+|end of document")

T = TypeVar("T")


class FileRefused(ValueError):
    """A file that can't be used; the message is one line naming the file, the place in it and the fault."""


class Table:
    """One table of a file. What is asked of it is there and fits, else ValueError says which key, and what it may be."""

    def __init__(self, given: object, known: Collection[str]) -> None:
        if not isinstance(given, Mapping):
            raise ValueError(f"is no table; it may hold {', '.join(known)}")
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ValueError(f"unknown key {_shown(unknown[0])}; known are {', '.join(known)}")
        self._given: Mapping[str, Any] = given

    def __contains__(self, key: str) -> bool:
        return key in self._given

    def get(self, key: str) -> Any:
        """Return a value as it stands in the file, None where it doesn't."""
        return self._given.get(key)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text. Without a default it must be there, and hold something."""
        found = self._found(key, default)
        if not isinstance(found, str):
            raise ValueError(f"`{key}` is no text")
        if default is None and not found:
            raise ValueError(f"`{key}` is empty")
        return found

    def texts(self, key: str, default: tuple[str, ...] | None = None, *, least: int = 1) -> tuple[str, ...]:
        """Return a list of texts, at least so many. Without a default it must be there."""
        if key not in self._given and default is not None:
            return default
        found = self._found(key, None)
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise ValueError(f"`{key}` is no list of texts")
        if len(found) < least:
            raise ValueError(f"`{key}` has {len(found)} texts; {least} or more are needed")
        return tuple(found)

    def whole_number(self, key: str, least: int, most: int, default: int) -> int:
        """Return a whole number within a range."""
        found = self._given.get(key, default)
        if type(found) is not int or not least <= found <= most:
            raise ValueError(f"`{key}` is no whole number from {least} to {most}")
        return found

    def _found(self, key: str, default: str | None) -> Any:
        found = self._given.get(key, default)
        if found is None:
            raise ValueError(f"`{key}` is missing")
        return found


def read_entries(
    path: Path,
    name: str,
    known: Collection[str],
    read: Callable[[Table], T],
    *,
    least: int = 1,
    most: int = MOST_ENTRIES,
) -> list[T]:
    """Return what ``read`` makes of each ``[[name]]`` table of a file that holds nothing else. Raises FileRefused."""
    document = read_document(path)
    others = sorted(set(document) - {name})
    if others:
        raise FileRefused(
            f"{path}: {_shown(others[0])} means nothing here; give [[{name}]], and nothing else"
        )
    entries = document.get(name)
    if not isinstance(entries, list) or not least <= len(entries) <= most:
        raise FileRefused(f"{path}: give {least} to {most:,} tables [[{name}]], and nothing else")
    found = []
    for number, entry in enumerate(entries, 1):
        try:
            found.append(read(Table(entry, known)))
        except ValueError as bad:
            raise FileRefused(f"{path}: {name} {number}{_told_name(entry)}: {bad}") from bad
    return found


def read_named(
    path: Path, known: Collection[str], read: Callable[[str, Table], T], *, quotes: bool = True
) -> list[T]:
    """Return what ``read`` makes of each ``[NAME]`` table of a file, which it is given by name. Raises FileRefused.

    Without ``quotes`` the file may hold secrets, and no error quotes its text but names and keys.
    """
    found = []
    for name, given in read_document(path, quotes=quotes).items():
        try:
            found.append(read(name, Table(given, known)))
        except ValueError as bad:
            raise FileRefused(f"{path}: {_shown(name)}: {bad}") from None
    return found


def read_document(path: Path, *, quotes: bool = True) -> dict[str, Any]:
    """Return what a file says, of at most 1 MiB: JSON where its name ends so, else TOML. Raises FileRefused.

    Without ``quotes`` the error of a file that can't be parsed gives the place, and nothing of its text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise FileRefused(f"{path} can't be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise FileRefused(f"{path} is larger than 1 MiB")
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        text = data.decode()
        document: object = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise FileRefused(f"{path} is not UTF-8, at byte {error.start:,}") from None
    except RecursionError:
        raise FileRefused(f"{path} is nested too deeply") from None
    except ValueError as error:
        raise FileRefused(f"{path} is not valid {kind}{_fault(str(error), quotes)}") from None
    if not isinstance(document, dict):
        raise FileRefused(f"{path} is not valid: a JSON object is expected")
    return document


def check_private(path: Path) -> None:
    """Raise FileRefused where others than its owner may read a file, or change it.

    The group may read what is another user's, as a secret that is mounted into a container is root's and its group's.
    """
    status = path.stat()
    refused = stat.S_IRWXG | stat.S_IRWXO
    if status.st_uid != os.geteuid():
        refused &= ~stat.S_IRGRP
    if status.st_mode & refused:
        mode = stat.S_IMODE(status.st_mode)
        raise FileRefused(f"{path} holds secrets and others may read it, mode {mode:04o}: chmod 600 {path}")


def _fault(error: str, quotes: bool) -> str:
    if quotes:
        return f": {error.splitlines()[0]}"
    place = _PLACE.search(error)
    return f", at {place[0]}" if place else ""


def _told_name(entry: object) -> str:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    return f" ({_shown(name)})" if isinstance(name, str) and name else ""


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_CHARACTERS])
