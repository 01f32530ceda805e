"""What many open transactions cost: 64 hot ones among 100,000, a start over them, and memory.

- width: steps of 64 transactions on a server where 100,000 others are open and wait, beside one where 100 are, in turns;
- start: from the start of the process until it serves, over the two databases, in turns;
- memory: what a transaction of 20 small steps takes in the cache, made by steps and read from the database;
- many: more open transactions than the cache holds, each used twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agenttx_server.engine.records import TransactionId
from agenttx_server.engine.requests import BeginRequest, RollbackRequest, StepStatus
from agenttx_server.engine.transaction import Transaction
from agenttx_server.store import open_store
from benchmarks.agents import CHANNEL_OPTIONS, Agent, crew, run, step_request
from benchmarks.filling import fill
from benchmarks.measuring import (
    Budget,
    Findings,
    Summary,
    Table,
    Target,
    progress,
    ratios,
    run_topic,
    summary,
)
from benchmarks.servers import scratch_directory, server, server_process

HOT = 64
FEW = 100
STEPS = 20
KIB = 1 << 10
MIB = 1 << 20
IN_FLIGHT = 64
WARM_ROUNDS = 3
LARGE_BYTES = 500_000


def resident_bytes(process: int | str = "self") -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


# --- width and start ------------------------------------------------------------------------------


async def _width(addresses: dict[int, str], budget: Budget) -> dict[int, list[dict[str, float]]]:
    found: dict[int, list[dict[str, float]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        crews = {
            count: await stack.enter_async_context(crew(address, HOT)) for count, address in addresses.items()
        }
        for round_ in range(budget.repetitions + 1):
            for count, agents in crews.items():
                one = await agents.window(HOT, budget.seconds * 3)
                if round_:  # the first one warms up
                    found.setdefault(count, []).append(
                        {
                            "per_second": one.per_second,
                            "p50": one.milliseconds(0.5),
                            "p99": one.milliseconds(0.99),
                        }
                    )
    return found


@contextlib.contextmanager
def _started(directories: dict[int, Path], found: dict[int, list[float]]) -> Iterator[dict[int, str]]:
    """Start a server over each database, note the seconds until it served, and yield the addresses."""
    with contextlib.ExitStack() as stack:
        addresses = {}
        for count, directory in directories.items():
            before = time.perf_counter()
            addresses[count] = stack.enter_context(server("agenttx", directory))
            found.setdefault(count, []).append(time.perf_counter() - before)
        yield addresses


# --- memory ---------------------------------------------------------------------------------------


async def _made_by_steps(directory: Path, count: int, repetitions: int, large_steps: int) -> list[float]:
    """Return, of each repetition, the bytes of a transaction that took its steps through the coordinator of a server in this process."""
    from agenttx_server import main
    from agenttx_server.api.message_conversion import requests
    from agenttx_server.settings import load_settings

    settings = load_settings({"data_dir": directory, "listen": "127.0.0.1:0", "log_level": "error"})
    async with main.open_server(settings) as serving:
        coordinator = serving.coordinator

        async def make() -> None:
            begun = await coordinator.begin(BeginRequest("benchmark", principal="anonymous"))
            for step in range(1, STEPS + 1):
                asked = requests.step_request(step_request(begun.transaction_id, step), "anonymous", 1 << 20)
                assert (await coordinator.execute_step(asked)).status is StepStatus.SUCCESS

        async def fill_page_cache() -> None:
            """Write more than SQLite's page cache holds, in a transaction that ends: it would grow with the others."""
            begun = await coordinator.begin(BeginRequest("benchmark", principal="anonymous"))
            large = f'{{"key":"k","value":"{"x" * LARGE_BYTES}"}}'
            for step in range(1, large_steps + 1):
                request = step_request(begun.transaction_id, step, arguments=large)
                await coordinator.execute_step(requests.step_request(request, "anonymous", 1 << 20))
            await coordinator.rollback(RollbackRequest(begun.transaction_id))

        async def make_many(many: int) -> None:
            for first in range(0, many, IN_FLIGHT):
                await asyncio.gather(*(make() for _ in range(min(IN_FLIGHT, many - first))))

        await fill_page_cache()
        # Pools, caches and prepared statements, and the room that other work left.
        await make_many(WARM_ROUNDS * count)
        grown = []
        for _ in range(repetitions):
            gc.collect()
            before = resident_bytes()
            await make_many(count)
            gc.collect()
            grown.append((resident_bytes() - before) / count)
        await serving.drain()
    return grown


