"""How built-in tools quote what they were given in an error."""

from __future__ import annotations

__all__ = ["shown"]

_LONGEST = 64  # longer values could be secrets, and a hint is one short line


def shown(text: str) -> str:
    """Quote a text on one line, cut to 64 characters."""
    return repr(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")
