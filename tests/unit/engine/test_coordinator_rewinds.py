"""Rewinds and aborts that somebody asks for: what they take back, in which order, and how they are held."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine_harness import Engine, call, outcome_of
from tests.support.scripted_tools import fail_with, raise_error
from tests.support.virtual_time import current_loop, idle, virtual_time

from agenttx_server.engine.errors import InvalidRequest, PreconditionFailed, RequestIdReused
from agenttx_server.engine.ports import OutcomeUnknown
from agenttx_server.engine.records import (
    EffectClass,
    EventType,
    Strategy,
    TransactionStatus,
    UndoState,
)
from agenttx_server.engine.requests import StepStatus
from agenttx_server.engine.services import EngineSettings


async def _booked(count: int = 3, **fields: Any) -> Engine:
    """Steps 1 … count, each a booking "a", "b", … that also writes and stages."""
    engine = Engine(**fields)
    await engine.begin()
    for number in range(count):
        name = chr(ord("a") + number)
        await engine.step(number + 1, "book", {"effect": name}, f"r{number + 1}")
    return engine


# --- what is taken back -------------------------------------------------------------------


@virtual_time
async def test_a_rewind_undoes_the_newest_first_and_only_what_it_passes() -> None:
    engine = await _booked(4)
    rewound = await engine.rewind(2)
    assert engine.tools.undo_order == ["d", "c", "b"]
    assert engine.tools.effects == ["a"]
    assert (rewound.status, rewound.next_step_id, rewound.generation) == (TransactionStatus.ACTIVE, 2, 2)
    assert (rewound.compensations_run, rewound.compensation_errors) == (3, ())
    await engine.assert_memory_equals_store()


@virtual_time
async def test_undo_goes_by_the_order_of_registration_not_of_steps() -> None:
    engine = Engine()
    await engine.begin()
    first, second = asyncio.Event(), asyncio.Event()

    async def late(run: Any) -> Any:
        await run.register_undo("one")
        run.cause("one")
        first.set()
        await second.wait()
        await run.register_undo("three")
        run.cause("three")

    async def between(run: Any) -> Any:
        await first.wait()
        await run.register_undo("two")
        run.cause("two")
        second.set()

    engine.tools.next("book", late)
    engine.tools.next("wire", between)
    await engine.group(1, call("book"), call("wire"))
    await engine.rewind(1)
    assert engine.tools.undo_order == ["three", "two", "one"]


@virtual_time
async def test_a_rewind_takes_back_state_effects_context_graph_and_outputs() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"put": {"kv/a": 1, "kv/b": 1}, "output": {"id": "u"}}, raw_context="one")
    await engine.step(
        2,
        "note",
        {"put": {"kv/a": 2}, "delete": ["kv/b"], "stage": [["mail", 2]], "user_id": "u", "output": {"x": 5}},
        raw_context="two",
    )
    await engine.step(3, "note", {"put": {"kv/c": 3}, "stage": [["mail", 3]], "x": 5}, raw_context="three")
    await engine.rewind(2)
    assert await engine.state("kv/a", "kv/b", "kv/c") == {"kv/a": 1, "kv/b": 1, "kv/c": None}
    assert await engine.staged() == []
    view = await engine.view()
    assert [entry.raw_context for entry in view.context] == ["one"]
    graph = await engine.coordinator.graph("anonymous", engine.transaction_id)
    assert ([node.step_id for node in graph.nodes], graph.edges) == ([1], ())
    again = await engine.step(2, "lookup", {"get": ["kv/a"], "x": 5, "who_id": "u"})
    assert [edge.from_step for edge in again.dependencies] == [1]
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_rewind_to_the_next_step_undoes_nothing_and_succeeds() -> None:
    engine = await _booked(2)
    mark = len(engine.timeline)
    rewound = await engine.rewind(3)
    assert (rewound.next_step_id, rewound.generation, rewound.compensations_run) == (3, 1, 0)
    assert engine.timeline[mark:] == []
    named = await engine.rewind(3, request_id="w")
    assert await engine.rewind(3, request_id="w") == named == rewound
    await engine.step(3, "note")
    assert await engine.rewind(3, request_id="w") == named
    assert (await engine.record()).next_step_id == 4


@pytest.mark.parametrize("to_step", [0, -1, 4, 1000])
@virtual_time
async def test_a_target_out_of_range_is_refused_naming_the_range(to_step: int) -> None:
    engine = await _booked(2)
    with pytest.raises(InvalidRequest) as refused:
        await engine.rewind(to_step)
    [violation] = refused.value.violations
    assert violation.field == "to_step"
    assert "1 to 3" in violation.description
    assert engine.tools.undone == []


@virtual_time
async def test_a_stale_rewind_is_refused() -> None:
    engine = await _booked(2)
    await engine.rewind(2, generation=1)
    with pytest.raises(PreconditionFailed) as refused:
        await engine.rewind(1, generation=1)
    assert refused.value.reason == "STALE_GENERATION"
    assert engine.tools.effects == ["a"]


@virtual_time
async def test_a_repeated_rewind_is_answered_and_not_made_again() -> None:
    engine = await _booked(3)
    rewound = await engine.rewind(2, request_id="w")
    await engine.step(2, "book", {"effect": "b2"})
    assert await engine.rewind(2, request_id="w") == rewound
    engine.restart()
    assert await engine.rewind(2, request_id="w") == rewound
    assert engine.tools.effects == ["a", "b2"]
    for other in (
        engine.rewind(1, request_id="w"),
        engine.rewind(2, request_id="w", accept_irreversible=True),
        engine.rewind(2, request_id="w", dry_run=True),
    ):
        with pytest.raises(RequestIdReused):
            await other


@virtual_time
async def test_rollback_with_a_step_is_a_rewind() -> None:
    engine = await _booked(3)
    rewound = await engine.rollback(2, request_id="w")
    assert (rewound.status, rewound.next_step_id) == (TransactionStatus.ACTIVE, 2)
    assert await engine.rollback(2, request_id="w") == rewound
    with pytest.raises(InvalidRequest):
        await engine.rollback(9)


# --- aborts -------------------------------------------------------------------------------


@virtual_time
async def test_an_abort_undoes_everything_and_ends() -> None:
    engine = await _booked(3)
    await engine.step(4, "note", {"put": {"kv/a": 1}, "stage": [["mail", 1]]})
    aborted = await engine.rollback(reason="not wanted", request_id="x")
    assert (aborted.status, aborted.next_step_id) == (TransactionStatus.ROLLED_BACK, 0)
    assert engine.tools.undo_order == ["c", "b", "a"]
    assert await engine.staged() == []
    assert await engine.committed("kv/a") is None
    record = await engine.record()
    assert (record.abort_reason, record.next_step_id) == ("not wanted", 0)
    assert record.ended_at is not None
    assert (await engine.events())[-1] is EventType.TRANSACTION_ROLLED_BACK
    assert engine.tools.ended == [engine.transaction_id]
    assert await engine.rollback(reason="whatever", request_id="x") == aborted
    for refused in (engine.step(1, "note"), engine.rewind(1), engine.commit(), engine.rollback()):
        with pytest.raises(PreconditionFailed) as error:
            await refused
        assert error.value.reason == "TRANSACTION_ENDED"
        assert "ROLLED_BACK" in error.value.message
    assert len(await engine.attempts()) == 4


@virtual_time
async def test_an_abort_of_nothing_ends_too() -> None:
    engine = Engine()
    await engine.begin()
    assert (await engine.rollback()).status is TransactionStatus.ROLLED_BACK


@virtual_time
async def test_tools_that_cant_let_go_fail_no_call() -> None:
    engine = await _booked(1)

    async def fail(transaction_id: str) -> None:
        raise OSError("disk is gone")

    engine.tools.transaction_ended = fail  # type: ignore[method-assign, assignment]
    aborted = await engine.rollback(request_id="x")
    assert aborted.status is TransactionStatus.ROLLED_BACK
    assert await engine.rollback(request_id="x") == aborted
    await engine.begin()
    await engine.step(1, "note")
    assert (await engine.commit("c")).steps_committed == 1


# --- pivots -------------------------------------------------------------------------------


@virtual_time
async def test_a_rewind_past_an_irreversible_step_needs_a_word() -> None:
    engine = await _booked(1)
    await engine.step(2, "pay", {"effect": "money"})
    await engine.step(3, "book", {"effect": "c"})
    for refused in (engine.rewind(2), engine.rewind(1), engine.rollback(1)):
        with pytest.raises(PreconditionFailed) as error:
            await refused
        assert error.value.reason == "IRREVERSIBLE_STEP"
        assert error.value.metadata["step_id"] == "2"
    assert engine.tools.undone == []
    assert (await engine.rewind(3)).next_step_id == 3
    passed = await engine.rewind(1, accept_irreversible=True)
    [kept] = passed.kept_effects
    assert (kept.step_id, kept.attempt, kept.tool_name, kept.effect_class) == (
        2,
        1,
        "pay",
        EffectClass.IRREVERSIBLE,
    )
    assert engine.tools.effects == ["money"]
    assert (await engine.step(1, "note")).status is StepStatus.SUCCESS


@virtual_time
async def test_an_abort_is_never_refused_for_an_irreversible_step() -> None:
    engine = await _booked(1)
    await engine.step(2, "pay", {"effect": "money"})
    await engine.step(3, "upload", {"effect": "file"})
    aborted = await engine.rollback()
    assert [kept.step_id for kept in aborted.kept_effects] == [2, 3]
    assert (await engine.record()).kept_effects == aborted.kept_effects
    assert engine.tools.effects == ["file", "money"]


@virtual_time
async def test_a_step_in_doubt_blocks_everything_until_a_word_is_given() -> None:
    engine = await _booked(1)
    engine.tools.next("pay", fail_with("never mind"))
    await engine.step(2, "pay")  # a failure, no doubt: back to step 1
    await engine.step(1, "note")
    engine.limits = replace(engine.limits, output_bytes=20)
    engine.restart()
    doubtful = await engine.step(
        2, "pay", {"effect": "money", "output": {"text": "longer than twenty bytes"}}, "p"
    )
    assert (doubtful.status, doubtful.next_step_id) == (StepStatus.IN_DOUBT, 2)
    assert (await engine.view()).record.status is TransactionStatus.IN_DOUBT
    for refused in (
        engine.step(2, "note"),
        engine.rewind(1),
        engine.rewind(2),
        engine.rollback(),
        engine.commit(),
    ):
        with pytest.raises(PreconditionFailed) as error:
            await refused
        assert error.value.reason == "STEP_IN_DOUBT"
    again = await engine.step(
        2, "pay", {"effect": "money", "output": {"text": "longer than twenty bytes"}}, "p"
    )
    assert again == replace(doubtful, replayed=True)
    await engine.assert_memory_equals_store()
    engine.restart()
    again = await engine.step(
        2, "pay", {"effect": "money", "output": {"text": "longer than twenty bytes"}}, "p"
    )
    assert again == replace(doubtful, replayed=True)
    rewound = await engine.rewind(2, accept_irreversible=True)
    assert (rewound.status, rewound.next_step_id) == (TransactionStatus.ACTIVE, 2)
    [kept] = rewound.kept_effects
    assert kept.step_id == 2
    assert "unknown" in kept.reason
    assert engine.tools.count("pay") == 2
    assert (await engine.step(2, "note")).status is StepStatus.SUCCESS
    assert (await engine.commit()).steps_committed == 2


@virtual_time
async def test_a_doubtful_payment_that_was_passed_is_not_made_again_by_its_old_request() -> None:
    engine = Engine()
    await engine.begin()
    engine.tools.next("pay", raise_error(OutcomeUnknown("the gateway did not answer")))
    await engine.step(1, "pay", {"effect": "money"}, "p")
    await engine.rewind(1, accept_irreversible=True)
    with pytest.raises(PreconditionFailed) as error:
        await engine.step(1, "pay", {"effect": "money"}, "p")
    assert error.value.reason == "STALE_GENERATION"
    assert error.value.metadata == {
        "expected_generation": "2",
        "received_generation": "1",
        "expected_step": "1",
    }
    assert engine.tools.count("pay") == 1
    paid = await engine.step(1, "pay", {"effect": "money"}, "a new one")
    assert (paid.status, engine.tools.count("pay")) == (StepStatus.SUCCESS, 2)
    await engine.rollback()
    with pytest.raises(PreconditionFailed) as error:
        await engine.step(1, "pay", {"effect": "money"}, "p")
    assert error.value.reason == "TRANSACTION_ENDED"


@virtual_time
async def test_an_abort_of_a_doubtful_step_with_a_word_names_it() -> None:
    engine = Engine()
    await engine.begin()
    engine.tools.next("pay", raise_error(OutcomeUnknown("the gateway did not answer")))
    await engine.step(1, "pay", {"effect": "money"})
    aborted = await engine.rollback(accept_irreversible=True)
    assert aborted.status is TransactionStatus.ROLLED_BACK
    assert [kept.tool_name for kept in aborted.kept_effects] == ["pay"]


# --- dry runs -----------------------------------------------------------------------------


@virtual_time
async def test_a_dry_run_tells_everything_and_changes_nothing() -> None:
    engine = await _booked(2)
    await engine.step(3, "note", {"put": {"kv/b": 1, "kv/a": 1}, "stage": [["mail", 1], ["mail", 2]]})
    await engine.step(4, "upload", {"effect": "file"})
    mark, record = len(engine.timeline), await engine.record()
    answer = await engine.rewind(2, dry_run=True, request_id="w")
    assert (answer.status, answer.next_step_id, answer.generation) == (TransactionStatus.ACTIVE, 5, 1)
    preview = answer.preview
    assert preview is not None
    assert [attempt.step_id for attempt in preview.steps] == [2, 3, 4]
    assert [undo.arguments for undo in preview.undo] == ['{"effect":"b"}']
    assert (preview.state_rows, preview.state_keys) == (2, ("kv/a", "kv/b"))
    assert [effect.step_id for effect in preview.staged_effects] == sorted(
        effect.step_id for effect in preview.staged_effects
    )
    assert len(preview.staged_effects) == 2
    assert [kept.step_id for kept in answer.kept_effects] == [4]
    assert engine.timeline[mark:] == []
    assert await engine.record() == record
    # It took no request_id: the real one may have it.
    assert (await engine.rewind(2, request_id="w")).next_step_id == 2


@virtual_time
async def test_a_dry_run_is_refused_like_the_real_one() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "pay", {"effect": "money"})
    with pytest.raises(PreconditionFailed):
        await engine.rewind(1, dry_run=True)
    with pytest.raises(InvalidRequest):
        await engine.rewind(7, dry_run=True)
    answer = await engine.rewind(1, dry_run=True, accept_irreversible=True)
    assert [kept.step_id for kept in answer.kept_effects] == [1]


# --- undo that fails ----------------------------------------------------------------------


@virtual_time
async def test_an_undo_is_tried_again_with_backoff_and_the_same_key() -> None:
    engine = await _booked(2)
    engine.tools.break_undo("b", times=2)
    rewound = await engine.rewind(1)
    assert (rewound.rollback_incomplete, rewound.compensations_run) == (False, 2)
    assert [undone.effect for undone in engine.tools.undone] == ["b", "b", "b", "a"]
    assert len({undone.key for undone in engine.tools.undone if undone.effect == "b"}) == 1
    # 0.2 s, then twice that.
    assert current_loop().time() == pytest.approx(0.2 + 0.4)


@virtual_time
async def test_an_undo_that_hangs_is_cut_off_and_counts_as_failed() -> None:
    engine = await _booked(1, settings=EngineSettings(compensation_retries=2, compensation_timeout_seconds=5))
    gate = engine.tools.hold_undo("a")
    rewound = await engine.rewind(1)
    assert rewound.rollback_incomplete
    assert current_loop().time() == pytest.approx(5 + 0.2 + 5)
    assert "timeout" in [undo.hint.category for undo in (await engine.view()).undo_failed if undo.hint]
    gate.open()
    assert not (await engine.rewind(1)).rollback_incomplete


@virtual_time
async def test_an_undo_that_does_not_stop_holds_the_rewind_and_is_waited_for_by_the_next_try() -> None:
    settings = EngineSettings(compensation_retries=1, compensation_timeout_seconds=5, stop_grace_seconds=2)
    engine = await _booked(2, settings=settings)
    gate = engine.tools.hold_undo("b", deaf=True)
    rewound = await engine.rewind(1)
    assert (rewound.rollback_incomplete, rewound.compensations_run) == (True, 1)
    assert current_loop().time() == pytest.approx(5 + 2)
    assert (await engine.rewind(1)).rollback_incomplete
    with pytest.raises(PreconditionFailed):
        await engine.step(1, "note")
    gate.open()
    assert not (await engine.rewind(1)).rollback_incomplete
    assert engine.tools.effects == []


class Panic(BaseException):
    """What libraries raise that mean to get past everybody's ``except Exception``."""


