"""``GET /metrics`` and ``GET /healthz`` over plain HTTP, and nothing else.

On the event loop's own thread: if that stands still, a scrape that fails says so. h11 reads the requests. (The server
of prometheus_client starts a thread a connection without bound, and any frameworks are extras.)
Everything is bounded: connections, a request's size, an exchange's time. A connection serves one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

import h11

from agenttx_server.listen_address import ListenAddress, MetricsAddressRefused
from agenttx_server.telemetry.exposition import Exposition

__all__ = ["MetricsEndpoint"]

MAX_CONNECTIONS = 16
EXCHANGE_SECONDS = 10.0
LARGEST_REQUEST_BYTES = 8 << 10
# However many ask, the metrics are read and written out once a second.
FRESH_SECONDS = 1.0
PLAIN_TEXT = "text/plain; charset=utf-8"

Answer = tuple[HTTPStatus, bytes, str]


class MetricsEndpoint:
    """Answers with a server's metrics, and whether it serves."""

    def __init__(self, exposition: Exposition, is_serving: Callable[[], bool]) -> None:
        self._exposition = exposition
        self._is_serving = is_serving
        self._connections = 0
        self._rendering = asyncio.Lock()
        self._rendered: dict[str, tuple[float, bytes, str]] = {}

    @asynccontextmanager
    async def serve(self, address: ListenAddress) -> AsyncIterator[ListenAddress]:
        """Serve until the context is left; it gets the address with its real port.

        Raises:
            MetricsAddressRefused: nothing is served.
        """
        try:
            server = await asyncio.start_server(
                self._exchange, address.host, address.port, limit=LARGEST_REQUEST_BYTES
            )
        except OSError as error:
            raise MetricsAddressRefused(
                f"can't serve metrics on {address}: {error.strerror or error}"
            ) from error
        try:
            yield ListenAddress(address.host, server.sockets[0].getsockname()[1])
        finally:
            server.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # ConnectionError: the client went away, and there is nobody to tell.
        try:
            if self._connections >= MAX_CONNECTIONS:
                return
            self._connections += 1
            try:
                with suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(EXCHANGE_SECONDS):
                        await self._answer_one(reader, writer)
                        writer.close()
                        await writer.wait_closed()
            finally:
                self._connections -= 1
        finally:
            writer.transport.abort()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST_REQUEST_BYTES)
        try:
            request = await _request(connection, reader)
        except h11.RemoteProtocolError as refused:
            answer: Answer = HTTPStatus(refused.error_status_hint), b"the request is no HTTP\n", PLAIN_TEXT
        else:
            if request is None:
                return
            answer = await self._answer(request)
        status, body, content_type = answer
        headers = [
            ("content-type", content_type),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("allow", "GET"))
        head = h11.Response(status_code=status, headers=headers, reason=status.phrase)
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()

    async def _answer(self, request: h11.Request) -> Answer:
        path = request.target.partition(b"?")[0]
        if path not in (b"/metrics", b"/healthz"):
            return HTTPStatus.NOT_FOUND, b"there are /metrics and /healthz\n", PLAIN_TEXT
        if request.method != b"GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, b"only GET is served\n", PLAIN_TEXT
        if path == b"/healthz":
            if self._is_serving():
                return HTTPStatus.OK, b"SERVING\n", PLAIN_TEXT
            return HTTPStatus.SERVICE_UNAVAILABLE, b"NOT_SERVING\n", PLAIN_TEXT
        accept = next((value for name, value in request.headers if name == b"accept"), b"")
        # One of the few forms there are, so that clients can't fill the memory with what they accept.
        form = "application/openmetrics-text" if b"application/openmetrics-text" in accept else "text/plain"
        body, content_type = await self._metrics(form)
        return HTTPStatus.OK, body, content_type

    async def _metrics(self, form: str) -> tuple[bytes, str]:
        clock = asyncio.get_running_loop().time
        async with self._rendering:
            made_at, body, content_type = self._rendered.get(form, (float("-inf"), b"", ""))
            if clock() - made_at >= FRESH_SECONDS:
                made_at = clock()
                self._exposition.read()
                # Thousands of lines: in a thread they hold up calls for a switch interval at a time.
                body, content_type = await asyncio.to_thread(self._exposition.text, form)
                self._rendered[form] = made_at, body, content_type
        return body, content_type


async def _request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """Return the head of the request, None if the client said none. What follows it is not read."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(LARGEST_REQUEST_BYTES))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None
