"""Tools of all five effect classes for tests that kill the server: `--tools tests.support.crash_tools`.

The outside world is one log, named by `CRASH_WORLD_LOG`: a JSON line for each effect and each undo, appended and
fsynced, with the transaction, step, attempt, key and process. So a test knows what really happened, in which order,
whatever the server believes. `entry` names a request; the tests make up a new one for each.

State and staged effects of a step are its arguments, so that a model can fold them: `puts` maps keys of the transaction's
own to values (null deletes), `stage` lists pairs of channel and payload, `counter` is a key that transactions share.

In a worker (tests.support.crash_worker) a call may be given up while its tool goes on. So there the world is one that
refuses what comes too late: before an effect the tool notes how long the log is (`seen`), then asks its server
whether the call still counts, and the line says what was noted. If between that place and the line itself there is a line
that calls the effect off (its undo, or a person's `called_off`), it never happened. Whoever reads the log has to
leave such lines out, as tests.crash.world does; nothing else can tell, since a process may be stopped between any two lines.
"""

from __future__ import annotations

import asyncio
import collections
import json
import multiprocessing
import os
import subprocess
import time
from typing import Any

from agenttx_server.tools import OutcomeUnknown, ToolCallContext, ToolFailure, UndoContext, tool

__all__ = ["LOG_VARIABLE", "REFUSES_LATE_VARIABLE", "log_line"]

LOG_VARIABLE = "CRASH_WORLD_LOG"
REFUSES_LATE_VARIABLE = "CRASH_WORLD_REFUSES_LATE"
_tries: collections.Counter[str] = collections.Counter()


