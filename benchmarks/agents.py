"""Agents that call a server: each has a transaction of its own and sends its next step when the last is answered.

They keep their transactions and connections from one window of measurement to the next, so that a window holds steps alone.
Against the echo they send the same messages and have no transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc.aio

from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc
from benchmarks.measuring import percentile

Result = TypeVar("Result")
Shape = str
"""How steps are sent: "unary" (ExecuteStep) or "stream" (ExecuteSteps, a stream an agent)."""
SHAPES = ("unary", "stream")
RPC = {"unary": "ExecuteStep", "stream": "ExecuteSteps"}
ECHO_TRANSACTION = "00000000-0000-7000-8000-000000000000"
BEGIN_AT_ONCE = 64
MIB = 1 << 20
CHANNEL_OPTIONS = (
    # Else all channels to one address share a connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 16 * MIB),
    ("grpc.max_send_message_length", 16 * MIB),
)
AGENTS_A_CONNECTION = 16
FEWEST_CONNECTIONS = 4


def step_request(
    transaction_id: str,
    step: int,
    generation: int = 1,
    tool: str = "kv.put",
    arguments: str | None = None,
) -> pb.ExecuteStepRequest:
    """Return the next step: a small kv.put unless something else is said."""
    small = f'{{"key":"k{step}","value":{{"id":"c-{step}","name":"a customer","total":{step}}}}}'
    return pb.ExecuteStepRequest(
        transaction_id=transaction_id,
        step_id=step,
        tool_name=tool,
        arguments_json=small if arguments is None else arguments,
        request_id=f"{transaction_id}-{generation}-{step}",
        generation=generation,
    )


@dataclass
class Agent:
    """One agent and its transaction."""

    stub: Any
    transaction_id: str = ECHO_TRANSACTION
    generation: int = 1
    next_step: int = 1
    _stream: Any = None

    async def begin(self, agent_id: str = "benchmark") -> Agent:
        """Begin a transaction, the next one if there was one."""
        begun = await self.stub.BeginTransaction(pb.BeginTransactionRequest(agent_id=agent_id))
        self.transaction_id, self.generation, self.next_step = str(begun.transaction_id), 1, 1
        return self

    async def step(self, shape: Shape = "unary", tool: str = "kv.put", arguments: str | None = None) -> float:
        """Run the next step and return the seconds until its answer."""
        request = step_request(self.transaction_id, self.next_step, self.generation, tool, arguments)
        before = time.perf_counter()
        if shape == "unary":
            answer = await self.stub.ExecuteStep(request)
        else:
            if self._stream is None:
                self._stream = self.stub.ExecuteSteps()
            await self._stream.write(pb.ExecuteStepsRequest(step=request))
            answer = (await self._stream.read()).response
        seconds = time.perf_counter() - before
        if answer.status != pb.STEP_STATUS_SUCCESS:
            raise RuntimeError(f"a step of the benchmark failed: {answer}")
        self.next_step += 1
        return seconds

    async def grow_to(self, step: int, arguments: Callable[[int], str] | None = None) -> None:
        """Run steps up to and including one, on a stream."""
        while self.next_step <= step:
            await self.step("stream", arguments=arguments(self.next_step) if arguments else None)

    async def rewind(self, to_step: int) -> float:
        """Rewind and return the seconds until the answer."""
        before = time.perf_counter()
        answer = await self.stub.Rewind(pb.RewindRequest(transaction_id=self.transaction_id, to_step=to_step))
        seconds = time.perf_counter() - before
        self.next_step, self.generation = answer.next_step_id, answer.generation
        return seconds

    async def commit(self) -> float:
        """Commit and return the seconds until the answer."""
        before = time.perf_counter()
        await self.stub.CommitTransaction(pb.CommitTransactionRequest(transaction_id=self.transaction_id))
        return time.perf_counter() - before

    async def close(self) -> None:
        """End the stream of steps, if there is one."""
        if self._stream is not None:
            await self._stream.done_writing()
            self._stream = None


@dataclass
class Window:
    """What was answered within one window."""

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds

    def milliseconds(self, share: float) -> float:
        """Return the latency that a share of the calls kept within."""
        return percentile(self.latencies, share) * 1000


@dataclass
class Crew:
    """Agents of one server, the first so many of which are at work in a window."""

    agents: list[Agent]

    async def window(
        self,
        concurrency: int,
        seconds: float,
        shape: Shape = "unary",
        tool: str = "kv.put",
        arguments: str | None = None,
    ) -> Window:
        """Have so many agents send steps for a time, at least one each."""
        return await window(
            [
                lambda agent=agent: agent.step(shape, tool, arguments)  # type: ignore[misc]
                for agent in self.agents[:concurrency]
            ],
            seconds,
        )


async def window(callers: list[Callable[[], Awaitable[float]]], seconds: float) -> Window:
    """Call in turn for a time, each caller at least once; a call returns its own seconds."""
    found = Window()
    started = time.perf_counter()
    until = started + seconds

    async def keep_calling(call: Callable[[], Awaitable[float]]) -> None:
        while True:
            found.latencies.append(await call())
            if time.perf_counter() >= until:
                return

    await asyncio.gather(*map(keep_calling, callers))
    found.seconds = time.perf_counter() - started
    return found


async def measure(address: str, kind: str, shape: Shape, concurrency: int, seconds: float) -> Window:
    """Measure one window of small steps with agents of its own against a server ("agenttx" or "echo")."""
    async with crew(address, concurrency, echo=kind == "echo") as agents:
        return await agents.window(concurrency, seconds, shape)


@contextlib.asynccontextmanager
async def crew(address: str, count: int, *, echo: bool = False) -> AsyncIterator[Crew]:
    """Yield agents of a server whose transactions have begun."""
    channels = [
        grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        for _ in range(min(max(count // AGENTS_A_CONNECTION, FEWEST_CONNECTIONS), count))
    ]
    try:
        stubs = [transaction_pb2_grpc.AgentTxServiceStub(channel) for channel in channels]
        agents = [Agent(stubs[number % len(stubs)]) for number in range(count)]
        if not echo:
            gate = asyncio.Semaphore(BEGIN_AT_ONCE)

            async def begin(agent: Agent) -> None:
                async with gate:
                    await agent.begin()

            await asyncio.gather(*map(begin, agents))
        yield Crew(agents)
        await asyncio.gather(*(agent.close() for agent in agents))
    finally:
        for channel in channels:
            await channel.close()


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run the client as a server runs: on uvloop, with what was imported out of the garbage collector's way."""
    import uvloop

    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
