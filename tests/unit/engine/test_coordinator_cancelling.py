"""A rewind or an abort asked for while a step runs: it is stopped first, by its effect class."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine_harness import Engine, call, outcome_of, same_answer
from tests.support.memory_store import Gate
from tests.support.scripted_tools import (
    Behaviour,
    ToolRun,
    fail_with,
    hang,
    ignore_cancellation,
    obey,
    raise_error,
)
from tests.support.virtual_time import current_loop, idle, virtual_time

from agenttx_server.engine.errors import InvalidRequest, PreconditionFailed
from agenttx_server.engine.ports import OutcomeUnknown
from agenttx_server.engine.records import (
    AttemptState,
    EffectClass,
    EventType,
    HintCategory,
    Strategy,
    TransactionStatus,
)
from agenttx_server.engine.requests import StepAnswer, StepStatus
from agenttx_server.engine.services import EngineSettings


async def _with_running(
    tool: str, behaviour: Behaviour, arguments: Any = None, **fields: Any
) -> tuple[Engine, asyncio.Task[StepAnswer]]:
    """Steps 1 (state) and 2 (a booking) done, step 3 running."""
    engine = Engine(**fields)
    await engine.begin()
    await engine.step(1, "note", {"put": {"kv/a": 1}})
    await engine.step(2, "book", {"effect": "room", "stage": [["mail", "m"]]})
    engine.tools.next(tool, behaviour)
    running = asyncio.create_task(engine.step(3, tool, arguments, "r3"))
    await idle()
    return engine, running


@pytest.mark.parametrize("tool", ["lookup", "note", "upload", "book"])
@virtual_time
async def test_a_rewind_stops_the_running_step_and_its_caller_is_told_where_to_go_on(tool: str) -> None:
    engine, running = await _with_running(tool, hang(Gate()))
    rewound = await engine.rewind(2, request_id="w")
    answer = await running
    assert current_loop().time() == 0
    assert (answer.status, answer.strategy) == (StepStatus.ROLLBACK_TRIGGERED, Strategy.MANUAL)
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.CANCELLED
    assert answer.decision is None
    assert answer.next_step_id == answer.rollback_to_step == rewound.next_step_id == 2
    assert answer.generation == rewound.generation == 2
    assert (rewound.status, rewound.compensations_run) == (TransactionStatus.ACTIVE, 1)
    assert engine.tools.effects == []
    assert await engine.staged() == []
    record = await engine.record()
    assert record.constraints == ()
    assert record.failures == ()
    assert EventType.STEP_CANCELLED in await engine.events()
    # Its request gets the same answer for ever, and is not run again.
    assert await engine.step(3, tool, None, "r3") == replace(answer, replayed=True)
    await engine.assert_memory_equals_store()
    assert (await engine.step(2, "note", generation=2)).next_step_id == 3


@virtual_time
async def test_a_rewind_to_the_running_step_takes_back_only_that_one() -> None:
    engine, running = await _with_running("book", hang(Gate(), first=obey), {"effect": "table"})
    assert engine.tools.effects == ["room", "table"]
    rewound = await engine.rewind(3)
    assert (rewound.next_step_id, rewound.compensations_run) == (3, 1)
    assert (await running).next_step_id == 3
    assert engine.tools.effects == ["room"]


@virtual_time
async def test_an_abort_stops_the_running_step_and_ends_the_transaction() -> None:
    engine, running = await _with_running("book", hang(Gate(), first=obey), {"effect": "table"})
    aborted = await engine.rollback(reason="enough", request_id="x")
    answer = await running
    assert (aborted.status, aborted.next_step_id) == (TransactionStatus.ROLLED_BACK, 0)
    assert aborted.compensations_run == 2
    assert (answer.status, answer.next_step_id, answer.abort_reason) == (StepStatus.FAILED, 0, "enough")
    assert engine.tools.undo_order == ["table", "room"]
    assert engine.tools.ended == [engine.transaction_id]
    assert await engine.rollback(request_id="x") == aborted
    assert await engine.step(3, "book", {"effect": "table"}, "r3") == replace(answer, replayed=True)


@virtual_time
async def test_a_tool_is_asked_to_stop_once_and_may_clean_up() -> None:
    told: list[str] = []

    async def clean_up(run: ToolRun) -> Any:
        try:
            await Gate().wait()
        except asyncio.CancelledError:
            told.append("stop")
            try:
                await asyncio.sleep(2)
                told.append("cleaned up")
            except asyncio.CancelledError:
                told.append("stopped in clean-up")
            raise

    engine, running = await _with_running("book", clean_up)
    await engine.rewind(3)
    await running
    assert told == ["stop", "cleaned up"]


@virtual_time
async def test_the_undo_of_a_stopped_step_starts_when_its_tool_hasoutcome_of() -> None:
    gate = Gate()
    engine, running = await _with_running("book", ignore_cancellation(gate, first=obey), {"effect": "table"})
    rewind = asyncio.create_task(engine.rewind(3))
    await idle()
    assert engine.tools.undo_order == []
    asyncio.get_running_loop().call_later(3, gate.open)
    await rewind
    await running
    assert current_loop().time() == 3
    assert engine.tools.undo_order == ["table"]


@virtual_time
async def test_a_tool_that_outlives_the_grace_is_undone_then_and_once_more_when_it_ends() -> None:
    gate = Gate()

    async def book_again(run: ToolRun) -> Any:
        run.cause("table")

    engine, running = await _with_running(
        "book", ignore_cancellation(gate, book_again, first=obey), {"effect": "table"}
    )
    await engine.rewind(3)
    await running
    assert current_loop().time() == engine.settings.stop_grace_seconds
    assert engine.tools.undo_order == ["table"]
    assert engine.tools.effects == ["room"]
    assert (await engine.step(3, "note")).status is StepStatus.SUCCESS
    gate.open()
    await idle()
    assert engine.tools.undo_order == ["table", "table"]
    assert engine.tools.effects == ["room"]
    assert await engine.coordinator.drain(1) == 0


@virtual_time
async def test_a_pure_tool_that_ignores_cancellation_is_not_waited_for() -> None:
    gate = Gate()
    engine, running = await _with_running("note", ignore_cancellation(gate), {"put": {"kv/late": 1}})
    await engine.rewind(3)
    await running
    assert current_loop().time() == 0
    assert (await engine.step(3, "lookup")).status is StepStatus.SUCCESS
    gate.open()
    await idle()
    # Its context is closed: what it does now is no part of any step.
    assert await engine.state("kv/late") == {"kv/late": None}
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_stopped_idempotent_step_is_named_to_both_callers() -> None:
    engine, running = await _with_running("upload", hang(Gate(), first=obey), {"effect": "file"})
    rewound = await engine.rewind(2, request_id="w")
    answer = await running
    [kept] = rewound.kept_effects
    assert (kept.step_id, kept.attempt, kept.effect_class) == (3, 1, EffectClass.IDEMPOTENT)
    assert answer.kept_effects == rewound.kept_effects
    assert await engine.rewind(2, request_id="w") == rewound


@virtual_time
async def test_a_stopped_idempotent_step_with_an_undo_is_undone_and_not_named() -> None:
    async def with_undo(run: ToolRun) -> Any:
        await run.register_undo("file")
        run.cause("file")

    engine, running = await _with_running("upload", hang(Gate(), first=with_undo))
    rewound = await engine.rewind(3)
    await running
    assert rewound.kept_effects == ()
    assert engine.tools.effects == ["room"]


@virtual_time
async def test_an_idempotent_member_that_ends_well_in_the_moment_it_is_stopped_is_named_once() -> None:
    gate = Gate()

    async def shrug(run: ToolRun) -> Any:
        with contextlib.suppress(asyncio.CancelledError):
            await gate.wait()
        run.cause("file")
        return {"done": True}

    engine = Engine()
    await engine.begin()
    engine.tools.next("upload", shrug)
    engine.tools.next("lookup", hang(Gate()))
    running = asyncio.create_task(engine.group(1, call("upload"), call("lookup")))
    await idle()
    rewind = asyncio.create_task(engine.rewind(1))
    gate.open()
    rewound = await rewind
    answers = await running
    assert [answer.status for answer in answers] == [StepStatus.SUCCESS, StepStatus.ROLLBACK_TRIGGERED]
    assert [(kept.step_id, kept.reason.split()[0]) for kept in rewound.kept_effects] == [(1, "completed")]


@virtual_time
async def test_a_step_that_was_not_called_yet_is_not_called_any_more() -> None:
    engine = Engine()
    await engine.begin()
    written = engine.memory.hold_next_write()
    running = asyncio.create_task(engine.step(1, "upload", {"effect": "file"}))
    await written.reached()
    rewind = asyncio.create_task(engine.rewind(1))
    await idle()
    written.open()
    answer, rewound = await asyncio.gather(running, rewind)
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert rewound.kept_effects == ()
    assert engine.tools.count() == 0


@pytest.mark.parametrize("tool", ["lookup", "upload"])
@virtual_time
async def test_a_step_between_two_tries_is_stopped_and_not_tried_again(tool: str) -> None:
    settings = EngineSettings(step_retries=5, retry_base_seconds=60)
    unavailable = raise_error(
        OutcomeUnknown("connection reset") if tool == "upload" else ConnectionError("connection refused")
    )
    engine, running = await _with_running(tool, unavailable, settings=settings)
    assert engine.tools.count(tool) == 1
    rewound = await engine.rewind(3)
    answer = await running
    assert current_loop().time() == 0
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert engine.tools.count(tool) == 1
    assert rewound.status is TransactionStatus.ACTIVE
    assert [kept.step_id for kept in rewound.kept_effects] == ([3] if tool == "upload" else [])


@virtual_time
async def test_a_tool_that_ends_well_before_it_can_be_stopped_has_succeeded_and_is_rewound() -> None:
    async def shrug(run: ToolRun) -> Any:
        try:
            await Gate().wait()
        except asyncio.CancelledError:
            return {"done": True}

    engine, running = await _with_running("book", shrug)
    rewound = await engine.rewind(2)
    answer = await running
    assert answer.status in (StepStatus.SUCCESS, StepStatus.ROLLBACK_TRIGGERED)
    assert (rewound.next_step_id, rewound.generation) == (2, 2)
    assert [attempt.step_id for attempt in await engine.live_attempts()] == [1]
    await engine.assert_memory_equals_store()


# --- irreversible -------------------------------------------------------------------------


@virtual_time
async def test_an_irreversible_step_is_waited_for_and_then_stands_in_the_way() -> None:
    gate = Gate()
    told: list[str] = []
    engine, running = await _with_running("pay", ignore_cancellation(gate, told=told), {"effect": "money"})
    rewind = asyncio.create_task(outcome_of(engine.rewind(2)))
    await idle()
    assert not rewind.done()
    gate.open()
    assert (await running).status is StepStatus.SUCCESS
    refused = await rewind
    assert isinstance(refused, PreconditionFailed)
    assert refused.reason == "IRREVERSIBLE_STEP"
    assert told == []
    assert engine.tools.effects == ["money", "room"]
    assert (await engine.step(4, "note")).status is StepStatus.SUCCESS


@virtual_time
async def test_an_irreversible_step_is_waited_for_also_when_it_may_be_passed() -> None:
    gate = Gate()
    told: list[str] = []
    engine, running = await _with_running("pay", ignore_cancellation(gate, told=told), {"effect": "money"})
    rewind = asyncio.create_task(engine.rewind(2, accept_irreversible=True))
    await idle()
    gate.open()
    assert (await running).status is StepStatus.SUCCESS
    rewound = await rewind
    assert [kept.step_id for kept in rewound.kept_effects] == [3]
    assert (rewound.next_step_id, told) == (2, [])
    assert engine.tools.effects == ["money"]


@virtual_time
async def test_an_abort_waits_for_an_irreversible_step_and_names_it() -> None:
    gate = Gate()
    engine, running = await _with_running("pay", hang(gate), {"effect": "money"})
    abort = asyncio.create_task(engine.rollback())
    await idle()
    assert not running.done()
    gate.open()
    assert (await running).status is StepStatus.SUCCESS
    aborted = await abort
    assert aborted.status is TransactionStatus.ROLLED_BACK
    assert [kept.tool_name for kept in aborted.kept_effects] == ["pay"]


@virtual_time
async def test_no_decision_is_made_on_an_irreversible_step_that_fails_while_a_rewind_waits() -> None:
    gate = Gate()
    engine, running = await _with_running("pay", hang(gate, fail_with("card declined")))
    rewind = asyncio.create_task(engine.rewind(3, request_id="w"))
    await idle()
    gate.open()
    answer, rewound = await asyncio.gather(running, rewind)
    assert answer.decision is None
    assert answer.next_step_id == rewound.next_step_id == 3
    assert answer.generation == rewound.generation == 2
    assert answer.hint is not None
    assert "card declined" in answer.hint.text
    assert (await engine.record()).failures == ()
    assert engine.tools.effects == ["room"]


@virtual_time
async def test_an_irreversible_step_in_doubt_refuses_the_rewind_that_waited() -> None:
    engine, running = await _with_running("pay", hang(Gate()))
    rewind = asyncio.create_task(outcome_of(engine.rewind(2)))
    assert (await running).status is StepStatus.IN_DOUBT
    refused = await rewind
    assert isinstance(refused, PreconditionFailed)
    assert refused.reason == "STEP_IN_DOUBT"
    assert (await engine.record()).status is TransactionStatus.IN_DOUBT


# --- turns --------------------------------------------------------------------------------


@virtual_time
async def test_queued_steps_do_not_slip_in_before_a_waiting_rewind() -> None:
    gate = Gate()
    engine, running = await _with_running("pay", hang(gate, fail_with("card declined")))
    queued = [
        asyncio.create_task(outcome_of(engine.step(step, "note", None, f"q{step}"))) for step in (4, 5, 3)
    ]
    await idle()
    rewind = asyncio.create_task(engine.rewind(2))
    await idle()
    gate.open()
    await running
    assert (await rewind).next_step_id == 2
    results = await asyncio.gather(*queued)
    assert [getattr(result, "reason", "") for result in results] == ["STEP_OUT_OF_ORDER"] * 3
    assert engine.tools.count("note", step_id=3) == 0


@virtual_time
async def test_a_queued_step_does_not_slip_in_though_it_would_be_next() -> None:
    gate = Gate()
    engine, running = await _with_running("pay", hang(gate), {"effect": "money"})
    queued = asyncio.create_task(outcome_of(engine.step(4, "note", None, "q4")))
    await idle()
    rewind = asyncio.create_task(engine.rewind(2, accept_irreversible=True))
    await idle()
    gate.open()
    assert (await running).next_step_id == 4
    assert (await rewind).next_step_id == 2
    assert (await queued).reason == "STEP_OUT_OF_ORDER"
    assert engine.tools.count("note", step_id=4) == 0


@virtual_time
async def test_two_rewinds_that_wait_are_both_made() -> None:
    engine, running = await _with_running("lookup", hang(Gate()))
    first = asyncio.create_task(engine.rewind(3, request_id="w1"))
    second = asyncio.create_task(engine.rewind(2, request_id="w2"))
    one, two = await asyncio.gather(first, second)
    await running
    assert (one.next_step_id, two.next_step_id) == (3, 2)
    assert (await engine.record()).next_step_id == 2
    assert await engine.rewind(3, request_id="w1") == one
    assert await engine.rewind(2, request_id="w2") == two


@virtual_time
async def test_a_rewind_that_is_refused_stops_nothing() -> None:
    gate = Gate()
    engine = Engine()
    await engine.begin()
    await engine.step(1, "pay", {"effect": "money"})
    engine.tools.next("lookup", hang(gate))
    running = asyncio.create_task(engine.step(2, "lookup"))
    await gate.reached()
    for refused, kind in (
        (engine.rewind(9), InvalidRequest),
        (engine.rewind(0), InvalidRequest),
        (engine.rewind(1), PreconditionFailed),
    ):
        with pytest.raises(kind):
            await refused
    stale = asyncio.create_task(outcome_of(engine.rewind(2, generation=9)))
    await idle()
    gate.open()
    assert (await running).status is StepStatus.SUCCESS
    assert (await stale).reason == "STALE_GENERATION"


@virtual_time
async def test_a_repeated_rewind_stops_nothing() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note")
    rewound = await engine.rewind(1, request_id="w")
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    running = asyncio.create_task(engine.step(1, "lookup"))
    await gate.reached()
    again = asyncio.create_task(engine.rewind(1, request_id="w"))
    await idle()
    gate.open()
    assert (await running).status is StepStatus.SUCCESS
    assert await again == rewound
    assert (await engine.record()).next_step_id == 2


@virtual_time
async def test_a_repeated_rewind_is_answered_though_its_target_is_out_of_range_now() -> None:
    engine = Engine()
    await engine.begin()
    for step in (1, 2, 3):
        await engine.step(step, "note")
    rewound = await engine.rewind(3, request_id="w")
    await engine.rewind(1)
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    running = asyncio.create_task(engine.step(1, "lookup"))
    await gate.reached()
    again = asyncio.create_task(engine.rewind(3, request_id="w"))
    await idle()
    gate.open()
    await running
    assert await again == rewound


@virtual_time
async def test_a_dry_run_stops_nothing() -> None:
    gate = Gate()
    engine, running = await _with_running("lookup", hang(gate))
    preview = asyncio.create_task(engine.rewind(1, dry_run=True))
    await idle()
    gate.open()
    assert (await running).status is StepStatus.SUCCESS
    assert (await preview).preview is not None
    assert (await engine.record()).generation == 1


@virtual_time
async def test_somebody_else_stops_nothing() -> None:
    gate = Gate()
    engine, running = await _with_running("lookup", hang(gate))
    refused = asyncio.create_task(outcome_of(engine.rewind(1, principal="mallory")))
    await idle()
    gate.open()
    assert (await running).status is StepStatus.SUCCESS
    assert (await refused).reason == "TRANSACTION_NOT_FOUND"


# --- held and crashed ---------------------------------------------------------------------


@virtual_time
async def test_a_stopped_step_whose_rewind_is_held_says_so_and_later_gets_its_final_answer() -> None:
    engine, running = await _with_running("book", hang(Gate(), first=obey), {"effect": "table"})
    engine.tools.break_undo("room")
    rewound = await engine.rewind(2, request_id="w")
    answer = await running
    assert rewound.rollback_incomplete
    assert answer.rollback_incomplete
    assert answer.generation == rewound.generation == 1
    assert answer.compensation_errors == rewound.compensation_errors != ()
    again = await engine.step(3, "book", {"effect": "table"}, "r3")
    assert again.rollback_incomplete
    engine.tools.break_undo("room", times=0)
    await engine.rewind(2)
    final = await engine.step(3, "book", {"effect": "table"}, "r3")
    assert (final.rollback_incomplete, final.next_step_id, final.generation) == (False, 2, 2)
    assert engine.tools.undo_order == ["table", "room"]
    assert not (await engine.rewind(2, request_id="w")).rollback_incomplete


@pytest.mark.parametrize("writes", range(1, 8))
@virtual_time
async def test_a_server_that_dies_between_stop_and_rewind_forgets_neither(writes: int) -> None:
    # Given a rewind that stops a running booking.
    engine, running = await _with_running("book", hang(Gate(), first=obey), {"effect": "table"})
    held = engine.memory.hold_write(engine.memory.write_count + writes)
    rewind = asyncio.create_task(engine.rewind(2, request_id="w"))
    await idle()
    if not held.is_reached:
        return
    # When the server dies at its n-th write.
    await engine.crash()
    assert running.cancelled()
    assert rewind.cancelled()
    # Then the same rewind brings the transaction to where it was going.
    answer = await engine.rewind(2, request_id="w")
    assert answer.next_step_id == 2
    assert engine.tools.effects == []
    assert [attempt.step_id for attempt in await engine.live_attempts()] == [1]
    await engine.assert_memory_equals_store()
    assert (await engine.step(2, "note", generation=answer.generation)).next_step_id == 3


# --- groups -------------------------------------------------------------------------------


@virtual_time
async def test_a_rewind_stops_a_whole_group() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"output": {"id": "u-1"}})
    engine.tools.next("book", hang(Gate(), first=obey))
    engine.tools.next("lookup", hang(Gate()))
    calls = (
        call("note", {"put": {"kv/b": 1}, "user_id": "u-1"}, "g1"),
        call("book", {"effect": "table"}, "g2"),
        call("lookup", None, "g3"),
    )
    running = asyncio.create_task(engine.group(2, *calls))
    await idle()
    rewound = await engine.rewind(2)
    answers = await running
    assert [answer.status for answer in answers] == [
        StepStatus.SUCCESS,
        StepStatus.ROLLBACK_TRIGGERED,
        StepStatus.ROLLBACK_TRIGGERED,
    ]
    assert [answer.rewound for answer in answers] == [True, False, False]
    assert {(answer.next_step_id, answer.generation, answer.strategy) for answer in answers} == {
        (2, rewound.generation, Strategy.MANUAL)
    }
    assert engine.tools.effects == []
    assert await engine.state("kv/b") == {"kv/b": None}
    await engine.assert_memory_equals_store()
    again = await engine.group(2, *calls)
    assert all(same_answer(one, two) for one, two in zip(answers, again, strict=True))
    assert [answer.rewound for answer in again] == [True, False, False]
    assert engine.tools.count() == 4
    fresh = await engine.group(2, call("note", {"put": {"kv/b": 2}}), call("note", {"put": {"kv/c": 2}}))
    assert {answer.status for answer in fresh} == {StepStatus.SUCCESS}


@virtual_time
async def test_a_target_inside_the_running_group_becomes_its_first_step() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note")
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    running = asyncio.create_task(engine.group(2, call("note"), call("lookup")))
    await gate.reached()
    with pytest.raises(InvalidRequest):
        await engine.rewind(4)
    rewound = await engine.rewind(3)
    assert rewound.next_step_id == 2
    assert {answer.next_step_id for answer in await running} == {2}


@virtual_time
async def test_an_irreversible_member_is_waited_for_and_its_siblings_are_stopped() -> None:
    engine = Engine()
    await engine.begin()
    transfer, told = Gate(), list[str]()
    engine.tools.next("wire", ignore_cancellation(transfer, told=told))
    engine.tools.next("lookup", hang(Gate()))
    running = asyncio.create_task(engine.group(1, call("wire", {"effect": "money"}), call("lookup")))
    await idle()
    rewind = asyncio.create_task(engine.rewind(1))
    await idle()
    assert not rewind.done()
    transfer.open()
    answers, rewound = await asyncio.gather(running, rewind)
    assert told == []
    assert current_loop().time() == 0
    assert [answer.status for answer in answers] == [StepStatus.SUCCESS, StepStatus.ROLLBACK_TRIGGERED]
    assert (rewound.next_step_id, rewound.compensations_run) == (1, 1)
    assert engine.tools.effects == []


@virtual_time
async def test_a_finished_undoable_irreversible_member_does_not_refuse_a_rewind() -> None:
    engine = Engine()
    await engine.begin()
    engine.tools.next("lookup", hang(Gate()))
    running = asyncio.create_task(engine.group(1, call("wire", {"effect": "money"}), call("lookup")))
    await idle()
    rewound = await engine.rewind(1)
    await running
    assert (rewound.next_step_id, rewound.compensations_run) == (1, 1)
    assert engine.tools.effects == []


@virtual_time
async def test_a_member_that_became_a_pivot_meanwhile_stands_in_the_way_of_the_rewind() -> None:
    transfer = Gate()

    async def without_undo(run: ToolRun) -> Any:
        await transfer.wait()
        run.cause("money")

    engine = Engine()
    await engine.begin()
    engine.tools.next("wire", without_undo)
    engine.tools.next("lookup", hang(Gate()))
    running = asyncio.create_task(engine.group(1, call("wire"), call("lookup")))
    await idle()
    rewind = asyncio.create_task(outcome_of(engine.rewind(1)))
    await idle()
    transfer.open()
    answers = await running
    # Nothing goes back past it, so the failed sibling can only end the transaction.
    assert {answer.strategy for answer in answers} == {Strategy.ABORT}
    assert [kept.tool_name for kept in answers[0].kept_effects] == ["wire"]
    assert "irreversible step 1" in answers[0].abort_reason
    assert (await rewind).reason == "TRANSACTION_ENDED"


@virtual_time
async def test_a_stopped_attempt_is_history() -> None:
    engine, running = await _with_running("lookup", hang(Gate()))
    await engine.rewind(3)
    await running
    await engine.step(3, "lookup")
    attempts = [attempt for attempt in await engine.attempts() if attempt.step_id == 3]
    assert [attempt.state for attempt in attempts] == [AttemptState.FAILED, AttemptState.COMPLETED]
    assert [attempt.attempt for attempt in attempts] == [1, 2]
