"""Pages cut by number and by bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agenttx_server.store.prepared_query import Rows

__all__ = ["cut", "read_page"]


def read_page(found: Rows, limit: int, byte_limit: int) -> tuple[list[Sequence[Any]], bool]:
    """Return rows up to both limits, at least one if there is one, and whether there are more.

    ``found`` holds one row more than the limit, if there are as many; it is closed.
    """
    with found:
        return cut(found, limit, byte_limit)


def cut(found: Iterable[Sequence[Any]], limit: int, byte_limit: int) -> tuple[list[Sequence[Any]], bool]:
    """Do so with rows that are read elsewhere; no more of them are taken than needed."""
    page: list[Sequence[Any]] = []
    size = 0
    for row in found:
        size += sum([_bytes(value) for value in row if type(value) is str])
        if len(page) == limit or (page and size > byte_limit):
            return page, True
        page.append(row)
    return page, False


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
