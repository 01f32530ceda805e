"""Tools that the benchmarks' servers and workers offer, and a process of workers.

python -m benchmarks.tools ADDRESS (hosted | idle) COUNT      # so many workers, each with a connection
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import agenttx
from agenttx.worker import ToolCallContext, UndoContext, Worker, tool
from benchmarks.servers import REPOSITORY


@tool("bench.hosted", effects="read_only")
async def hosted(value: int) -> int:
    """Return the value."""
    return value


@tool("bench.idle", effects="read_only")
async def idle(value: int) -> int:
    """Return the value."""
    return value


@tool("bench.builtin", effects="read_only")
async def builtin(value: int) -> int:
    """Return the value."""
    return value


@tool("bench.compensatable", effects="compensatable")
async def compensatable(ctx: ToolCallContext, value: int) -> int:
    """Register what would undo it, and return the value."""
    await ctx.register_undo("bench.undo_compensatable", value=value)
    return value


@compensatable.undo("bench.undo_compensatable")
async def undo_compensatable(ctx: UndoContext, value: int) -> None:
    """Do nothing."""


@tool("bench.put_many", effects="transactional")
async def put_many(ctx: ToolCallContext, first: int, count: int) -> int:
    """Store a small value under each of so many keys."""
    prefix = ctx.transaction_id[-12:]
    for number in range(first, first + count):
        await ctx.store.put(f"{prefix}/{number}", number)
    return count


SERVED = "benchmarks.tools:builtin,benchmarks.tools:compensatable,benchmarks.tools:put_many"
"""What the setting ``tools`` of a server that is measured is."""


@contextlib.contextmanager
def workers(address: str, name: str, count: int) -> Iterator[None]:
    """Run a process of so many workers that offer one tool ("hosted" or "idle")."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.tools", address, name, str(count)], cwd=REPOSITORY, env=os.environ
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def until_offered(address: str, name: str, within_seconds: float = 60.0) -> None:
    """Wait until a server offers a tool."""
    async with asyncio.timeout(within_seconds), agenttx.AsyncClient(address) as client:
        while name not in {offered.name async for offered in client.tools()}:  # noqa: ASYNC110 — a server is asked
            await asyncio.sleep(0.05)


def _main(address: str, name: str, count: int) -> None:
    offered: Any = {"hosted": hosted, "idle": idle}[name]

    async def serve() -> None:
        await asyncio.gather(*(Worker(address, tools=[offered]).serve() for _ in range(count)))

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
