"""What an MCP server that was started writes to its stderr, in this server's log: bounded in lines and in their number."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

__all__ = ["stderr_to_log"]

_LOGGER = logging.getLogger(__name__)

MOST_LINE = 500
LINES_A_MINUTE = 120


@asynccontextmanager
async def stderr_to_log(server: str) -> AsyncIterator[TextIO]:
    """Give a file to be used as a process's stderr; close it once the process has it."""
    reading, writing = os.pipe()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: _Lines(server), os.fdopen(reading, "rb", buffering=0))
    try:
        with os.fdopen(writing, "w") as file:
            yield file
    finally:
        transport.close()


class _Lines(asyncio.Protocol):
    def __init__(self, server: str) -> None:
        self._server = server
        self._begun = b""
        self._minute = 0
        self._count = 0

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._begun + data).split(b"\n")
        # Of a line that does not end its beginning is kept.
        self._begun = rest[:MOST_LINE]
        for line in lines:
            self._log(line)

    def eof_received(self) -> None:
        if self._begun:
            self._log(self._begun)

    def _log(self, line: bytes) -> None:
        minute = int(asyncio.get_running_loop().time() // 60)
        if minute != self._minute:
            self._minute, self._count = minute, 0
        self._count += 1
        if self._count <= LINES_A_MINUTE:
            text = line[:MOST_LINE].decode("utf-8", "replace")
            shown = "".join(letter if letter.isprintable() else " " for letter in text)
            _LOGGER.info("MCP server %s says: %s", self._server, shown)
        elif self._count == LINES_A_MINUTE + 1:
            _LOGGER.warning(
                "MCP server %s says more than %d lines a minute; the rest is left out",
                self._server,
                LINES_A_MINUTE,
            )
