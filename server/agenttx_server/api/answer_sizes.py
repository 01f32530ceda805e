"""Answers that fit into a message, whatever is in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

__all__ = ["AnswerSizes", "page_that_fits"]

M = TypeVar("M", bound=Message)

# Clients that set no limit of their own take messages of 4 MiB.
PAGE_BYTES = (4 << 20) - (64 << 10)


@dataclass(frozen=True, slots=True)
class AnswerSizes:
    """``struct_output_bytes`` bounds a tool's output that is answered as a Struct too, ``message_bytes`` an answer."""

    struct_output_bytes: int
    message_bytes: int


async def page_that_fits(ask: Callable[[int], Awaitable[tuple[M, int]]], limit: int) -> M:
    """Return a page of at most ``limit`` entries that is no larger than a page may be.

    ``ask`` returns a page of at most so many entries, and how many it has. A single entry is
    returned whatever its size.
    """
    while True:
        page, entries = await ask(limit)
        if entries <= 1 or page.ByteSize() <= PAGE_BYTES:
            return page
        limit = max(entries * PAGE_BYTES // (2 * page.ByteSize()), 1)
