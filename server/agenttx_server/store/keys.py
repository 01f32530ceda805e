"""Keys as indexes see them.

A prefix is a half-open range in code point order, never a pattern; a request_id is found by
a hash, whose index entries are a third as long.
"""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["prefix_end", "request_key"]

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


def request_key(request_id: str) -> int | None:
    """Return a signed 64-bit hash of a request_id, None for an empty one. Equal keys need not be one request."""
    if not request_id:
        return None
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "big", signed=True)
