"""Streams whose clients don't read: cut in time, and told where they were."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.virtual_time import current_loop, virtual_time

from agenttx.v1 import graph_pb2 as pb
from agenttx.v1 import transaction_pb2 as tx
from agenttx_server.access.identity import ANONYMOUS
from agenttx_server.api.agenttx_servicer import AgentTxServicer
from agenttx_server.api.answer_sizes import AnswerSizes
from agenttx_server.api.drain_signal import DrainSignal, Interruptible
from agenttx_server.api.interceptors.call import RpcCall, enter_context
from agenttx_server.api.methods import describe
from agenttx_server.api.stream_writing import SlowConsumer, StreamWriting
from agenttx_server.engine.errors import Unavailable
from agenttx_server.engine.records import EventRecord, EventType, MicrosecondsUtc

MESSAGE = pb.SubscribeEventsResponse()


class Context:
    """A call whose client takes each message after some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.written = 0

    async def write(self, message: Any) -> None:
        await asyncio.sleep(self._seconds)
        self.written += 1


@virtual_time
async def test_a_client_that_reads_slowly_is_waited_for_and_one_that_does_not_is_cut() -> None:
    with Interruptible(DrainSignal(), "go on from offset 7") as waits:
        slow: Any = Context(29.0)
        for _ in range(10):
            await StreamWriting(30.0).write(slow, waits, MESSAGE, {})
        assert slow.written == 10
        with pytest.raises(SlowConsumer, match="30 s; go on from offset 7") as cut:
            await StreamWriting(30.0).write(Context(31.0), waits, MESSAGE, {"from_offset": "7"})
    assert (cut.value.reason, cut.value.metadata) == ("SLOW_CONSUMER", {"from_offset": "7"})


@virtual_time
async def test_a_server_that_drains_waits_for_no_client() -> None:
    drain = DrainSignal()
    with Interruptible(drain, "go on from offset 7") as waits:
        current_loop().call_later(3.0, drain.begin_drain)
        stalled: Any = Context(100.0)
        with pytest.raises(Unavailable, match="go on from offset 7"):
            await StreamWriting(30.0).write(stalled, waits, MESSAGE, {})
    assert current_loop().time() == 3.0


class Transaction:
    """A transaction with two events, as a coordinator tells of it."""

    async def is_ended(self, principal: str, transaction_id: str) -> bool:
        return False

    async def events_after(
        self, principal: str, transaction_id: str, first: int, limit: int
    ) -> list[EventRecord]:
        return [
            EventRecord(sequence, EventType.STEP_COMPLETED, 1, MicrosecondsUtc(0))
            for sequence in (1, 2)
            if sequence >= first
        ]


@virtual_time
async def test_a_watcher_of_a_transaction_that_reads_nothing_is_cut_with_its_last_event() -> None:
    call = RpcCall(describe("/agenttx.v1.AgentTxService/WatchTransaction"), None)
    call.identity = ANONYMOUS
    enter_context(call)
    taken: list[int] = []

    class TakesOne:
        async def write(self, message: Any) -> None:
            if taken:
                await asyncio.sleep(100.0)
            taken.append(message.event.sequence)

    coordinator: Any = Transaction()
    servicer = AgentTxServicer(coordinator, DrainSignal(), AnswerSizes(1, 1), StreamWriting(30.0))
    context: Any = TakesOne()
    with pytest.raises(SlowConsumer) as cut:
        await servicer.WatchTransaction(tx.WatchTransactionRequest(transaction_id="t"), context)
    assert (cut.value.metadata, taken) == ({"last_sequence": "1"}, [1])
    assert current_loop().time() == 30.0
