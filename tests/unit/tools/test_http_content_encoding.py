"""Bodies are decoded in pieces, and other tasks run in between."""

import asyncio
import gzip
import zlib

import pytest

from agenttx_server.tools.http.content_encoding import PIECE_BYTES, BadEncoding, decoded


async def sent(body, chunk_bytes=1 << 20):
    for begin in range(0, len(body), chunk_bytes):
        yield body[begin : begin + chunk_bytes]


async def pieces(encoding, body, chunk_bytes=1 << 20):
    return [piece async for piece in decoded(encoding, sent(body, chunk_bytes))]


def raw_deflate(body):
    deflating = zlib.compressobj(wbits=-15)
    return deflating.compress(body) + deflating.flush()


def named(value):
    """Name a case by its encoding: gzip's header holds the time, so its bytes are different in each run."""
    return value if isinstance(value, str) else ""


TEXT = b"what was said " * 20_000


@pytest.mark.parametrize("chunk_bytes", [7, 1 << 20])
@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("", TEXT),
        ("identity", TEXT),
        ("gzip", gzip.compress(TEXT)),
        ("X-GZIP , identity", gzip.compress(TEXT)),
        ("gzip", gzip.compress(TEXT[:100]) + gzip.compress(b"") + gzip.compress(TEXT[100:])),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", raw_deflate(TEXT)),
    ],
    ids=named,
)
async def test_a_body_is_read(encoding, body, chunk_bytes):
    assert b"".join(await pieces(encoding, body, chunk_bytes)) == TEXT


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_no_body_needs_no_encoding(encoding):
    assert await pieces(encoding, b"") == []


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"hello"),
        ("deflate", b"\xff\xff\xff"),
        ("gzip", gzip.compress(TEXT)[:-9]),
        ("deflate", zlib.compress(TEXT)[:-1]),
        ("deflate", zlib.compress(TEXT) + b"more"),
        ("gzip", gzip.compress(TEXT) + b"more"),
        ("br", b"hello"),
        ("gzip, gzip", gzip.compress(gzip.compress(TEXT))),
    ],
    ids=named,
)
async def test_what_is_not_encoded_as_it_says_is_refused(encoding, body):
    with pytest.raises(BadEncoding):
        await pieces(encoding, body)


async def test_a_bomb_comes_in_pieces_and_others_run_between_them():
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    sizes = [len(piece) for piece in await pieces("gzip", gzip.compress(bytes(16 << 20), 9))]
    task.cancel()

    assert max(sizes) <= PIECE_BYTES
    assert turns >= len(sizes) - 1
