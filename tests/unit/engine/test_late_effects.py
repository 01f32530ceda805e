"""Late effects: what an attempt did after it was given up is undone, or listed, and holds nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.support.engine_harness import Engine, outcome_of
from tests.support.virtual_time import idle, virtual_time

from agenttx_server.engine.errors import Unavailable
from agenttx_server.engine.late_effects import LateEffects
from agenttx_server.engine.records import (
    AttemptRecord,
    EventType,
    OnUndoFailure,
    TransactionStatus,
    UndoRecord,
    UndoResolution,
    UndoState,
)
from agenttx_server.engine.requests import CompensationState, StepStatus
from agenttx_server.engine.services import EngineSettings
from agenttx_server.engine.transaction import Transaction


class _Server:
    """An engine, and the late effects of its transactions, reported as its coordinator would."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def _loaded(self) -> Transaction:
        coordinator = self.engine.coordinator
        entry = coordinator._cache.pin(self.engine.transaction_id)
        return await coordinator._cache.loaded(entry, "anonymous")

    def _late(self) -> LateEffects:
        coordinator = self.engine.coordinator
        execution = coordinator._compensations
        return LateEffects(coordinator._services, execution._writer, execution._saga)

    async def report(self, attempt: AttemptRecord, undo: Sequence[UndoRecord]) -> None:
        await self._late().report(await self._loaded(), attempt, undo)

    async def settle(self) -> None:
        await self._late().settle_owed(await self._loaded())


async def _rewound(
    tool_name: str = "book",
    policy: OnUndoFailure = OnUndoFailure.HOLD,
    settings: EngineSettings | None = None,
) -> tuple[_Server, AttemptRecord, list[UndoRecord]]:
    """Step 1 stays, step 2 was rewound; its attempt, and what it had registered."""
    engine = Engine(settings=settings)
    await engine.begin(on_undo_failure=policy)
    await engine.step(1, "book", {"effect": "room"})
    await engine.step(2, tool_name, {"effect": ["table", "chair"]})
    cached = engine.cached()
    assert cached is not None
    undo = [row for row in cached.undo.values() if row.step_id == 2]
    await engine.rewind(2, accept_irreversible=True)
    attempt = next(attempt for attempt in await engine.attempts() if attempt.step_id == 2)
    return _Server(engine), attempt, undo


@pytest.mark.parametrize("restart", [False, True])
@virtual_time
async def test_undo_that_was_done_is_owed_again_and_run_newest_first(restart: bool) -> None:
    server, attempt, undo = await _rewound()
    engine = server.engine
    await engine.step(2, "note")
    tried = len(engine.tools.undone)
    await server.report(attempt, undo)
    if restart:
        await engine.crash()
    assert await engine.undo_states() == [
        (3, CompensationState.PENDING),
        (2, CompensationState.PENDING),
        (1, CompensationState.REGISTERED),
    ]
    await server.settle()
    assert [undone.effect for undone in engine.tools.undone[tried:]] == ["chair", "table"]
    assert {undone.key for undone in engine.tools.undone if undone.effect == "table"} == {
        undo[0].idempotency_key
    }
    assert await engine.undo_states() == [
        (3, CompensationState.DONE),
        (2, CompensationState.DONE),
        (1, CompensationState.REGISTERED),
    ]
    assert (await engine.events()).count(EventType.LATE_EFFECT_REPORTED) == 1
    assert engine.tools.effects == ["room"]
    assert (await engine.step(3, "note")).status is StepStatus.SUCCESS
    await engine.assert_memory_equals_store()
    # Once: nothing is owed any more.
    await server.settle()
    assert len(engine.tools.undone) == tried + 2


@virtual_time
async def test_a_late_effect_whose_undo_fails_holds_nothing_and_is_listed_until_it_is_settled() -> None:
    server, attempt, undo = await _rewound()
    engine = server.engine
    engine.tools.break_undo("table")
    await server.report(attempt, undo)
    await server.settle()
    [failed] = (await engine.view()).undo_failed
    assert (failed.sequence, failed.late, failed.state) == (2, True, UndoState.FAILED)
    assert (await engine.view()).record.status is TransactionStatus.ACTIVE
    await engine.step(2, "book", {"effect": "car"})
    tried = len(engine.tools.undone)
    assert not (await engine.rewind(1)).rollback_incomplete
    assert [undone.effect for undone in engine.tools.undone[tried:]] == ["car", "room"]
    [failed] = (await engine.view()).undo_failed
    assert failed.sequence == 2
    await engine.assert_memory_equals_store()
    engine.tools.break_undo("table", times=0)
    answer = await engine.retry_undo(2)
    assert (answer.state, answer.undo.late, answer.rollback_incomplete) == (
        CompensationState.DONE,
        True,
        False,
    )
    assert (await engine.view()).undo_failed == ()


@virtual_time
async def test_a_late_effect_of_an_ended_transaction_is_undone_all_the_same() -> None:
    server, attempt, undo = await _rewound()
    engine = server.engine
    await engine.rollback()
    tried = len(engine.tools.undone)
    engine.tools.break_undo("chair", times=engine.settings.compensation_retries)
    await server.report(attempt, undo)
    await server.settle()
    assert [undone.effect for undone in engine.tools.undone[tried:] if undone.done] == ["table"]
    assert [failed.sequence for failed in (await engine.view()).undo_failed] == [3]
    page = await engine.coordinator.list_compensations(
        "anonymous", None, frozenset({CompensationState.FAILED}), "", 10
    )
    assert [undo.sequence for _, undo, _ in page.undo] == [3]
    answer = await engine.retry_undo(3)
    assert (answer.state, answer.next_step_id) == (CompensationState.DONE, 0)
    assert (await engine.record()).status is TransactionStatus.ROLLED_BACK
    assert engine.tools.effects == []


