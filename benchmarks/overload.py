"""Ten times the agents that keep a server busy: what happens to those that are served, to the rest, to others, and afterwards.

One server, as anybody gets it who sets nothing; in turn

1. eight agents that pause between steps (unloaded);
2. as many agents as saturate it, without a pause;
3. ten times as many;
4. nobody but the eight, until all is as before;
5. connections that mean no good, one kind after another, beside the eight.

What is judged is the p99 of all steps that were accepted, as their agents saw it. The crowd's processes have a lower priority
(nice 10), each with few agents at work at a time, so that the wait in the agents' own processes is not taken for the server's.
What the eight see is told beside it, the *probe*: it takes so few steps that what it waits for before anything is refused
is more than a hundredth of them. Every agent begins a transaction, takes steps, commits it and begins the next; one that is
refused waits as long as it is told to. Beside it stands what the server measured itself, from when it came to a
call. At the end every step that was answered is looked for in the database.

    python -m benchmarks.overload --seconds 60 --saturating 64
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import re
import socket
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc
from agenttx_server.settings import Settings
from benchmarks import bad_connections, measuring
from benchmarks.agents import step_request
from benchmarks.measuring import percentile, progress
from benchmarks.servers import MORE_THAN_IT_CAN_DO, scratch_directory, server

PAUSE_SECONDS = 0.05
FEW = 8
CONNECTIONS_A_PROCESS = 2
CROWD_NICE = 10
QUIET_SECONDS = 5.0
SATURATED_SECONDS = 10.0
BAD_SECONDS, BAD_ROUNDS = 2.0, 3
SETTLING_SECONDS = 0.5
"""After connections were opened: that itself is work, once."""
AFTERWARDS_SECONDS = 8.0
# As a server refuses that nobody set anything for; the other benchmarks have theirs refuse nothing.
REFUSING = {name: str(Settings.model_fields[name].default) for name in MORE_THAN_IT_CAN_DO}
# What must hold.
MOST_TIMES_UNLOADED = 5.0
MOST_MEMORY_MIB = 200.0
MOST_RECOVERY_SECONDS = 5.0
LEAST_THROUGHPUT = 0.95
MOST_TIMES_BESIDE_BAD = 1.5
"""Of the p99 that others had before: two runs of an undisturbed server differ by as much."""


@dataclass
class Seen:
    """What agents saw. ``steps`` are accepted ones: when they were sent (:func:`time.monotonic`), and how long they took."""

    steps: list[tuple[float, float]] = field(default_factory=list)
    refused_at: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    refused_without_hint: int = 0
    most_refused_in_a_row: int = 0
    other: dict[str, int] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)
    agents_served: int = 0

    def add(self, other: Seen) -> None:
        self.steps += other.steps
        self.refused_at += other.refused_at
        self.told += other.told
        self.refused_without_hint += other.refused_without_hint
        self.most_refused_in_a_row = max(self.most_refused_in_a_row, other.most_refused_in_a_row)
        for name, count in other.other.items():
            self.other[name] = self.other.get(name, 0) + count
        self.answered |= other.answered
        self.agents_served += other.agents_served

    def between(self, since: float, until: float) -> Seen:
        """Return the steps sent, and refusals, within a time."""
        return Seen(
            [step for step in self.steps if since <= step[0] < until],
            [at for at in self.refused_at if since <= at < until],
        )

    def milliseconds(self, share: float) -> float:
        return (
            percentile([seconds for _, seconds in self.steps], share) * 1000 if self.steps else float("nan")
        )


# --- agents ---------------------------------------------------------------------------------------


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


def _step(transaction_id: str, step: int) -> pb.ExecuteStepRequest:
    """A small write under a key that no other transaction writes."""
    return step_request(
        transaction_id,
        step,
        arguments=f'{{"key":"{transaction_id}-{step}","value":{{"id":"c-{step}","total":{step}}}}}',
    )


async def _agent(stub: Any, seen: Seen, until: float, pause: float, steps: int) -> None:
    async def call(method: Any, request: Any) -> tuple[Any, float, float] | None:
        in_a_row = 0
        while (sent := time.monotonic()) < until:
            try:
                answer = await method(request, timeout=30)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    seen.other[error.code().name] = seen.other.get(error.code().name, 0) + 1
                    await asyncio.sleep(1)
                    continue
                in_a_row += 1
                seen.most_refused_in_a_row = max(seen.most_refused_in_a_row, in_a_row)
                seen.refused_at.append(sent)
                delay = retry_delay(error)
                seen.refused_without_hint += delay is None
                seen.told.append(delay or 0.0)
                await asyncio.sleep(min(delay or 1.0, max(until - time.monotonic(), 0.0)))
                continue
            return answer, sent, time.monotonic() - sent
        return None

    served = False
    while begun := await call(stub.BeginTransaction, pb.BeginTransactionRequest(agent_id="overload")):
        transaction_id, step = begun[0].transaction_id, 0
        while not steps or step < steps:
            done = await call(stub.ExecuteStep, _step(transaction_id, step + 1))
            if done is None:
                return
            assert done[0].status == pb.STEP_STATUS_SUCCESS, done[0]
            step += 1
            seen.steps.append(done[1:])
            seen.answered[transaction_id] = step
            seen.agents_served += not served
            served = True
            await asyncio.sleep(pause)
        request = pb.CommitTransactionRequest(transaction_id=transaction_id, request_id="commit")
        if await call(stub.CommitTransaction, request) is None:
            return


async def _agents(address: str, count: int, until: float, pause: float, steps: int) -> Seen:
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
    channels = [
        grpc.aio.insecure_channel(address, options=options) for _ in range(min(CONNECTIONS_A_PROCESS, count))
    ]
    stubs = [transaction_pb2_grpc.AgentTxServiceStub(channel) for channel in channels]
    seen = Seen()
    await asyncio.gather(
        *(_agent(stubs[one % len(stubs)], seen, until, pause, steps) for one in range(count))
    )
    for channel in channels:
        await channel.close()
    return seen


def _process(results: Any, nice: int, *arguments: Any) -> None:
    os.nice(nice)
    results.put(asyncio.run(_agents(*arguments)))


class Running:
    """Agents in processes of their own, until a time."""

    def __init__(
        self,
        address: str,
        count: int,
        until: float,
        *,
        processes: int = 1,
        pause: float = 0.0,
        steps: int = 0,
        nice: int = 0,
    ) -> None:
        self._results: Any = multiprocessing.Queue()
        self._processes = []
        for number in range(processes):
            share = count // processes + (number < count % processes)
            given = (self._results, nice, address, share, until, pause, steps)
            self._processes.append(multiprocessing.Process(target=_process, args=given))
        for process in self._processes:
            process.start()

    def seen(self) -> Seen:
        """Wait for them and return what all of them saw."""
        seen = Seen()
        for _ in self._processes:
            seen.add(self._results.get())
        return seen


# --- the server -----------------------------------------------------------------------------------


class ServerSeen:
    """What the server says of itself, and how much memory it has."""

    def __init__(self, metrics_address: str, pid: int) -> None:
        self._metrics_address = metrics_address
        self._pid = pid
        self.most_memory_mib = 0.0
        self.limits: list[float] = []

    def counts(self) -> dict[float, float]:
        """Return how many accepted steps took no longer than each bound, in seconds, since the start."""
        found = {}
        for line in self._lines():
            if match := re.match(r"agenttx_rpc_duration_seconds_bucket\{(.*)\} (\S+)", line):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', match[1]))
                if (labels["method"], labels["code"]) == ("ExecuteStep", "OK"):
                    found[float(labels["le"])] = float(match[2])
        return found

    def memory_mib(self) -> float:
        """Return its resident memory."""
        with Path(f"/proc/{self._pid}/status").open() as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at memory and at the limit twice a second, meanwhile."""
        stop = threading.Event()

        def look() -> None:
            while not stop.wait(0.5):
                self.most_memory_mib = max(self.most_memory_mib, self.memory_mib())
                for line in self._lines():
                    if line.startswith("agenttx_steps_in_hand_limit "):
                        self.limits.append(float(line.split()[1]))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _lines(self) -> list[str]:
        with urllib.request.urlopen(f"http://{self._metrics_address}/metrics", timeout=30) as answer:
            return str(answer.read().decode()).splitlines()


