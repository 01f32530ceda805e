"""The connection to one MCP server: made, watched, made anew with backoff when it is lost.

A server that is started dies with its connection: its stdin ends, which is also what happens when this process is
killed. Nothing here knows tools' effect classes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from agenttx_server.mcp_servers import McpServer
from agenttx_server.tools.mcp_client.stderr_log import stderr_to_log
from agenttx_server.tools.mcp_client.watched_transport import WatchedTransport

__all__ = ["ConnectionLost", "McpConnection", "NotConnected", "NotDone", "Silent", "Unsettled"]

_LOGGER = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 20.0
FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 30.0
STABLE_SECONDS = 30.0
"""A connection that lasted this long was no failed start: the next one begins with the first backoff."""
STOP_SECONDS = 6.0
"""Time to tell the server that a call was cancelled."""
NO_LIMIT_SECONDS = 86_400.0
MOST_PAGES = 100
MOST_ERROR = 4096

# With these the connection is of no more use, whoever said so: the library or the server.
_LOST_CODES = frozenset(
    {types.CONNECTION_CLOSED, types.INTERNAL_ERROR, types.PARSE_ERROR, types.REQUEST_TIMEOUT}
)
# Only these say that nothing was done. Over HTTP the library says INVALID_REQUEST itself of an answer that it can't read.
_NOT_DONE_CODES = frozenset({types.METHOD_NOT_FOUND, types.INVALID_PARAMS})
_SESSION_OVER = "Session terminated"  # the library's, for a server over HTTP that doesn't know its session
_NOT_DONE_CODES_OF_STDIO = _NOT_DONE_CODES | {types.INVALID_REQUEST, types.PARSE_ERROR}


class NotConnected(Exception):
    """The server is not there; nothing was sent."""


class ConnectionLost(Exception):
    """The connection was lost in the middle of a call."""


class NotDone(Exception):
    """The server refused the call; it did nothing."""


class Unsettled(Exception):
    """The server answered with an error that doesn't say whether anything was done."""


class Silent(Exception):
    """A call told nothing for its idle time, and was cancelled."""


