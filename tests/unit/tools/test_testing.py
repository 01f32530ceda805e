import time
from typing import Any

import pytest

from agenttx.errors import InvalidValue
from agenttx.testing import RegisteredUndo, StagedEffect, run_tool
from agenttx.worker import ArgumentsRefused, ContextClosed, ToolDefinitionError, ToolFailure, tool

PAYMENTS: dict[str, int] = {}


@tool("payments.charge", effects="compensatable")
async def charge(ctx, amount: int, declined: bool = False) -> dict[str, Any]:
    await ctx.register_undo("payments.refund", key=ctx.idempotency_key)
    PAYMENTS[ctx.idempotency_key] = amount
    if declined:
        raise ToolFailure("conflict", "declined", ("amount",))
    total = await ctx.store.get("total", 0) + amount
    await ctx.store.put("total", total)
    await ctx.store.delete("open")
    await ctx.touch("payments", writes=True)
    ctx.progress(1.0, "done")
    effect_id = await ctx.stage_effect("mail", {"amount": amount})
    return {"total": total, "mail": effect_id}


@charge.undo("payments.refund")
async def refund(key: str) -> None:
    PAYMENTS.pop(key, None)


async def test_a_run_shows_all_that_the_tool_did():
    run = await run_tool(charge, {"amount": 5}, state={"total": 37, "open": True, "other/x": 1})

    assert run.result == {"total": 42, "mail": "effect-1"}
    assert run.written == {"kv/total": 42, "kv/open": None}
    assert run.state == {"kv/total": 42, "other/x": 1}
    assert run.undo == [RegisteredUndo("payments.refund", {"key": "key-1"}, "key-1")]
    assert run.effects == [StagedEffect("effect-1", "mail", {"amount": 5}, "effect-1")]
    assert run.touches == [("payments", True)]
    assert run.progress == [(1.0, "done")]
    assert PAYMENTS == {"key-1": 5}
    await run.run_undo(times=2)
    assert PAYMENTS == {}


async def test_what_a_tool_raises_is_raised_or_kept_with_what_it_did_before():
    with pytest.raises(ToolFailure, match="declined"):
        await run_tool(charge, {"amount": 5, "declined": True})
    run = await run_tool(charge, {"amount": 5, "declined": True}, keep_error=True)

    assert isinstance(run.error, ToolFailure)
    assert [undo.name for undo in run.undo] == ["payments.refund"]
    await run.run_undo()
    assert PAYMENTS == {}


async def test_arguments_are_validated_as_a_server_would():
    with pytest.raises(ArgumentsRefused, match="must be an integer"):
        await run_tool(charge, {"amount": "5"})


async def test_a_tool_is_held_to_its_effect_class():
    @tool("test.tool", effects="read_only")
    async def writes(ctx) -> None:
        await ctx.store.put("a", 1)

    with pytest.raises(ToolDefinitionError, match="READ_ONLY"):
        await run_tool(writes)


async def test_plain_functions_run_in_a_thread_with_a_blocking_context():
    @tool("test.tool", effects="transactional")
    def count(ctx) -> int:
        ctx.store.put("n", ctx.store.get("n") + 1)
        return ctx.store.scan()

    run = await run_tool(count, state={"n": 1})

    assert run.result == [["n", 2]]


async def test_a_context_is_closed_when_its_step_has_ended():
    kept: list[Any] = []

    @tool("test.tool", effects="transactional")
    async def keep(ctx) -> None:
        kept.append(ctx)

    await run_tool(keep)

    with pytest.raises(ContextClosed):
        await kept[0].store.put("a", 1)


async def test_a_tool_that_runs_too_long_is_stopped():
    @tool("test.tool", effects="read_only")
    def politely(ctx) -> None:
        while not ctx.is_cancelled:
            time.sleep(0.001)

    with pytest.raises(TimeoutError):
        await run_tool(politely, seconds=0.01)


async def test_a_result_that_is_no_json_is_refused():
    @tool("test.tool", effects="read_only")
    async def odd() -> Any:
        return {"a": {1}}

    with pytest.raises(InvalidValue):
        await run_tool(odd)
