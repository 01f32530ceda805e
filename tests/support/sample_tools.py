"""Tools of every effect class and temper, for tests: `--tools tests.support.sample_tools`.

Outside effects are lines in a log file that the caller names; one line an effect, `<what> <entry> <key>`,
where <key> is the idempotency key, so that a test reads what happened outside, in which order and under which key:

    effect booking-1 <key>      a compensatable, idempotent or irreversible effect
    undo booking-1 <key>        its undo
"""

import asyncio
import collections
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from agenttx_server.tools import (
    BlockingToolCallContext,
    OutcomeUnknown,
    ToolCallContext,
    ToolFailure,
    UndoContext,
    tool,
)

POLL_SECONDS = 0.01


def log_line(log: str, what: str, entry: str, key: str) -> None:
    """Append one line, at once and whole: O_APPEND writes of one line do not mix."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{what} {entry} {key}\n".encode())
    finally:
        os.close(descriptor)


def read_log(log: str | Path) -> list[str]:
    """The `<what> <entry>` of every line, in order; empty if nothing happened."""
    path = Path(log)
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.rpartition(" ")[0] for line in lines]


def read_keys(log: str | Path) -> list[str]:
    """The idempotency key of every line, in order."""
    path = Path(log)
    return [line.rpartition(" ")[2] for line in path.read_text().splitlines()] if path.exists() else []


def _exists(path: str) -> bool:
    return os.path.exists(path)


# --- without effects ---------------------------------------------------------------------


@tool("sample.echo", effects="read_only")
async def echo(value: Any) -> Any:
    """Return the value as it is."""
    return value


@tool("sample.facts", effects="read_only")
async def facts(ctx: ToolCallContext) -> dict[str, Any]:
    """Return what the context says of the call."""
    return {
        "transaction_id": ctx.transaction_id,
        "agent_id": ctx.agent_id,
        "step_id": ctx.step_id,
        "attempt": ctx.attempt,
        "idempotency_key": ctx.idempotency_key,
        "fence": ctx.fence,
        "has_time_left": ctx.seconds_left > 0,
    }


@tool("sample.typed", effects="read_only")
async def typed(count: int, name: str, ratio: float = 1.0, tags: list[str] | None = None) -> dict[str, Any]:
    """Take arguments of several types."""
    return {"count": count, "name": name, "ratio": ratio, "tags": tags}


@tool("sample.large", effects="read_only")
async def large(size: int) -> dict[str, str]:
    """Return a text of so many bytes."""
    return {"text": "x" * size}


@tool("sample.slow", effects="read_only")
async def slow(seconds: float, value: Any = None) -> Any:
    """Return the value after a while, without blocking."""
    await asyncio.sleep(seconds)
    return value


@tool("sample.block", effects="read_only")
def block(seconds: float, value: Any = None) -> Any:
    """Return the value after a while, blocking a thread and deaf to cancellation."""
    time.sleep(seconds)
    return value


@tool("sample.block_politely", effects="read_only")
def block_politely(ctx: BlockingToolCallContext, seconds: float) -> dict[str, bool]:
    """Block a thread, but stop when asked to."""
    return {"stopped": ctx.wait_cancelled(seconds)}


@tool("sample.wait_for_file", effects="read_only", timeout_seconds=60)
async def wait_for_file(path: str, value: Any = None) -> Any:
    """Return the value once a file exists: a test decides when."""
    while not _exists(path):  # noqa: ASYNC110 — the file is made by another process
        await asyncio.sleep(POLL_SECONDS)
    return value


@tool("sample.subprocess", effects="read_only", timeout_seconds=60)
def run_subprocess(text: str) -> dict[str, Any]:
    """Start a program and return what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", f"print({text!r})"], capture_output=True, text=True, check=True
    )
    return {"printed": ended.stdout.strip()}


@tool("sample.multiprocessing", effects="read_only", timeout_seconds=60)
def run_multiprocessing(number: int, method: str = "spawn") -> dict[str, Any]:
    """Square a number in a process made by fork or spawn."""
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=square, args=(number, answers))
    process.start()
    process.join(20)
    process.join(
        1
    )  # another thread that starts a process may collect its end first, and this one is told it has none
    if process.exitcode != 0:  # None: it hangs, as forked processes may
        process.kill()
        raise ToolFailure("unknown", f"the {method}ed process ended with {process.exitcode}")
    return {"square": answers.get()}