class McpConnection:
    """One server. ``on_tools`` is told its list of tools, also when it changed; ``on_gone`` that it is gone."""

    def __init__(
        self,
        server: McpServer,
        on_tools: Callable[[list[types.Tool]], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._server = server
        self._on_tools = on_tools
        self._on_gone = on_gone
        self._client: Client | None = None
        self._lost = asyncio.Event()
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self.tried = asyncio.Event()
        self.why_gone = "it has not answered yet"

    @property
    def is_connected(self) -> bool:
        """Whether calls can be sent."""
        return self._client is not None

    async def wait_connected(self, seconds: float) -> bool:
        """Wait until calls can be sent; return whether they can."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._client is None:
                    await self._news.wait()
        return self._client is not None

    async def run(self) -> None:
        """Keep the connection until cancelled."""
        loop = asyncio.get_running_loop()
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            began = loop.time()
            try:
                await self._live()
                self.why_gone = "its connection ended"
            except Exception as error:
                self.why_gone = _in_a_line(error)
            finally:
                self._client = None
                self._tell()
                self._on_gone()
            self.tried.set()
            if loop.time() - began > STABLE_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            _LOGGER.warning("MCP server %s is not there: %s", self._server.name, self.why_gone)
            await asyncio.sleep(backoff * (0.5 + random.random()))  # noqa: S311 - jitter
            backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)

    async def call(
        self, tool: str, arguments: dict[str, Any], *, idle_seconds: float | None, meta: dict[str, Any]
    ) -> types.CallToolResult:
        """Call a tool; progress that the server reports prolongs ``idle_seconds``. Cancelled, it has the server stop.

        Raises:
            NotConnected: nothing was sent.
            ConnectionLost, Silent: whether it took effect is unknown.
            NotDone: the server refused the call.
            Unsettled: it told of an error, and not that nothing was done.
        """
        client = self._client
        if client is None:
            raise NotConnected(self.why_gone)
        loop = asyncio.get_running_loop()
        heard_at = loop.time()

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            nonlocal heard_at
            heard_at = loop.time()
            _LOGGER.info(
                "%s.%s: %g%s %s",
                self._server.name,
                tool,
                progress,
                f" of {total:g}" if total else "",
                (message or "")[:200],
            )

        # In a task of its own: the library's cancel scopes must end in the task that they began in.
        calling = asyncio.create_task(
            client.call_tool(
                tool,
                arguments,
                read_timeout_seconds=NO_LIMIT_SECONDS,
                progress_callback=heard,
                meta=meta,  # type: ignore[arg-type]
            )
        )
        try:
            while not calling.done():
                left = None if idle_seconds is None else heard_at + idle_seconds - loop.time()
                if left is not None and left <= 0:
                    raise Silent
                await asyncio.wait([calling], timeout=left)
            return calling.result()
        except MCPError as error:
            if error.code == types.INVALID_REQUEST and error.message == _SESSION_OVER:
                self._client = None
                self._lost.set()
                raise NotConnected("it was started anew") from error
            if error.code in (_NOT_DONE_CODES if self._server.url else _NOT_DONE_CODES_OF_STDIO):
                raise NotDone(error.message[:MOST_ERROR]) from error
            if error.code not in _LOST_CODES:
                raise Unsettled(error.message[:MOST_ERROR]) from error
            self._client = None
            self._lost.set()
            raise ConnectionLost(_in_a_line(error)) from error
        except asyncio.CancelledError:
            if calling.done() and calling.cancelled():  # from inside the library: its connection ended
                raise ConnectionLost("its connection ended") from None
            raise
        finally:
            if not calling.done():
                calling.cancel()
                await asyncio.wait([calling], timeout=STOP_SECONDS)

    async def _live(self) -> None:
        """Connect, tell the tools, and return when the connection is lost."""
        self._lost, self._changed = asyncio.Event(), asyncio.Event()
        async with AsyncExitStack() as stack:
            transport = await self._transport(stack)
            client = await stack.enter_async_context(
                Client(
                    WatchedTransport(transport, self._server.name, self._lost),
                    read_timeout_seconds=HANDSHAKE_SECONDS,
                    message_handler=self._heard,
                    client_info=types.Implementation(name="agenttx", version=version("agenttx")),
                    cache=None,
                )
            )
            self._on_tools(await _all_tools(client))
            self._client = client
            self._tell()
            self.tried.set()
            _LOGGER.info("MCP server %s is there", self._server.name)
            listening = asyncio.create_task(self._listen(client))
            try:
                await self._follow(client)
            finally:
                self._client = None
                listening.cancel()
                await asyncio.wait([listening])

    async def _follow(self, client: Client) -> None:
        """Read the tools again whenever they changed, until the connection is lost."""
        lost = asyncio.create_task(self._lost.wait())
        try:
            while not lost.done():
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait([lost, changed], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if self._changed.is_set() and not lost.done():
                    self._changed.clear()
                    self._on_tools(await _all_tools(client))
        finally:
            lost.cancel()

    async def _listen(self, client: Client) -> None:
        """Hear of changes of the tools where the protocol has them asked for."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        try:
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._changed.set()
        except Exception as error:  # an older protocol says so unasked
            _LOGGER.debug("MCP server %s is not listened to: %s", self._server.name, error)

    async def _heard(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed.set()

    async def _transport(self, stack: AsyncExitStack) -> Any:
        if self._server.url:
            client = await stack.enter_async_context(
                httpx2.AsyncClient(
                    headers=self._server.rules.headers,
                    timeout=httpx2.Timeout(HANDSHAKE_SECONDS, read=NO_LIMIT_SECONDS),
                    trust_env=False,
                )
            )
            return streamable_http_client(self._server.url, http_client=client)
        command, *arguments = self._server.command
        stderr = await stack.enter_async_context(stderr_to_log(self._server.name))
        return stdio_client(
            # What it gets beside this is the library's list of harmless ones: HOME, PATH, SHELL, TERM, USER, LOGNAME.
            StdioServerParameters(
                command=command, args=arguments, env=dict(self._server.rules.env), cwd=self._server.rules.cwd
            ),
            errlog=stderr,
        )

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


async def _all_tools(client: Client) -> list[types.Tool]:
    tools: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


def _in_a_line(error: BaseException) -> str:
    """Return what went wrong: of a group of errors the first one, of a long text its beginning."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]
