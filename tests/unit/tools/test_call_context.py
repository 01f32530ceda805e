import asyncio
import threading
from typing import Any

import pytest
from tests.support.fake_tool_context import FakeTransaction

from agenttx.tools import ToolFailure as FailureInTool
from agenttx_server.engine.json_values import ValueRefused
from agenttx_server.engine.ports import ArgumentsRefused, ContextClosed, ToolFailure
from agenttx_server.tools import Tool, ToolDefinitionError, ToolRegistry, tool


async def run(
    declared: Tool[..., Any], transaction: FakeTransaction, arguments: dict[str, Any] | None = None
) -> Any:
    return await ToolRegistry([declared]).run(declared.name, arguments or {}, transaction.context())


async def test_a_tool_reads_and_writes_json_values_in_its_namespace():
    @tool("test.tool", effects="transactional")
    async def function(ctx):
        assert await ctx.store.get("a") is None
        await ctx.store.put("a", {"z": None, "b": [1, 1.0]})
        await ctx.store.put("ab", None)
        await ctx.store.put("b", 1)
        await ctx.store.namespace("other").put("a", "there")
        await ctx.store.delete("b")
        return {
            "a": await ctx.store.get("a"),
            "null": await ctx.store.get("ab", "default"),
            "absent": await ctx.store.get("b", "default"),
            "scan": await ctx.store.scan("a"),
            "after": await ctx.store.scan("a", after="a"),
            "all": await ctx.store.scan(),
        }

    transaction = FakeTransaction()
    got = await run(function, transaction)

    assert got == {
        "a": {"z": None, "b": [1, 1.0]},
        "null": None,
        "absent": "default",
        "scan": [("a", {"z": None, "b": [1, 1.0]}), ("ab", None)],
        "after": [("ab", None)],
        "all": [("a", {"z": None, "b": [1, 1.0]}), ("ab", None)],
    }
    assert transaction.state == {"kv/a": '{"b":[1,1.0],"z":null}', "kv/ab": "null", "other/a": '"there"'}


async def test_a_plain_function_has_the_same_context_as_blocking_calls():
    @tool("test.tool", effects="compensatable")
    def function(ctx):
        ctx.store.put("a", [1])
        ctx.store.namespace("other").put("b", 2)
        ctx.store.put("gone", 3)
        ctx.store.delete("gone")
        ctx.register_undo("test.undo", key=ctx.idempotency_key)
        ctx.store.require_exists("a", "gone")
        ctx.store.require_none("c", "there")
        effect = ctx.stage_effect("mail", {"to": "x"}, "k")
        return [
            ctx.store.get("a"),
            ctx.store.get("gone", "default"),
            ctx.store.scan(),
            effect,
            ctx.transaction_id,
            ctx.agent_id,
            ctx.step_id,
            ctx.attempt,
            ctx.fence,
            ctx.seconds_left > 0,
        ]

    @function.undo("test.undo")
    def undo(ctx, key): ...

    transaction = FakeTransaction()
    got = await run(function, transaction)

    identity = transaction.transaction_id
    assert got == [[1], "default", [("a", [1])], "effect-1", identity, "agent-1", 1, 1, 7, True]
    assert [(action.name, action.arguments) for action in transaction.undo] == [
        ("test.undo", {"key": "key-1-1"})
    ]
    assert transaction.exists_checks == [("kv/a", "gone")]
    assert transaction.none_checks == [("kv/c", "there")]
    assert transaction.effects[0].payload == {"to": "x"}
    assert transaction.state == {"kv/a": "[1]", "other/b": "2"}


async def test_a_blocking_context_used_on_the_loop_refuses_instead_of_waiting_for_itself():
    contexts: list[Any] = []

    @tool("test.tool", effects="transactional")
    def function(ctx):
        contexts.append(ctx)

    await run(function, FakeTransaction())

    with pytest.raises(RuntimeError, match="event loop's own thread"):
        contexts[0].store.get("a")


async def test_errors_of_blocking_calls_are_raised_in_the_thread():
    raised: list[BaseException] = []

    @tool("test.tool", effects="transactional")
    def function(ctx):
        try:
            ctx.store.put("", 1)
        except FailureInTool as error:
            raised.append(error)

    await run(function, FakeTransaction())

    assert len(raised) == 1


async def test_a_closed_context_refuses_a_thread_that_goes_on():
    started, closed = threading.Event(), threading.Event()

    @tool("test.tool", effects="transactional")
    def function(ctx):
        started.set()
        assert closed.wait(30)
        ctx.store.put("late", 1)

    transaction = FakeTransaction()
    context = transaction.context()
    call = asyncio.create_task(ToolRegistry([function]).run("test.tool", {}, context))
    await asyncio.to_thread(started.wait, 30)
    context.closed = True
    closed.set()

    with pytest.raises(ContextClosed):
        await call
    assert transaction.state == {}


