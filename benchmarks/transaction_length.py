"""What length costs: a step at position 10 and at 10,000, and rewinds of many writes.

Positions are measured in turns: a few steps of a long transaction, a few of one that was just
begun. A rewind is one RPC; "same in a longer one" rewinds as many writes in a transaction twenty
times as long, to show that a rewind costs what it removes.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import grpc.aio

from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc
from benchmarks import measuring
from benchmarks.servers import scratch_directory, server
from benchmarks.step_throughput import step_request

WINDOW = 50


class _Transaction:
    """A transaction that grows by kv.put on its own stream."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self._stream: Any = None
        self.transaction_id = ""
        self.generation = 1
        self.next_step = 1

    async def begin(self) -> _Transaction:
        begun = await self._stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="benchmark"))
        self.transaction_id = begun.transaction_id
        self._stream = self._stub.ExecuteSteps()
        return self

    async def grow_to(self, step: int) -> None:
        """Run steps up to and including ``step``."""
        for _ in range(self.next_step, step + 1):
            await self.one_step()

    async def one_step(self) -> float:
        """Run the next step and return the seconds until its answer."""
        request = step_request(self.transaction_id, self.next_step, self.generation)
        before = time.perf_counter()
        await self._stream.write(pb.ExecuteStepsRequest(step=request))
        answer = await self._stream.read()
        seconds = time.perf_counter() - before
        assert answer.response.status == pb.STEP_STATUS_SUCCESS, answer
        self.next_step += 1
        return seconds

    async def rewind(self, to_step: int) -> float:
        """Rewind and return the seconds until the answer."""
        before = time.perf_counter()
        answer = await self._stub.Rewind(
            pb.RewindRequest(transaction_id=self.transaction_id, to_step=to_step)
        )
        seconds = time.perf_counter() - before
        self.next_step, self.generation = answer.next_step_id, answer.generation
        return seconds


async def _positions(stub: Any, far: int, repetitions: int) -> dict[str, Any]:
    long = await _Transaction(stub).begin()
    await long.grow_to(far - WINDOW * repetitions // 2)
    near_medians, far_medians = [], []
    for _ in range(repetitions):
        short = await _Transaction(stub).begin()
        await short.grow_to(9)
        near, distant = [], []
        for _ in range(WINDOW):
            near.append(await short.one_step())
            distant.append(await long.one_step())
        near_medians.append(statistics.median(near) * 1000)
        far_medians.append(statistics.median(distant) * 1000)
    ratios = [late / early for late, early in zip(far_medians, near_medians, strict=True)]
    return {
        "far_position": far,
        "near_ms": measuring.summary(near_medians),
        "far_ms": measuring.summary(far_medians),
        "ratio_far_to_near": measuring.summary(ratios),
    }


async def _rewinds(stub: Any, writes: int, repetitions: int) -> dict[str, Any]:
    alone, in_longer = [], []
    longer = await _Transaction(stub).begin()
    await longer.grow_to(writes * 20 if writes <= 500 else writes * 2)
    base = longer.next_step
    transaction = await _Transaction(stub).begin()
    for _ in range(repetitions):
        await transaction.grow_to(writes)
        alone.append(await transaction.rewind(1) * 1000)
        await longer.grow_to(base + writes - 1)
        in_longer.append(await longer.rewind(base) * 1000)
    return {
        "writes": writes,
        "rewind_ms": measuring.summary(alone),
        "same_in_a_longer_one_ms": measuring.summary(in_longer),
    }


async def _run(far: int, writes: list[int], repetitions: int) -> dict[str, Any]:
    with scratch_directory() as scratch, server("agenttx", scratch) as address:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
            return {
                "rewinds": [await _rewinds(stub, count, repetitions) for count in writes],
                "positions": await _positions(stub, far, repetitions),
            }


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--far", type=int, default=10_000, help="the far position")
    parser.add_argument("--writes", type=int, nargs="+", default=[100, 500, 5_000], help="writes rewound")
    arguments = parser.parse_args()
    if arguments.quick:
        run = _run(1_000, [100], 2)
    else:
        run = _run(arguments.far, arguments.writes, arguments.repetitions)
    measuring.report("transaction_length", asyncio.run(run))


if __name__ == "__main__":
    main()