def square(number: int, answers: Any) -> None:
    """What the process does."""
    answers.put(number * number)


# --- failing -----------------------------------------------------------------------------


@tool("sample.fail", effects="read_only")
async def fail(message: str, category: str | None = None, keys: list[str] | None = None) -> None:
    """Fail with a text as any exception, or with a category as a structured failure."""
    if category is None:
        raise RuntimeError(message)
    raise ToolFailure(category, message, keys or [])


@tool("sample.fail_blocking", effects="read_only")
def fail_blocking(message: str) -> None:
    """Fail with a text, in a thread."""
    raise RuntimeError(message)


@tool("sample.exit", effects="read_only")
async def exit_process(code: int = 3) -> None:
    """Try to end the server."""
    sys.exit(code)


@tool("sample.cancel_itself", effects="read_only")
async def cancel_itself() -> None:
    """Raise CancelledError, as a tool does that cancels a task of its own."""
    raise asyncio.CancelledError


@tool("sample.unserialisable", effects="read_only")
async def unserialisable() -> Any:
    """Return what is no JSON."""
    return {"lock": threading.Lock()}


@tool("sample.not_a_number", effects="read_only")
async def not_a_number() -> Any:
    """Return NaN inside an object."""
    return {"a": [1.0, float("nan")]}


_failures_so_far: collections.Counter[str] = collections.Counter()


@tool("sample.flaky", effects="read_only", retries=3)
async def flaky(name: str, failures: int, category: str = "timeout") -> dict[str, int]:
    """Fail the first so many calls under a name, then succeed; repeated in place."""
    return _fail_first(name, failures, category)


@tool("sample.flaky_once_each", effects="read_only")
async def flaky_once_each(name: str, failures: int, category: str = "unknown") -> dict[str, int]:
    """Fail the first so many calls under a name, then succeed; not repeated in place."""
    return _fail_first(name, failures, category)


def _fail_first(name: str, failures: int, category: str) -> dict[str, int]:
    if _failures_so_far[name] < failures:
        _failures_so_far[name] += 1
        raise ToolFailure(category, f"failure {_failures_so_far[name]} of {failures} of {name}")
    return {"failures": _failures_so_far.pop(name, 0)}


# --- transactional -----------------------------------------------------------------------


@tool("sample.inc", effects="transactional")
async def inc(ctx: ToolCallContext, key: str = "counter", by: int = 1) -> dict[str, Any]:
    """Add to a number in state."""
    number = await ctx.store.get(key, 0) + by
    await ctx.store.put(key, number)
    return {"key": key, "number": number}


@tool("sample.inc_blocking", effects="transactional")
def inc_blocking(ctx: BlockingToolCallContext, key: str = "counter", by: int = 1) -> dict[str, Any]:
    """Add to a number in state, from a thread."""
    number = ctx.store.get(key, 0) + by
    ctx.store.put(key, number)
    return {"key": key, "number": number}


@tool("sample.write_then_fail", effects="transactional")
async def write_then_fail(ctx: ToolCallContext, key: str, value: Any, message: str) -> None:
    """Write state, stage an effect and fail: nothing of it may stay."""
    await ctx.store.put(key, value)
    await ctx.stage_effect("sample", {"key": key})
    raise RuntimeError(message)


@tool("sample.slow_inc", effects="transactional")
async def slow_inc(ctx: ToolCallContext, seconds: float, key: str = "counter") -> dict[str, Any]:
    """Add one to a number in state after a while: after its deadline the write is refused."""
    await asyncio.sleep(seconds)
    number = await ctx.store.get(key, 0) + 1
    await ctx.store.put(key, number)
    return {"key": key, "number": number}


# --- with outside effects ----------------------------------------------------------------


