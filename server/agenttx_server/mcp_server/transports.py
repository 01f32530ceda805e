"""How the MCP server is reached: over its own stdin and stdout, or over streamable HTTP."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
import socket
import sys
from typing import Any

import uvicorn
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["CannotListen", "is_loopback", "serve_http", "serve_stdio"]

PATH = "/mcp"
MOST_REQUEST_BYTES = 4 << 20
CLOSE_SECONDS = 5


class CannotListen(Exception):
    """The address can't be served on; the message is one line."""


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches it."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client over stdin and stdout until it closes them."""
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def serve_http(server: Server[Any], host: str, port: int, token: str) -> None:
    """Serve any number of clients at ``http://HOST:PORT/mcp`` until the process is told to stop.

    Args:
        server: The MCP server.
        host: A name or an address; of ``localhost`` and loopback addresses the Host and Origin headers are checked
            too, so that no web page in the user's browser can reach it by a name of its own.
        port: 0 takes a free one.
        token: What callers must send as bearer token; empty for none.

    Raises:
        CannotListen: the address is in use or is none of this machine's.
    """
    listener = _listen(host, port)
    app: ASGIApp = server.streamable_http_app(
        streamable_http_path=PATH,
        host=host,
        max_request_body_size=MOST_REQUEST_BYTES,
        # Checked here where it matters; elsewhere callers need the token, which no page of another site has.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    if is_loopback(host):
        app = _LocalOnly(app, _names_here(host))
    if token:
        app = _TokenRequired(app, token)
    # Of the log only what is wrong: stderr is where an MCP client shows it, and access logs hold session ids.
    config = uvicorn.Config(
        app, log_config=None, log_level=logging.WARNING, timeout_graceful_shutdown=CLOSE_SECONDS
    )
    bound = listener.getsockname()
    shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
    sys.stderr.write(f"agenttx: MCP is served at http://{shown}:{bound[1]}{PATH}\n")
    sys.stderr.flush()
    with listener:
        await uvicorn.Server(config).serve(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host.strip("[]"), port), family=family)
    except OSError as error:
        raise CannotListen(f"can't serve on {host}:{port}: {error.strerror or error}") from error


def _names_here(host: str) -> frozenset[str]:
    """Return how this machine is called by those who reach it on a loopback address."""
    own = host.strip("[]").lower()
    return frozenset({"127.0.0.1", "localhost", "[::1]", f"[{own}]" if ":" in own else own})


class _LocalOnly:
    """Lets in who calls this machine by a name of its own: no web page that reaches it by one of the page's.

    The library compares beginnings only, so that ``localhost:1.evil.example`` would pass.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app = app
        any_name = "|".join(map(re.escape, names))
        self._host = re.compile(rf"(?:{any_name})(?::[0-9]{{1,5}})?".encode())
        self._origin = re.compile(rf"http://(?:{any_name})(?::[0-9]{{1,5}})?".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
        origins = [value.lower() for name, value in scope["headers"] if name == b"origin"]
        if len(hosts) != 1 or not self._host.fullmatch(hosts[0]):
            return PlainTextResponse("the Host header names another machine", status_code=421)
        if len(origins) > 1 or not all(self._origin.fullmatch(origin) for origin in origins):
            return PlainTextResponse("pages of other sites are not let in", status_code=403)
        return None


class _TokenRequired:
    """Lets nobody in who doesn't send the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            sent = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(sent, self._expected):
                refusal = PlainTextResponse(
                    "a bearer token is needed: the one in AGENTTX_MCP_TOKEN of `agenttx mcp`",
                    status_code=401,
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)
