"""Processor time of one durable step, by thread and by layer: a figure that a busy machine changes little.

Four distances, the same `kv.put` each: through the coordinator alone; through the whole handler
(interceptors, parsing, conversion, serialising) without gRPC, of a single call and on a stream; and through gRPC, where server and client
are processes of their own and the server's threads are read from /proc, beside a bare echo of the same kind.

Processor time still depends on what shares the core and its caches. So each measurement stands between two
runs of one fixed piece of Python work, and ``in_yardsticks`` is the loop's and the writer's time in units of it.

``--profile`` prints where the event loop's thread spends its time on the way through one of them.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import pstats
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agenttx.v1 import transaction_pb2 as pb
from benchmarks import measuring
from benchmarks.agents import measure, step_request
from benchmarks.servers import scratch_directory, server, server_process

WRITER_THREAD = "agenttx-commit-writer"
MICRO = 1e6
YARDSTICK_ROUNDS = 300
Step = Callable[[str, int], Awaitable[None]]


class _Details:
    """What a call is found by."""

    def __init__(self, method: str) -> None:
        self.method = method


class _NoCall:
    """What the chain asks of a call's context where there is no gRPC."""

    def time_remaining(self) -> None:
        return None

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


class _Stream(_NoCall):
    """A stream without gRPC: what is read of it is parsed, and what is written serialised, as gRPC has it done."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.serving = asyncio.create_task(handler.stream_stream(None, self))

    async def read(self) -> Any:
        return self._handler.request_deserializer(await self._requests.get())

    async def write(self, message: Any) -> None:
        self._answers.put_nowait(self._handler.response_serializer(message))

    async def call(self, message: bytes) -> bytes:
        """Send a message and return the answer to it."""
        self._requests.put_nowait(message)
        return await self._answers.get()


def _yardstick() -> float:
    """Return the processor seconds of a fixed piece of work like a step's: small objects, dictionaries, text."""
    before = time.thread_time()
    for number in range(YARDSTICK_ROUNDS):
        fields = {f"k{item}": (item, str(item)) for item in range(20)}
        text = json.dumps({"id": number, "fields": fields})
        assert len(json.loads(text)) == 2
    return (time.thread_time() - before) / YARDSTICK_ROUNDS


def _thread_seconds(name: str) -> float:
    """Return the processor time of a thread of this process."""
    (thread,) = [thread for thread in threading.enumerate() if thread.name == name]
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


async def _drive(
    begin: Callable[[], Awaitable[str]],
    step: Step,
    agents: int,
    steps: int,
    written: Callable[[], tuple[int, int]],
) -> dict[str, float]:
    """Have agents make steps side by side; return what one step cost."""
    transactions = [await begin() for _ in range(agents)]

    async def agent(transaction_id: str) -> None:
        for number in range(1, steps + 1):
            await step(transaction_id, number)

    yardstick = _yardstick()
    sets, commits = written()
    loop_before, writer_before = time.thread_time(), _thread_seconds(WRITER_THREAD)
    await asyncio.gather(*map(agent, transactions))
    loop, writer = time.thread_time() - loop_before, _thread_seconds(WRITER_THREAD) - writer_before
    sets, commits = written()[0] - sets, written()[1] - commits
    yardstick = (yardstick + _yardstick()) / 2
    made = agents * steps
    return {
        "event_loop_us": loop / made * MICRO,
        "writer_us": writer / made * MICRO,
        "in_yardsticks": (loop + writer) / made / yardstick,
        "loop_in_yardsticks": loop / made / yardstick,
        "sets_a_commit": sets / commits,
    }


async def _in_process(
    directory: Path,
    agents: int,
    steps: int,
    repetitions: int,
    profile: cProfile.Profile | None,
    way_profiled: str,
) -> dict[str, Any]:
    from agenttx_server import main
    from agenttx_server.access.tenant_rules import TenantRules
    from agenttx_server.api.agenttx_servicer import AgentTxServicer
    from agenttx_server.api.answer_sizes import AnswerSizes
    from agenttx_server.api.drain_signal import DrainSignal
    from agenttx_server.api.interceptors import Admission, Metrics
    from agenttx_server.api.interceptors.call import call_facts
    from agenttx_server.api.interceptors.chain import wrap_handler
    from agenttx_server.api.message_conversion import requests
    from agenttx_server.api.methods import describe
    from agenttx_server.api.server import stages
    from agenttx_server.api.service_handlers import handlers
    from agenttx_server.api.stream_writing import StreamWriting
    from agenttx_server.composition.bounds import api_settings
    from agenttx_server.engine.requests import BeginRequest, StepStatus
    from agenttx_server.logging_setup import configure_logging
    from agenttx_server.settings import load_settings

    configure_logging("json", "info", call_facts)
    settings = load_settings({"data_dir": directory, "listen": "127.0.0.1:0"})
    api = api_settings(settings, TenantRules(), None, None)
    async with main.open_server(settings) as serving:
        main._calm_garbage_collector()
        coordinator = serving.coordinator
        store = coordinator._services.store
        sizes = AnswerSizes(api.struct_output_bytes, api.max_message_bytes)
        servicer: Any = AgentTxServicer(coordinator, DrainSignal(), sizes, StreamWriting(30.0))
        chain = stages(Metrics(), Admission(api.bounds), api)

        def wrapped(name: str) -> Any:
            path = f"/agenttx.v1.AgentTxService/{name}"
            served = handlers(pb.DESCRIPTOR.services_by_name["AgentTxService"], servicer)
            return wrap_handler(served.service(_Details(path)), describe(path), chain)

        handle, streamed = wrapped("ExecuteStep").unary_unary, wrapped("ExecuteSteps")
        context = _NoCall()
        streams: dict[str, _Stream] = {}

        async def begin() -> str:
            return (await coordinator.begin(BeginRequest("benchmark", principal="anonymous"))).transaction_id

        async def through_coordinator(transaction_id: str, number: int) -> None:
            asked = requests.step_request(step_request(transaction_id, number), "anonymous", 1 << 20)
            answer = await coordinator.execute_step(asked)
            assert answer.status is StepStatus.SUCCESS

        async def through_handler(transaction_id: str, number: int) -> None:
            message = step_request(transaction_id, number).SerializeToString()
            # In a task of its own, as gRPC calls it.
            encoded = await asyncio.get_running_loop().create_task(handle(message, context))
            assert pb.ExecuteStepResponse.FromString(encoded).status == pb.STEP_STATUS_SUCCESS

        async def through_stream(transaction_id: str, number: int) -> None:
            if transaction_id not in streams:
                streams[transaction_id] = _Stream(streamed)
            message = pb.ExecuteStepsRequest(step=step_request(transaction_id, number)).SerializeToString()
            encoded = await streams[transaction_id].call(message)
            assert pb.ExecuteStepsResponse.FromString(encoded).response.status == pb.STEP_STATUS_SUCCESS

        ways = {"coordinator": through_coordinator, "handler": through_handler, "stream": through_stream}
        if profile is not None:
            await _drive(begin, ways[way_profiled], agents, 20, lambda: store.written)
            profile.enable()
            await _drive(begin, ways[way_profiled], agents, steps, lambda: store.written)
            profile.disable()
            return {}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for round_ in range(repetitions + 1):
            for name, way in ways.items():
                one = await _drive(begin, way, agents, steps if round_ else 10, lambda: store.written)
                if round_:  # the first one warms up
                    found[name].append(one)
        await serving.drain()
    return {
        name: {measure: measuring.summary([one[measure] for one in rounds]) for measure in rounds[0]}
        for name, rounds in found.items()
    }


