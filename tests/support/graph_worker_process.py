"""A worker that hosts a graph's functions, as a process of its own, for tests that kill it.

Run as ``python -m tests.support.graph_worker_process ADDRESS``. What its tool does outside are lines in the log file that
the run's state names; the node waits behind its second step until a file `<log>.go` exists.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.running_server import PYTHONPATH, REPOSITORY
from tests.support.sample_tools import log_line

from agenttx import START, GraphBuilder
from agenttx.worker import ToolCallContext, UndoContext, Worker, tool

__all__ = ["TRIP", "WAITING", "graph_worker"]

WAITING = "waits"


@tool("g.book", effects="compensatable")
async def book(ctx: ToolCallContext, log: str, entry: str) -> str:
    """Register the undo, then log the effect."""
    await ctx.register_undo("g.unbook", log=log, entry=entry)
    log_line(log, "effect", entry, ctx.idempotency_key)
    return entry


@book.undo("g.unbook")
async def unbook(ctx: UndoContext, log: str, entry: str) -> None:
    """Log the undo."""
    log_line(log, "undo", entry, ctx.idempotency_key)


def agent(state: Any, ctx: Any) -> Any:
    """Book twice, wait, book once more."""
    log = state["log"]
    log_line(log, "begun", "agent", "-")
    for entry in ("seat", "meal"):
        ctx.step("g.book", {"log": log, "entry": entry})
    log_line(log, WAITING, "agent", "-")
    while not os.path.exists(f"{log}.go"):
        ctx.wait_cancelled(0.01)
    return {"booked": [ctx.step("g.book", {"log": log, "entry": "bag"})]}


def last(state: Any) -> Any:
    """Say that the run got here."""
    log_line(state["log"], "begun", "last", "-")
    return {"booked": ["last"]}


TRIP = (
    GraphBuilder("trip")
    .channel("log")
    .channel("booked", reducer="append")
    .node("agent", agent)
    .node("last", last)
    .edge(START, "agent")
    .edge("agent", "last")
)


@contextmanager
def graph_worker(address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker; it is killed on leaving."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.graph_worker_process", address],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    Worker(sys.argv[1], tools=[book], graphs=[TRIP]).run()