@virtual_time
async def test_an_undo_that_raises_no_ordinary_exception_holds_the_rewind_like_any_other() -> None:
    engine = await _booked(2)
    engine.tools.break_undo("b", text="out of reach", error=Panic)
    rewound = await engine.rewind(1)
    assert (rewound.rollback_incomplete, rewound.compensations_run) == (True, 1)
    assert "out of reach" in rewound.compensation_errors[0]
    engine.tools.break_undo("b", times=0)
    assert not (await engine.rewind(1)).rollback_incomplete


@virtual_time
async def test_a_held_rewind_runs_the_others_says_what_failed_and_refuses_everything() -> None:
    engine = await _booked(3)
    engine.tools.break_undo("b")
    held = await engine.rewind(1, request_id="w", reason="because")
    assert (held.status, held.rollback_incomplete) == (TransactionStatus.ROLLING_BACK, True)
    assert held.generation == 1
    assert held.compensations_run == 2
    assert engine.tools.undo_order == ["c", "a"]
    [error] = held.compensation_errors
    assert error.startswith("step 2 (book): undo 'unbook' failed: Hint: ")
    assert "booking system is down" in error
    view = await engine.view()
    assert view.record.status is TransactionStatus.ROLLING_BACK
    [failed] = view.undo_failed
    assert (failed.step_id, failed.state, failed.attempts) == (2, UndoState.FAILED, 3)
    assert EventType.ROLLBACK_HELD in await engine.events()
    await engine.assert_memory_equals_store()
    for refused in (
        engine.step(4, "note"),
        engine.step(1, "note"),
        engine.group(4, call("note"), call("note")),
        engine.commit(),
    ):
        with pytest.raises(PreconditionFailed) as error_raised:
            await refused
        assert error_raised.value.reason == "ROLLBACK_INCOMPLETE"
    assert len(engine.tools.undone) == 5  # nobody tried it again meanwhile


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("to_step", [2, 1])
@virtual_time
async def test_a_held_rewind_goes_on_from_the_failed_undo_only(to_step: int, restart: bool) -> None:
    engine = await _booked(4)
    engine.tools.break_undo("c")
    held = await engine.rewind(2, request_id="w")
    assert held.rollback_incomplete
    assert engine.tools.undo_order == ["d", "b"]
    if restart:
        engine.restart()
    # The same request answers as held and tries nothing.
    tried = len(engine.tools.undone)
    assert await engine.rewind(2, request_id="w") == held
    assert len(engine.tools.undone) == tried
    # Another one, still broken, tries the failed one alone.
    still = await engine.rewind(2, request_id="w2")
    assert still.rollback_incomplete
    assert {undone.effect for undone in engine.tools.undone[tried:]} == {"c"}
    engine.tools.break_undo("c", times=0)
    done = await engine.rewind(to_step, request_id="w3")
    assert (done.status, done.next_step_id, done.generation) == (TransactionStatus.ACTIVE, to_step, 2)
    assert engine.tools.undo_order == ["d", "b", "c", *(["a"] if to_step == 1 else [])]
    # All who asked are told how it ended, for good.
    for request_id, asked in (("w", 2), ("w2", 2), ("w3", to_step)):
        assert await engine.rewind(asked, request_id=request_id) == done
    assert (await engine.step(to_step, "note", generation=2)).status is StepStatus.SUCCESS
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_held_rewind_is_previewed_without_a_try() -> None:
    engine = await _booked(3)
    engine.tools.break_undo("b")
    await engine.rewind(2)
    tried = len(engine.tools.undone)
    preview = (await engine.rewind(1, dry_run=True)).preview
    assert preview is not None
    assert [undo.arguments for undo in preview.undo] == ['{"effect":"b"}', '{"effect":"a"}']
    assert len(engine.tools.undone) == tried


