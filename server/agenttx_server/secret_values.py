"""Files of secrets: a table each, by name, with the value or where it is, and who may receive it.

    [NAME]
    env = "VARIABLE"       # or value = "…", or file = "/run/secrets/name", which may be relative to this file

No error holds a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from agenttx_server.engine.operator_files import Table, check_private, read_named

__all__ = ["SecretRefused", "read_secrets"]

# Shorter ones would be found, and masked, in texts that have nothing to do with them.
LEAST_CHARACTERS = 8
MOST_CHARACTERS = 16 * 1024

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SOURCES = ("value", "env", "file")

T = TypeVar("T")


class SecretRefused(Exception):
    """A secret that there is not, or that may not go where it was to go; the message never holds a value."""


def read_secrets(path: Path, receivers: tuple[str, ...], read: Callable[[str, str, Table], T]) -> list[T]:
    """Return what ``read`` makes of each secret: its name, its value, and its table with the keys ``receivers``.

    Raises:
        FileRefused: one line, which never holds a value. Values in a file that others may read are refused.
    """

    def secret(name: str, table: Table) -> T:
        if not _NAME.fullmatch(name):
            raise ValueError("a secret's name is 1 to 64 of A-Z a-z 0-9 _ -")
        if "value" in table:
            check_private(path)
        return read(name, _value(path, table), table)

    return read_named(path, (*_SOURCES, *receivers), secret, quotes=False)


def _value(path: Path, table: Table) -> str:
    given = [source for source in _SOURCES if source in table]
    if len(given) != 1:
        raise ValueError("needs one of value, env and file")
    text = table.text(given[0])
    value = text if given[0] == "value" else _from_env(text) if given[0] == "env" else _from_file(path, text)
    if not LEAST_CHARACTERS <= len(value) <= MOST_CHARACTERS or not (value.isascii() and value.isprintable()):
        raise ValueError(
            f"its value is not {LEAST_CHARACTERS} to {MOST_CHARACTERS:,} printable ASCII characters"
        )
    return value


def _from_env(variable: str) -> str:
    found = os.environ.get(variable)
    if not found:
        raise ValueError(f"the variable {variable[:64]!r} is not set")
    return found


def _from_file(beside: Path, name: str) -> str:
    file = beside.parent / name
    try:
        return file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{file} can't be read: {why}") from None