@virtual_time
async def test_a_late_effect_without_undo_is_listed_for_a_person() -> None:
    server, attempt, undo = await _rewound("upload")
    engine = server.engine
    assert undo == []
    await server.report(attempt, undo)
    await server.report(attempt, undo)  # told twice, listed once
    await server.settle()
    [failed] = (await engine.view()).undo_failed
    assert (failed.undo_name, failed.late, failed.step_id, failed.attempt) == ("", True, 2, 1)
    assert failed.hint is not None
    assert failed.hint.text.startswith("Hint: upload of step 2 ")
    assert len(failed.hint.text) <= 240
    # There is nothing to run.
    again = await engine.retry_undo(failed.sequence)
    assert (again.state, again.undo.attempts) == (CompensationState.FAILED, 0)
    answer = await engine.resolve_undo(failed.sequence, UndoResolution.KEPT, "it is the right file")
    assert answer.state is CompensationState.RESOLVED
    kept = (await engine.record()).kept_effects
    assert [
        (effect.step_id, effect.tool_name, effect.effect_class) for effect in kept if "late" in effect.reason
    ] == [(2, "upload", "IDEMPOTENT")]
    await engine.assert_memory_equals_store()


@virtual_time
async def test_its_row_does_not_make_another_attempt_look_undoable() -> None:
    server, attempt, _ = await _rewound("pay")
    engine = server.engine
    await server.report(attempt, [])
    await engine.step(2, "pay", {"effect": "coins"})
    refused = await outcome_of(engine.rewind(1))
    assert getattr(refused, "reason", "") == "IRREVERSIBLE_STEP"


@virtual_time
async def test_a_late_effect_without_undo_covers_nothing() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "pay", {"effect": "coins"})
    [attempt] = await engine.attempts()
    await _Server(engine).report(attempt, [])
    refused = await outcome_of(engine.rewind(1))
    assert getattr(refused, "reason", "") == "IRREVERSIBLE_STEP"


@virtual_time
async def test_a_tool_that_cannot_act_outside_has_no_late_effect() -> None:
    server, attempt, _ = await _rewound("note")
    written = server.engine.memory.write_count
    await server.report(attempt, [])
    assert server.engine.memory.write_count == written


@virtual_time
async def test_what_a_held_rewind_owes_anyway_still_holds_it() -> None:
    """Else the rewind could end, and later steps run, before the effect is undone."""
    engine = Engine()
    await engine.begin()
    await engine.step(1, "book", {"effect": ["room", "table"]})
    engine.tools.break_undo("room")
    await engine.rewind(1)
    cached = engine.cached()
    assert cached is not None
    undo = [cached.undo[1], cached.undo[2]]
    server = _Server(engine)
    [attempt] = await engine.attempts()
    await server.report(attempt, undo)
    assert await engine.undo_states() == [(2, CompensationState.PENDING), (1, CompensationState.FAILED)]
    await server.settle()
    refused = await outcome_of(engine.step(1, "note"))
    assert getattr(refused, "reason", "") == "ROLLBACK_INCOMPLETE"
    engine.tools.break_undo("room", times=0)
    assert not (await engine.rewind(1)).rollback_incomplete
    await engine.assert_memory_equals_store()


@virtual_time
async def test_undo_that_a_person_settled_is_owed_again() -> None:
    server, attempt, undo = await _rewound(policy=OnUndoFailure.CONTINUE)
    engine = server.engine
    engine.tools.break_undo("table")
    await server.report(attempt, undo)
    await server.settle()
    await engine.resolve_undo(2, UndoResolution.UNDONE, "by hand")
    engine.tools.break_undo("table", times=0)
    tried = len(engine.tools.undone)
    await server.report(attempt, undo)
    await server.settle()
    assert [undone.effect for undone in engine.tools.undone[tried:]] == ["chair", "table"]
    stored = (await engine.rebuilt()).undo[2]
    assert (stored.state, stored.resolution, stored.note) == (UndoState.DONE, None, "")


@virtual_time
async def test_undo_for_a_late_effect_begins_after_one_that_still_runs() -> None:
    settings = EngineSettings(compensation_retries=1, compensation_timeout_seconds=5, stop_grace_seconds=2)
    engine = Engine(settings=settings)
    await engine.begin(on_undo_failure=OnUndoFailure.CONTINUE)
    await engine.step(1, "book", {"effect": "room"})
    cached = engine.cached()
    assert cached is not None
    undo = list(cached.undo.values())
    gate = engine.tools.hold_undo("room", deaf=True)
    await engine.rewind(1)
    [attempt] = await engine.attempts()
    server = _Server(engine)
    await server.report(attempt, undo)
    settling = asyncio.create_task(server.settle())
    await idle()
    gate.open()
    await settling
    assert [undone.effect for undone in engine.tools.undone] == ["room", "room"]
    assert await engine.undo_states() == [(1, CompensationState.DONE)]


@virtual_time
async def test_owed_undo_is_not_run_while_nothing_can_be_written() -> None:
    server, attempt, undo = await _rewound()
    engine = server.engine
    await server.report(attempt, undo)
    await engine.crash()
    tried = len(engine.tools.undone)
    for number in range(1, 20):
        engine.memory.fail_write(engine.memory.write_count + number, applied=False)
    for _ in range(3):
        assert isinstance(await outcome_of(engine.step(2, "note", {}, "r")), Unavailable)
        await asyncio.sleep(2)
    assert engine.tools.undone[tried:] == []
    await asyncio.sleep(60)
    await engine.step(2, "note", {}, "r")
    assert [undone.effect for undone in engine.tools.undone[tried:]] == ["chair", "table"]
