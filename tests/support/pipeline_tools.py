"""Tools of pipelines that tests run on a real engine. What they do is told to the file that `PIPELINE_LOG` names, if any."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from agenttx_server.tools import ToolCallContext, ToolFailure, tool

GATE: asyncio.Event | None = None
"""What `pipe.gated` waits for, in the process that sets it."""
ON_WHOLE_FILE: Callable[[], None] | None = None
"""What `pipe.whole_file` calls, in the process that sets it."""
_begun = 0


async def started(count: int) -> None:
    """Wait until `pipe.gated` was called so often since it was asked first."""
    while _begun < count:  # noqa: ASYNC110 - a tool has no event to tell it by
        await asyncio.sleep(0.01)


def note(what: str, number: Any) -> None:
    path = os.environ.get("PIPELINE_LOG")
    if path:
        with open(path, "a") as log:
            log.write(f"{what} {number}\n")
            log.flush()
            os.fsync(log.fileno())


@tool("pipe.keep", effects="read_only")
async def keep(n: Any) -> dict[str, Any]:
    """Answer what it was given; n < 0 fails."""
    note("keep", n)
    if isinstance(n, int) and n < 0:
        raise ToolFailure("invalid_value", f"n is {n}, below 0")
    return {"n": n}


@tool("pipe.chunk", effects="read_only")
async def chunk(n: int) -> list[dict[str, int]]:
    """Three rows."""
    note("chunk", n)
    return [{"n": 10 * n + index} for index in range(3)]


@tool("pipe.book", effects="compensatable")
async def book(ctx: ToolCallContext, n: int) -> dict[str, int]:
    """Book and be undone by unbook."""
    await ctx.register_undo("pipe.unbook", n=n)
    note("book", n)
    return {"booked": n}


@book.undo("pipe.unbook")
async def unbook(n: int) -> None:
    note("unbook", n)


@tool("pipe.count", effects="transactional")
async def count(ctx: ToolCallContext, n: int) -> dict[str, Any]:
    """Write a key of the transaction that siblings write too."""
    before = int((await ctx.store.get("count")) or 0)
    await ctx.store.put("count", before + 1)
    return {"before": before, "n": n}


@tool("pipe.told", effects="read_only")
async def told(ctx: ToolCallContext, n: int) -> dict[str, Any]:
    """What the action says of itself."""
    return {"told": ctx.metadata}


@tool("pipe.total", effects="read_only")
async def total(records: list[dict[str, Any]]) -> dict[str, int]:
    """How many there are."""
    return {"count": len(records)}


@tool("pipe.first", effects="read_only")
async def first(records: list[dict[str, Any]]) -> dict[str, Any]:
    """A FILE tool that keeps the first record and sums the rest up."""
    return {
        "records": [
            {"source_index": 0, "data": {"kept": True}},
            {"source_index": None, "data": {"all": len(records)}},
        ]
    }


@tool("pipe.send", effects="irreversible")
async def send(n: int) -> dict[str, int]:
    """What can't be undone."""
    note("send", n)
    return {"sent": n}


_failed: set[tuple[str, int]] = set()


@tool("pipe.flaky", effects="read_only")
async def flaky(ctx: ToolCallContext, n: int) -> dict[str, int]:
    """Fails the first time in a transaction, for the value it was given."""
    key = (ctx.transaction_id, n)
    if key not in _failed:
        _failed.add(key)
        raise ToolFailure("invalid_value", f"n is {n}, which is not right yet", ["n"])
    return {"n": n}


@tool("pipe.split", effects="read_only")
async def split(n: int) -> list[dict[str, Any]]:
    """Five rows, two of them equal."""
    return [{"text": text} for text in ("a", "b", "same", "same", "e")]


@tool("pipe.dedupe", effects="read_only")
async def dedupe(records: list[dict[str, Any]]) -> dict[str, Any]:
    """A FILE tool that keeps the first of equal records, drops the others, and adds a summary."""
    seen: dict[str, int] = {}
    for record in records:
        seen.setdefault(record["data"]["chunk"]["text"], record["source_index"])
    kept = [{"source_index": index, "data": {"text": text}} for text, index in seen.items()]
    return {"records": [*kept, {"source_index": None, "data": {"distinct": len(seen)}}]}


@tool("pipe.gated", effects="read_only")
async def gated(n: int) -> dict[str, int]:
    """Answers when the gate is open."""
    global _begun
    _begun += 1
    if GATE is not None:
        await GATE.wait()
    return {"n": n}


@tool("pipe.slow_book", effects="compensatable")
async def slow_book(ctx: ToolCallContext, n: int) -> dict[str, int]:
    """As pipe.book, and long enough at it to be killed."""
    await ctx.register_undo("pipe.slow_unbook", n=n)
    await asyncio.sleep(0.02)
    note("book", n)
    return {"booked": n}


@slow_book.undo("pipe.slow_unbook")
async def slow_unbook(n: int) -> None:
    note("unbook", n)


@tool("pipe.keep_all", effects="read_only")
async def keep_all(records: list[dict[str, Any]]) -> dict[str, Any]:
    """A FILE tool that keeps every record."""
    note("keep_all", len(records))
    return {"records": [{"source_index": index, "data": {"kept": index}} for index in range(len(records))]}


@tool("pipe.many", effects="read_only", emits_records=True)
async def many(n: int) -> dict[str, Any]:
    """Two rows, or none for 0; each is a record of its own."""
    return {"records": [{"n": 10 * n + index} for index in range(2 if n else 0)]}


@tool("pipe.join", effects="read_only")
async def join(one: Any, others: list[Any]) -> dict[str, Any]:
    """Takes outputs of several steps."""
    return {"one": one, "count": len(others)}


@tool("pipe.whole_file", effects="read_only")
async def whole_file(records: list[dict[str, Any]]) -> dict[str, Any]:
    """A FILE tool that says of each record how many it came with; it fails where one of them is 1."""
    if ON_WHOLE_FILE is not None:
        ON_WHOLE_FILE()
    elif any(record["data"]["a"]["n"] == 1 for record in records):
        raise ToolFailure("invalid_value", "n is 1")
    return {"records": [{"source_index": i, "data": {"of": len(records)}} for i in range(len(records))]}