async def _read_back(directory: Path, count: int, repetitions: int) -> list[float]:
    """Return, of each repetition, the bytes of a transaction that was rebuilt from the database."""
    await asyncio.to_thread(directory.mkdir)
    url = f"sqlite:///{directory / 'agenttx.db'}"
    await fill(url, (WARM_ROUNDS + repetitions) * count, steps=STEPS)
    async with open_store(url) as store:

        async def load(number: int) -> Transaction:
            stored = await store.load(TransactionId(f"benchmark-{number:08d}"))
            assert stored is not None
            return Transaction.rebuild(stored)

        kept: list[Transaction] = []
        grown = []
        for first in range(0, (WARM_ROUNDS + repetitions) * count, count):
            gc.collect()
            before = resident_bytes()
            kept += [await load(number) for number in range(first, first + count)]
            gc.collect()
            grown.append((resident_bytes() - before) / count)
        return grown[WARM_ROUNDS:]


# --- more than the cache holds --------------------------------------------------------------------


async def _many(directory: Path, count: int, cached: int) -> list[list[Any]]:
    """Open so many and use each once more; return rows of memory and of the median milliseconds of a step."""
    import grpc.aio

    from agenttx.v1 import transaction_pb2_grpc

    with server("agenttx", directory, cached_transactions=str(cached)) as address:
        process = server_process(address)
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
            rows: list[list[Any]] = [["at start", round(resident_bytes(process) / MIB, 1), None]]
            gate = asyncio.Semaphore(IN_FLIGHT)
            agents = [Agent(stub) for _ in range(count)]

            async def use(agent: Agent) -> float:
                async with gate:
                    if agent.next_step == 1:
                        await agent.begin()
                    return await agent.step()

            for what in ("each opened and used", "each used again, in random order"):
                waits = await asyncio.gather(*map(use, agents))
                milliseconds = statistics.median(waits) * 1000
                rows.append([what, round(resident_bytes(process) / MIB, 1), round(milliseconds, 2)])
                random.Random(1).shuffle(agents)
            return rows


def measure(budget: Budget) -> Findings:
    """Measure many open transactions."""
    many = budget.pick(100_000, 10_000, 200)
    with scratch_directory() as directory:
        # First, while the process is small: memory that other work gave back would be used again, unseen.
        progress("memory of a transaction")
        weighed = budget.pick(150, 100, 3)
        rebuilt = run(_read_back(directory / "read back", weighed, budget.repetitions))
        made = run(
            _made_by_steps(directory / "by steps", weighed, budget.repetitions, budget.pick(80, 80, 1))
        )
        homes = {FEW: directory / "few", many: directory / "many"}
        for count, home in homes.items():
            progress(f"filling a database with {count:,} open transactions")
            (home / "agenttx").mkdir(parents=True)
            run(fill(f"sqlite:///{home / 'agenttx' / 'agenttx.db'}", count, steps=1))
        progress("starts over them")
        starts: dict[int, list[float]] = {}
        for _ in range(budget.repetitions - 1):
            with _started(homes, starts):
                pass
        with _started(homes, starts) as addresses:
            progress(f"{HOT} hot transactions among them")
            width = run(_width(addresses, budget))
        opened, cached = budget.pick((5_000, 500), (2_000, 200), (20, 4))
        progress(f"{opened:,} used behind a cache of {cached:,}")
        memory_rows = run(_many(directory / "cache", opened, cached))
    latency = ratios([one["p50"] for one in width[many]], [one["p50"] for one in width[FEW]])
    weights: dict[str, Summary] = {
        "made by its steps": summary(one / KIB for one in made),
        "read from the database": summary(one / KIB for one in rebuilt),
    }
    return Findings(
        "open_transactions",
        "Many open transactions",
        f"{HOT} transactions at work while {many:,} others are open and wait, beside a server where {FEW} are, in turns; starts over "
        f"these databases; memory of a cached one of {STEPS} small steps.",
        tables=[
            Table(
                f"{HOT} hot transactions",
                ("others open", "steps/s", "p50 ms", "p99 ms", f"p50 of that among {FEW}"),
                [
                    [
                        count,
                        *(summary(one[name] for one in found) for name in ("per_second", "p50", "p99")),
                        ratios([one["p50"] for one in found], [one["p50"] for one in width[FEW]]),
                    ]
                    for count, found in width.items()
                ],
            ),
            Table(
                "From the start of the process until it serves",
                ("open transactions", "seconds", f"of that over {FEW}"),
                [[count, summary(found), ratios(found, starts[FEW])] for count, found in starts.items()],
            ),
            Table(
                f"A cached transaction of {STEPS} small steps",
                ("how it came into the cache", "KiB"),
                [[name, weight] for name, weight in weights.items()],
                note="What the process grew by, SQLite's page cache being full, for each of so many more.",
            ),
            Table(
                f"{opened:,} open ones behind a cache of {cached:,}",
                ("when", "resident MiB", "ms a step, 64 in flight"),
                memory_rows,
            ),
        ],
        targets=[
            Target(f"{HOT} hot transactions, p50 among {many:,} open, of that among {FEW}", latency, 1.15),
            *(
                Target(f"a cached transaction of {STEPS} small steps, {name}", weight, 40, unit="KiB")
                for name, weight in weights.items()
            ),
        ],
    )


if __name__ == "__main__":
    run_topic(__doc__, measure)
