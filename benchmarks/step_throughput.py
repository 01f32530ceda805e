"""Durable steps a second against a bare echo of the same kind, measured in turns.

Each of N transactions sends its next `kv.put` when the last is answered, unary or on a stream of
its own (ExecuteSteps). The echo gets the same messages from the same client. The client runs in
this process, the servers in processes of their own.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc.aio

from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc
from benchmarks import measuring
from benchmarks.servers import scratch_directory, server

CHANNELS = 4


def step_request(transaction_id: str, step: int, generation: int = 1) -> pb.ExecuteStepRequest:
    """Return the next step: a small kv.put."""
    return pb.ExecuteStepRequest(
        transaction_id=transaction_id,
        step_id=step,
        tool_name="kv.put",
        arguments_json=f'{{"key":"k{step}","value":{{"id":"c-{step}","name":"a customer","total":{step}}}}}',
        request_id=f"{transaction_id}-{generation}-{step}",
        generation=generation,
    )


async def _begin(stub: Any, kind: str) -> str:
    if kind == "echo":
        return "00000000-0000-7000-8000-000000000000"
    begun = await stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="benchmark"))
    return str(begun.transaction_id)


async def _unary(stub: Any, kind: str, until: float, latencies: list[float]) -> int:
    transaction_id = await _begin(stub, kind)
    step = 0
    while (before := time.perf_counter()) < until:
        step += 1
        answer = await stub.ExecuteStep(step_request(transaction_id, step))
        assert answer.status == pb.STEP_STATUS_SUCCESS, answer
        latencies.append(time.perf_counter() - before)
    return step


async def _stream(stub: Any, kind: str, until: float, latencies: list[float]) -> int:
    transaction_id = await _begin(stub, kind)
    stream = stub.ExecuteSteps()
    step = 0
    while (before := time.perf_counter()) < until:
        step += 1
        await stream.write(pb.ExecuteStepsRequest(step=step_request(transaction_id, step)))
        answer = await stream.read()
        assert answer.response.status == pb.STEP_STATUS_SUCCESS, answer
        latencies.append(time.perf_counter() - before)
    await stream.done_writing()
    return step


async def measure(address: str, kind: str, shape: str, concurrency: int, seconds: float) -> dict[str, float]:
    """Call a server for a time; return how many calls it answered and how fast."""
    channels = [
        grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))
        for _ in range(min(CHANNELS, concurrency))
    ]
    stubs = [transaction_pb2_grpc.AgentTxServiceStub(channel) for channel in channels]
    run = _unary if shape == "unary" else _stream
    latencies: list[float] = []
    started = time.perf_counter()
    counts = await asyncio.gather(
        *(
            run(stubs[number % len(stubs)], kind, started + seconds, latencies)
            for number in range(concurrency)
        )
    )
    elapsed = time.perf_counter() - started
    for channel in channels:
        await channel.close()
    latencies.sort()
    return {
        "calls": sum(counts),
        "calls_per_second": sum(counts) / elapsed,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000,
    }


async def _compare(
    addresses: dict[str, str], shape: str, concurrency: int, seconds: float, repetitions: int
) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in addresses}
    for kind, address in addresses.items():  # warm up
        await measure(address, kind, shape, concurrency, seconds / 4)
    for _ in range(repetitions):
        for kind, address in addresses.items():
            found[kind].append(await measure(address, kind, shape, concurrency, seconds))
    ratios = [
        step["calls_per_second"] / echo["calls_per_second"]
        for step, echo in zip(found["agenttx"], found["echo"], strict=True)
    ]
    return {
        "shape": shape,
        "concurrency": concurrency,
        "ratio_to_echo": measuring.summary(ratios),
        **{
            f"{kind}_{measure}": measuring.summary([one[measure] for one in rounds])
            for kind, rounds in found.items()
            for measure in ("calls_per_second", "p50_ms", "p99_ms")
        },
    }


async def _run(seconds: float, repetitions: int, concurrencies: list[int], shapes: list[str]) -> list[Any]:
    with (
        scratch_directory() as scratch,
        server("agenttx", scratch) as agenttx,
        server("echo", scratch) as echo,
    ):
        addresses = {"agenttx": agenttx, "echo": echo}
        return [
            await _compare(addresses, shape, concurrency, seconds, repetitions)
            for shape in shapes
            for concurrency in concurrencies
        ]


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--shape", choices=("unary", "stream"), nargs="+", default=["unary", "stream"])
    arguments = parser.parse_args()
    seconds, repetitions = (1.0, 2) if arguments.quick else (arguments.seconds, arguments.repetitions)
    measuring.report(
        "step_throughput", asyncio.run(_run(seconds, repetitions, arguments.concurrency, arguments.shape))
    )


if __name__ == "__main__":
    main()
