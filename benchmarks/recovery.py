"""What many open transactions cost: the start over them, memory, and more of them than the cache holds.

- start: a server over a database with N open transactions of 20 steps, from the start of the process until it
  says that it serves; all of them idle, and all of them found in the middle of a step. Beside an
  empty database, in turns.
- memory: what a transaction of 20 small steps takes in the cache.
- many: far more open transactions than the cache holds, each used twice.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from pathlib import Path
from typing import Any

import grpc.aio

from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc
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
from agenttx_server.engine.transaction import Transaction
from agenttx_server.store import open_store
from benchmarks import measuring
from benchmarks.servers import scratch_directory, server
from benchmarks.step_throughput import step_request

STEPS = 20
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


def _write_set(number: int, *, executing: bool) -> WriteSet:
    """All of an open transaction in one write; its last step has no outcome if it is executing."""
    now = MicrosecondsUtc(time.time_ns() // 1000)
    attempts = [_attempt(step, AttemptState.COMPLETED, now) for step in range(1, STEPS + 1)]
    if executing:
        attempts.append(_attempt(STEPS + 1, AttemptState.EXECUTING, now))
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
        next_step_id=STEPS + 1,
        furthest_step=STEPS,
        open_group=(STEPS + 1, 1) if executing else None,
        owner=ServerId("a server that died" if executing else ""),
        event_sequence=STEPS,
    )
    return WriteSet(
        record,
        0,
        attempts=attempts,
        state_writes=[StateWrite(step, 1, f"kv/{number}-{step}", '"v"') for step in range(1, STEPS + 1)],
        events=[EventRecord(step, EventType.STEP_COMPLETED, 1, now, step, 1) for step in range(1, STEPS + 1)],
    )


async def _fill(path: Path, count: int, *, executing: bool) -> None:
    async with open_store(f"sqlite:///{path / 'agenttx.db'}") as store:
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            await asyncio.gather(
                *(store.write(_write_set(number, executing=executing)) for number in numbers)
            )


def _start_seconds(directory: Path, kind: str) -> float:
    home = directory / kind
    home.mkdir(exist_ok=True)
    before = time.perf_counter()
    with server("agenttx", home):
        return time.perf_counter() - before


def _starts(directory: Path, count: int, repetitions: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"empty": [], "idle": [], "executing": []}
    for repetition in range(repetitions):
        for kind, found in seconds.items():
            place = directory / f"start-{repetition}"
            home = place / kind / "agenttx"
            home.mkdir(parents=True)
            if kind != "empty":
                asyncio.run(_fill(home, count, executing=kind == "executing"))
            found.append(_start_seconds(place, kind))
    medians = {kind: statistics.median(found) for kind, found in seconds.items()}
    return {
        "open_transactions": count,
        "steps_each": STEPS,
        "seconds_to_serving": {kind: round(value, 2) for kind, value in medians.items()},
        "longest": {kind: round(max(found), 2) for kind, found in seconds.items()},
    }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def _memory(directory: Path, count: int) -> dict[str, Any]:
    home = directory / "memory"
    home.mkdir()
    await _fill(home, count, executing=False)
    async with open_store(f"sqlite:///{home / 'agenttx.db'}") as store:

        async def load(number: int) -> Transaction:
            stored = await store.load(TransactionId(f"benchmark-{number:08d}"))
            assert stored is not None
            return Transaction.rebuild(stored)

        kept = [await load(number) for number in range(count // 10)]  # pools and caches of the process itself
        gc.collect()
        before = _resident_bytes()
        more = [await load(number) for number in range(count // 10, count)]
        gc.collect()
        grown = _resident_bytes() - before
        return {"kib_a_cached_transaction": round(grown / len(more) / 1024, 1), "counted": len(kept + more)}


def _process_memory(address: str) -> int:
    """Resident bytes of the process that listens on an address."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    inodes = {
        line.split()[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[1].endswith(port) and line.split()[3] == "0A"
    }
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = {link.readlink().name for link in (process / "fd").iterdir()}
        except OSError:
            continue
        if any(f"socket:[{inode}]" in links for inode in inodes):
            return int((process / "statm").read_text().split()[1]) * 4096
    return 0


async def _many(directory: Path, count: int, cached: int) -> dict[str, Any]:
    with server("agenttx", directory, cached_transactions=str(cached)) as address:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = transaction_pb2_grpc.AgentTxServiceStub(channel)
            at_start = _process_memory(address)
            gate = asyncio.Semaphore(64)

            async def open_one(number: int) -> str:
                async with gate:
                    begun = await stub.BeginTransaction(pb.BeginTransactionRequest(agent_id=f"a-{number}"))
                    await stub.ExecuteStep(step_request(begun.transaction_id, 1, 1))
                    return str(begun.transaction_id)

            async def go_on(transaction_id: str) -> float:
                async with gate:
                    before = time.perf_counter()
                    answer = await stub.ExecuteStep(step_request(transaction_id, 2, 1))
                    assert answer.status == pb.STEP_STATUS_SUCCESS
                    return time.perf_counter() - before

            ids = list(await asyncio.gather(*(open_one(number) for number in range(count))))
            opened = _process_memory(address)
            random.Random(1).shuffle(ids)
            seconds = await asyncio.gather(*(go_on(transaction_id) for transaction_id in ids))
            return {
                "open_transactions": count,
                "cached": cached,
                "resident_mib": {
                    "start": at_start >> 20,
                    "all opened": opened >> 20,
                    "all used again, at random": _process_memory(address) >> 20,
                },
                "milliseconds_a_step_with_64_in_flight": round(statistics.median(seconds) * 1000, 1),
            }


def main() -> None:
    arguments = measuring.parser(__doc__).parse_args()
    quick = arguments.quick
    count, repetitions, many = (500, 1, 1_000) if quick else (10_000, min(arguments.repetitions, 3), 50_000)
    with scratch_directory() as directory:
        results = {
            "starts": _starts(directory, count, repetitions),
            "memory": asyncio.run(_memory(directory, 500 if quick else 4_000)),
            "many": asyncio.run(_many(directory, many, 200 if quick else 4_096)),
        }
    measuring.report("recovery", results)


if __name__ == "__main__":
    main()