def quantile_ms(before: dict[float, float], after: dict[float, float], share: float) -> float:
    """Return a quantile of what was counted in between, in milliseconds, interpolated within its bucket."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in sorted(after.items())}
    wanted = share * max(counts.values(), default=0.0)
    low, below = 0.0, 0.0
    for bound, count in counts.items():
        if count >= wanted and count > below:
            if bound == float("inf"):
                return low * 1000
            return (low + (bound - low) * (wanted - below) / (count - below)) * 1000
        low, below = bound, count
    return float("nan")


def _pid_of(database: Path) -> int:
    """The process that holds the database's lock: it writes itself there."""
    return int(database.with_name(database.name + ".lock").read_text().split()[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


# --- the phases -----------------------------------------------------------------------------------


@dataclass
class Bench:
    """One server and what is asked of it."""

    address: str
    server: ServerSeen
    steps: int
    processes: int
    answered: dict[str, int] = field(default_factory=dict)

    def probe(self, seconds: float) -> Running:
        """Start the eight."""
        return Running(self.address, FEW, time.monotonic() + seconds, pause=PAUSE_SECONDS, steps=self.steps)

    def unloaded(self) -> dict[str, Any]:
        self._seen(self.probe(2))
        before = self.server.counts()
        seen = self._seen(self.probe(QUIET_SECONDS))
        return {
            "p50_ms": seen.milliseconds(0.5),
            "p99_ms": seen.milliseconds(0.99),
            "in_server_p99_ms": quantile_ms(before, self.server.counts(), 0.99),
            "refused": len(seen.refused_at),
        }

    def burst(self) -> dict[str, Any]:
        """Two hundred steps at once, and nothing after them."""

        async def send() -> int:
            channel = grpc.aio.insecure_channel(self.address)
            stub = transaction_pb2_grpc.AgentTxServiceStub(channel)  # type: ignore[no-untyped-call]
            begun = [
                (await stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="burst"))).transaction_id
                for _ in range(200)
            ]
            steps = (stub.ExecuteStep(_step(transaction_id, 1)) for transaction_id in begun)
            answers = await asyncio.gather(*steps, return_exceptions=True)
            await channel.close()
            return sum(isinstance(answer, grpc.aio.AioRpcError) for answer in answers)

        return {"steps": 200, "refused": asyncio.run(send())}

    def crowded(self, count: int, seconds: float) -> tuple[dict[str, Any], Seen]:
        """So many agents for a time, and the eight beside them and for a while after.

        Return what was seen, and of the eight what they saw after the crowd had gone.
        """
        memory, before = self.server.memory_mib(), self.server.counts()
        until = time.monotonic() + seconds
        crowd = Running(
            self.address, count, until, processes=self.processes, steps=self.steps, nice=CROWD_NICE
        )
        probe = self.probe(seconds + AFTERWARDS_SECONDS)
        with self.server.watched():
            seen = self._seen(crowd)
            after = self.server.counts()
            probed = self._seen(probe)
        during = probed.between(0, until)
        refused, accepted = len(seen.refused_at), len(seen.steps) + len(during.steps)
        return {
            "agents": count,
            "steps_per_second": len(seen.steps) / seconds,
            "accepted_p99_ms": Seen(seen.steps + during.steps).milliseconds(0.99),
            "probe_p50_ms": during.milliseconds(0.5),
            "probe_p99_ms": during.milliseconds(0.99),
            "probe_steps": len(during.steps),
            "probe_refused": len(during.refused_at),
            "in_server_p99_ms": quantile_ms(before, after, 0.99),
            "crowd_p50_ms": seen.milliseconds(0.5),
            "crowd_p99_ms": seen.milliseconds(0.99),
            "refused": refused,
            "refused_share": refused / max(refused + accepted, 1),
            "refused_without_hint": seen.refused_without_hint,
            "told_seconds": [percentile(seen.told, share) for share in (0.01, 0.5, 0.99)]
            if seen.told
            else [],
            "most_refused_in_a_row": seen.most_refused_in_a_row,
            "agents_served": seen.agents_served,
            "other_errors": seen.other,
            "limit": [min(self.server.limits, default=0), max(self.server.limits, default=0)],
            "memory_mib": self.server.most_memory_mib - memory,
        }, Seen(
            [(sent - until, seconds) for sent, seconds in probed.steps if sent >= until],
            [at - until for at in probed.refused_at if at >= until],
        )

    def beside_bad(self) -> dict[str, float]:
        """Return the p99 of the eight, in milliseconds, beside bad connections of each kind: medians of rounds in turns."""
        found: dict[str, list[float]] = {}
        for _ in range(BAD_ROUNDS):
            for kind in (NOBODY, *BAD):
                with ExitStack() as stack:
                    BAD.get(kind, lambda address, stack: None)(self.address, stack)
                    time.sleep(SETTLING_SECONDS)
                    seen = self._seen(self.probe(BAD_SECONDS))
                assert not seen.other, seen.other
                found.setdefault(kind, []).append(seen.milliseconds(0.99))
        return {kind: median(values) for kind, values in found.items()}

    def _seen(self, running: Running) -> Seen:
        seen = running.seen()
        self.answered |= seen.answered
        return seen