@virtual_time
async def test_a_held_rewind_does_not_go_below_an_irreversible_step_without_a_word() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "pay", {"effect": "money"})
    await engine.step(2, "book", {"effect": "b"})
    engine.tools.break_undo("b")
    await engine.rewind(2)
    refused = await outcome_of(engine.rewind(1))
    assert isinstance(refused, PreconditionFailed)
    assert refused.reason == "IRREVERSIBLE_STEP"
    engine.tools.break_undo("b", times=0)
    done = await engine.rewind(1, accept_irreversible=True)
    assert [kept.step_id for kept in done.kept_effects] == [1]


@virtual_time
async def test_a_held_abort_ends_when_it_is_gone_on_with() -> None:
    engine = await _booked(2)
    engine.tools.break_undo("a")
    held = await engine.rollback(request_id="x", reason="enough")
    assert (held.status, held.rollback_incomplete, held.next_step_id) == (
        TransactionStatus.ROLLING_BACK,
        True,
        0,
    )
    assert (await engine.record()).abort_reason == "enough"
    assert engine.tools.ended == []
    assert await engine.rollback(request_id="x") == held
    engine.tools.break_undo("a", times=0)
    done = await engine.rewind(1)
    assert (done.status, done.next_step_id) == (TransactionStatus.ROLLED_BACK, 0)
    assert (await engine.record()).abort_reason == "enough"
    assert (await engine.rollback(request_id="x")).status is TransactionStatus.ROLLED_BACK
    assert engine.tools.ended == [engine.transaction_id]
    assert engine.tools.effects == []


