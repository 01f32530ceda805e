"""Connections that mean no good, made of plain sockets: silent ones, slow ones, calls never finished, a message said to be huge."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

__all__ = ["CALL", "PREFACE", "SETTINGS", "frame", "idle", "one_gibibyte", "slow", "stalled"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CONNECT_SECONDS = 30
GIB = 1 << 30
PATH = b"/agenttx.v1.AgentTxService/BeginTransaction"
STREAMS_A_CONNECTION = 50


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return one frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """Return a header field without indexing, HPACK's plainest form."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


SETTINGS = frame(4, 0, 0, b"")
_HEADERS = b"".join(
    _literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", PATH),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)
CALL = frame(1, 4, 1, _HEADERS)
"""The headers of a call whose message never comes."""


@contextlib.contextmanager
def idle(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Keep so many connections open that say nothing."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((host, int(port)), CONNECT_SECONDS))
            for _ in range(count)
        ]


@contextlib.contextmanager
def slow(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Keep so many connections open that have sent half of their first line."""
    with idle(address, count) as connections:
        for one in connections:
            one.sendall(PREFACE[:10])
        yield connections


def drip(connections: list[socket.socket], until: float) -> None:
    """Have slow ones send a byte now and then, until a time of :func:`time.monotonic` or the line's end."""
    for byte in PREFACE[10:-1]:
        for one in connections:
            one.sendall(bytes([byte]))
        time.sleep(min(0.5, max(until - time.monotonic(), 0)))
        if time.monotonic() >= until:
            return


@contextlib.contextmanager
def stalled(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Keep so many calls open whose messages never come."""
    with idle(address, -(-count // STREAMS_A_CONNECTION)) as connections:
        for number, one in enumerate(connections):
            streams = range(min(STREAMS_A_CONNECTION, count - number * STREAMS_A_CONNECTION))
            calls = b"".join(frame(1, 4, 2 * stream + 1, _HEADERS) for stream in streams)
            one.sendall(PREFACE + SETTINGS + calls)
        yield connections


def one_gibibyte(connection: socket.socket) -> None:
    """Begin a message that is said to be so long, with as much of it as fits into a packet."""
    begun = b"\x00" + struct.pack(">I", GIB) + b"x" * 1000
    connection.sendall(PREFACE + SETTINGS + CALL + frame(0, 0, 1, begun))