def _dripping(address: str, stack: ExitStack) -> None:
    slow = stack.enter_context(bad_connections.slow(address, 200))
    until = time.monotonic() + SETTLING_SECONDS + BAD_SECONDS
    thread = threading.Thread(target=bad_connections.drip, args=(slow, until))
    thread.start()
    stack.callback(thread.join)


def _huge(address: str, stack: ExitStack) -> None:
    for connection in stack.enter_context(bad_connections.idle(address, 20)):
        bad_connections.one_gibibyte(connection)


NOBODY = "nobody"
BAD: dict[str, Callable[[str, ExitStack], Any]] = {
    "1,000 idle connections": lambda address, stack: stack.enter_context(bad_connections.idle(address, 1000)),
    "200 slow connections": _dripping,
    "1,000 stalled streams": lambda address, stack: stack.enter_context(
        bad_connections.stalled(address, 1000)
    ),
    "messages of 1 GiB": _huge,
}


def recovery_seconds(after: Seen, normal_ms: float) -> float:
    """Return how long after the overload the last step was refused or took longer than is normal."""
    late = [sent for sent, seconds in after.steps if seconds * 1000 > normal_ms]
    return max([*late, *after.refused_at], default=0.0)


def judged(found: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Return each line of what must hold: what, the figure, the bound, and whether it is met."""
    quiet, saturated, over = found["unloaded"], found["saturated"], found["overloaded"]
    allowed = MOST_TIMES_UNLOADED * quiet["p99_ms"]
    lines: list[tuple[str, float, str, Callable[[float], bool]]] = [
        ("unloaded: refused", quiet["refused"], "0", lambda value: value == 0),
        ("a burst of 200 steps: refused", found["burst"]["refused"], "0", lambda value: value == 0),
        (
            "p99 of all accepted steps as their agents saw it, of the unloaded one",
            over["accepted_p99_ms"] / quiet["p99_ms"],
            f"≤ {MOST_TIMES_UNLOADED:g} ×",
            lambda value: value <= MOST_TIMES_UNLOADED,
        ),
        (
            "accepted p99 in the server, ms",
            over["in_server_p99_ms"],
            f"≤ {allowed:.1f}",
            lambda value: value <= allowed,
        ),
        (
            "steps/s, of those of the saturating agents",
            over["steps_per_second"] / saturated["steps_per_second"],
            f"≥ {LEAST_THROUGHPUT:g} ×",
            lambda value: value >= LEAST_THROUGHPUT,
        ),
        (
            "refused without the time to come again",
            over["refused_without_hint"],
            "0",
            lambda value: value == 0,
        ),
        ("agents never served", over["agents"] - over["agents_served"], "0", lambda value: value == 0),
        ("errors of another kind", sum(over["other_errors"].values()), "0", lambda value: value == 0),
        (
            "memory, MiB",
            over["memory_mib"],
            f"≤ {MOST_MEMORY_MIB:g}",
            lambda value: value <= MOST_MEMORY_MIB,
        ),
        ("answered steps that are lost", found["lost"], "0", lambda value: value == 0),
        (
            "seconds until all is as before",
            found["recovery_seconds"],
            f"≤ {MOST_RECOVERY_SECONDS:g}",
            lambda value: value <= MOST_RECOVERY_SECONDS,
        ),
    ]
    lines += [
        (
            f"p99 of others beside {kind}",
            p99 / found["beside_p99_ms"][NOBODY],
            f"≤ {MOST_TIMES_BESIDE_BAD:g} ×",
            lambda value: value <= MOST_TIMES_BESIDE_BAD,
        )
        for kind, p99 in found["beside_p99_ms"].items()
        if kind != NOBODY
    ]
    return [(what, f"{value:.4g}", bound, holds(value)) for what, value, bound, holds in lines]


def main() -> dict[str, Any]:
    """Measure, print the figures and whether each is met, and return them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="of the overload")
    parser.add_argument("--saturating", type=int, default=64, help="agents that keep the server busy")
    parser.add_argument("--times", type=int, default=10, help="times as many in the overload")
    parser.add_argument("--processes", type=int, default=8, help="that the crowd runs in")
    parser.add_argument("--steps", type=int, default=20, help="of a transaction; 0 is one that never ends")
    given = parser.parse_args()
    metrics = f"127.0.0.1:{_free_port()}"
    with (
        scratch_directory() as directory,
        server("agenttx", directory, **REFUSING, metrics_listen=metrics) as address,
    ):
        database = directory / "agenttx" / "agenttx.db"
        bench = Bench(address, ServerSeen(metrics, _pid_of(database)), given.steps, given.processes)
        progress("unloaded")
        result: dict[str, Any] = {"unloaded": bench.unloaded(), "burst": bench.burst()}
        progress("saturated")
        result["saturated"], _ = bench.crowded(given.saturating, SATURATED_SECONDS)
        bench.server.limits.clear()
        bench.server.most_memory_mib = 0.0
        progress("overloaded")
        result["overloaded"], after = bench.crowded(given.saturating * given.times, given.seconds)
        normal = MOST_TIMES_UNLOADED * result["unloaded"]["p99_ms"]
        result["recovery_seconds"] = recovery_seconds(after, normal)
        progress("bad connections")
        result["beside_p99_ms"] = bench.beside_bad()
        result["lost"] = _lost(database, bench.answered)
        result["crowd_nice"] = CROWD_NICE
    measuring.report("overload", result)
    for what, value, bound, met in judged(result):
        print(f"{'met' if met else 'NOT MET':8}{what}: {value} ({bound})")
    return result


if __name__ == "__main__":
    main()
