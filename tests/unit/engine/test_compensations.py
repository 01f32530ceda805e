"""Undo that failed, and what a person does about it: retried, resolved, or completed over by policy."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine_harness import Engine, call, outcome_of
from tests.support.memory_store import MemoryDatabase
from tests.support.virtual_time import idle, virtual_time

from agenttx_server.engine.errors import (
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    RequestIdReused,
    Unavailable,
)
from agenttx_server.engine.records import (
    EventType,
    OnUndoFailure,
    Strategy,
    TransactionStatus,
    UndoResolution,
    UndoState,
)
from agenttx_server.engine.requests import CompensationState, StepStatus
from agenttx_server.engine.services import EngineSettings


async def _booked(count: int = 3, policy: OnUndoFailure = OnUndoFailure.HOLD, **fields: Any) -> Engine:
    """Steps 1 … count, each a booking "a", "b", …; the undo action of step n has number n."""
    engine = Engine(**fields)
    await engine.begin(on_undo_failure=policy)
    for number in range(count):
        await engine.step(number + 1, "book", {"effect": chr(ord("a") + number)}, f"r{number + 1}")
    return engine


async def _held(*broken: str, to_step: int = 1, **fields: Any) -> Engine:
    engine = await _booked(3, **fields)
    for effect in broken:
        engine.tools.break_undo(effect)
    assert (await engine.rewind(to_step, request_id="w")).rollback_incomplete
    return engine


async def _pending_is_held(engine: Engine) -> bool | None:
    pending = (await engine.record()).pending_rewind
    return None if pending is None else pending.held


# --- the mark that a rewind is held ---------------------------------------------------------


@virtual_time
async def test_the_write_that_holds_a_rewind_says_so_and_the_one_that_goes_on_takes_it_back() -> None:
    engine = await _held("b")
    assert [written.transaction.pending_rewind.held for written in engine.memory.written[-5:]] == [  # type: ignore[union-attr]
        False,  # begun
        False,
        False,
        False,
        True,
    ]
    before = len(engine.memory.written)
    assert (await engine.rewind(1)).rollback_incomplete
    pending = [written.transaction.pending_rewind for written in engine.memory.written[before:]]
    assert [rewind.held for rewind in pending if rewind] == [False, False, True]
    before = len(engine.memory.written)
    await engine.rollback()
    pending = [written.transaction.pending_rewind for written in engine.memory.written[before:]]
    assert [rewind.held for rewind in pending if rewind] == [False, False, True]


@virtual_time
async def test_a_rewind_that_was_cut_off_after_a_failure_goes_on_and_tries_it_again() -> None:
    engine = await _booked(3)
    engine.tools.break_undo("b")
    gate = engine.tools.hold_undo("a")
    rewinding = asyncio.create_task(engine.rewind(1, request_id="w"))
    await gate.reached()  # "c" is done, "b" has failed, "a" is about to run
    await engine.crash()
    rewinding.cancel()
    gate.open()
    tried = len(engine.tools.undone)
    engine.tools.break_undo("b", times=0)
    assert (await engine.step(1, "note")).status is StepStatus.SUCCESS
    assert {undone.effect for undone in engine.tools.undone[tried:]} == {"b", "a"}
    assert (await engine.record()).generation == 2


@virtual_time
async def test_a_held_rewind_is_not_gone_on_with_by_itself() -> None:
    engine = await _held("b")
    tried = len(engine.tools.undone)
    await engine.crash()
    refused = await outcome_of(engine.step(1, "note"))
    assert isinstance(refused, PreconditionFailed)
    assert (refused.reason, refused.metadata) == ("ROLLBACK_INCOMPLETE", {"to_step": "1", "failed": "1"})
    assert len(engine.tools.undone) == tried
    assert await _pending_is_held(engine)


# --- retry --------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
@virtual_time
async def test_a_retry_runs_the_one_alone_and_completes_the_rewind_that_it_held(restart: bool) -> None:
    engine = await _held("b")
    if restart:
        await engine.crash()
    engine.tools.break_undo("b", times=0)
    tried = len(engine.tools.undone)
    answer = await engine.retry_undo(2, "again")
    assert [undone.effect for undone in engine.tools.undone[tried:]] == ["b"]
    assert len({undone.key for undone in engine.tools.undone if undone.effect == "b"}) == 1
    assert (answer.state, answer.undo.attempts, answer.undo.hint) == (CompensationState.DONE, 4, None)
    assert (answer.rollback_incomplete, answer.next_step_id, answer.generation) == (False, 1, 2)
    record = await engine.record()
    assert (record.status, record.generation, record.next_step_id) == (TransactionStatus.ACTIVE, 2, 1)
    assert (await engine.rewind(1, request_id="w")).compensations_run == 3
    assert await engine.retry_undo(2, "again") == answer
    assert len(engine.tools.undone) == tried + 1
    assert engine.tools.effects == []
    assert (await engine.step(1, "note", generation=2)).status is StepStatus.SUCCESS
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_retry_that_fails_leaves_the_rewind_held_and_is_recorded() -> None:
    engine = await _held("b")
    answer = await engine.retry_undo(2, "again")
    assert (answer.state, answer.undo.attempts) == (CompensationState.FAILED, 6)
    assert (answer.rollback_incomplete, answer.next_step_id, answer.generation) == (True, 1, 1)
    assert await _pending_is_held(engine)
    tried = len(engine.tools.undone)
    assert await engine.retry_undo(2, "again") == answer
    assert len(engine.tools.undone) == tried
    await engine.assert_memory_equals_store()


@virtual_time
async def test_of_two_that_hold_a_rewind_the_last_one_completes_it() -> None:
    engine = await _held("a", "c")
    engine.tools.break_undo("a", times=0)
    first = await engine.retry_undo(1)
    assert (first.state, first.rollback_incomplete) == (CompensationState.DONE, True)
    assert await engine.undo_states() == [
        (3, CompensationState.FAILED),
        (2, CompensationState.DONE),
        (1, CompensationState.DONE),
    ]
    engine.tools.break_undo("c", times=0)
    last = await engine.retry_undo(3)
    assert (last.rollback_incomplete, last.generation) == (False, 2)
    assert (await engine.rewind(1, request_id="w")).compensations_run == 3
    assert engine.tools.effects == []


@virtual_time
async def test_a_retry_completes_an_abort_and_lets_go_of_what_was_kept_for_undo() -> None:
    engine = await _booked(2)
    engine.tools.break_undo("a")
    await engine.rollback(request_id="x", reason="enough")
    engine.tools.break_undo("a", times=0)
    answer = await engine.retry_undo(1)
    assert (answer.next_step_id, answer.rollback_incomplete) == (0, False)
    assert (await engine.rollback(request_id="x")).status is TransactionStatus.ROLLED_BACK
    assert engine.tools.ended == [engine.transaction_id]


@virtual_time
async def test_a_retry_answers_the_steps_whose_failure_was_held() -> None:
    engine = await _booked(2)
    engine.tools.break_undo("b")
    held = await engine.step(3, "note", {"fail": "no"}, "r3")
    assert held.rollback_incomplete
    engine.tools.break_undo("b", times=0)
    await engine.retry_undo(2)
    final = await engine.step(3, "note", {"fail": "no"}, "r3")
    assert (final.replayed, final.rollback_incomplete, final.compensation_errors) == (True, False, ())
    assert (final.strategy, final.generation) == (Strategy.LOCAL_BACKTRACK, 2)


@pytest.mark.parametrize("number", range(1, 5))
@virtual_time
async def test_a_retry_that_a_crash_cuts_off_completes_the_rewind_and_its_repeat_is_told_so(
    number: int,
) -> None:
    engine = await _held("b")
    engine.tools.break_undo("b", times=0)
    gate = engine.memory.hold_write(engine.memory.write_count + number)
    retrying = asyncio.create_task(outcome_of(engine.retry_undo(2, "again")))
    await idle()
    if not gate.is_reached:
        assert number > 2  # the outcome, then the last commit
        await retrying
    await engine.crash()
    retrying.cancel()
    answer = await engine.retry_undo(2, "again")
    assert (answer.state, answer.rollback_incomplete, answer.generation) == (CompensationState.DONE, False, 2)
    assert (await engine.record()).generation == 2
    assert engine.tools.effects == []
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_retry_of_an_undo_that_still_runs_waits_for_it_and_nobody_resolves_it_meanwhile() -> None:
    settings = EngineSettings(compensation_retries=1, compensation_timeout_seconds=5, stop_grace_seconds=2)
    engine = await _booked(2, settings=settings)
    gate = engine.tools.hold_undo("b", deaf=True)
    assert (await engine.rewind(1)).rollback_incomplete
    refused = await outcome_of(engine.resolve_undo(2, UndoResolution.KEPT))
    assert isinstance(refused, PreconditionFailed)
    assert (refused.reason, refused.metadata["state"]) == ("COMPENSATION_NOT_FAILED", "RUNNING")
    retrying = asyncio.create_task(engine.retry_undo(2))
    await idle()
    gate.open()
    assert not (await retrying).rollback_incomplete
    assert [undone.effect for undone in engine.tools.undone] == ["a", "b"]


# --- resolve ------------------------------------------------------------------------------


@virtual_time
async def test_an_effect_that_somebody_undid_otherwise_holds_nothing_any_more() -> None:
    engine = await _held("b")
    tried = len(engine.tools.undone)
    answer = await engine.resolve_undo(2, UndoResolution.UNDONE, "called the hotel", "done")
    assert (answer.state, answer.undo.resolution, answer.undo.note) == (
        CompensationState.RESOLVED,
        UndoResolution.UNDONE,
        "called the hotel",
    )
    assert (answer.rollback_incomplete, answer.generation) == (False, 2)
    assert len(engine.tools.undone) == tried
    assert (await engine.record()).kept_effects == ()
    assert (await engine.view()).undo_failed == ()
    assert await engine.resolve_undo(2, UndoResolution.UNDONE, "called the hotel", "done") == answer
    found = await engine.store.list_events(engine.transaction_id, 1, 1000)
    [event] = [event for event in found if event.type is EventType.UNDO_RESOLVED]
    assert event.payload == (
        '{"action":"unbook","note":"called the hotel","resolution":"UNDONE","tool_name":"book"}'
    )
    # It stays on record, and no later rewind runs it.
    await engine.step(1, "book", {"effect": "d"})
    await engine.rewind(1)
    assert [undone.effect for undone in engine.tools.undone[tried:]] == ["d"]
    assert await engine.undo_states() == [(2, CompensationState.RESOLVED)]
    await engine.assert_memory_equals_store()


@pytest.mark.parametrize("resumed_by", ["last retry", "lower rewind"])
@virtual_time
async def test_an_effect_that_was_let_stay_is_named(resumed_by: str) -> None:
    engine = await _held("b", "c", to_step=2)
    answer = await engine.resolve_undo(2, UndoResolution.KEPT)
    assert answer.rollback_incomplete
    engine.tools.break_undo("c", times=0)
    if resumed_by == "last retry":
        await engine.retry_undo(3)
    else:
        assert not (await engine.rewind(1)).rollback_incomplete
    [kept] = (await engine.record()).kept_effects
    assert (kept.step_id, kept.attempt, kept.tool_name, kept.effect_class) == (2, 1, "book", "COMPENSATABLE")
    assert "unbook" in kept.reason
    assert (await engine.rewind(2, request_id="w")).kept_effects == (kept,)
    assert engine.tools.effects[-1] == "b"


@virtual_time
async def test_what_cannot_be_settled_is_refused_and_changes_nothing() -> None:
    engine = await _held("b")
    written = engine.memory.write_count
    for sequence in (7, "x", "02"):
        missing = await outcome_of(engine.retry_undo(sequence))
        assert isinstance(missing, NotFound)
        assert (missing.reason, missing.metadata) == (
            "COMPENSATION_NOT_FOUND",
            {"compensation_id": str(sequence), "transaction_id": engine.transaction_id},
        )
    for asked in (engine.retry_undo(3), engine.resolve_undo(3)):
        refused = await outcome_of(asked)
        assert isinstance(refused, PreconditionFailed)
        assert (refused.reason, refused.metadata) == (
            "COMPENSATION_NOT_FAILED",
            {"compensation_id": "3", "state": "DONE"},
        )
    for wrong in (engine.retry_undo(""), engine.resolve_undo(2, note="x" * 4097)):
        assert isinstance(await outcome_of(wrong), InvalidRequest)
    for used in (engine.retry_undo(2, "w"), engine.resolve_undo(2, request_id="r1")):
        assert isinstance(await outcome_of(used), RequestIdReused)
    assert engine.memory.write_count == written


@virtual_time
async def test_a_request_id_is_for_one_request() -> None:
    engine = await _held("b")
    await engine.retry_undo(2, "q")
    for other in (engine.resolve_undo(2, request_id="q"), engine.retry_undo(3, "q")):
        assert isinstance(await outcome_of(other), RequestIdReused)


# --- policy CONTINUE ------------------------------------------------------------------------


@virtual_time
async def test_a_rewind_is_completed_over_a_failure_where_the_policy_says_so() -> None:
    engine = await _booked(3, OnUndoFailure.CONTINUE)
    engine.tools.break_undo("b")
    answer = await engine.rewind(1, request_id="w")
    assert (answer.status, answer.rollback_incomplete, answer.generation) == (
        TransactionStatus.ACTIVE,
        False,
        2,
    )
    [error] = answer.compensation_errors
    assert error.startswith("step 2 (book): undo 'unbook' failed")
    assert await engine.rewind(1, request_id="w") == answer
    record = await engine.record()
    assert (record.undo_was_skipped, record.pending_rewind) == (True, None)
    assert [undo.step_id for undo in (await engine.view()).undo_failed] == [2]
    assert EventType.ROLLBACK_HELD not in await engine.events()
    await engine.assert_memory_equals_store()


@virtual_time
async def test_what_a_rewind_was_completed_over_is_run_by_no_later_rewind_but_by_a_retry() -> None:
    engine = await _booked(2, OnUndoFailure.CONTINUE)
    engine.tools.break_undo("b")
    await engine.rewind(2)
    await engine.step(2, "book", {"effect": "d"})
    tried = len(engine.tools.undone)
    answer = await engine.rewind(1)
    assert (answer.compensation_errors, answer.compensations_run) == ((), 2)
    assert [undone.effect for undone in engine.tools.undone[tried:]] == ["d", "a"]
    engine.tools.break_undo("b", times=0)
    retried = await engine.retry_undo(2)
    assert (retried.state, retried.rollback_incomplete, retried.next_step_id) == (
        CompensationState.DONE,
        False,
        1,
    )
    assert retried.generation == (await engine.record()).generation
    assert engine.tools.effects == []
    assert (await engine.view()).undo_failed == ()
    assert (await engine.record()).undo_was_skipped  # steps have run on top of it
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_failed_undo_of_a_rewound_attempt_is_no_cover_for_the_next_one() -> None:
    engine = Engine()
    await engine.begin(on_undo_failure=OnUndoFailure.CONTINUE)
    await engine.step(1, "wire", {"effect": "money"})
    engine.tools.break_undo("money")
    await engine.rewind(1)
    await engine.step(1, "pay", {"effect": "coins"})
    refused = await outcome_of(engine.rewind(1))
    assert isinstance(refused, PreconditionFailed)
    assert refused.reason == "IRREVERSIBLE_STEP"
    assert [kept.tool_name for kept in (await engine.rewind(1, accept_irreversible=True)).kept_effects] == [
        "pay"
    ]


@virtual_time
async def test_a_failing_step_tells_what_was_skipped() -> None:
    engine = await _booked(2, OnUndoFailure.CONTINUE)
    engine.tools.break_undo("b")
    answer = await engine.step(3, "note", {"fail": "no"}, "r3")
    assert (answer.status, answer.rollback_incomplete) == (StepStatus.ROLLBACK_TRIGGERED, False)
    assert len(answer.compensation_errors) == 1
    again = await engine.step(3, "note", {"fail": "no"}, "r3")
    assert replace(again, replayed=False) == answer


@virtual_time
async def test_a_crash_after_a_skipped_failure_does_not_run_it_again_and_still_tells() -> None:
    engine = await _booked(3, OnUndoFailure.CONTINUE)
    engine.tools.break_undo("b")
    gate = engine.tools.hold_undo("a")
    rewinding = asyncio.create_task(outcome_of(engine.rewind(1, request_id="w")))
    await gate.reached()
    await engine.crash()
    rewinding.cancel()
    gate.open()
    tried = len(engine.tools.undone)
    answer = await engine.rewind(1, request_id="w")
    assert [undone.effect for undone in engine.tools.undone[tried:]] == ["a"]
    assert (answer.rollback_incomplete, len(answer.compensation_errors)) == (False, 1)
    assert (await engine.record()).undo_was_skipped


@virtual_time
async def test_an_abort_over_a_failure_keeps_what_undo_needs_until_it_is_settled() -> None:
    engine = await _booked(2, OnUndoFailure.CONTINUE)
    engine.tools.break_undo("b")
    answer = await engine.rollback(request_id="x")
    assert (answer.status, len(answer.compensation_errors)) == (TransactionStatus.ROLLED_BACK, 1)
    assert engine.tools.ended == []
    kept = await engine.resolve_undo(2, UndoResolution.KEPT, "it is paid")
    assert (kept.next_step_id, kept.rollback_incomplete) == (0, False)
    assert [effect.step_id for effect in (await engine.record()).kept_effects] == [2]
    assert (await engine.record()).status is TransactionStatus.ROLLED_BACK
    assert engine.tools.ended == [engine.transaction_id]


# --- what is kept of a failure, and listings ------------------------------------------------


@virtual_time
async def test_the_error_of_a_failed_undo_is_kept_for_people_masked() -> None:
    engine = await _booked(1)
    engine.tools.break_undo("a", text="refused: password=hunter2hunter2")
    await engine.rewind(1)
    [failed] = (await engine.view()).undo_failed
    assert "RuntimeError" in failed.raw_error
    assert "hunter2" not in failed.raw_error


@virtual_time
async def test_undo_actions_are_listed_by_how_they_stand() -> None:
    database = MemoryDatabase()
    engine = Engine(database=database)
    await engine.begin()
    await engine.step(1, "book", {"effect": "a"})
    assert await engine.undo_states() == [(1, CompensationState.REGISTERED)]
    first = engine.transaction_id
    await engine.commit()
    assert await engine.undo_states() == [(1, CompensationState.RELEASED)]
    assert await engine.undo_states(CompensationState.REGISTERED) == []
    await engine.begin()
    await engine.step(1, "book", {"effect": "b"})
    await engine.step(2, "book", {"effect": "c"})
    gate = engine.tools.hold_undo("c")
    rewinding = asyncio.create_task(engine.rewind(2))
    await gate.reached()
    assert await engine.undo_states() == [(2, CompensationState.PENDING), (1, CompensationState.REGISTERED)]
    page = await engine.coordinator.list_compensations(
        "anonymous",
        None,
        frozenset({CompensationState.REGISTERED, CompensationState.RELEASED}),
        "",
        1,
    )
    assert [(found, undo.sequence) for found, undo, _ in page.undo] == [(first, 1)]
    page = await engine.coordinator.list_compensations(
        "anonymous",
        None,
        frozenset({CompensationState.REGISTERED, CompensationState.RELEASED}),
        page.next_cursor,
        1,
    )
    assert [(found, undo.sequence) for found, undo, _ in page.undo] == [(engine.transaction_id, 1)]
    gate.open()
    await rewinding
    with pytest.raises(InvalidRequest):
        await engine.coordinator.list_compensations("anonymous", None, frozenset(CompensationState), "x", 1)
    with pytest.raises(NotFound):
        await engine.coordinator.list_compensations(
            "somebody else", first, frozenset(CompensationState), "", 1
        )


@virtual_time
async def test_another_server_settles_what_one_left_held() -> None:
    """Two engines on one database: the second one has nothing in memory."""
    engine = await _held("b")
    other = Engine(database=engine.memory.database)
    other.transaction_id = engine.transaction_id
    assert [undo.state for undo in (await other.view()).undo_failed] == [UndoState.FAILED]
    answer = await other.retry_undo(2, "again")
    assert (answer.state, answer.rollback_incomplete) == (CompensationState.DONE, False)
    assert other.tools.undo_order == ["b"]
    assert (await other.record()).generation == 2


@virtual_time
@pytest.mark.parametrize("settle", ["rollback", "rewind"])
async def test_what_takes_over_a_held_rewind_names_what_that_one_named(settle: str) -> None:
    engine = Engine()
    await engine.begin()
    engine.tools.break_undo("room", times=3)
    await engine.step(1, "note")
    booked = call("book", {"effect": "room", "put": {"kv/a": 1}})
    lost = call("upload", {"effect": "file", "put": {"kv/a": 2}})  # conflicts, and took effect
    answers = await engine.group(2, booked, lost)
    assert answers[0].rollback_incomplete
    await (engine.rollback() if settle == "rollback" else engine.rewind(1))
    assert not (await engine.record()).pending_rewind
    assert engine.tools.effects == ["file"]
    assert [(item.step_id, item.tool_name) for item in (await engine.record()).kept_effects] == [
        (3, "upload")
    ]


@virtual_time
async def test_a_retry_that_meets_a_cut_off_rewind_finds_nothing_left_to_retry() -> None:
    engine = await _booked(2)
    engine.tools.break_undo("b", times=4)
    engine.memory.fail_write(engine.memory.write_count + 3, applied=False)  # begun; "b" has failed; held
    assert isinstance(await outcome_of(engine.rewind(2)), Unavailable)
    await engine.crash()
    assert (await engine.rebuilt()).undo[2].state is UndoState.FAILED, "as ListCompensations shows it"
    assert await _pending_is_held(engine) is False
    gone = await outcome_of(engine.retry_undo(2))  # by then the rewind was gone on with, which ran it again
    assert isinstance(gone, NotFound)
    assert gone.reason == "COMPENSATION_NOT_FOUND"
    assert engine.tools.effects == ["a"]
    assert await _pending_is_held(engine) is None


@virtual_time
async def test_undo_whose_outcome_cannot_be_written_is_not_run_at_every_call() -> None:
    """A full disk: reads go on, no write does, and callers come again and again."""
    engine = await _booked(1)
    begun = engine.memory.write_count + 1
    for number in range(begun + 1, begun + 40):
        engine.memory.fail_write(number, applied=False)
    for _ in range(5):
        assert isinstance(await outcome_of(engine.rewind(1, request_id="w")), Unavailable)
        await asyncio.sleep(2)  # in the background it is tried again too
    assert engine.tools.undo_order == ["a"]
    await asyncio.sleep(60)
    assert not (await engine.rewind(1, request_id="w")).rollback_incomplete
    assert engine.tools.undo_order == ["a", "a"], "once more: its outcome is not known"
    assert engine.tools.effects == []
