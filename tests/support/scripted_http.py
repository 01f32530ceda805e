"""An HTTP server of this machine that does to its clients what a test says, as bad as that may be.

    async with scripted_http({"/slow": drip}) as service:
        ...                                     # request service.url("/slow")
        service.requests[0].headers["host"]

A handler gets the request and a writer, and writes bytes; the connection is closed when it returns.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.support.http_receiver import HttpRequest

__all__ = ["Handler", "ScriptedHttp", "answering", "redirecting", "scripted_http"]

Handler = Callable[[HttpRequest, asyncio.StreamWriter], Awaitable[None]]


def answering(status: int = 200, body: bytes = b"", **headers: str) -> Handler:
    """Answer once and for all; names of headers have ``_`` for ``-``."""

    async def answer(_: HttpRequest, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} As-Told", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    return answer


def redirecting(location: str, status: int = 302) -> Handler:
    """Answer with a redirect."""
    return answering(status, Location=location)


@dataclass
class ScriptedHttp:
    """A server that listens."""

    handlers: Mapping[str, Handler]
    scheme: str = "http"
    port: int = 0
    requests: list[HttpRequest] = field(default_factory=list)
    connections: int = 0

    def url(self, path: str = "/", host: str = "service.test") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._exchange(reader, writer)
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(":") for line in head[1:] if line)
            }
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            request = HttpRequest(method, path, headers, body)
            self.requests.append(request)
            handler = self.handlers.get(path.partition("?")[0], answering(404))
            await handler(request, writer)
            await writer.drain()


@asynccontextmanager
async def scripted_http(
    handlers: Mapping[str, Handler], tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[ScriptedHttp]:
    """Listen on a free port."""
    service = ScriptedHttp(handlers, "http" if tls is None else "https")
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(service.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, 0, ssl=tls)
    service.port = server.sockets[0].getsockname()[1]
    try:
        yield service
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
