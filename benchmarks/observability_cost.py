"""What it costs to know who calls and to be watched: processor time of a unary durable step, server's processes alone.

Servers side by side, each a process of its own, take the same steps over gRPC in turns: one that neither finds out who
calls nor counts anything, and one that checks a token and serves metrics, scraped every few seconds; with `--traces` one as it
is out of the box, and one that traces 1 % of the calls. Ratios are of rounds that follow one another.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio

from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc
from benchmarks import measuring
from benchmarks.agents import step_request
from benchmarks.servers import scratch_directory, server, server_process
from benchmarks.step_cost import _threads

AGENTS = 16
SCRAPE_EVERY_SECONDS = 5.0
MICRO = 1e6


class _Subject:
    """A server under measurement: where it is, its process, and what is sent with each call."""

    def __init__(self, address: str, token: str = "", metrics: str = "") -> None:
        self.address = address
        self.process = server_process(address)
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.metrics = metrics
        self.microseconds: list[float] = []

    async def measure(self, steps: int) -> float:
        """Make steps; return the processor time, in microseconds, that the server took for one."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
            ids = []
            for _ in range(AGENTS):
                begin = pb.BeginTransactionRequest(agent_id="benchmark")
                ids.append((await stub.BeginTransaction(begin, metadata=self.metadata)).transaction_id)
            before = _threads(self.process)["process"]
            await asyncio.gather(*(self._agent(stub, transaction_id, steps) for transaction_id in ids))
            return (_threads(self.process)["process"] - before) / (steps * AGENTS) * MICRO

    async def _agent(self, stub: Any, transaction_id: str, steps: int) -> None:
        for number in range(1, steps + 1):
            answer = await stub.ExecuteStep(step_request(transaction_id, number), metadata=self.metadata)
            assert answer.status == pb.STEP_STATUS_SUCCESS, answer

    async def scrape(self) -> None:
        """Read the metrics every so often until cancelled, if there are any."""
        while self.metrics:
            url = f"http://{self.metrics}/metrics"
            await asyncio.to_thread(_read, url)
            await asyncio.sleep(SCRAPE_EVERY_SECONDS)


def _read(url: str) -> None:
    with urllib.request.urlopen(url, timeout=30) as answer:
        answer.read()


def _token(data_dir: Path) -> str:
    """Make a token in the database that a server is about to use, or uses."""
    from agenttx_server.access.identity import ALL_TOOLS, roles_named
    from agenttx_server.access.tokens import make_token
    from agenttx_server.store import open_tokens

    made = make_token("benchmark", roles_named(["agent"]), now=time.time_ns() // 1000, tools=ALL_TOOLS)
    with open_tokens(f"sqlite:///{data_dir / 'agenttx.db'}") as table:
        table.add(made.record)
    return made.token


WATCHED: dict[str, dict[str, str]] = {
    "unwatched": {},
    "known_and_counted": {"metrics_listen": "127.0.0.1:19464", "anonymous": "never"},
}
TRACED: dict[str, dict[str, str]] = {"untraced": {}, "traced_1_percent": {"trace_sampling": "0.01"}}


@contextlib.contextmanager
def _subjects(scratch: Path, kinds: dict[str, dict[str, str]]) -> Iterator[dict[str, _Subject]]:
    subjects = {}
    with contextlib.ExitStack() as stack:
        for name, given in kinds.items():
            (scratch / name).mkdir()
            kind = "unwatched" if name == "unwatched" else "agenttx"
            settings = dict(given) | {
                "overload_step_seconds": "0"
            }  # a busy machine is no reason to refuse steps here
            if "trace_sampling" in given:
                receiver = stack.enter_context(server("otlp", scratch / name))
                settings["otlp_endpoint"] = f"http://{receiver}"
            address = stack.enter_context(server(kind, scratch / name, **settings))
            token = _token(scratch / name / kind) if "anonymous" in given else ""
            subjects[name] = _Subject(address, token, given.get("metrics_listen", ""))
        yield subjects


async def _run(subjects: dict[str, _Subject], steps: int, repetitions: int) -> dict[str, Any]:
    for subject in subjects.values():  # warm up
        await subject.measure(max(steps // 5, 5))
    scraping = [asyncio.create_task(subject.scrape()) for subject in subjects.values()]
    for round_ in range(repetitions):
        # Each one first as often as last.
        for subject in list(subjects.values())[:: 1 if round_ % 2 else -1]:
            subject.microseconds.append(await subject.measure(steps))
    for task in scraping:
        task.cancel()
    plain, *others = subjects
    results: dict[str, Any] = {
        f"{name}_us": measuring.summary(subject.microseconds) for name, subject in subjects.items()
    }
    for name in others:
        measured, base = subjects[name].microseconds, subjects[plain].microseconds
        ratios = [one / other for one, other in zip(measured, base, strict=True)]
        results[f"{name}_of_{plain}"] = measuring.summary(ratios) | {
            # What others do on the machine only ever adds: rounds that it left alone tell most.
            "of_the_quietest_tenth": round(_quiet(measured) / _quiet(base), 4),
        }
    return results


def _quiet(values: list[float]) -> float:
    return sorted(values)[len(values) // 10]


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--steps", type=int, default=40, help="steps of each of 16 agents in a measurement")
    parser.add_argument("--traces", action="store_true", help="measure what tracing costs instead")
    arguments = parser.parse_args()
    steps, repetitions = (20, 2) if arguments.quick else (arguments.steps, arguments.repetitions)
    kinds = TRACED if arguments.traces else WATCHED
    with scratch_directory() as scratch, _subjects(scratch, kinds) as subjects:
        measuring.report("observability_cost", asyncio.run(_run(subjects, steps, repetitions)))


if __name__ == "__main__":
    main()
