"""Transactions in memory: few at a time, one lock each, and nothing that another server would not know."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.engine_harness import Engine, aggregate_of
from tests.support.memory_store import Gate
from tests.support.scripted_tools import hang
from tests.support.virtual_time import idle, virtual_time

from agenttx_server.engine.errors import NotFound
from agenttx_server.engine.records import TransactionId
from agenttx_server.engine.requests import StepStatus
from agenttx_server.engine.services import EngineSettings


@virtual_time
async def test_a_transaction_that_left_memory_goes_on_as_if_it_had_not() -> None:
    engine = Engine(settings=EngineSettings(cached_transactions=1))
    transactions = [await engine.begin() for _ in range(3)]
    for step in (1, 2, 3):
        for transaction_id in transactions:
            answer = await engine.step(
                step, "book", {"effect": f"{transaction_id}-{step}"}, transaction_id=transaction_id
            )
            assert answer.next_step_id == step + 1
    assert sum(engine.cached(transaction_id) is not None for transaction_id in transactions) == 1
    await engine.rewind(2, transaction_id=transactions[0])
    assert engine.tools.undo_order == [f"{transactions[0]}-3", f"{transactions[0]}-2"]


@virtual_time
async def test_one_that_is_worked_with_does_not_leave() -> None:
    engine = Engine(settings=EngineSettings(cached_transactions=1))
    busy = await engine.begin()
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    running = asyncio.create_task(engine.step(1, "lookup", None, "r"))
    await gate.reached()
    for _ in range(5):
        await engine.begin()
        await engine.step(1, "note")
    # A second call must meet the same lock, or the step would run twice.
    duplicate = asyncio.create_task(engine.step(1, "lookup", None, "r", transaction_id=busy))
    await idle()
    gate.open()
    assert (await running).status is StepStatus.SUCCESS
    assert (await duplicate).replayed
    assert engine.tools.count("lookup") == 1


@virtual_time
async def test_ended_and_unknown_transactions_take_no_room() -> None:
    engine = Engine()
    ended = await engine.begin()
    await engine.commit()
    for principal in ("anonymous", "mallory"):
        with pytest.raises(NotFound):
            await engine.coordinator.graph(principal, TransactionId("no-such"))
    assert engine.cached(ended) is None
    assert len(engine.coordinator._cache) == 0


@virtual_time
async def test_somebody_elses_transaction_is_read_for_nobody() -> None:
    engine = Engine()
    transaction_id = await engine.begin()
    await engine.step(1, "note", {"output": {"id": 1}})
    coordinator = engine.coordinator
    for read in (
        coordinator.get("mallory", transaction_id),
        coordinator.graph("mallory", transaction_id),
        coordinator.find_root_cause("mallory", transaction_id, 1, "id"),
        coordinator.list_steps("mallory", transaction_id, "", 10),
        coordinator.events_after("mallory", transaction_id, 1, 10),
        coordinator.is_ended("mallory", transaction_id),
    ):
        with pytest.raises(NotFound):
            await read
    assert engine.cached() is not None


@virtual_time
async def test_a_root_cause_is_found_in_memory_and_after_a_restart_alike() -> None:
    engine = Engine()
    transaction_id = await engine.begin()
    await engine.step(1, "note", {"output": {"id": "u-7"}})
    await engine.step(2, "note", {"user": "${steps.1.id}", "output": {"owner_id": "u-7"}})
    await engine.step(3, "note", {"user_id": "${steps.2.owner_id}"})
    before = await engine.coordinator.find_root_cause("anonymous", transaction_id, 3, "USER_ID")
    assert before.step_id == 1
    engine.restart()
    assert await engine.coordinator.find_root_cause("anonymous", transaction_id, 3, "USER_ID") == before
    assert (await engine.coordinator.find_root_cause("anonymous", transaction_id, 3, "other")).step_id is None
    with pytest.raises(NotFound) as missing:
        await engine.coordinator.find_root_cause("anonymous", transaction_id, 4, "user_id")
    assert missing.value.reason == "STEP_NOT_FOUND"


@virtual_time
async def test_memory_of_large_outputs_is_bounded_and_nothing_depends_on_it() -> None:
    engine = Engine()
    await engine.begin()
    for step in range(1, 40):
        await engine.step(step, "note", {"output": {"text": str(step) * 12_000, "n": step}})
    cached = engine.cached()
    assert cached is not None
    kept = sum(len(live.output or "") for live in cached.steps.values())
    assert 0 < kept <= 256 * 1024
    for step in (1, 39):
        answer = await engine.step(40, "note", {"output": f"${{steps.{step}.n}}"})
        assert answer.output == str(step)
        await engine.rewind(40)
    await engine.rewind(1)
    await engine.step(1, "note", {"output": {"text": "x" * 12_000}})
    assert cached.steps[1].output is not None
    assert aggregate_of(cached) == aggregate_of(await engine.rebuilt())
