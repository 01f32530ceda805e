"""Ranges of keys: a prefix is a half-open range in code point order, never a pattern."""

from __future__ import annotations

__all__ = ["prefix_end"]

_LAST = "\U0010ffff"


def prefix_end(prefix: str) -> str | None:
    """Return the least string greater than every string with the prefix, None if there is none.

    In code point order, which is UTF-8's byte order too; surrogates are skipped, for no
    stored text holds one.
    """
    stem = prefix.rstrip(_LAST)
    if not stem:
        return None
    last = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if last == 0xD800 else last)
