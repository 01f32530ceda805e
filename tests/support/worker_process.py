"""Workers as processes of their own, for tests that kill and stop them.

    with worker_process(address) as worker:
        worker.kill()

They offer the tools below. Outside effects are lines in a log file, as of tests.support.sample_tools; a call
that is held goes on once a file `<log>.go` exists.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.running_server import PYTHONPATH, REPOSITORY
from tests.support.sample_tools import log_line

from agenttx.worker import ToolCallContext, UndoContext, Worker, tool

WAIT_SECONDS = 120.0


async def _until_allowed(log: str) -> None:
    while not os.path.exists(f"{log}.go"):  # noqa: ASYNC110, ASYNC240 — the file is made by another process
        await asyncio.sleep(0.01)


@tool("p.read", effects="read_only", retries=5)
async def read(log: str, entry: str) -> str:
    """Log, wait, and return."""
    log_line(log, "begun", entry, "-")
    await _until_allowed(log)
    return entry


@tool("p.book", effects="compensatable")
async def book(ctx: ToolCallContext, log: str, entry: str) -> str:
    """Register the undo, log the effect, wait, and return."""
    await ctx.register_undo("p.unbook", log=log, entry=entry)
    log_line(log, "effect", entry, ctx.idempotency_key)
    await _until_allowed(log)
    return entry


@book.undo("p.unbook")
async def unbook(ctx: UndoContext, log: str, entry: str) -> None:
    """Log the undo."""
    log_line(log, "undo", entry, ctx.idempotency_key)


@tool("p.set", effects="idempotent")
async def set_outside(ctx: ToolCallContext, log: str, entry: str) -> str:
    """Log the effect, wait, and return."""
    log_line(log, "effect", entry, ctx.idempotency_key)
    await _until_allowed(log)
    return entry


@tool("p.send", effects="irreversible")
async def send(ctx: ToolCallContext, log: str, entry: str) -> str:
    """Log the effect, wait, and return."""
    log_line(log, "effect", entry, ctx.idempotency_key)
    await _until_allowed(log)
    return entry


@tool("p.who", effects="read_only")
async def who() -> int:
    """Return the worker's process."""
    await asyncio.sleep(0.02)
    return os.getpid()


@tool("p.hog", effects="compensatable")
async def hog(ctx: ToolCallContext, seconds: float) -> str:
    """Keep the event loop from everybody, which a coroutine must not do."""
    await ctx.touch("hog", writes=True)
    time.sleep(seconds)  # noqa: ASYNC251
    return "done"


@tool("p.node", effects="transactional", restartable=True, timeout_seconds=60)
async def node(ctx: ToolCallContext, log: str, calls: list[Any]) -> list[Any]:
    """Make calls, [tool, arguments] each, with a wait behind the first two."""
    outputs = []
    for number, (tool_name, arguments) in enumerate(calls):
        if number == 2:
            log_line(log, "waits", "node", "-")
            await _until_allowed(log)
        outputs.append(await ctx.step(tool_name, arguments))
    return outputs


TOOLS = [read, book, set_outside, send, who, hog, node]


@dataclass
class WorkerProcess:
    """A worker in a process of its own."""

    process: subprocess.Popen[str]

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Stop it where it is."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)


@contextmanager
def worker_process(address: str) -> Iterator[WorkerProcess]:
    """Start a worker; it connects by itself. It is killed on leaving."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.worker_process", address],
        cwd=REPOSITORY,
        text=True,
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
    )
    worker = WorkerProcess(process)
    try:
        yield worker
    finally:
        worker.resume()
        worker.kill()


async def until(condition: Any) -> None:
    """Wait for something that other processes bring about."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


def allow(log: Path) -> None:
    """Let held calls go on."""
    Path(f"{log}.go").touch()


if __name__ == "__main__":
    Worker(sys.argv[1], tools=TOOLS, concurrency=4).run()
