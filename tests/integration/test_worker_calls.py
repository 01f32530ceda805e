"""Tools in a worker over real gRPC: calls, state, undo, effects, failures."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.support.running_server import running_server
from tests.support.running_worker import running_worker, until_connected

import agenttx
from agenttx.errors import PreconditionFailed, StepFailed
from agenttx.records import EffectState, ToolLocation
from agenttx.rich_errors import from_call
from agenttx.v1 import tool_pb2 as pb
from agenttx.v1 import tool_pb2_grpc
from agenttx.worker import (
    ContextClosed,
    DeliveryFailed,
    Effect,
    EffectClass,
    OutcomeUnknown,
    ToolFailure,
    Worker,
    tool,
)

HELLO = pb.ConnectRequest(hello=pb.WorkerHello(tools=[pb.WorkerTool(name="w.a", effect_class=1)]))

happened: list[tuple[Any, ...]] = []
seen = asyncio.Event()


@pytest.fixture(autouse=True)
def _nothing_happened():
    happened.clear()


@tool("w.echo", effects="read_only")
async def echo(value: Any) -> Any:
    """Return the value."""
    return value


@tool("w.count", effects="transactional")
def count(ctx, key: str, by: int = 1) -> dict:
    """Add to a number in state, from a thread."""
    number = ctx.store.get(key, 0) + by
    ctx.store.put(key, number)
    return {"number": number, "listed": ctx.store.scan(key)}


@tool("w.charge", effects="compensatable")
async def charge(ctx, amount: int, fail: bool = False) -> dict:
    """Charge."""
    await ctx.register_undo("w.refund", key=ctx.idempotency_key)
    happened.append(("charge", amount, ctx.idempotency_key))
    if fail:
        raise ToolFailure("conflict", "the card is locked. Use another one", ("amount",))
    return {"charge_id": ctx.idempotency_key}


@charge.undo("w.refund")
async def refund(ctx, key: str) -> None:
    """Refund."""
    happened.append(("refund", key))


@tool("w.mail", effects="transactional")
async def mail(ctx, to: str) -> dict:
    """Stage a mail."""
    return {"effect_id": await ctx.stage_effect("mail", {"to": to})}


@tool("w.raise", effects="read_only")
async def fail(kind: str) -> None:
    """Fail in some way."""
    match kind:
        case "plain":
            raise RuntimeError("database exploded: password=hunter2hunter2")
        case "structured":
            raise ToolFailure("rate_limited", "too many calls. Wait a minute", ("kind",))
        case "unknown":
            raise OutcomeUnknown("the line went dead")


@tool("w.bad_output", effects="read_only")
async def bad_output(kind: str) -> Any:
    """Return what can't be kept."""
    return {"set": {1, 2}, "nan": float("nan"), "large": "x" * (5 << 20)}[kind]


@tool("w.index", effects="read_only")
async def index(ctx) -> None:
    """Say how far it is, and end when somebody has seen it."""
    ctx.progress(0.25, "a quarter is indexed")
    await seen.wait()


TOOLS = [echo, count, charge, mail, fail, bad_output, index]


async def delivered(effect: Effect) -> None:
    """Take a mail, unless it is to be refused."""
    happened.append(("mail", effect.payload["to"], effect.idempotency_key, effect.delivery_attempts))
    if effect.payload["to"] == "nobody":
        raise DeliveryFailed("there is nobody", permanent=True)
    if effect.payload["to"] == "later" and effect.delivery_attempts == 1:
        raise RuntimeError("try again")


async def test_a_call_goes_to_the_worker_and_its_result_to_the_agent():
    async with (
        running_server() as server,
        running_worker(server.address, tools=TOOLS),
        agenttx.AsyncClient(server.address) as client,
        client.transaction(agent_id="a") as tx,
    ):
        step = await tx.step("w.echo", value={"a": [1, 2.5, None, "ü"]})
        tools = {tool.name: tool async for tool in client.tools()}

    assert step.output == {"a": [1, 2.5, None, "ü"]}
    assert tools["w.charge"].location is ToolLocation.WORKER
    assert tools["w.charge"].effect_class is EffectClass.COMPENSATABLE
    assert tools["w.charge"].description == "Charge."
    assert tools["kv.put"].location is ToolLocation.SERVER