@virtual_time
async def test_an_abort_over_a_held_rewind_aborts() -> None:
    engine = await _booked(3)
    engine.tools.break_undo("b")
    await engine.rewind(2, request_id="w")
    engine.tools.break_undo("b", times=0)
    done = await engine.rollback(request_id="x", reason="enough")
    assert done.status is TransactionStatus.ROLLED_BACK
    assert engine.tools.undo_order == ["c", "b", "a"]
    assert (await engine.rewind(2, request_id="w")).status is TransactionStatus.ROLLED_BACK
    assert (await engine.record()).abort_reason == "enough"
    assert engine.tools.ended == [engine.transaction_id]


@virtual_time
async def test_an_abort_over_a_failure_that_is_held_tells_its_own_reason() -> None:
    engine = await _booked(2)
    engine.tools.break_undo("b")
    failed = await engine.step(3, "note", {"fail": "no"}, "r3")
    assert failed.rollback_incomplete
    engine.tools.break_undo("b", times=0)
    await engine.rollback(reason="enough")
    assert (await engine.record()).abort_reason == "enough"
    final = await engine.step(3, "note", {"fail": "no"}, "r3")
    assert (final.status, final.abort_reason, final.next_step_id) == (StepStatus.FAILED, "enough", 0)


@virtual_time
async def test_a_failure_that_is_held_answers_so_until_it_is_done() -> None:
    engine = await _booked(2)
    engine.tools.break_undo("b")
    arguments = {"effect": "x", "fail": "no"}
    held = await engine.step(3, "book", arguments, "r3")
    assert (held.status, held.rollback_incomplete) == (StepStatus.ROLLBACK_TRIGGERED, True)
    assert (held.strategy, held.next_step_id, held.generation) == (Strategy.LOCAL_BACKTRACK, 2, 1)
    assert len(held.compensation_errors) == 1
    assert held.decision is not None
    record = await engine.record()
    assert record.failures == ((3, 1),)
    assert record.budget_spent == 2
    await engine.assert_memory_equals_store()
    engine.restart()
    again = await engine.step(3, "book", arguments, "r3")
    assert replace(again, rollback_latency_ms=0.0) == replace(held, replayed=True, rollback_latency_ms=0.0)
    engine.tools.break_undo("b", times=0)
    await engine.rewind(2)
    final = await engine.step(3, "book", arguments, "r3")
    assert (final.rollback_incomplete, final.compensation_errors, final.generation) == (False, (), 2)
    assert final.decision == held.decision
    assert await engine.step(3, "book", arguments, "r3") == final
    assert (await engine.record()).failures == ((3, 1),)
    assert engine.tools.undo_order == ["x", "b"]


@virtual_time
async def test_an_abort_by_decision_is_held_too() -> None:
    engine = Engine()
    await engine.begin(max_local_depth=0, max_global_resets=0)
    await engine.step(1, "book", {"effect": "a"})
    engine.tools.break_undo("a")
    held = await engine.step(2, "note", {"fail": "no"}, "r2")
    assert (held.status, held.rollback_incomplete) == (StepStatus.FAILED, True)
    assert (await engine.record()).status is TransactionStatus.ROLLING_BACK
    engine.tools.break_undo("a", times=0)
    assert (await engine.rewind(1)).status is TransactionStatus.FAILED
    final = await engine.step(2, "note", {"fail": "no"}, "r2")
    assert (final.status, final.rollback_incomplete, final.abort_reason) == (
        StepStatus.FAILED,
        False,
        held.abort_reason,
    )
    assert engine.tools.ended == [engine.transaction_id]


@virtual_time
async def test_two_failed_undos_are_both_named_and_both_wait() -> None:
    engine = await _booked(3)
    engine.tools.break_undo("a")
    engine.tools.break_undo("c")
    held = await engine.rewind(1)
    assert [error.split()[1] for error in held.compensation_errors] == ["3", "1"]
    engine.tools.break_undo("a", times=0)
    still = await engine.rewind(1)
    assert [error.split()[1] for error in still.compensation_errors] == ["3"]
    engine.tools.break_undo("c", times=0)
    done = await engine.rewind(1)
    assert engine.tools.undo_order == ["b", "a", "c"]
    assert done.compensations_run == 3