def log_line(ctx: Any, what: str, entry: str, seen: int | None = None) -> None:
    """Append one line, whole and durable."""
    line = {
        "what": what,
        "transaction": ctx.transaction_id,
        "step": ctx.step_id,
        "attempt": ctx.attempt,
        "key": ctx.idempotency_key,
        "entry": entry,
        "pid": os.getpid(),
    }
    if seen is not None:
        line["seen"] = seen
    descriptor = os.open(os.environ[LOG_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _place_in_log() -> int | None:
    """Return how long the log is where the world refuses late effects, else None."""
    if not os.environ.get(REFUSES_LATE_VARIABLE):
        return None
    try:
        return os.stat(os.environ[LOG_VARIABLE]).st_size
    except FileNotFoundError:
        return 0


async def _about_to_act(ctx: ToolCallContext, entry: str) -> int | None:
    """Return what an effect's line says that it has seen; raise ContextClosed if the call has been given up."""
    seen = _place_in_log()
    if seen is not None:
        await ctx.touch(f"entry/{entry}", writes=True)
    return seen


def _fail(message: str | None, keys: list[str] | None) -> None:
    if message is not None:
        raise ToolFailure("foreign_key_violation" if keys else "unknown", message, keys or [])


async def _within(
    ctx: ToolCallContext, puts: dict[str, Any] | None, stage: list[Any] | None
) -> dict[str, Any]:
    """Write state and stage effects; return what stood under the keys before."""
    before = {}
    for key, value in (puts or {}).items():
        before[key] = await ctx.store.get(key)
        if value is None:
            await ctx.store.delete(key)
        else:
            await ctx.store.put(key, value)
    for channel, payload in stage or []:
        await ctx.stage_effect(channel, payload)
    return before


@tool("crash.look", effects="read_only")
async def look(
    ctx: ToolCallContext,
    entry: str,
    keys: list[str] | None = None,
    ref: Any = None,
    seconds: float = 0.0,
    fail: str | None = None,
    fail_keys: list[str] | None = None,
) -> dict[str, Any]:
    """Read keys; wait; fail if told to."""
    found = {key: await ctx.store.get(key) for key in keys or []}
    await asyncio.sleep(seconds)
    _fail(fail, fail_keys)
    return {"entry": entry, "found": found}


@tool("crash.write", effects="transactional")
async def write(
    ctx: ToolCallContext,
    entry: str,
    puts: dict[str, Any] | None = None,
    stage: list[Any] | None = None,
    counter: str | None = None,
    ref: Any = None,
    seconds: float = 0.0,
    fail: str | None = None,
    fail_keys: list[str] | None = None,
) -> dict[str, Any]:
    """Write state and stage effects, nothing else."""
    before = await _within(ctx, puts, stage)
    if counter is not None:
        await ctx.store.put(counter, await ctx.store.get(counter, 0) + 1)
    await asyncio.sleep(seconds)
    _fail(fail, fail_keys)
    return {"entry": entry, "before": before}


@tool("crash.set", effects="idempotent")
async def set_outside(
    ctx: ToolCallContext,
    entry: str,
    puts: dict[str, Any] | None = None,
    stage: list[Any] | None = None,
    ref: Any = None,
    seconds: float = 0.0,
    fail: str | None = None,
    fail_keys: list[str] | None = None,
    unknown: int = 0,
) -> dict[str, Any]:
    """An effect that may be repeated under its key; the first `unknown` calls of a process don't know what became of it."""
    _fail(fail, fail_keys)
    seen = await _about_to_act(ctx, entry)
    await asyncio.sleep(seconds / 2)
    log_line(ctx, "effect", entry, seen)
    await asyncio.sleep(seconds / 2)
    _tries[entry] += 1
    if _tries[entry] <= unknown:
        raise OutcomeUnknown("the connection broke before the answer came")
    return {"entry": entry, "before": await _within(ctx, puts, stage)}


@tool("crash.book", effects="compensatable")
async def book(
    ctx: ToolCallContext,
    entry: str,
    puts: dict[str, Any] | None = None,
    stage: list[Any] | None = None,
    ref: Any = None,
    seconds: float = 0.0,
    fail: str | None = None,
    fail_keys: list[str] | None = None,
    unknown: bool = False,
    undo_failures: int = 0,
) -> dict[str, Any]:
    """An effect whose undo is registered before it, and which fails, where it does, after it."""
    seen = _place_in_log()
    await ctx.register_undo("crash.unbook", entry=entry, failures=undo_failures)
    await asyncio.sleep(seconds / 2)
    log_line(ctx, "effect", entry, seen)
    await asyncio.sleep(seconds / 2)
    before = await _within(ctx, puts, stage)
    if unknown:
        raise OutcomeUnknown("the connection broke before the answer came")
    _fail(fail, fail_keys)
    return {"entry": entry, "before": before}


@book.undo("crash.unbook")
async def unbook(ctx: UndoContext, entry: str, failures: int) -> None:
    """Take an effect back; the first so many tries of a process fail."""
    name = f"undo {ctx.transaction_id} {ctx.step_id} {ctx.attempt}"
    _tries[name] += 1
    if _tries[name] <= failures:
        log_line(ctx, "undo_failed", entry)
        raise RuntimeError("the other side is down")
    await asyncio.sleep(0.002)
    log_line(ctx, "undo", entry)


@tool("crash.send", effects="irreversible")
async def send(
    ctx: ToolCallContext,
    entry: str,
    ref: Any = None,
    seconds: float = 0.0,
    fail: str | None = None,
    fail_keys: list[str] | None = None,
    unknown: str | None = None,
) -> dict[str, Any]:
    """An effect that nothing takes back; it fails before, and may not know ("before" or "after") whether it happened."""
    _fail(fail, fail_keys)
    seen = await _about_to_act(ctx, entry)
    await asyncio.sleep(seconds / 2)
    if unknown == "before" and not _tries[entry]:
        _tries[entry] += 1
        raise OutcomeUnknown("the connection broke before anything was sent")
    log_line(ctx, "effect", entry, seen)
    await asyncio.sleep(seconds / 2)
    if unknown == "after":
        raise OutcomeUnknown("the connection broke before the answer came")
    return {"entry": entry}


@tool("crash.leave_child", effects="read_only")
def leave_child(entry: str, method: str, seconds: float) -> dict[str, Any]:
    """Leave a process behind that outlives the call, as a program of its own or as a fork; return its id."""
    if method == "fork":
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(seconds,))
        child.start()
        return {"entry": entry, "pid": child.pid}
    return {"entry": entry, "pid": subprocess.Popen(["sleep", str(seconds)]).pid}
