"""Callers that go away, at every point at which they can: nothing is lost and nothing done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine_harness import Engine, aggregate_of, call
from tests.support.memory_store import Gate
from tests.support.scripted_tools import hang
from tests.support.virtual_time import idle, virtual_time

from agenttx_server.engine.records import TransactionStatus
from agenttx_server.engine.requests import BeginRequest, StepStatus

FAILURE = {"category": "missing_record", "message": "no such room", "keys": ["room"]}


async def _prepared() -> Engine:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"put": {"kv/a": 1}, "output": {"room": "r-1"}})
    await engine.step(2, "book", {"effect": "room", "stage": [["mail", "m"]]})
    return engine


CALLS: dict[str, Callable[[Engine], Awaitable[Any]]] = {
    "read": lambda engine: engine.step(3, "lookup", {"get": ["kv/a"]}, "r"),
    "write": lambda engine: engine.step(3, "note", {"put": {"kv/a": 2}}, "r"),
    "prompt": lambda engine: engine.step(3, "jot", {"put": {"kv/a": 2}, "stage": [["mail", "n"]]}, "r"),
    "prompt failure": lambda engine: engine.step(3, "jot", {"put": {"kv/a": 2}, "fail": FAILURE}, "r"),
    "upload": lambda engine: engine.step(3, "upload", {"effect": "file"}, "r"),
    "book": lambda engine: engine.step(3, "book", {"effect": "table"}, "r"),
    "pay": lambda engine: engine.step(3, "pay", {"effect": "money"}, "r"),
    "failure": lambda engine: engine.step(3, "book", {"room": "r-1", "effect": "x", "fail": FAILURE}, "r"),
    "group": lambda engine: engine.group(
        3, call("book", {"effect": "b"}, "r"), call("note", {"put": {"kv/b": 1}}, "s")
    ),
    "failing group": lambda engine: engine.group(
        3, call("book", {"effect": "b"}, "r"), call("note", {"fail": "no"}, "s")
    ),
    "rewind": lambda engine: engine.rewind(2, request_id="r"),
    "rollback": lambda engine: engine.rollback(request_id="r"),
    "commit": lambda engine: engine.commit("r"),
}


def _unreplayed(answer: Any) -> Any:
    if isinstance(answer, tuple):
        return tuple(_unreplayed(member) for member in answer)
    return replace(answer, replayed=False) if hasattr(answer, "replayed") else answer


async def _outcome(engine: Engine, answer: Any) -> dict[str, Any]:
    cached = engine.cached()
    return {
        "answer": _unreplayed(answer),
        "effects": engine.tools.effects,
        "calls": engine.tools.count(),
        "undone": engine.tools.undo_order,
        "delivered": engine.sink.payloads(),
        "staged": await engine.staged(),
        "committed": engine.memory.database.committed,
        "record": await engine.record(),
        "memory": None if cached is None else aggregate_of(cached),
    }


@pytest.mark.parametrize("name", CALLS)
@virtual_time
async def test_a_caller_that_goes_away_loses_nothing(name: str) -> None:
    engine = await _prepared()
    answer = await CALLS[name](engine)
    expected = await _outcome(engine, answer)
    points = 0
    while True:
        engine = await _prepared()
        caller = asyncio.ensure_future(CALLS[name](engine))
        for _ in range(points):
            await asyncio.sleep(0)
        if caller.done():
            break
        caller.cancel()
        await idle()
        assert caller.cancelled()
        assert await _outcome(engine, await CALLS[name](engine)) == expected, f"cancelled at point {points}"
        await engine.assert_memory_equals_store()
        points += 1
    assert points >= 4


@virtual_time
async def test_a_caller_of_begin_that_goes_away_gets_its_transaction() -> None:
    for points in range(8):
        engine = Engine()
        caller = asyncio.ensure_future(engine.coordinator.begin(BeginRequest("agent", request_id="b")))
        for _ in range(points):
            await asyncio.sleep(0)
        caller.cancel()
        await idle()
        answer = await engine.coordinator.begin(BeginRequest("agent", request_id="b"))
        assert [*engine.memory.database.transactions] == [answer.transaction_id]


@virtual_time
async def test_a_tool_runs_on_when_its_caller_is_gone_and_the_retry_waits_for_it() -> None:
    engine = await _prepared()
    gate = Gate()
    engine.tools.next("book", hang(gate))
    caller = asyncio.create_task(engine.step(3, "book", {"effect": "table"}, "r"))
    await gate.reached()
    caller.cancel()
    retry = asyncio.create_task(engine.step(3, "book", {"effect": "table"}, "r"))
    await idle()
    assert not retry.done()
    gate.open()
    answer = await retry
    assert (answer.status, answer.replayed) == (StepStatus.SUCCESS, True)
    assert engine.tools.count("book", step_id=3) == 1
    assert engine.tools.effects == ["room", "table"]


@virtual_time
async def test_a_call_that_still_waits_for_its_turn_is_dropped_with_its_caller() -> None:
    engine = await _prepared()
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    running = asyncio.create_task(engine.step(3, "lookup"))
    await gate.reached()
    waiting = asyncio.create_task(engine.step(4, "note", {"put": {"kv/gone": 1}}, "r"))
    later = asyncio.create_task(engine.step(4, "note", {"put": {"kv/came": 1}}, "s"))
    await idle()
    waiting.cancel()
    await idle()
    gate.open()
    await running
    assert (await later).status is StepStatus.SUCCESS
    assert await engine.state("kv/gone", "kv/came") == {"kv/gone": None, "kv/came": 1}


@virtual_time
async def test_a_rewind_that_stopped_a_step_is_made_even_if_its_caller_is_gone() -> None:
    # Given a step that a rewind cancels, whose answer says where the transaction went.
    engine = await _prepared()
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    step = asyncio.create_task(engine.step(3, "lookup"))
    await gate.reached()
    rewind = asyncio.create_task(engine.rewind(2))
    await asyncio.sleep(0)
    # When the caller of the rewind goes away before it has its turn.
    rewind.cancel()
    answer = await step
    await idle()
    # Then what the step's caller was told is true.
    record = await engine.record()
    assert (answer.next_step_id, answer.generation) == (record.next_step_id, record.generation)
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert engine.tools.effects == []
    assert (await engine.step(answer.next_step_id, "note", generation=answer.generation)).next_step_id == 3


@virtual_time
async def test_an_abort_that_stopped_a_step_is_made_even_if_its_caller_is_gone() -> None:
    engine = await _prepared()
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    step = asyncio.create_task(engine.step(3, "lookup"))
    await gate.reached()
    abort = asyncio.create_task(engine.rollback())
    await asyncio.sleep(0)
    abort.cancel()
    answer = await step
    await idle()
    assert answer.next_step_id == 0
    assert (await engine.record()).status is TransactionStatus.ROLLED_BACK
    assert engine.tools.effects == []
