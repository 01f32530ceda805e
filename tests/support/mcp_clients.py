"""The official MCP client library at `agenttx mcp`, over either transport, and what its answers say.

async with mcp_client("stdio", server.address) as client:
    answer = await called(client, "begin_transaction")
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from mcp import Client, StdioServerParameters
from tests.support.cli_calls import AGENTTX, environment, start

TRANSPORTS = ("stdio", "http")


@dataclass(frozen=True)
class Answered:
    """The answer to a tool call."""

    text: str
    fields: dict[str, Any]
    is_error: bool

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    @property
    def next(self) -> tuple[str, dict[str, Any]]:
        """The tool and the arguments that it says to call next."""
        call = self.fields["next"][0]
        return call["tool"], call["arguments"]


async def called(client: Client, tool: str, /, **arguments: Any) -> Answered:
    """Call a tool."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert content.type == "text"
    return Answered(content.text, result.structured_content, result.is_error)


@asynccontextmanager
async def mcp_client(
    transport: str, address: str, url: str = "", *, mode: str = "auto"
) -> AsyncIterator[Client]:
    """Return a client of an `agenttx mcp` of its own over stdio, or of the one at a URL."""
    at: Any = url
    if transport == "stdio":
        at = StdioServerParameters(command=AGENTTX, args=["mcp", "--address", address], env=environment())
    async with Client(at, mode=mode) as client:
        yield client


@contextmanager
def mcp_http_server(address: str, listen: str = "127.0.0.1:0", **variables: str) -> Iterator[str]:
    """Start `agenttx mcp --http` and return its URL."""
    process = start("mcp", "--http", listen, "--address", address, **variables)
    assert process.stderr is not None
    told = process.stderr.readline()
    try:
        match = re.search(r"http://\S+", told)
        assert match, told + process.communicate(timeout=30)[1]
        yield match[0]
    finally:
        process.terminate()
        process.communicate(timeout=30)
