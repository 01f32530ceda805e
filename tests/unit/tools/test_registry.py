import asyncio
import sys
import threading
from typing import Any

import pytest
from tests.support.fake_tool_context import FakeTransaction

from agenttx_server.engine.ports import (
    ArgumentsRefused,
    OutcomeUnknown,
    ToolFailure,
    ToolRunner,
    UndoContext,
)
from agenttx_server.engine.records import HintCategory
from agenttx_server.tools import Tool, ToolDefinitionError, ToolRegistry, tool

LONG = 30.0


def registry(*tools: Tool[..., Any], blocking_threads: int = 4) -> ToolRegistry:
    runner: ToolRunner = ToolRegistry(tools, blocking_threads=blocking_threads)
    assert isinstance(runner, ToolRegistry)
    return runner


async def run(
    declared: Tool[..., Any], arguments: Any = None, transaction: FakeTransaction | None = None
) -> Any:
    context = (transaction or FakeTransaction()).context()
    return await registry(declared).run(declared.name, arguments or {}, context)


def named(name: str) -> Tool[..., Any]:
    return tool(name, effects="read_only")(lambda: name)


def test_tools_are_described_by_name():
    tools = registry(named("b"), named("a.b"), named("a"))

    assert [description.name for description in tools.describe_all()] == ["a", "a.b", "b"]
    assert tools.describe("a.b") is tools.describe_all()[1]
    assert tools.describe("c") is None


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ToolDefinitionError, match=r"two tools are named 'a'"):
        registry(named("a"), named("b"), named("a"))


def test_two_tools_with_undo_actions_of_one_name_are_refused():
    tools = [tool(name, effects="compensatable")(lambda: None) for name in ("a", "b")]
    for declared in tools:
        declared.undo("undo")(lambda: None)

    with pytest.raises(ToolDefinitionError, match=r"two undo actions are named 'undo'"):
        registry(*tools)


async def test_an_unknown_tool_is_a_failure_that_names_the_nearest():
    with pytest.raises(
        ToolFailure, match=r"there is no tool 'kv\.putt'\. Did you mean 'kv\.put'\?"
    ) as failed:
        await registry(named("kv.put")).run("kv.putt", {}, FakeTransaction().context())

    assert failed.value.category == HintCategory.UNKNOWN_TOOL


async def test_refused_arguments_never_reach_the_tool():
    called = False

    @tool("test.tool", effects="read_only")
    async def declared(number: int) -> None:
        nonlocal called
        called = True

    with pytest.raises(ArgumentsRefused):
        await run(declared, {"number": "5"})
    assert not called


@pytest.mark.parametrize("is_async", [True, False])
async def test_functions_of_both_kinds_run_with_and_without_a_context(is_async):
    if is_async:

        async def with_context(ctx, a: int, b: int = 2):
            return [ctx.step_id, a, b]

        async def without(a: int):
            return a
    else:

        def with_context(ctx, a: int, b: int = 2):
            return [ctx.step_id, a, b]

        def without(a: int):
            return a

    assert await run(tool("test.tool", effects="read_only")(with_context), {"a": 1}) == [1, 1, 2]
    assert await run(tool("test.tool", effects="read_only")(without), {"a": 1}) == 1


async def test_bound_methods_and_callable_objects_are_tools_too():
    class Service:
        async def method(self, ctx, a: int) -> int:
            return a + ctx.step_id

        async def __call__(self, a: int) -> int:
            return a

    assert await run(tool("test.method", effects="read_only")(Service().method), {"a": 1}) == 2
    assert await run(tool("test.callable", effects="read_only")(Service()), {"a": 1}) == 1


async def test_a_plain_function_does_not_run_on_the_loops_thread():
    declared = tool("test.tool", effects="read_only")(lambda: threading.get_ident())

    assert await run(declared) != threading.get_ident()


@pytest.mark.parametrize(
    "error", [ValueError("x"), ToolFailure("timeout", "x"), OutcomeUnknown("x"), TimeoutError("x")]
)
async def test_what_a_tool_raises_is_what_comes_out(error):
    def blocking() -> None:
        raise error

    async def on_loop() -> None:
        raise error

    for function in (blocking, on_loop):
        with pytest.raises(type(error)) as raised:
            await run(tool("test.tool", effects="read_only")(function))
        assert raised.value is error


async def test_a_tool_that_calls_exit_fails_and_the_server_goes_on():
    def blocking() -> None:
        sys.exit(3)

    async def on_loop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(ToolFailure, match=r"tried to end the process \(sys\.exit\(3\)\)"):
        await run(tool("test.tool", effects="read_only")(blocking))
    with pytest.raises(ToolFailure, match=r"tried to end the process \(KeyboardInterrupt\)"):
        await run(tool("test.tool", effects="read_only")(on_loop))