async def test_who_reads_a_transaction_sees_how_far_a_running_step_is():
    async with (
        running_server() as server,
        running_worker(server.address, tools=TOOLS),
        agenttx.AsyncClient(server.address) as client,
        client.transaction(agent_id="a") as tx,
    ):
        running = asyncio.create_task(tx.step("w.index"))
        steps = ()
        async with asyncio.timeout(20):
            while not any(step.progress_message for step in steps):
                await asyncio.sleep(0.01)
                steps = (await client.get_transaction(tx.transaction_id)).running_steps
        seen.set()
        await running
        after = await client.get_transaction(tx.transaction_id)

    assert [(step.tool_name, step.progress, step.progress_message) for step in steps] == [
        ("w.index", 0.25, "a quarter is indexed")
    ]
    assert after.running_steps == ()


async def test_state_is_read_and_written_from_a_thread_in_the_worker():
    async with (
        running_server() as server,
        running_worker(server.address, tools=TOOLS),
        agenttx.AsyncClient(server.address) as client,
    ):
        async with client.transaction(agent_id="a") as tx:
            await tx.step("kv.put", key="n", value=40)
            step = await tx.step("w.count", key="n", by=2)
            again = await tx.step("kv.get", key="n")
        committed = await client.get_state("n")

    assert step.output == {"number": 42, "listed": [["n", 42]]}
    assert again.output["value"] == 42
    assert committed.value == 42


async def test_a_rewind_runs_the_undo_in_the_worker():
    async with (
        running_server() as server,
        running_worker(server.address, tools=TOOLS),
        agenttx.AsyncClient(server.address) as client,
        client.transaction(agent_id="a") as tx,
    ):
        step = await tx.step("w.charge", amount=5)
        await tx.rewind(1)
        again = await tx.step("w.charge", amount=5)

    key, new_key = step.output["charge_id"], again.output["charge_id"]
    assert happened == [("charge", 5, key), ("refund", key), ("charge", 5, new_key)]
    assert key != new_key


async def test_a_structured_failure_is_the_agents_hint_and_its_undo_runs():
    async with (
        running_server() as server,
        running_worker(server.address, tools=TOOLS),
        agenttx.AsyncClient(server.address) as client,
    ):
        tx = await client.transaction(agent_id="a").begin()
        with pytest.raises(StepFailed) as failed:
            await tx.step("w.charge", amount=5, fail=True)

    assert failed.value.outcome.hint == "Hint: the card is locked. Use another one."
    assert failed.value.outcome.error_category == "conflict"
    assert [what for what, *_ in happened] == ["charge", "refund"]


@pytest.mark.parametrize(
    ("tool_name", "arguments", "category", "hint"),
    [
        ("w.raise", {"kind": "structured"}, "rate_limited", "too many calls"),
        ("w.raise", {"kind": "plain"}, "unknown", "database exploded"),
        ("w.raise", {"kind": "unknown"}, "unknown", "can't tell"),
        ("w.raise", {}, "missing_argument", "missing argument 'kind'"),
        (
            "w.count",
            {"key": "a", "by": "1"},
            "invalid_value",
            "argument 'by' must be an integer, not a string",
        ),
        ("w.count", {"key": ""}, "invalid_value", "the key is empty"),
        ("w.bad_output", {"kind": "set"}, "invalid_value", "not plain JSON"),
        ("w.bad_output", {"kind": "nan"}, "invalid_value", "not plain JSON"),
        ("w.bad_output", {"kind": "large"}, "resource_exhausted", "the limit is 4194304"),
    ],
)
async def test_failures_of_a_worker_are_told_as_those_of_the_server(tool_name, arguments, category, hint):
    async with (
        running_server() as server,
        running_worker(server.address, tools=TOOLS),
        agenttx.AsyncClient(server.address) as client,
    ):
        tx = await client.transaction(agent_id="a").begin()
        with pytest.raises(StepFailed) as failed:
            await tx.step(tool_name, **arguments)
        attempts = [attempt async for attempt in client.list_steps(tx.transaction_id)]

    assert failed.value.outcome.error_category == category
    assert hint in failed.value.outcome.hint
    assert "hunter2" not in repr(attempts)


