"""Ten times the agents that keep a server busy: what happens to those that are served, to the rest, and afterwards.

Three phases on one server: a few agents that pause between steps (unloaded), as many as saturate it, and ten times as
many of those without a pause. Every agent has a transaction of its own; one that is refused waits as long as it was told to,
and sends the step again. At the end every step that was answered is looked for in the database, and the few
agents of the first phase have their latencies again.

    python -m benchmarks.overload --seconds 60 --saturating 64
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc
from agenttx_server.settings import Settings
from benchmarks import measuring
from benchmarks.agents import step_request
from benchmarks.servers import MORE_THAN_IT_CAN_DO, scratch_directory, server

CHANNELS = 8
PAUSE_SECONDS = 0.05
FEW = 8
# As a server refuses that nobody set anything for; the other benchmarks have theirs refuse nothing.
REFUSING = {name: str(Settings.model_fields[name].default) for name in MORE_THAN_IT_CAN_DO}


@dataclass
class Seen:
    """What agents saw. ``latencies`` are those of accepted steps, from sending to the answer."""

    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    refused_without_hint: int = 0
    other: dict[str, int] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)

    def add(self, other: Seen) -> None:
        self.latencies += other.latencies
        self.refused += other.refused
        self.refused_without_hint += other.refused_without_hint
        for name, count in other.other.items():
            self.other[name] = self.other.get(name, 0) + count
        self.answered |= other.answered

    def quantile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


def retry_delay(error: grpc.aio.AioRpcError) -> float | None:
    """Return what the server said when to come back, in seconds."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode())
            for detail in status.details:
                info = error_details_pb2.RetryInfo()
                if detail.Unpack(info):
                    return info.retry_delay.ToMilliseconds() / 1000
    return None


async def _agent(stub: Any, seen: Seen, until: float, pause: float) -> None:
    async def call(method: Any, request: Any) -> Any:
        while time.perf_counter() < until:
            started = time.perf_counter()
            try:
                answer = await method(request, timeout=30)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    seen.other[error.code().name] = seen.other.get(error.code().name, 0) + 1
                    await asyncio.sleep(1)
                    continue
                seen.refused += 1
                delay = retry_delay(error)
                seen.refused_without_hint += delay is None
                await asyncio.sleep(delay or 1)
                continue
            return answer, time.perf_counter() - started
        return None

    begun = await call(stub.BeginTransaction, pb.BeginTransactionRequest(agent_id="overload"))
    if begun is None:
        return
    transaction_id, step = begun[0].transaction_id, 0
    while True:
        done = await call(stub.ExecuteStep, step_request(transaction_id, step + 1))
        if done is None:
            return
        assert done[0].status == pb.STEP_STATUS_SUCCESS, done[0]
        step += 1
        seen.latencies.append(done[1])
        seen.answered[transaction_id] = step
        await asyncio.sleep(pause)


async def _agents(address: str, count: int, seconds: float, pause: float) -> Seen:
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(min(CHANNELS, count))]
    stubs = [transaction_pb2_grpc.AgentTxServiceStub(channel) for channel in channels]
    seen = Seen()
    until = time.perf_counter() + seconds
    await asyncio.gather(*(_agent(stubs[one % len(stubs)], seen, until, pause) for one in range(count)))
    for channel in channels:
        await channel.close()
    return seen


def _crowd(address: str, count: int, seconds: float, results: Any) -> None:
    results.put(asyncio.run(_agents(address, count, seconds, 0)))


def _run_crowd(address: str, count: int, seconds: float, processes: int) -> Seen:
    results: Any = multiprocessing.Queue()
    crowd = [
        multiprocessing.Process(target=_crowd, args=(address, count // processes, seconds, results))
        for _ in range(processes)
    ]
    for process in crowd:
        process.start()
    seen = Seen()
    for _ in crowd:
        seen.add(results.get())
    return seen


def _resident_mib(pid: int) -> float:
    with Path(f"/proc/{pid}/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def _lost(database: Path, answered: dict[str, int]) -> int:
    """How many answered steps are not in the database, each once."""
    with closing(sqlite3.connect(database)) as reader:
        found = dict(
            reader.execute(
                "SELECT t.transaction_id, count(*) FROM attempts a JOIN transactions t ON t.number = a.transaction_number "
                "WHERE a.state = 'COMPLETED' GROUP BY 1"
            )
        )
        # The last step of an agent that gave up may be there unanswered.
    return sum(not steps <= found.get(name, 0) <= steps + 1 for name, steps in answered.items())


def main() -> dict[str, Any]:
    """Measure and return the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="of the overload")
    parser.add_argument("--saturating", type=int, default=64, help="agents that keep the server busy")
    parser.add_argument("--times", type=int, default=10, help="times as many in the overload")
    parser.add_argument("--processes", type=int, default=2, help="that the agents run in")
    given = parser.parse_args()
    with scratch_directory() as directory, server("agenttx", directory, **REFUSING) as address:
        database = directory / "agenttx" / "agenttx.db"
        pid = _pid_of(database)

        def few(seconds: float) -> Seen:
            return asyncio.run(_agents(address, FEW, seconds, PAUSE_SECONDS))

        few(2)
        unloaded = few(5)
        print(
            f"unloaded: p50 {unloaded.quantile(0.5):.1f} ms, p99 {unloaded.quantile(0.99):.1f} ms", flush=True
        )
        seen = _run_crowd(address, given.saturating, 10, given.processes)
        rate = len(seen.latencies) / 10
        before = _resident_mib(pid)
        print(
            f"saturated: {rate:.0f} steps/s, p99 {seen.quantile(0.99):.1f} ms, {before:.0f} MiB", flush=True
        )
        crowd = _run_crowd(address, given.saturating * given.times, given.seconds, given.processes)
        memory = _resident_mib(pid) - before
        after = few(5)
        result = {
            "unloaded_p99_ms": unloaded.quantile(0.99),
            "saturated_steps_per_second": rate,
            "saturated_p99_ms": seen.quantile(0.99),
            "overloaded_steps_per_second": len(crowd.latencies) / given.seconds,
            "overloaded_p50_ms": crowd.quantile(0.5),
            "overloaded_p99_ms": crowd.quantile(0.99),
            "p99_ratio": crowd.quantile(0.99) / unloaded.quantile(0.99),
            "refused": crowd.refused,
            "refused_without_hint": crowd.refused_without_hint,
            "other_errors": crowd.other,
            "memory_mib": memory,
            "after_p99_ms": after.quantile(0.99),
            "agents_served": len(crowd.answered),
        }
        answered = crowd.answered | seen.answered | unloaded.answered | after.answered
        result["lost"] = _lost(database, answered)
    measuring.report("overload", result)
    return result


def _pid_of(database: Path) -> int:
    """The process that holds the database's lock: it writes itself there."""
    return int(database.with_name(database.name + ".lock").read_text().split()[0])


if __name__ == "__main__":
    main()