async def test_a_tool_that_cancels_itself_is_a_failure_and_not_a_cancelled_call():
    def blocking() -> None:
        raise asyncio.CancelledError

    async def on_loop() -> None:
        raise asyncio.CancelledError

    for function in (blocking, on_loop):
        with pytest.raises(ToolFailure) as failed:
            await run(tool("test.tool", effects="read_only")(function))
        assert failed.value.category == HintCategory.CANCELLED


async def test_cancelling_the_call_of_a_coroutine_cancels_it():
    started = asyncio.Event()
    cleaned_up = False

    async def function() -> None:
        nonlocal cleaned_up
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up = True

    call = asyncio.create_task(run(tool("test.tool", effects="read_only")(function)))
    await started.wait()
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert cleaned_up


async def test_cancelling_the_call_of_a_plain_function_tells_it_and_waits():
    started, go_on = threading.Event(), threading.Event()
    seen: list[bool] = []

    @tool("test.tool", effects="read_only")
    def function(ctx) -> None:
        started.set()
        seen.append(ctx.cancelled)
        seen.append(ctx.wait_cancelled(LONG))
        assert go_on.wait(LONG)

    call = asyncio.create_task(run(function))
    await asyncio.to_thread(started.wait, LONG)
    call.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not call.done()
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert seen == [False, True]


async def test_a_call_that_never_got_a_thread_says_that_nothing_happened():
    started, go_on = threading.Event(), threading.Event()

    @tool("test.tool", effects="irreversible")
    def function() -> None:
        started.set()
        assert go_on.wait(LONG)

    tools = registry(function, blocking_threads=1)
    first = asyncio.create_task(tools.run("test.tool", {}, FakeTransaction().context()))
    await asyncio.to_thread(started.wait, LONG)
    second = asyncio.create_task(tools.run("test.tool", {}, FakeTransaction().context()))
    await asyncio.sleep(0)
    second.cancel()

    with pytest.raises(ToolFailure, match="never started") as failed:
        await second
    assert failed.value.category == HintCategory.RESOURCE_EXHAUSTED
    go_on.set()
    await first


async def test_a_plain_function_that_returns_a_coroutine_is_a_mistake_that_is_told():
    async def inner() -> None: ...

    with pytest.raises(ToolDefinitionError, match="make it `async def`"):
        await run(tool("test.tool", effects="read_only")(lambda: inner()))


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_undo_action_gets_its_context_and_arguments(is_async):
    got: list[Any] = []
    declared = tool("test.tool", effects="compensatable")(lambda: None)

    def undo(ctx, key):
        got.append((ctx, key))

    async def undo_async(ctx, key):
        got.append((ctx, key))

    declared.undo("test.undo")(undo_async if is_async else undo)
    transaction = FakeTransaction()
    context = UndoContext(transaction.transaction_id, "agent-1", 3, 2, "k-1")

    await registry(declared).undo("test.undo", {"key": "k"}, context)

    assert got == [(context, "k")]


async def test_an_undo_action_refuses_what_its_function_does_not_take():
    declared = tool("test.tool", effects="compensatable")(lambda: None)
    declared.undo("test.undo")(lambda key: None)
    context = UndoContext(FakeTransaction().transaction_id, "agent-1", 3, 2, "k-1")

    with pytest.raises(ArgumentsRefused, match="missing argument 'key'"):
        await registry(declared).undo("test.undo", {}, context)
    with pytest.raises(ToolFailure, match=r"there is no undo action 'test\.und'"):
        await registry(declared).undo("test.und", {}, context)


async def test_every_hook_is_called_once_when_a_transaction_ended_also_after_one_failed():
    ended: list[str] = []

    async def failing(transaction_id: str) -> None:
        ended.append("failing")
        raise OSError("disk")

    async def letting_go(transaction_id: str) -> None:
        ended.append(transaction_id)

    tools = [named("a"), named("b"), named("c")]
    tools[0].when_transaction_ends(failing)
    tools[1].when_transaction_ends(letting_go)
    tools[2].when_transaction_ends(letting_go)
    transaction = FakeTransaction()

    with pytest.raises(ExceptionGroup) as raised:
        await registry(*tools).transaction_ended(transaction.transaction_id)

    assert ended == ["failing", transaction.transaction_id]
    assert [str(error) for error in raised.value.exceptions] == ["disk"]
