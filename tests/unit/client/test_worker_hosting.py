"""How a worker runs the calls of one connection: each is answered once, and none after the connection's end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from agenttx.hosting.calls import Calls
from agenttx.hosting.offer import Offered
from agenttx.tools.blocking_pool import BlockingPool
from agenttx.v1 import tool_pb2 as pb
from agenttx.worker import ContextClosed, OutcomeUnknown, ToolFailure, tool

LARGEST = 1000


class Server:
    """The other side: what it was sent; it answers requests from a script."""

    def __init__(self, *tools: Any, channels: Any = None) -> None:
        self.sent: list[pb.ConnectRequest] = []
        self.answers: list[pb.ContextAnswer] = []
        self.news = asyncio.Event()
        self.calls = Calls(Offered.of(tools, channels or {}), BlockingPool(2, "test"), self.take, LARGEST)

    def take(self, message: pb.ConnectRequest) -> None:
        self.sent.append(message)
        self.news.set()
        if message.WhichOneof("message") == "context" and self.answers:
            answer = self.answers.pop(0)
            answer.request_id = message.context.request_id
            self.calls.take(pb.ConnectResponse(context=answer))

    def call(self, name: str, arguments: str = "{}", call_id: int = 1) -> None:
        call = pb.ToolCall(call_id=call_id, tool_name=name, arguments_json=arguments)
        call.time_left.FromSeconds(30)
        self.calls.take(pb.ConnectResponse(call=call))

    async def outcome(self) -> pb.CallOutcome:
        await self.calls.ended()
        (outcome,) = [told.outcome for told in self.sent if told.HasField("outcome")]
        return outcome


async def test_arguments_that_are_refused_are_told_as_not_called():
    @tool("t", effects="irreversible")
    async def function(count: int) -> None: ...

    server = Server(function)
    server.call("t", '{"count": "1"}')
    failure = (await server.outcome()).failure

    assert failure.not_called
    assert failure.category == "invalid_value"
    assert list(failure.keys) == ["count"]


async def test_a_tool_that_this_worker_does_not_have():
    @tool("t", effects="read_only")
    async def function() -> None: ...

    server = Server(function)
    server.call("u")

    assert (await server.outcome()).failure.not_called


async def test_an_irreversible_result_that_can_not_be_kept_is_no_failure():
    @tool("t", effects="irreversible")
    async def function(large: bool) -> Any:
        return "x" * 2 * LARGEST if large else {1}

    for arguments in ('{"large": true}', '{"large": false}'):
        server = Server(function)
        server.call("t", arguments)
        assert "its result can't be kept" in (await server.outcome()).unknown


async def test_an_exception_is_sent_with_its_traceback_and_bounded():
    @tool("t", effects="read_only")
    async def function() -> None:
        raise ValueError("x" * 1_000_000 + "the end")

    server = Server(function)
    server.call("t")
    failure = (await server.outcome()).failure

    assert failure.category == ""
    assert failure.raw_error.startswith("Traceback")
    assert failure.raw_error.rstrip().endswith("the end")
    assert len(failure.raw_error) < 70_000


async def test_an_outcome_that_the_tool_does_not_know():
    @tool("t", effects="irreversible")
    async def function() -> None:
        raise OutcomeUnknown("the line\nwent dead")

    server = Server(function)
    server.call("t")

    assert (await server.outcome()).unknown == "the line went dead"


async def test_a_cancelled_call_is_answered_all_the_same():
    entered = asyncio.Event()

    @tool("t", effects="idempotent")
    async def function() -> None:
        entered.set()
        await asyncio.Event().wait()

    server = Server(function)
    server.call("t")
    await entered.wait()
    assert server.calls.ids == [1]
    server.calls.take(pb.ConnectResponse(cancel=pb.CancelCall(call_id=1)))

    assert (await server.outcome()).failure.category == "cancelled"
    assert server.calls.ids == []


async def test_when_the_connection_ends_its_calls_are_stopped_and_answer_nothing():
    seen: list[Any] = []
    entered = threading.Event()

    @tool("async", effects="transactional")
    async def waits(ctx: Any) -> None:
        try:
            await ctx.store.get("a")
        except ContextClosed as closed:
            seen.append(str(closed))
            raise

    @tool("blocking", effects="read_only")
    def polls(ctx: Any) -> None:
        entered.set()
        while not ctx.wait_cancelled(0.01):
            pass
        seen.append(ctx.is_cancelled)

    server = Server(waits, polls)
    server.call("async", call_id=1)
    server.call("blocking", call_id=2)
    await asyncio.to_thread(entered.wait)
    server.calls.close("the connection has ended")
    await server.calls.ended()

    assert True in seen
    assert not any(told.HasField("outcome") for told in server.sent)


async def test_a_scan_that_was_cut_is_gone_on_with():
    @tool("t", effects="read_only")
    async def function(ctx: Any) -> Any:
        return await ctx.store.scan("a", limit=5)

    def entries(*keys: str, is_cut: bool) -> pb.ContextAnswer:
        values = [pb.ContextEntryValue(key=f"kv/{key}", value_json="1") for key in keys]
        return pb.ContextAnswer(entries=pb.ContextEntries(entries=values, is_cut=is_cut))

    server = Server(function)
    server.answers = [entries("a1", "a2", is_cut=True), entries("a3", is_cut=False)]
    server.call("t")

    assert (await server.outcome()).output_json == '[["a1",1],["a2",1],["a3",1]]'
    scans = [told.context.scan for told in server.sent if told.HasField("context")]
    assert [(scan.prefix, scan.after, scan.limit) for scan in scans] == [
        ("kv/a", "", 5),
        ("kv/a", "kv/a2", 3),
    ]


async def test_a_value_that_would_break_the_connection_is_not_sent():
    @tool("t", effects="transactional")
    async def function(ctx: Any) -> None:
        await ctx.store.put("a", "x" * LARGEST)

    server = Server(function)
    server.call("t")

    assert (await server.outcome()).failure.category == "resource_exhausted"
    assert not any(told.HasField("context") for told in server.sent)


async def test_what_the_server_refuses_is_raised_in_the_tool():
    caught: list[Any] = []

    @tool("t", effects="transactional")
    async def function(ctx: Any) -> None:
        for _ in range(2):
            try:
                await ctx.store.put("a", 1)
            except (ToolFailure, ContextClosed) as error:
                caught.append(error)

    server = Server(function)
    refused = pb.CallFailure(category="invalid_value", message="no", keys=["key"])
    server.answers = [pb.ContextAnswer(failure=refused), pb.ContextAnswer(closed="its deadline passed")]
    server.call("t")
    await server.outcome()

    assert [type(error) for error in caught] == [ToolFailure, ContextClosed]
    assert (caught[0].category, caught[0].keys) == ("invalid_value", ("key",))


async def test_progress_is_told():
    @tool("t", effects="read_only")
    def function(ctx: Any) -> None:
        ctx.progress(0.5, "half")

    server = Server(function)
    server.call("t")
    await server.outcome()
    await asyncio.sleep(0)

    told = [message.progress for message in server.sent if message.HasField("progress")]
    assert [(progress.call_id, progress.fraction, progress.message) for progress in told] == [
        (1, 0.5, "half")
    ]


async def test_plain_functions_deliver_effects_too():
    delivered: list[Any] = []
    server = Server(channels={"mail": lambda effect: delivered.append(effect.payload)})
    effect = pb.DeliverCall(call_id=1)
    effect.effect.channel, effect.effect.payload_json = "mail", '{"a":1}'
    server.calls.take(pb.ConnectResponse(deliver=effect))

    assert (await server.outcome()).output_json == ""
    assert delivered == [{"a": 1}]
