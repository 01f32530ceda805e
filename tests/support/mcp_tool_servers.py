"""Starting the MCP server of `mcp_tool_server`, and reading what its tools did."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).with_name("mcp_tool_server.py")
STDIO_COMMAND = f"{shlex.quote(sys.executable)} {shlex.quote(str(PROGRAM))} {{log}}"


@dataclass(frozen=True)
class McpLog:
    """The log of a server's tools, and the cues that they wait for."""

    path: Path

    def all_lines(self) -> list[str]:
        """Every line so far."""
        return self.path.read_text().splitlines() if self.path.exists() else []

    def lines(self) -> list[str]:
        """What its tools did."""
        return [line for line in self.all_lines() if line.split()[0] not in ("start", "stop")]

    def cue(self, name: str) -> None:
        """Give a cue."""
        Path(f"{self.path}.{name}").touch()

    async def until(self, line: str) -> None:
        """Wait for a line; the test's own patience bounds it."""
        while line not in self.all_lines():  # noqa: ASYNC110 - what writes is another process
            await asyncio.sleep(0.02)


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look until it is so: what makes it so is another process, which tells nobody."""
    while not await holds():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


@contextmanager
def http_tool_server(log: McpLog, port: int = 0) -> Iterator[str]:
    """Start a server that listens and return its URL; it is killed on leaving."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(log.path), "--http", str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
    finally:
        process.kill()
        process.communicate()
