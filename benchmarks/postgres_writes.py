"""Steps written durably to PostgreSQL beside the same to SQLite, by clients that wait for each answer.

Takes the address of an empty database on a server with ``fsync = on``::

    python -m benchmarks.postgres_writes postgresql://USER@HOST/NAME

Prints one JSON object: for each number of clients, and for PostgreSQL each number of writers, steps a
second, milliseconds to the answer, sets a COMMIT, and processor time of this process a step (PostgreSQL's
own comes on top). ``reads`` is milliseconds for one key of a transaction's state, for its revision,
and for all that a transaction of 20 steps is rebuilt from.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from agenttx_server.engine.ports import WriteSet
from agenttx_server.store import PostgresSettings, StoreSettings, open_store
from benchmarks.measuring import parser, report, summary
from benchmarks.store_writes import new_head, step_of, write_steps

CLIENTS = ((1, 300), (8, 150), (64, 60), (256, 20))
WRITERS = (1, 2, 4)
READS = 300
NUMBERS = itertools.count(10_000, 1000)


async def measure_writes(address: str, clients: int, steps: int, writers: int) -> dict[str, float]:
    settings = StoreSettings(postgres=PostgresSettings(writers=writers))
    async with open_store(address, settings) as store:
        # Connections are made and statements prepared before.
        await asyncio.gather(*(write_steps(store, next(NUMBERS), 3, 0.0, []) for _ in range(4 * writers)))
        first = next(NUMBERS)
        sets_before, commits_before = store.written
        waits: list[float] = []
        before, processor_before = time.perf_counter(), time.process_time()
        await asyncio.gather(
            *(write_steps(store, first + number, steps, 0.0, waits) for number in range(clients))
        )
        seconds, processor = time.perf_counter() - before, time.process_time() - processor_before
        sets, commits = store.written
    waits.sort()
    return {
        "steps_per_second": clients * steps / seconds,
        "processor_us_per_step": 1e6 * processor / (clients * steps),
        "sets_per_commit": (sets - sets_before) / (commits - commits_before),
        "p50_ms": statistics.median(waits),
        "p99_ms": waits[len(waits) * 99 // 100],
    }


async def measure_reads(address: str) -> dict[str, float]:
    async with open_store(address) as store:
        head = new_head(next(NUMBERS))
        await store.write(WriteSet(head, 0))
        for _ in range(20):
            head, step = step_of(head)
            await store.write(step)
        key = f"kv/{head.transaction_id[:12]}/3"
        return {
            "one key": await _median_ms(lambda: store.read_state(head.transaction_id, key, 30)),
            "revision": await _median_ms(lambda: store.load_revision(head.transaction_id)),
            "transaction": await _median_ms(lambda: store.load(head.transaction_id)),
        }


async def _median_ms(read: Callable[[], Awaitable[Any]]) -> float:
    waits = []
    for _ in range(READS):
        before = time.perf_counter()
        await read()
        waits.append(1000 * (time.perf_counter() - before))
    return statistics.median(waits)


def measure(postgres: str, folder: Path, quick: bool) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for clients, steps in CLIENTS:
        steps = max(1, steps // 10) if quick else steps
        with tempfile.TemporaryDirectory(dir=folder) as own:
            sqlite = f"sqlite:///{Path(own) / 'agenttx.db'}"
            found[f"{clients} clients, SQLite"] = uvloop.run(measure_writes(sqlite, clients, steps, 1))
        for writers in WRITERS:
            name = f"{clients} clients, PostgreSQL, {writers} writers"
            found[name] = uvloop.run(measure_writes(postgres, clients, steps, writers))
    with tempfile.TemporaryDirectory(dir=folder) as own:
        found["reads, SQLite"] = uvloop.run(measure_reads(f"sqlite:///{Path(own) / 'agenttx.db'}"))
    found["reads, PostgreSQL"] = uvloop.run(measure_reads(postgres))
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("address", help="an empty PostgreSQL database")
    arguments.add_argument(
        "--folder", type=Path, help="where to keep SQLite's files (default: a temporary one)"
    )
    given = arguments.parse_args()
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(1 if given.quick else given.repetitions):
        for name, measured in measure(given.address, given.folder, given.quick).items():
            runs.setdefault(name, []).append(measured)
    report(
        "postgres_writes",
        {
            name: {figure: summary([run[figure] for run in measured]) for figure in measured[0]}
            for name, measured in runs.items()
        },
    )


if __name__ == "__main__":
    main()
