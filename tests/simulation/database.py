"""One server's connection to the database: slow, unreliable, and not stopped when the server is.

A write that was handed over reaches the database or not, whatever becomes of the server; its answer
may be lost, and it may be made after the server was told that it failed. Writes of one transaction
are made in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from tests.simulation.loop import Process, in_process
from tests.simulation.plan import Plan
from tests.simulation.world import World
from tests.support.engine_harness import summary_of
from tests.support.memory_store import MemoryDatabase, MemoryStore

from agenttx_server.engine.ports import StoredTransaction, StoreUnavailable, WriteReceipt, WriteSet
from agenttx_server.engine.records import AttemptState, TransactionId

__all__ = ["SimulatedStore", "Weather", "stored_transaction"]


def stored_transaction(database: MemoryDatabase, transaction_id: str) -> StoredTransaction:
    """Return what a transaction is rebuilt from, at once."""
    loading = MemoryStore(database).load(TransactionId(transaction_id))
    try:
        while True:
            loading.send(None)
    except StopIteration as ended:
        found: StoredTransaction = ended.value
        return found


class Weather:
    """How bad database and network are at the moment."""

    def __init__(self, plan: Plan) -> None:
        self.random = Random(f"weather {plan.seed}")
        self.write_faults = plan.write_faults
        self.read_faults = plan.read_faults
        self.delays = plan.delays
        self.network_faults = plan.network_faults

    def clear_up(self) -> None:
        """No faults any more, and no delays."""
        self.write_faults = self.read_faults = self.delays = self.network_faults = 0.0

    def delay(self) -> float:
        """How long the next message takes."""
        if not self.delays or self.random.random() >= self.delays:
            return 0.0
        return self.random.choice((0.001, 0.05, 0.3, 1.2))


class SimulatedStore:
    """Implements ports.TransactionStore over a :class:`MemoryDatabase`."""

    def __init__(
        self, database: MemoryDatabase, world: World, weather: Weather, process: Process, *, is_shared: bool
    ) -> None:
        self.is_shared = is_shared
        self._memory = MemoryStore(database, is_shared=is_shared)
        self._world = world
        self._weather = weather
        self._process = process
        self._last: dict[str, asyncio.Task[None]] = {}

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._memory, name)
        takes_effect = name in ("register_server", "claim_orphans", "claim_outbox", "take_stop_requests")

        async def call(*arguments: Any, **named: Any) -> Any:
            weather = self._weather
            before, after = weather.delay(), weather.delay()
            if before:
                await asyncio.sleep(before)
            if weather.read_faults and weather.random.random() < weather.read_faults:
                if takes_effect and weather.random.random() < 0.5:
                    await method(*arguments, **named)
                raise StoreUnavailable(f"{name} failed, as told")
            result = await method(*arguments, **named)
            if name in ("claim_orphans", "claim_outbox", "take_stop_requests") and result:
                self._world.note(
                    name,
                    self._process.name,
                    text=" ".join(str(getattr(r, "transaction_id", r)) for r in result),
                )
            if after:
                await asyncio.sleep(after)
            return result

        setattr(self, name, call)
        return call

    def submit(self, write_set: WriteSet) -> asyncio.Future[WriteReceipt]:
        return asyncio.ensure_future(self.write(write_set))

    async def write(self, write_set: WriteSet) -> WriteReceipt:
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[WriteReceipt] = loop.create_future()
        at = write_set.transaction.transaction_id
        sent = len(self._world.log)
        task = loop.create_task(
            self._send(self._last.get(at), write_set, reply, sent), context=in_process(None)
        )
        self._last[at] = task
        return await reply

    async def _send(
        self,
        previous: asyncio.Task[None] | None,
        write_set: WriteSet,
        reply: asyncio.Future[WriteReceipt],
        sent: int,
    ) -> None:
        weather, chance = self._weather, self._weather.random.random
        fault = weather.write_faults and chance() < weather.write_faults
        # A server that has its database to itself knows what became of a write before it sends another.
        kinds = ("lost", "made", "late") if self.is_shared else ("lost", "made")
        kind = weather.random.choice(kinds) if fault else ""
        delay = weather.delay()
        if previous is not None and not previous.done():
            await asyncio.wait((previous,))
        if delay:
            await asyncio.sleep(delay)
        if kind in ("lost", "late"):
            self._answer(reply, StoreUnavailable("the connection broke, as told"))
            self._note("notmade" if kind == "lost" else "willmake", write_set)
            if kind == "lost":
                return
            await asyncio.sleep(weather.random.choice((0.0, 0.01, 0.5)))
        try:
            receipt = self._memory._apply(write_set)
        except Exception as error:
            self._note(type(error).__name__, write_set)
            self._answer(reply, error)
            return
        self._note("write" if not kind else "unsure", write_set)
        for attempt in write_set.attempts:
            if attempt.state is AttemptState.COMPLETED:
                at = (write_set.transaction.transaction_id, attempt.step_id, attempt.attempt)
                self._world.completed.setdefault(at, (self._process.name, sent))
        if kind:
            self._answer(reply, StoreUnavailable("the connection broke, as told"))
            return
        delay = weather.delay()
        await asyncio.sleep(delay)  # durable a little before it is known
        self._answer(reply, receipt)

    def _note(self, kind: str, write_set: WriteSet) -> None:
        record = write_set.transaction
        self._world.note(
            kind,
            self._process.name,
            record.transaction_id,
            text=f"r{record.revision} {summary_of(write_set)}",
        )

    def _answer(self, reply: asyncio.Future[WriteReceipt], result: WriteReceipt | Exception) -> None:
        if reply.done():
            return
        if isinstance(result, Exception):
            reply.set_exception(result)
        else:
            reply.set_result(result)