@pytest.mark.parametrize(
    ("key", "message"),
    [("", "is empty"), ("a\x00b", r"U\+0000"), ("é" * 257, "514 bytes long, the limit is 512")],
)
async def test_a_bad_key_is_a_failure_that_names_it(key, message):
    @tool("test.tool", effects="transactional")
    async def function(ctx, key: str):
        await ctx.store.put(key, 1)

    with pytest.raises(ToolFailure, match=message) as failed:
        await run(function, FakeTransaction(), {"key": key})
    assert failed.value.keys == ("key",)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 65, "é"])
async def test_a_bad_namespace_is_refused(name):
    @tool("test.tool", effects="transactional")
    async def function(ctx):
        ctx.store.namespace(name)

    with pytest.raises(ValueError, match="a namespace is"):
        await run(function, FakeTransaction())


async def test_a_value_that_is_no_json_is_refused_with_its_path():
    @tool("test.tool", effects="transactional")
    async def function(ctx):
        await ctx.store.put("a", {"b": float("nan")})

    with pytest.raises(ValueRefused, match=r"\$\.b"):
        await run(function, FakeTransaction())


@pytest.mark.parametrize(
    ("effects", "use", "message"),
    [
        ("read_only", lambda ctx: ctx.store.put("a", 1), "must not write state"),
        ("read_only", lambda ctx: ctx.store.delete("a"), "must not write state"),
        ("read_only", lambda ctx: ctx.store.namespace("b").put("a", 1), "must not write state"),
        ("read_only", lambda ctx: ctx.stage_effect("mail", 1), "must not stage effects"),
        ("read_only", lambda ctx: ctx.register_undo("test.undo", key=1), "registers no undo"),
        ("transactional", lambda ctx: ctx.register_undo("test.undo", key=1), "registers no undo"),
        (
            "compensatable",
            lambda ctx: ctx.register_undo("test.other", key=1),
            "unknown undo action 'test.other'",
        ),
    ],
)
async def test_a_tool_is_held_to_what_it_declared(effects, use, message):
    @tool("test.tool", effects=effects)
    async def function(ctx):
        await use(ctx)

    transaction = FakeTransaction()
    with pytest.raises(ToolDefinitionError, match=message):
        await run(function, transaction)
    assert (transaction.state, transaction.effects, transaction.undo) == ({}, [], [])


async def test_undo_arguments_that_the_undo_function_would_refuse_are_refused_before_the_effect():
    @tool("test.tool", effects="compensatable")
    async def function(ctx):
        await ctx.register_undo("test.undo", kye=1)

    function.undo("test.undo")(lambda ctx, key: None)

    transaction = FakeTransaction()
    with pytest.raises(ArgumentsRefused, match="missing argument 'key'; unknown argument 'kye'"):
        await run(function, transaction)
    assert transaction.undo == []


async def test_an_undo_argument_may_be_called_like_anything():
    @tool("test.tool", effects="compensatable")
    async def function(ctx):
        await ctx.register_undo("test.undo", undo_name=1, self=2)

    @function.undo("test.undo")
    def undo(undo_name, self): ...

    transaction = FakeTransaction()
    await run(function, transaction)

    assert transaction.undo[0].arguments == {"undo_name": 1, "self": 2}


async def test_a_tool_says_what_it_touches_outside():
    @tool("test.tool", effects="compensatable")
    async def function(ctx):
        await ctx.touch("file/a", writes=False)
        await ctx.touch("file/b", writes=True)

    @tool("test.blocking", effects="idempotent")
    def blocking(ctx):
        ctx.touch("file/c", writes=True)

    @tool("test.reading", effects="read_only")
    async def reading(ctx):
        await ctx.touch("file/d", writes=False)

    transaction = FakeTransaction()
    for declared in (function, blocking, reading):
        await run(declared, transaction)

    assert transaction.touches == [
        ("file/a", False),
        ("file/b", True),
        ("file/c", True),
        ("file/d", False),
    ]


@pytest.mark.parametrize("effects", ["read_only", "transactional"])
async def test_a_tool_without_outside_effects_does_not_say_that_it_writes_outside(effects):
    @tool("test.tool", effects=effects)
    async def function(ctx):
        await ctx.touch("file/a", writes=True)

    transaction = FakeTransaction()
    with pytest.raises(ToolDefinitionError, match="must not change things outside"):
        await run(function, transaction)
    assert transaction.touches == []
