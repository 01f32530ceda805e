"""Open transactions put into a database without a server, as many as are wanted."""

from __future__ import annotations

import asyncio
import time

from agenttx_server.engine.ports import WriteSet
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    CrashPolicy,
    EffectClass,
    EventRecord,
    EventType,
    Isolation,
    MicrosecondsUtc,
    Policy,
    ServerId,
    StateWrite,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
)
from agenttx_server.store import open_store

AT_ONCE = 256


def _attempt(step_id: int, state: AttemptState, now: MicrosecondsUtc) -> AttemptRecord:
    completed = state is AttemptState.COMPLETED
    return AttemptRecord(
        step_id,
        1,
        step_id,
        1,
        1,
        1,
        f"request-{step_id}",
        "0123456789abcdef" * 2,
        "kv.put",
        EffectClass.TRANSACTIONAL,
        state,
        f'{{"key":"key-{step_id}","value":"{"v" * 40}"}}',
        now,
        output=f'{{"key":"key-{step_id}","version":{step_id}}}' if completed else None,
        tries=1,
        response="{}" if completed else None,
    )


def _write_set(number: int, steps: int, *, executing: bool) -> WriteSet:
    """All of an open transaction in one write; its last step has no outcome if it is executing."""
    now = MicrosecondsUtc(time.time_ns() // 1000)
    attempts = [_attempt(step, AttemptState.COMPLETED, now) for step in range(1, steps + 1)]
    if executing:
        attempts.append(_attempt(steps + 1, AttemptState.EXECUTING, now))
    record = TransactionRecord(
        TransactionId(f"benchmark-{number:08d}"),
        "anonymous",
        "benchmark",
        (),
        Policy(),
        Isolation.READ_COMMITTED,
        CrashPolicy.RESUME,
        now,
        now,
        status=TransactionStatus.EXECUTING if executing else TransactionStatus.ACTIVE,
        next_step_id=steps + 1,
        furthest_step=steps,
        open_group=(steps + 1, 1) if executing else None,
        owner=ServerId("a server that died" if executing else ""),
        event_sequence=steps,
    )
    return WriteSet(
        record,
        0,
        attempts=attempts,
        state_writes=[StateWrite(step, 1, f"kv/{number}-{step}", '"v"') for step in range(1, steps + 1)],
        events=[EventRecord(step, EventType.STEP_COMPLETED, 1, now, step, 1) for step in range(1, steps + 1)],
    )


async def fill(url: str, count: int, *, steps: int, executing: bool = False) -> None:
    """Write so many open transactions of so many small steps; ``executing``: each in the middle of one more."""
    async with open_store(url) as store:
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            await asyncio.gather(
                *(store.write(_write_set(number, steps, executing=executing)) for number in numbers)
            )
