"""Agents at work at the same time, over SQLite and over PostgreSQL with one and two server processes.

Each agent has a transaction of its own and sends its next step when the last one is answered, over
connections that 16 agents share. Clients, servers and PostgreSQL share the machine's cores.
Takes the address of an empty PostgreSQL database on a server with ``fsync = on``; without, SQLite alone::

    python -m benchmarks.open_agents postgresql://USER@HOST/NAME
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio

from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc
from benchmarks import measuring
from benchmarks.servers import REPOSITORY, scratch_directory
from benchmarks.step_throughput import step_request

START_SECONDS = 60.0
AGENTS_A_CONNECTION = 16


@contextlib.contextmanager
def _serving(directory: Path, port: int, **settings: str) -> Iterator[str]:
    """Run ``agenttx serve`` and yield its address once it is healthy."""
    address = f"127.0.0.1:{port}"
    variables = {"listen": address, "data_dir": str(directory), "log_format": "json"} | settings
    environment = os.environ | {f"AGENTTX_{name.upper()}": value for name, value in variables.items()}
    agenttx = str(Path(sys.executable).with_name("agenttx"))
    with (directory / "log").open("w") as log:
        process = subprocess.Popen([agenttx, "serve"], cwd=REPOSITORY, env=environment, stderr=log)
        try:
            deadline = time.monotonic() + START_SECONDS
            while subprocess.run(
                [agenttx, "health", "--address", address], capture_output=True, check=False
            ).returncode:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise RuntimeError((directory / "log").read_text()[-2000:])
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


async def _work(address: str, agents: int, seconds: float) -> dict[str, float]:
    options = (("grpc.use_local_subchannel_pool", 1),)
    connections = max(agents // AGENTS_A_CONNECTION, 4)
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(connections)]
    stubs: list[Any] = [transaction_pb2_grpc.AgentTxServiceStub(channel) for channel in channels]
    waits: list[float] = []

    async def agent(number: int) -> None:
        stub = stubs[number % connections]
        begun = await stub.BeginTransaction(pb.BeginTransactionRequest(agent_id=f"agent-{number}"))
        step = 1
        while time.perf_counter() < end:
            before = time.perf_counter()
            answer = await stub.ExecuteStep(step_request(begun.transaction_id, step, 1))
            assert answer.status == pb.STEP_STATUS_SUCCESS, answer
            waits.append(time.perf_counter() - before)
            step += 1

    started = time.perf_counter()
    end = started + seconds
    await asyncio.gather(*(agent(number) for number in range(agents)))
    lasted = time.perf_counter() - started
    for channel in channels:
        await channel.close()
    waits.sort()
    return {
        "steps_per_second": round(len(waits) / lasted),
        "p50_ms": round(statistics.median(waits) * 1000, 1),
        "p99_ms": round(waits[len(waits) * 99 // 100] * 1000, 1),
    }


def _measure(directory: Path, name: str, port: int, agents: int, seconds: float, **settings: str) -> Any:
    place = directory / f"{name}-{agents}-{port}"
    place.mkdir()
    with _serving(place, port, **settings) as address:
        asyncio.run(_work(address, min(agents, 8), 1.0))  # connections, caches, prepared statements
        return asyncio.run(_work(address, agents, seconds))


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("database_url", nargs="?", default="")
    arguments = parser.parse_args()
    seconds = 2.0 if arguments.quick else 8.0
    kinds: dict[str, dict[str, str]] = {"sqlite": {}}
    if arguments.database_url:
        shared = {"database_url": arguments.database_url, "fs_adopt": "true"}
        kinds |= {
            "postgresql, 1 process": shared,
            "postgresql, 2 processes": shared | {"workers": "2"},
        }
    found: dict[str, dict[int, list[Any]]] = {}
    port = 51_000 + os.getpid() % 5_000
    with scratch_directory() as directory:
        for _ in range(1 if arguments.quick else min(arguments.repetitions, 3)):
            for agents in (10, 100) if arguments.quick else (10, 1_000):
                for name, settings in kinds.items():
                    port += 1
                    result = _measure(directory, name[:4], port, agents, seconds, **settings)
                    found.setdefault(name, {}).setdefault(agents, []).append(result)
    medians = {
        name: {
            str(agents): {key: statistics.median(item[key] for item in results) for key in results[0]}
            for agents, results in by_agents.items()
        }
        for name, by_agents in found.items()
    }
    measuring.report("open_agents", medians)


if __name__ == "__main__":
    main()