def _threads(process: int) -> dict[str, float]:
    """Return the processor seconds of a process's event loop's thread and of all others."""
    times = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            times[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except FileNotFoundError:  # it has ended
            continue
    return {"event_loop": times[process], "process": sum(times.values())}


async def _through_grpc(
    directory: Path, shape: str, agents: int, seconds: float, repetitions: int
) -> dict[str, Any]:
    with server("agenttx", directory) as agenttx, server("echo", directory) as echo:
        addresses = {"agenttx": agenttx, "echo": echo}
        processes = {kind: server_process(address) for kind, address in addresses.items()}
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in addresses}
        for round_ in range(repetitions + 1):
            for kind, address in addresses.items():
                before, client_before = _threads(processes[kind]), time.process_time()
                window = await measure(address, kind, shape, agents, seconds if round_ else 0.5)
                after = _threads(processes[kind])
                made = len(window.latencies)
                if round_:
                    found[kind].append(
                        {f"{name}_us": (after[name] - before[name]) / made * MICRO for name in before}
                        | {"client_us": (time.process_time() - client_before) / made * MICRO}
                    )
    result: dict[str, Any] = {
        kind: {measure_: measuring.summary([one[measure_] for one in rounds]) for measure_ in rounds[0]}
        for kind, rounds in found.items()
    }
    for name in ("event_loop_us", "process_us"):
        ratios = [e[name] / s[name] for e, s in zip(found["echo"], found["agenttx"], strict=True)]
        result[f"echo_of_step_{name}"] = round(statistics.median(ratios), 3)
    return result


def _print_profile(stats: pstats.Stats) -> None:
    """Print the share of each module, then the functions that take longest."""
    shares: Counter[str] = Counter()
    found: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = stats.stats  # type: ignore[attr-defined]
    for (file, _, _), (_, _, own_seconds, _, _) in found.items():
        shares["/".join(Path(file).parts[-2:])] += own_seconds  # type: ignore[assignment]
    whole = sum(shares.values())
    for name, seconds in shares.most_common(40):
        print(f"{seconds / whole:7.1%} {name}")
    stats.sort_stats("tottime").print_stats(60)


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 64])
    parser.add_argument(
        "--steps", type=int, default=100, help="steps of each agent in one measurement in process"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement over gRPC")
    parser.add_argument("--no-grpc", action="store_true", help="in process only")
    parser.add_argument(
        "--profile",
        choices=("coordinator", "handler", "stream"),
        help="print a profile of the loop's thread on this way instead",
    )
    arguments = parser.parse_args()
    sys.setswitchinterval(0.001)
    steps, seconds, repetitions = arguments.steps, arguments.seconds, arguments.repetitions
    if arguments.quick:
        steps, seconds, repetitions = 20, 0.5, 2
    import uvloop

    results: dict[str, Any] = {}
    for agents in arguments.agents:
        alone = steps * 8 if agents == 1 else steps
        with scratch_directory() as directory, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            profile = cProfile.Profile() if arguments.profile else None
            here = runner.run(_in_process(directory, agents, alone, repetitions, profile, arguments.profile))
            if profile is not None:
                _print_profile(pstats.Stats(profile))
                continue
        results[f"in process, {agents}"] = here
        if not arguments.no_grpc:
            for shape in ("unary", "stream"):
                with scratch_directory() as directory:
                    results[f"{shape}, {agents}"] = asyncio.run(
                        _through_grpc(directory, shape, agents, seconds, repetitions)
                    )
    if not arguments.profile:
        measuring.report("step_cost", results)


if __name__ == "__main__":
    main()
