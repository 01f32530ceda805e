"""Cursors: where a page ended, opaque to callers."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any

import orjson

__all__ = ["decode_cursor", "encode_cursor", "listing_kind"]


def listing_kind(name: str, *query: str) -> str:
    """Return the kind of a listing that is asked for with ``query``: a cursor of one query is refused by every other.

    For listings whose positions would fit another query and answer with a part of it, as if that were all.
    """
    digest = hashlib.blake2b(orjson.dumps(query), digest_size=9).digest()
    return f"{name}:{base64.urlsafe_b64encode(digest).decode()}"


def encode_cursor(kind: str, *position: int | str) -> str:
    """Return the cursor behind a position in a listing of one kind."""
    return base64.urlsafe_b64encode(orjson.dumps([kind, *position])).rstrip(b"=").decode()


def decode_cursor(kind: str, cursor: str, *types: type[int] | type[str]) -> tuple[Any, ...]:
    """Return the position of a cursor, with items of these types. Raises ValueError for one not given out here."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        values = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (UnicodeEncodeError, binascii.Error, orjson.JSONDecodeError) as error:
        raise ValueError("the cursor was not given out by this server") from error
    # `type is` and not isinstance: true is no number here. A larger one JSON can hold, the database can't.
    if (
        not isinstance(values, list)
        or [type(value) for value in values] != [str, *types]
        or values[0] != kind
        or any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in values)
        # One text a position: none that merely reads alike.
        or encode_cursor(*values) != cursor
    ):
        raise ValueError("the cursor was not given out by this listing")
    return tuple(values[1:])
