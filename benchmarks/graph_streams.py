"""What followers of a run cost: its time, the server's memory, others' latency.

    python -m benchmarks.graph_streams [--events 50000] [--followers 20]

A run of some 50,000 events (two supersteps of 98 and 1 nodes that do nothing, over and over) is started on a server of its
own, with nobody following it, with 20 clients that read all of it as it happens, and with 20 that subscribe and read nothing.
Prints one JSON object, for each of the three:

- ``run_seconds``: start to end of the run.
- ``resident_mib``, ``grown_mib``: the most memory that the server had, and by how much that is more than before the run.
- ``get_run_ms``: median and 99th percentile of GetRun, asked 20 times a second meanwhile.
- ``events``: in the journal; ``read``: how many each of the clients got, those that read nothing by reading on after the
  run (three of them); each has every offset once, in order, or the benchmark fails.

Those that read nothing are not cut meanwhile (``stream_stall_seconds`` is an hour), and their window does not grow, so that
the server and not their own buffers holds what they don't read, if anything did.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import Any

import grpc.aio

from agenttx import NOTHING, START, AsyncClient, GraphBuilder, RunLimits
from agenttx.v1 import graph_pb2 as pb
from agenttx.v1 import graph_pb2_grpc
from benchmarks.measuring import parser, report
from benchmarks.servers import scratch_directory, server

WIDTH = 98
EVENTS_A_ROUND = 4 * (WIDTH + 1) + 6
READ_AFTERWARDS = 3
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1))


def wheel() -> GraphBuilder:
    """A hub and nodes around it that lead back to it."""
    builder = GraphBuilder("wheel").node("hub", NOTHING)
    builder.edge(START, "hub")
    for number in range(WIDTH):
        builder.node(f"n{number}", NOTHING).edge("hub", f"n{number}").edge(f"n{number}", "hub")
    return builder


def memory_mib(process_id: int, figure: str) -> float:
    """VmRSS, what a process has, or VmHWM, the most that it had."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith(figure):
            return round(int(line.split()[1]) / 1024, 1)
    raise RuntimeError(f"no {figure} of process {process_id}")


def child() -> int:
    """The process that this one has started."""
    found = [
        int(name)
        for task in Path("/proc/self/task").iterdir()
        for name in (task / "children").read_text().split()
    ]
    return found[-1]


async def read_all(stream: Any, first: int = 0) -> int:
    """Read a stream up to the end of the invocation; return how many events that were, and fail if one is missing."""
    expected = first
    while True:
        event = (await stream.read()).event
        if event.offset != expected:
            raise RuntimeError(f"offset {event.offset} came where {expected} was due")
        expected += 1
        if event.kind == pb.GRAPH_EVENT_KIND_RUN_FAILED:
            stream.cancel()
            return expected - first


async def ask_until_ended(stub: Any, run_id: str) -> tuple[Any, list[float]]:
    """Ask for the run 20 times a second until it has ended; return it, and how long each answer took, in ms."""
    took = []
    while True:
        began = time.perf_counter()
        run = (await stub.GetRun(pb.GetRunRequest(run_id=run_id))).run
        took.append((time.perf_counter() - began) * 1000)
        if run.HasField("error"):  # out of supersteps, as it was told
            return run, sorted(took)
        await asyncio.sleep(0.05)


async def measure(address: str, process_id: int, events: int, reading: int, stalled: int) -> dict[str, Any]:
    """Have a run of so many events followed by clients of both kinds."""
    supersteps = max(2 * (events // EVENTS_A_ROUND), 2)
    async with (
        AsyncClient(address) as client,
        grpc.aio.insecure_channel(address, options=SMALL_WINDOW) as channel,
        grpc.aio.insecure_channel(address) as other,
    ):
        graph = await client.graphs.register(wheel())
        await graph.run(thread="warm", limits=RunLimits(recursion_limit=4))
        stub, asking = graph_pb2_grpc.GraphServiceStub(channel), graph_pb2_grpc.GraphServiceStub(other)
        before = memory_mib(process_id, "VmRSS")
        limits = RunLimits(recursion_limit=supersteps, max_total_steps=supersteps + 10)
        began = time.perf_counter()
        run_id = (await graph.start(thread="t", limits=limits)).run_id
        asked = pb.SubscribeEventsRequest(run_id=run_id)
        readers = [asyncio.create_task(read_all(stub.SubscribeEvents(asked))) for _ in range(reading)]
        idle = [stub.SubscribeEvents(asked) for _ in range(stalled)]
        run, took = await ask_until_ended(asking, run_id)
        seconds = time.perf_counter() - began
        read = [await reader for reader in readers]
        peak = memory_mib(process_id, "VmHWM")
        read += [await read_all(stream) for stream in idle[:READ_AFTERWARDS]]
        for stream in idle:
            stream.cancel()
    return {
        "events": run.last_offset + 1,
        "run_seconds": round(seconds, 2),
        "resident_mib": peak,
        "grown_mib": round(peak - before, 1),
        "get_run_ms": {
            "median": round(statistics.median(took), 2),
            "p99": round(took[int(len(took) * 0.99)], 2),
        },
        "read": sorted(set(read)),
    }


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__)
    arguments.add_argument("--events", type=int, default=50_000, help="events of the run, about")
    arguments.add_argument("--followers", type=int, default=20, help="clients that follow it")
    chosen = arguments.parse_args()
    events = 4_000 if chosen.quick else chosen.events
    results = {}
    for name, reading, stalled in (
        ("nobody", 0, 0),
        ("reading", chosen.followers, 0),
        ("reading_nothing", 0, chosen.followers),
    ):
        with (
            scratch_directory() as directory,
            server("agenttx", directory, stream_stall_seconds="3600") as address,
        ):
            results[name] = asyncio.run(measure(address, child(), events, reading, stalled))
    report("graph_streams", {"followers": chosen.followers, "cpu_count": os.cpu_count(), **results})


if __name__ == "__main__":
    main()