async def test_effects_are_delivered_by_the_worker_that_offers_their_channel():
    async with (
        running_server(effect_retry_base_seconds=0.01) as server,
        running_worker(server.address, tools=TOOLS, channels={"mail": delivered}),
        agenttx.AsyncClient(server.address) as client,
    ):
        staged = {}
        for to in ("ada", "later", "nobody"):
            async with client.transaction(agent_id="a") as tx:
                staged[to] = (await tx.step("w.mail", to=to)).output["effect_id"]
        effects = await _until_settled(client, len(staged))

    assert effects == {
        staged["ada"]: EffectState.DELIVERED,
        staged["later"]: EffectState.DELIVERED,
        staged["nobody"]: EffectState.DEAD,
    }
    assert [(to, key, attempts) for _, to, key, attempts in happened if to != "later"] == [
        ("ada", staged["ada"], 1),
        ("nobody", staged["nobody"], 1),
    ]
    assert [attempts for _, to, _, attempts in happened if to == "later"] == [1, 2]


async def _until_settled(client: agenttx.AsyncClient, count: int) -> dict[str, EffectState]:
    async with asyncio.timeout(30):
        while True:
            effects = [effect async for effect in client.list_effects()]
            if len(effects) == count and all(effect.settled_at for effect in effects):
                return {effect.effect_id: effect.state for effect in effects}
            await asyncio.sleep(0.02)


async def test_a_tool_that_the_server_has_itself_is_refused_for_good():
    @tool("kv.put", effects="transactional")
    async def mine(key: str, value: Any) -> None: ...

    async with running_server() as server:
        with pytest.raises(PreconditionFailed, match=r"the server has a tool 'kv\.put' itself") as refused:
            await Worker(server.address, tools=[mine]).serve()

    assert refused.value.reason == "TOOL_CONFLICT"


async def test_another_version_waits_until_the_old_one_is_gone():
    @tool("w.echo", effects="read_only")
    async def newer(value: Any, loud: bool = False) -> Any:
        return "newer"

    async with running_server() as server, agenttx.AsyncClient(server.address) as client:
        async with running_worker(server.address, tools=[echo]):
            waiting = asyncio.create_task(_connect_and_wait(server.address, newer))
            async with client.transaction(agent_id="a") as tx:
                assert (await tx.step("w.echo", value=1)).output == 1
        worker = await waiting
        async with client.transaction(agent_id="a") as tx:
            assert (await tx.step("w.echo", value=1)).output == "newer"
        worker.stop()


async def _connect_and_wait(address: str, *tools: Any) -> Worker:
    worker = Worker(address, tools=tools)
    task = asyncio.create_task(worker.serve())
    _serving.add(task)
    task.add_done_callback(_serving.discard)
    await until_connected(worker)
    return worker


_serving: set[asyncio.Task[None]] = set()


async def test_a_step_past_its_deadline_is_cancelled_in_the_worker_and_its_context_closed():
    seen: list[Any] = []

    @tool("w.slow", effects="transactional", timeout_seconds=0.3)
    async def slow(ctx) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append(ctx.is_cancelled)
            try:
                await ctx.store.put("a", 1)
            except ContextClosed as closed:
                seen.append(type(closed))
            raise

    async with (
        running_server() as server,
        running_worker(server.address, tools=[slow]),
        agenttx.AsyncClient(server.address) as client,
    ):
        tx = await client.transaction(agent_id="a").begin()
        with pytest.raises(StepFailed) as failed:
            await tx.step("w.slow")

    assert failed.value.outcome.error_category == "timeout"
    assert seen == [True, ContextClosed]


