"""A no-op tool in a worker against the same tool in the server, and what idle workers cost.

Both are READ_ONLY and return their argument; the agent and the worker are processes of their own. Rounds are taken
in turns. Then the built-in one again with many workers connected that run nothing but heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import agenttx
from agenttx.worker import Worker, tool
from benchmarks import measuring
from benchmarks.servers import REPOSITORY, scratch_directory, server


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


def main_of_worker(address: str, name: str, count: int) -> None:
    """Be so many workers."""
    offered = {"hosted": hosted, "idle": idle}[name]

    async def serve() -> None:
        await asyncio.gather(*(Worker(address, tools=[offered]).serve() for _ in range(count)))

    asyncio.run(serve())


@contextlib.contextmanager
def _workers(address: str, name: str, count: int) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker_step", "--worker", address, name, str(count)],
        cwd=REPOSITORY,
        env=os.environ,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _until_offered(client: agenttx.AsyncClient, name: str) -> None:
    while name not in {tool.name async for tool in client.tools()}:  # noqa: ASYNC110 — a server is asked
        await asyncio.sleep(0.05)


async def _measure(
    client: agenttx.AsyncClient, tool_name: str, concurrency: int, seconds: float
) -> dict[str, float]:
    latencies: list[float] = []
    until = time.perf_counter() + seconds

    async def run() -> None:
        async with client.transaction(agent_id="benchmark") as transaction:
            is_over = False
            while not is_over:  # a busy machine gets one call done at least
                before = time.perf_counter()
                await transaction.step(tool_name, value=1)
                ended = time.perf_counter()
                latencies.append(ended - before)
                is_over = ended >= until

    await asyncio.gather(*(run() for _ in range(concurrency)))
    latencies.sort()
    return {
        "calls_per_second": len(latencies) / seconds,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000,
    }


async def _run(seconds: float, repetitions: int, concurrencies: list[int], idle_workers: int) -> list[Any]:
    rounds: dict[tuple[str, int], list[dict[str, float]]] = {}
    with (
        scratch_directory() as scratch,
        server("agenttx", scratch, tools="benchmarks.worker_step:builtin") as address,
        _workers(address, "hosted", 1),
    ):
        async with agenttx.AsyncClient(address) as client:
            await _until_offered(client, "bench.hosted")
            for concurrency in concurrencies:
                for name in ("bench.builtin", "bench.hosted"):
                    await _measure(client, name, concurrency, seconds / 4)  # warm up
                for _ in range(repetitions):
                    for name in ("bench.builtin", "bench.hosted"):
                        found = await _measure(client, name, concurrency, seconds)
                        rounds.setdefault((name, concurrency), []).append(found)
            with _workers(address, "idle", idle_workers):
                await _until_offered(client, "bench.idle")
                for concurrency in concurrencies:
                    for _ in range(repetitions):
                        found = await _measure(client, "bench.builtin", concurrency, seconds)
                        rounds.setdefault(
                            (f"bench.builtin beside {idle_workers} idle", concurrency), []
                        ).append(found)
    results: list[dict[str, Any]] = [
        {
            "tool": name,
            "concurrency": concurrency,
            **{
                measure: measuring.summary([one[measure] for one in found])
                for measure in ("calls_per_second", "p50_ms", "p99_ms")
            },
        }
        for (name, concurrency), found in rounds.items()
    ]
    for concurrency in concurrencies:
        pairs = zip(rounds["bench.builtin", concurrency], rounds["bench.hosted", concurrency], strict=True)
        ratios = [inside["calls_per_second"] / hosted["calls_per_second"] for inside, hosted in pairs]
        results.append({"times_the_built_in_one": measuring.summary(ratios), "concurrency": concurrency})
    return results


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--worker":
        main_of_worker(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = measuring.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--idle-workers", type=int, default=200)
    arguments = parser.parse_args()
    seconds, repetitions = (1.0, 2) if arguments.quick else (arguments.seconds, arguments.repetitions)
    measuring.report(
        "worker_step",
        asyncio.run(_run(seconds, repetitions, arguments.concurrency, arguments.idle_workers)),
    )


if __name__ == "__main__":
    main()