@tool("sample.book", effects="compensatable")
async def book(
    ctx: ToolCallContext, log: str, entry: str, seconds: float = 0.0, message: str | None = None
) -> dict[str, str]:
    """Register the undo, log the effect, wait, and fail if a message is given."""
    await ctx.register_undo("sample.unbook", log=log, entry=entry)
    log_line(log, "effect", entry, ctx.idempotency_key)
    await asyncio.sleep(seconds)
    if message is not None:
        raise RuntimeError(message)
    return {"booking_id": entry}


@book.undo("sample.unbook")
async def unbook(ctx: UndoContext, log: str, entry: str) -> None:
    """Log the undo; fails as long as the file `<log>.broken` exists, or `<log>.broken.<entry>`.

    Waits, and logs that it does, as long as the file `<log>.held.<entry>` exists.
    """
    if _exists(f"{log}.held.{entry}"):
        log_line(log, "held", entry, ctx.idempotency_key)
        while _exists(f"{log}.held.{entry}"):  # noqa: ASYNC110 — what lifts it is another process
            await asyncio.sleep(POLL_SECONDS)
    if _exists(f"{log}.broken.{entry}"):
        raise ConnectionError(f"the booking service does not know {entry}")
    if _exists(f"{log}.broken"):
        raise ConnectionError(f"the booking service is down, {entry} stays booked")
    log_line(log, "undo", entry, ctx.idempotency_key)


@tool("sample.book_blocking", effects="compensatable")
def book_blocking(ctx: BlockingToolCallContext, log: str, entry: str, seconds: float = 0.0) -> dict[str, str]:
    """The same from a thread; deaf to cancellation, and the effect comes after the wait."""
    ctx.register_undo("sample.unbook_blocking", log=log, entry=entry)
    time.sleep(seconds)
    log_line(log, "effect", entry, ctx.idempotency_key)
    return {"booking_id": entry}


@book_blocking.undo("sample.unbook_blocking")
def unbook_blocking(ctx: UndoContext, log: str, entry: str) -> None:
    """Log the undo, from a thread."""
    log_line(log, "undo", entry, ctx.idempotency_key)


@tool("sample.set", effects="idempotent")
async def set_outside(
    ctx: ToolCallContext, log: str, entry: str, seconds: float = 0.0, message: str | None = None
) -> dict[str, str]:
    """Log an effect that may be repeated under its key, wait, and fail if a message is given."""
    log_line(log, "effect", entry, ctx.idempotency_key)
    await asyncio.sleep(seconds)
    if message is not None:
        raise RuntimeError(message)
    return {"entry": entry}


@tool("sample.send", effects="irreversible")
async def send(
    ctx: ToolCallContext, log: str, entry: str, seconds: float = 0.0, message: str | None = None
) -> dict[str, str]:
    """Log an effect that nothing takes back, wait, and fail if a message is given."""
    log_line(log, "effect", entry, ctx.idempotency_key)
    await asyncio.sleep(seconds)
    if message is not None:
        raise RuntimeError(message)
    return {"message_id": entry}


@tool("sample.send_with_undo", effects="irreversible")
async def send_with_undo(ctx: ToolCallContext, log: str, entry: str) -> dict[str, str]:
    """An irreversible effect that registers an undo all the same (a recall)."""
    await ctx.register_undo("sample.recall", log=log, entry=entry)
    log_line(log, "effect", entry, ctx.idempotency_key)
    return {"message_id": entry}


@send_with_undo.undo("sample.recall")
async def recall(ctx: UndoContext, log: str, entry: str) -> None:
    """Log the recall."""
    log_line(log, "undo", entry, ctx.idempotency_key)


@tool("sample.lose_outcome", effects="irreversible")
async def lose_outcome(ctx: ToolCallContext, log: str, entry: str) -> None:
    """Log an effect, then say that it is not known whether it happened."""
    log_line(log, "effect", entry, ctx.idempotency_key)
    raise OutcomeUnknown("the connection broke before the answer came")


@tool("sample.lose_outcome_idempotent", effects="idempotent")
async def lose_outcome_idempotent(ctx: ToolCallContext, log: str, entry: str) -> None:
    """The same for an effect that may be repeated."""
    log_line(log, "effect", entry, ctx.idempotency_key)
    raise OutcomeUnknown("the connection broke before the answer came")
