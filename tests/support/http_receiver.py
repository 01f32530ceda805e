"""An HTTP server that answers as a test says, and keeps what it was sent.

    async with http_receiver(answer(500), answer(204)) as receiver:
        ...                                    # post to receiver.url
        receiver.requests[0].headers["idempotency-key"]

Answers are used up one after another; after the last it is 204 for ever.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Answer", "HttpReceiver", "HttpRequest", "answer", "http_receiver"]


@dataclass(frozen=True)
class HttpRequest:
    """A request as it arrived; names of headers in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """What is sent back. ``never``: nothing at all. ``body_hangs``: the body's end is announced and never comes."""

    status: int = 204
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    never: bool = False
    body_hangs: bool = False
    breaks_off: bool = False


def answer(status: int = 204, body: bytes = b"", /, **headers: str) -> Answer:
    """An answer with headers, whose names have ``_`` for ``-``."""
    return Answer(status, [(name.replace("_", "-"), value) for name, value in headers.items()], body)


@dataclass
class HttpReceiver:
    """A receiver that listens."""

    port: int = 0
    requests: list[HttpRequest] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    connections: int = 0
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/effects"

    async def wait_for(self, count: int) -> list[HttpRequest]:
        """Return the requests once there are so many."""
        async with asyncio.timeout(120), self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._exchange(reader, writer):
                pass
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        chosen = self.answers.pop(0) if self.answers else Answer()
        async with self.arrived:
            self.requests.append(HttpRequest(method, path, headers, body))
            self.arrived.notify_all()
        if chosen.breaks_off:
            return False
        if chosen.never:
            await asyncio.get_running_loop().create_future()
        size = len(chosen.body) + (1000 if chosen.body_hangs else 0)
        lines = [f"HTTP/1.1 {chosen.status} As-Told", *(f"{name}: {value}" for name, value in chosen.headers)]
        if chosen.status != 204:
            lines.append(f"Content-Length: {size}")
        writer.write("\r\n".join([*lines, "", ""]).encode() + chosen.body)
        await writer.drain()
        if chosen.body_hangs:
            await asyncio.get_running_loop().create_future()
        return True


@asynccontextmanager
async def http_receiver(*answers: Answer) -> AsyncIterator[HttpReceiver]:
    """Listen on a free port of this machine."""
    receiver = HttpReceiver(answers=list(answers))
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(receiver.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