@virtual_time
async def test_a_held_rewind_is_not_shortened_by_a_higher_target() -> None:
    engine = await _booked(4)
    engine.tools.break_undo("b")
    await engine.rewind(2)
    engine.tools.break_undo("b", times=0)
    done = await engine.rewind(4, request_id="w")
    assert (done.next_step_id, done.rollback_incomplete) == (2, False)
    assert await engine.rewind(4, request_id="w") == done
    assert engine.tools.effects == ["a"]


@virtual_time
async def test_a_wrong_rewind_of_a_held_one_is_refused() -> None:
    engine = await _booked(3)
    engine.tools.break_undo("b")
    await engine.rewind(2)
    for refused in (engine.rewind(0), engine.rewind(9)):
        with pytest.raises(InvalidRequest):
            await refused
    with pytest.raises(PreconditionFailed):
        await engine.rewind(2, generation=7)


@virtual_time
async def test_steps_that_wait_for_a_rewind_that_is_held_are_refused() -> None:
    engine = await _booked(2)
    engine.tools.break_undo("b")
    gate = engine.tools.hold_undo("b")
    rewind = asyncio.create_task(engine.rewind(2))
    await gate.reached()
    step = asyncio.create_task(outcome_of(engine.step(2, "note")))
    await idle()
    assert not step.done()
    assert (await engine.view()).record.status is TransactionStatus.ROLLING_BACK
    gate.open()
    assert (await rewind).rollback_incomplete
    assert (await step).reason == "ROLLBACK_INCOMPLETE"


# --- compensation order, as C08 asks ------------------------------------------------------


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
@virtual_time
async def test_a_failure_that_resets_undoes_each_effect_once_newest_first(failing: int) -> None:
    engine = Engine()
    await engine.begin(max_local_depth=0)
    names = ["a", "b", "c", "d"]
    for step in range(1, failing):
        await engine.step(step, "book", {"effect": names[step - 1]})
    reset = await engine.step(failing, "book", {"effect": [], "fail": "no"})
    assert reset.strategy is Strategy.GLOBAL_RESET
    assert engine.tools.undo_order == names[: failing - 1][::-1]
    assert engine.tools.effects == []


@virtual_time
async def test_an_effect_that_a_rewind_kept_is_named_by_every_later_read() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"put": {"kv/a": 1}})
    await engine.step(2, "upload", {"effect": "mail"})
    await engine.rewind(2)
    await engine.step(2, "note", {"put": {"kv/a": 2}})
    await engine.commit()

    kept = (await engine.record()).kept_effects

    assert [(effect.step_id, effect.tool_name) for effect in kept] == [(2, "upload")]
