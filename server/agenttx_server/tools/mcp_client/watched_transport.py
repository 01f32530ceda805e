"""What comes from a server, before the library sees it: its end, and lists of tools in which some are none.

The library refuses a list whole for one tool that breaks the protocol, and checks results against a tool's output
schema with the regular expressions in it, for however long they take. So tools that can't be read are left out of
a list, and output schemas of all.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Any

import mcp_types as types
from mcp_types import methods
from pydantic import ValidationError

__all__ = ["WatchedTransport", "readable_tools"]

_LOGGER = logging.getLogger(__name__)

LIST_TOOLS = "tools/list"
_STRICTEST = "2025-11-25"
"""Every version takes what this one takes of a tool's fields that are used here."""


def readable_tools(listed: list[Any], server: str) -> list[Any]:
    """Return the tools of a list that the library will take, without output schemas; say of the others why not."""
    kept = []
    for tool in listed:
        if isinstance(tool, dict):
            tool = {name: value for name, value in tool.items() if name != "outputSchema"}
        try:
            methods.validate_server_result(LIST_TOOLS, _STRICTEST, {"tools": [tool]})
            types.Tool.model_validate(tool, by_name=False)
        except (ValidationError, RecursionError) as flaw:
            name = tool.get("name") if isinstance(tool, dict) else None
            why = (
                flaw.errors(include_url=False, include_input=False)[0]["msg"]
                if isinstance(flaw, ValidationError)
                else ""
            )
            _LOGGER.warning(
                "MCP server %s: left out is %.80r, which is no tool: %s",
                server,
                name,
                why or "it is too deep",
            )
        else:
            kept.append(tool)
    return kept


class WatchedTransport:
    """A transport that says when its incoming stream has ended, which the library tells only those who wait for it."""

    def __init__(self, transport: Any, server: str, lost: asyncio.Event) -> None:
        self._transport = transport
        self._server = server
        self._lost = lost

    async def __aenter__(self) -> Any:
        incoming, outgoing = await self._transport.__aenter__()
        asked: set[str] = set()
        return _Incoming(incoming, self._server, self._lost, asked), _Outgoing(outgoing, asked)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        return await self._transport.__aexit__(kind, error, traceback)


class _Wrapped:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> Any:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *ending: Any) -> Any:
        return await self._inner.__aexit__(*ending)


class _Outgoing(_Wrapped):
    """Takes note of which requests ask for a list of tools."""

    def __init__(self, inner: Any, asked: set[str]) -> None:
        super().__init__(inner)
        self._asked = asked

    async def send(self, message: Any) -> None:
        sent = message.message
        if isinstance(sent, types.JSONRPCRequest) and sent.method == LIST_TOOLS:
            self._asked.add(str(sent.id))  # servers may answer 7 with "7", and the library takes that
        await self._inner.send(message)


class _Incoming(_Wrapped):
    def __init__(self, inner: Any, server: str, lost: asyncio.Event, asked: set[str]) -> None:
        super().__init__(inner)
        self._server = server
        self._lost = lost
        self._asked = asked

    async def receive(self) -> Any:
        try:
            return self._readable(await self._inner.receive())
        except BaseException:
            self._lost.set()
            raise

    def __aiter__(self) -> _Incoming:
        return self

    async def __anext__(self) -> Any:
        try:
            return self._readable(await self._inner.__anext__())
        except BaseException:
            self._lost.set()
            raise

    def _readable(self, message: Any) -> Any:
        answer = getattr(message, "message", None)  # what can't be read comes as an exception
        if isinstance(answer, types.JSONRPCResponse) and str(answer.id) in self._asked:
            self._asked.discard(str(answer.id))
            listed = answer.result.get("tools")
            if isinstance(listed, list):
                answer.result["tools"] = readable_tools(listed, self._server)
        return message