async def test_a_draining_server_answers_running_calls_first():
    entered, proceed = asyncio.Event(), asyncio.Event()

    @tool("w.held", effects="compensatable")
    async def held(ctx) -> str:
        await ctx.register_undo("w.unheld")
        entered.set()
        await proceed.wait()
        return "done"

    @held.undo("w.unheld")
    async def unheld() -> None: ...

    async with (
        running_server() as server,
        running_worker(server.address, tools=[held]),
        agenttx.AsyncClient(server.address) as client,
    ):
        tx = await client.transaction(agent_id="a").begin()
        step = asyncio.create_task(tx.step("w.held"))
        await entered.wait()
        draining = asyncio.create_task(server.server.drain())
        await asyncio.sleep(0)
        proceed.set()

        assert (await step).output == "done"
        assert await draining == 0


async def test_a_worker_that_stops_finishes_its_calls():
    entered, proceed = asyncio.Event(), asyncio.Event()

    @tool("w.held", effects="idempotent")
    async def held() -> str:
        entered.set()
        await proceed.wait()
        return "done"

    async with running_server() as server, agenttx.AsyncClient(server.address) as client:
        tx = await client.transaction(agent_id="a").begin()
        async with running_worker(server.address, tools=[held]) as worker:
            step = asyncio.create_task(tx.step("w.held"))
            await entered.wait()
            worker.stop()
            proceed.set()
            assert (await step).output == "done"
        assert "w.held" not in {tool.name async for tool in client.tools()}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tools": [pb.WorkerTool(name="a b", effect_class=1)]}, "hello.tools[0].name"),
        ({"tools": [pb.WorkerTool(name="a")]}, "hello.tools[0].effect_class"),
        (
            {"tools": [pb.WorkerTool(name="a", effect_class=1), pb.WorkerTool(name="a", effect_class=1)]},
            "hello.tools",
        ),
        (
            {"tools": [pb.WorkerTool(name="a", effect_class=1, arguments_schema_json="{")]},
            "hello.tools[0].arguments_schema_json",
        ),
        ({"tools": [pb.WorkerTool(name="a", effect_class=4, retries=1)]}, "hello.tools[0].retries"),
        ({"tools": [pb.WorkerTool(name="a", effect_class=1, undo_names=["u"])]}, "hello.tools[0].undo_names"),
        ({"channels": [""]}, "hello.channels[0]"),
        ({"concurrency": 1_000_000}, "hello.concurrency"),
    ],
)
async def test_a_malformed_hello_is_refused_and_says_where(change, field):
    async with running_server() as server:
        stream = tool_pb2_grpc.ToolServiceStub(server.channel).Connect()
        await stream.write(pb.ConnectRequest(hello=pb.WorkerHello(**change)))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.read()

    error = from_call(refused.value)
    assert error.reason == "INVALID_REQUEST"
    assert [violation.field for violation in error.violations] == [field]


@pytest.mark.parametrize(
    "messages",
    [
        [pb.ConnectRequest(heartbeat=pb.WorkerHeartbeat())],
        [HELLO, HELLO],
        [HELLO, pb.ConnectRequest()],
        [HELLO, pb.ConnectRequest(outcome=pb.CallOutcome(call_id=1))],
        [HELLO, pb.ConnectRequest(context=pb.ContextRequest(call_id=1))],
    ],
)
async def test_messages_out_of_turn_end_the_connection(messages):
    async with running_server() as server:
        # Often: the refusal races the welcome, which is still being written.
        for _ in range(50):
            stream = tool_pb2_grpc.ToolServiceStub(server.channel).Connect(timeout=20)
            for message in messages:
                await stream.write(message)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await _read_to_the_end(stream)

            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def _read_to_the_end(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass
