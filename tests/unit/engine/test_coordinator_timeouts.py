"""Deadlines: what an outcome nobody knows means, by the tool's effect class."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine_harness import Engine, call
from tests.support.memory_store import Gate
from tests.support.scripted_tools import ToolRun, hang, ignore_cancellation, obey, raise_error
from tests.support.virtual_time import current_loop, idle, virtual_time

from agenttx_server.engine.errors import PreconditionFailed
from agenttx_server.engine.ports import ContextClosed, OutcomeUnknown
from agenttx_server.engine.records import AttemptState, EventType, HintCategory, TransactionStatus
from agenttx_server.engine.requests import StepStatus
from agenttx_server.engine.services import EngineSettings


async def _begun(**fields: Any) -> Engine:
    engine = Engine(**fields)
    await engine.begin()
    return engine


# --- which deadline -----------------------------------------------------------------------


@virtual_time
async def test_the_deadline_is_the_requests_else_the_tools_else_the_transactions_else_the_servers() -> None:
    engine = Engine(settings=EngineSettings(step_timeout_seconds=40))
    await engine.begin(max_local_depth=16, replay_budget_factor=1000.0)
    engine.tools.always("lookup", hang(Gate()))

    async def seconds(**fields: Any) -> float:
        start = current_loop().time()
        answer = await engine.step(1, "lookup", **fields)
        assert answer.hint is not None
        assert answer.hint.category is HintCategory.TIMEOUT
        return current_loop().time() - start

    assert await seconds() == pytest.approx(40)
    await engine.begin(step_timeout_us=20_000_000)
    assert await seconds() == pytest.approx(20)
    described = engine.tools.describe("lookup")
    assert described is not None
    engine.tools.add(replace(described, timeout_us=10_000_000), hang(Gate()))
    assert await seconds() == pytest.approx(10)
    await engine.begin(step_timeout_us=20_000_000)
    assert await seconds(timeout=0.25) == pytest.approx(0.25)


@virtual_time
async def test_a_tool_is_told_how_long_it_has() -> None:
    left: list[float] = []

    async def look(run: ToolRun) -> Any:
        left.append(run.context.seconds_left)
        await asyncio.sleep(0.5)
        left.append(run.context.seconds_left)

    engine = await _begun()
    engine.tools.next("lookup", look)
    await engine.step(1, "lookup", timeout=2)
    assert left == [pytest.approx(2), pytest.approx(1.5)]


# --- by class -----------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["lookup", "note"])
@virtual_time
async def test_without_outside_effects_a_timeout_is_a_failure(tool: str) -> None:
    engine = await _begun()
    told: list[str] = []
    gate = Gate()
    engine.tools.next(tool, ignore_cancellation(gate, told=told))
    answer = await engine.step(1, tool, {"put": {"kv/late": 1}}, timeout=3)
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert answer.decision is not None
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.TIMEOUT
    assert "3 s" in answer.hint.text
    assert told == ["stop"]
    assert current_loop().time() == pytest.approx(3)  # one that ignores it is not waited for
    assert (await engine.step(1, tool)).status is StepStatus.SUCCESS
    gate.open()
    await idle()
    assert await engine.state("kv/late") == {"kv/late": None}


@virtual_time
async def test_an_idempotent_tool_is_run_again_under_its_key_three_times_then_in_doubt() -> None:
    engine = await _begun()
    engine.tools.always("upload", hang(Gate()))
    answer = await engine.step(1, "upload", {"effect": "file"}, "r", timeout=3)
    assert (answer.status, answer.next_step_id, answer.decision) == (StepStatus.IN_DOUBT, 1, None)
    assert engine.tools.count() == 4
    assert len({(each.key, each.attempt) for each in engine.tools.calls}) == 1
    record = await engine.record()
    assert (record.status, record.open_group) == (TransactionStatus.IN_DOUBT, (1, 1))
    assert (await engine.events())[-1] is EventType.STEP_IN_DOUBT
    assert (await engine.attempts())[0].state is AttemptState.IN_DOUBT
    await engine.assert_memory_equals_store()
    rewound = await engine.rewind(1, accept_irreversible=True)
    assert [kept.step_id for kept in rewound.kept_effects] == [1]
    # The same call keeps its key: were it done after all, it would not be done twice.
    engine.tools.always("upload", None)
    await engine.step(1, "upload", {"effect": "file"})
    assert len({each.key for each in engine.tools.calls}) == 1


@pytest.mark.parametrize("unknown", [1, 2, 3])
@virtual_time
async def test_an_idempotent_tool_that_answers_in_the_end_has_succeeded(unknown: int) -> None:
    engine = await _begun()
    engine.tools.next("upload", *[raise_error(OutcomeUnknown("no answer"))] * unknown)
    answer = await engine.step(1, "upload", {"effect": "file"})
    assert (answer.status, answer.attempt) == (StepStatus.SUCCESS, 1)
    assert engine.tools.count() == unknown + 1
    assert engine.tools.effects == ["file"]


@virtual_time
async def test_an_idempotent_tool_that_fails_after_an_unknown_outcome_has_failed() -> None:
    engine = await _begun()
    engine.tools.next("upload", raise_error(OutcomeUnknown("no answer")), raise_error(ValueError("bad")))
    answer = await engine.step(1, "upload")
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert engine.tools.count() == 2


@virtual_time
async def test_a_compensatable_tool_that_times_out_is_undone_when_it_has_ended() -> None:
    engine = await _begun()
    gate = Gate()
    engine.tools.next("book", ignore_cancellation(gate, first=obey))
    current_loop().call_later(8, gate.open)
    answer = await engine.step(1, "book", {"effect": "room"}, timeout=3)
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.TIMEOUT
    assert current_loop().time() == pytest.approx(8)
    assert engine.tools.undo_order == ["room"]
    assert engine.tools.effects == []


@virtual_time
async def test_a_compensatable_tool_that_never_ends_is_undone_after_the_grace_and_when_it_does() -> None:
    engine = await _begun()
    gate = Gate()

    async def act_late(run: ToolRun) -> Any:
        run.cause("room")

    engine.tools.next("book", ignore_cancellation(gate, act_late, first=obey))
    answer = await engine.step(1, "book", {"effect": "room"}, timeout=3)
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert current_loop().time() == pytest.approx(13)
    assert engine.tools.undo_order == ["room"]
    gate.open()
    await idle()
    assert engine.tools.undo_order == ["room", "room"]
    assert engine.tools.effects == []


@virtual_time
async def test_an_undo_that_was_updated_is_the_one_that_a_late_effect_is_undone_with() -> None:
    engine = await _begun()
    gate = Gate()

    async def register(run: ToolRun) -> Any:
        await run.register_undo("room")
        await run.context.update_undo("unbook", '{"effect":"room 12"}')

    engine.tools.next("book", ignore_cancellation(gate, first=register))
    await engine.step(1, "book", timeout=3)
    assert engine.tools.undo_order == ["room 12"]
    gate.open()
    await idle()
    assert engine.tools.undo_order == ["room 12", "room 12"]


@pytest.mark.parametrize("tool", ["pay", "wire"])
@virtual_time
async def test_an_irreversible_tool_that_times_out_is_in_doubt_and_never_repeated(tool: str) -> None:
    engine = await _begun()
    engine.tools.next(tool, hang(Gate(), first=obey))
    answer = await engine.step(1, tool, {"effect": "money"}, "r", timeout=3)
    assert answer.status is StepStatus.IN_DOUBT
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.TIMEOUT
    assert engine.tools.count() == 1
    again = await engine.step(1, tool, {"effect": "money"}, "r", timeout=3)
    assert again == replace(answer, replayed=True)
    for refused in (engine.step(1, "note"), engine.commit(), engine.rewind(1), engine.rollback()):
        with pytest.raises(PreconditionFailed) as error:
            await refused
        assert error.value.reason == "STEP_IN_DOUBT"
    rewound = await engine.rewind(1, accept_irreversible=True)
    assert engine.tools.effects == (["money"] if tool == "pay" else [])
    assert [kept.step_id for kept in rewound.kept_effects] == ([1] if tool == "pay" else [])
    assert engine.tools.count() == 1


# --- the context --------------------------------------------------------------------------


@virtual_time
async def test_at_the_deadline_the_context_is_closed() -> None:
    refused: list[str] = []
    gate = Gate()

    async def act_late(run: ToolRun) -> Any:
        context = run.context
        for name, attempt in {
            "put": context.put("kv/late", "1"),
            "stage": context.stage_effect("mail", "1"),
            "undo": context.register_undo("unbook", '{"effect":"late"}'),
            "get": context.get("kv/late"),
        }.items():
            try:
                await attempt
            except ContextClosed:
                refused.append(name)
        run.cause("late")

    engine = await _begun()
    engine.tools.next("book", ignore_cancellation(gate, act_late))
    current_loop().call_later(5, gate.open)
    await engine.step(1, "book", timeout=3)
    assert refused == ["put", "stage", "undo", "get"]
    assert await engine.state("kv/late") == {"kv/late": None}
    assert (await engine.rebuilt()).undo == {}
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_tool_stopped_by_its_closed_context_has_failed() -> None:
    async def write_for_ever(run: ToolRun) -> Any:
        while True:
            await asyncio.sleep(0.5)
            await run.context.put("kv/a", "1")

    engine = await _begun()
    engine.tools.next("note", write_for_ever)
    answer = await engine.step(1, "note", timeout=3)
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED


@virtual_time
async def test_an_undo_whose_writing_outlasts_the_deadline_is_run_and_its_effect_not_caused() -> None:
    engine = await _begun()
    held = engine.memory.hold_write(engine.memory.write_count + 2)
    running = asyncio.create_task(engine.step(1, "book", {"effect": "room"}, timeout=3))
    await held.reached()
    current_loop().call_later(4, held.open)
    answer = await running
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert "effect room" not in engine.timeline
    assert engine.tools.undo_order == ["room"]
    await engine.assert_memory_equals_store()


# --- groups -------------------------------------------------------------------------------


@virtual_time
async def test_a_group_with_a_member_in_doubt_waits_for_a_word() -> None:
    engine = await _begun()
    await engine.step(1, "note")
    engine.tools.always("upload", raise_error(OutcomeUnknown("no answer")))
    calls = (
        call("book", {"effect": "room"}, "g1"),
        call("upload", {"effect": "file"}, "g2"),
        call("note", {"fail": "no"}, "g3"),
        call("note", {"put": {"kv/a": 1}}, "g4"),
    )
    answers = await engine.group(2, *calls)
    # The third has failed, but nothing is decided on it while the second may still succeed.
    assert [answer.status for answer in answers] == [
        StepStatus.SUCCESS,
        StepStatus.IN_DOUBT,
        StepStatus.IN_DOUBT,
        StepStatus.SUCCESS,
    ]
    assert answers[2].hint is not None
    assert {(answer.next_step_id, answer.decision) for answer in answers} == {(2, None)}
    assert (await engine.record()).status is TransactionStatus.IN_DOUBT
    await engine.assert_memory_equals_store()
    ran = engine.tools.count()
    assert await engine.group(2, *calls) == tuple(replace(answer, replayed=True) for answer in answers)
    engine.restart()
    assert await engine.group(2, *calls) == tuple(replace(answer, replayed=True) for answer in answers)
    assert engine.tools.count() == ran
    for refused in (engine.rewind(2), engine.commit(), engine.group(2, call("note"), call("note"))):
        with pytest.raises(PreconditionFailed) as error:
            await refused
        assert error.value.reason == "STEP_IN_DOUBT"
    # A target inside the group becomes its first step.
    rewound = await engine.rewind(4, accept_irreversible=True)
    assert rewound.next_step_id == 2
    assert [kept.step_id for kept in rewound.kept_effects] == [3]
    assert engine.tools.effects == []
    assert (await engine.step(2, "note")).status is StepStatus.SUCCESS
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_slow_member_does_not_delay_the_durability_of_the_others() -> None:
    engine = await _begun()
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    running = asyncio.create_task(engine.group(1, call("note", {"put": {"kv/a": 1}}), call("lookup")))
    await gate.reached()
    await idle()
    assert [(item.step_id, item.state) for item in await engine.attempts()] == [(1, AttemptState.COMPLETED)]
    view = await engine.view()
    assert view.record.status is TransactionStatus.EXECUTING
    assert [step.step_id for step in view.unsettled] == [2]
    gate.open()
    assert {answer.status for answer in await running} == {StepStatus.SUCCESS}
