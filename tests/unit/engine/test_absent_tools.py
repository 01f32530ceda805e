"""Tools and undo actions whose worker is away, or that were changed since a step was recorded."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.engine_harness import Engine
from tests.support.memory_store import Gate
from tests.support.scripted_tools import ToolRun, hang, obey, raise_error
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import (
    ArgumentsRefused,
    NotCalled,
    OutcomeUnknown,
    ReportedFailure,
    UndoUnavailable,
)
from agenttx_server.engine.records import (
    AttemptState,
    EffectClass,
    HintCategory,
    ToolDescription,
    TransactionStatus,
    UndoState,
)
from agenttx_server.engine.requests import StepStatus

ABSENT = NotCalled(HintCategory.CONNECTION, "no worker offers it now")


async def _crashed_upload(engine: Engine) -> None:
    """Crash after an idempotent tool had its effect and before its step was recorded."""
    gate = Gate()
    engine.tools.next("upload", hang(gate, first=obey))
    running = asyncio.ensure_future(engine.step(1, "upload", {"effect": "file"}, "r"))
    await gate.reached()
    await asyncio.sleep(2)
    await engine.crash()
    assert running.cancelled()


@pytest.mark.parametrize("tool_name", ["lookup", "note", "upload", "book", "pay"])
@virtual_time
async def test_a_call_that_reached_no_worker_has_failed_and_nothing_is_in_doubt(tool_name: str) -> None:
    engine = Engine()
    await engine.begin()
    engine.tools.next(tool_name, raise_error(ABSENT))
    answer = await engine.step(1, tool_name, {})

    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.CONNECTION
    (attempt,) = await engine.attempts()
    assert (attempt.state, attempt.tries) == (AttemptState.FAILED, 0)


@virtual_time
async def test_an_effect_that_may_have_happened_stays_in_doubt_while_no_worker_is_there() -> None:
    engine = Engine()
    await engine.begin()
    engine.tools.next("upload", raise_error(OutcomeUnknown("the worker was lost")))
    engine.tools.always("upload", raise_error(ABSENT))
    answer = await engine.step(1, "upload", {"effect": "file"})

    assert answer.status is StepStatus.IN_DOUBT


@virtual_time
async def test_a_recorded_step_that_no_worker_came_for_is_in_doubt() -> None:
    engine = Engine()
    await engine.begin()
    await _crashed_upload(engine)
    engine.tools.always("upload", raise_error(ABSENT))
    await engine.coordinator.start()

    assert (await engine.record()).status is TransactionStatus.IN_DOUBT


@virtual_time
async def test_a_recorded_step_whose_tool_nobody_knows_any_more_is_in_doubt_and_names_it() -> None:
    engine = Engine()
    await engine.begin()
    await _crashed_upload(engine)
    engine.tools.remove("upload")
    await engine.coordinator.start()

    (attempt,) = await engine.attempts()
    assert attempt.state is AttemptState.IN_DOUBT
    assert attempt.hint is not None
    assert attempt.hint.category is HintCategory.CONNECTION
    assert "No worker offers 'upload' now" in attempt.hint.text


@virtual_time
async def test_a_recorded_step_whose_tool_refuses_it_since_it_was_changed_names_tool_and_field() -> None:
    engine = Engine()
    await engine.begin()
    await _crashed_upload(engine)
    engine.tools.next(
        "upload", raise_error(ArgumentsRefused("missing_argument", "missing argument 'bucket'", ("bucket",)))
    )
    await engine.coordinator.start()

    (attempt,) = await engine.attempts()
    assert attempt.state is AttemptState.FAILED
    assert attempt.hint is not None
    assert attempt.hint.text.startswith("Hint: upload was changed since this step was recorded")
    assert attempt.hint.keys == ("bucket",)


@virtual_time
async def test_a_tool_that_an_earlier_step_used_is_away_and_not_unknown() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {})
    engine.tools.remove("note")
    answer = await engine.step(2, "note", {})

    assert answer.hint is not None
    assert answer.hint.category is HintCategory.CONNECTION


@virtual_time
async def test_a_tool_that_is_replaced_by_one_of_another_class_while_its_step_waits_is_not_called() -> None:
    engine = Engine()
    await engine.begin()

    async def replaced(run: ToolRun) -> None:
        engine.tools.add(ToolDescription("lookup", "", "{}", EffectClass.IRREVERSIBLE, retries=3))
        raise NotCalled(HintCategory.CONNECTION, "no worker offers it now")

    engine.tools.add(ToolDescription("lookup", "", "{}", EffectClass.READ_ONLY, retries=3), replaced)
    answer = await engine.step(1, "lookup", {})

    assert engine.tools.count("lookup") == 1
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert answer.hint is not None
    assert "was replaced" in answer.hint.text


@virtual_time
async def test_undo_without_a_worker_holds_the_rewind_and_spends_no_attempt() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "book", {"effect": "room"})
    engine.tools.break_undo("room", error=UndoUnavailable, text="undo action 'unbook' waits")
    answer = await engine.rewind(1)

    assert answer.rollback_incomplete
    stored = await engine.memory.load(engine.transaction_id)
    assert stored is not None
    (undo,) = stored.undo
    assert (undo.state, undo.attempts) == (UndoState.FAILED, 0)
    assert undo.hint is not None
    assert (undo.hint.rule, undo.hint.category) == ("undo_unavailable", HintCategory.CONNECTION)
    engine.tools.break_undo("room", 0)
    await engine.retry_undo(undo.sequence)
    assert (await engine.record()).status is TransactionStatus.ACTIVE
    assert engine.tools.undo_order == ["room"]


@virtual_time
async def test_an_error_of_another_process_is_read_as_one_of_this() -> None:
    engine = Engine()
    await engine.begin()
    raw = "Traceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: 'total'"
    engine.tools.next("note", raise_error(ReportedFailure(raw)))
    answer = await engine.step(1, "note", {})

    assert answer.hint is not None
    assert answer.hint.category is HintCategory.MISSING_KEY
    (attempt,) = await engine.attempts()
    assert attempt.raw_error == raw


@virtual_time
async def test_a_call_that_waited_until_its_deadline_and_was_never_made_is_not_in_doubt() -> None:
    engine = Engine()
    await engine.begin()

    async def waits(run: ToolRun) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ABSENT from None

    engine.tools.next("pay", waits)
    answer = await engine.step(1, "pay", {})

    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    (attempt,) = await engine.attempts()
    assert (attempt.state, attempt.tries) == (AttemptState.FAILED, 0)
