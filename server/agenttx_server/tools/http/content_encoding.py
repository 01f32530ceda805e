"""Decodes a compressed body in pieces of bounded size, one encoding deep.

A few hundred bytes can stand for a gigabyte, and encodings around one another multiply that, also in work that
yields nothing (empty blocks), where a limit on what comes out never strikes. So there is one encoding
at most, as none of our requests asks for more, and no single step takes in or puts out more than a piece.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterable, AsyncIterator
from typing import Final

__all__ = ["ACCEPTED", "BadEncoding", "decoded"]

ACCEPTED: Final = "gzip, deflate"
PIECE_BYTES: Final = 64 * 1024

_GZIP: Final = zlib.MAX_WBITS | 16
_RAW: Final = -zlib.MAX_WBITS


class BadEncoding(Exception):
    """A body that is not encoded as it says, or as nobody asked for; the message is the end of a sentence."""


async def decoded(content_encoding: str, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a body's bytes without its encoding; other tasks run in between.

    Args:
        content_encoding: the header, empty if there is none.
        chunks: the body as it was sent.

    Raises:
        BadEncoding, and what ``chunks`` raise.
    """
    names = [name for part in content_encoding.split(",") if (name := part.strip().lower())]
    encodings = [name for name in names if name != "identity"]
    if not encodings:
        async for chunk in chunks:
            yield chunk
        return
    if len(encodings) > 1:
        raise BadEncoding("its body is encoded more than once, which was not asked for")
    if encodings[0] not in ("gzip", "x-gzip", "deflate"):
        raise BadEncoding(f"its body is in an encoding that was not asked for ({encodings[0][:32]!r})")
    inflation = _Inflation(is_gzip=encodings[0] != "deflate")
    async for chunk in chunks:
        for begin in range(0, len(chunk), PIECE_BYTES):
            left = chunk[begin : begin + PIECE_BYTES]
            while left:
                piece, left = inflation.step(left)
                if piece:
                    yield piece
                await asyncio.sleep(0)
    if not inflation.is_whole:
        raise BadEncoding("its body is not encoded as it says")


class _Inflation:
    """The state of a decoder. Deflate is meant to be in zlib's format, and by some servers is not."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._bits = _GZIP if is_gzip else zlib.MAX_WBITS
        self._decoder = zlib.decompressobj(self._bits)
        self._begun = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing; of no bytes at all, nothing is."""
        return self._decoder.eof or not self._begun

    def step(self, given: bytes) -> tuple[bytes, bytes]:
        """Return at most a piece, and what of the bytes is left to be given again."""
        if self._decoder.eof:
            if self._bits != _GZIP:
                raise BadEncoding("its body is longer than it says")
            self._decoder = zlib.decompressobj(self._bits)  # gzip: one member after another
        try:
            piece = self._decoder.decompress(given, PIECE_BYTES)
        except zlib.error:
            if self._begun or self._bits != zlib.MAX_WBITS:
                raise BadEncoding("its body is not encoded as it says") from None
            self._bits = _RAW
            self._decoder = zlib.decompressobj(_RAW)
            return b"", given
        self._begun = True
        return piece, self._decoder.unused_data or self._decoder.unconsumed_tail
