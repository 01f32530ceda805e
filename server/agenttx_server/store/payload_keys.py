"""The keys that stored values are sealed with, from a file of their names.

    active = "2026-12"                 # new values are sealed with this one; "none": they are stored plain

    [keys]
    2026-12 = "…"                      # 32 bytes in base64
    2026-06 = "…"                      # opens what was sealed with it before

The file is its owner's alone (mode 600).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agenttx_server.engine.operator_files import FileRefused, Table, check_private, read_document

__all__ = ["NO_KEY", "PayloadKeys", "load_payload_keys"]

NO_KEY: Final = "none"
_KEY_BYTES: Final = 32
_MOST_KEYS: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}\Z")


@dataclass(frozen=True, slots=True)
class PayloadKeys:
    """256-bit keys by name, and the name of the one to seal with, None for none."""

    active: str | None
    keys: Mapping[str, bytes] = field(repr=False)


def load_payload_keys(path: Path) -> PayloadKeys:
    """Read a TOML file of keys. Raises FileRefused, which never holds one."""
    document = read_document(path, quotes=False)
    check_private(path)
    try:
        table = Table(document, ("active", "keys"))
        active = table.text("active")
        given = table.get("keys") or {}
        if not isinstance(given, Mapping) or len(given) > _MOST_KEYS:
            raise ValueError(f"`keys` is no table of at most {_MOST_KEYS} keys")
        keys = {name: _key(name, text) for name, text in given.items()}
        if len(set(keys.values())) < len(keys):
            raise ValueError("two of its keys are the same")
        if active != NO_KEY and active not in keys:
            raise ValueError(f"`active` names {active[:64]!r}, which is not among its keys")
    except ValueError as bad:
        raise FileRefused(f"{path}: {bad}") from None
    return PayloadKeys(None if active == NO_KEY else active, keys)


def _key(name: str, text: object) -> bytes:
    if not _NAME.match(name) or name == NO_KEY:
        raise ValueError(f"{name[:64]!r} is no name of a key: 1 to 32 of A-Z a-z 0-9 _ -, not {NO_KEY}")
    try:
        key = base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise ValueError(f"the key {name!r} is not {_KEY_BYTES} bytes in base64")
    if len(set(key)) == 1:
        raise ValueError(f"the key {name!r} is one byte over and over; make one from randomness")
    return key
