"""Steps that the agent ran itself: reported, linked, decided on like others, and undone by the agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.engine_harness import Engine, outcome_of, same_answer
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
    AttemptState,
    DependencyKind,
    EffectClass,
    EventType,
    OnUndoFailure,
    RejectedCalls,
    Strategy,
    TransactionStatus,
    UndoResolution,
)
from agenttx_server.engine.requests import CompensationState, StepStatus
from agenttx_server.engine.services import EngineSettings

COMPENSATABLE = EffectClass.COMPENSATABLE
AWAITING, PENDING = CompensationState.AWAITING_AGENT, CompensationState.PENDING
DONE, FAILED = CompensationState.DONE, CompensationState.FAILED
REGISTERED = CompensationState.REGISTERED


async def _begun(**fields: Any) -> Engine:
    engine = Engine(
        **{name: fields.pop(name) for name in ("database", "is_shared", "name") if name in fields}
    )
    await engine.begin(**fields)
    return engine


async def _trip(engine: Engine, letters: str) -> None:
    """Book by turns: an upper-case letter is a booking that the agent reports, a lower-case one a step here.

    The undo action of step n has number n.
    """
    for number, letter in enumerate(letters, start=1):
        if letter.isupper():
            answer = await engine.report(
                number,
                "hotel.book",
                {"name": letter},
                f"r{number}",
                output={"ref": letter},
                effect_class=COMPENSATABLE,
                undo=[("hotel.cancel", {"ref": letter})],
            )
        else:
            answer = await engine.step(number, "book", {"effect": letter}, f"r{number}")
        assert answer.status is StepStatus.SUCCESS


def _asked(answer: Any) -> list[str]:
    return [undo.arguments for undo in answer.pending_undo]


# --- a report is a step ---------------------------------------------------------------------


@virtual_time
async def test_a_reported_step_is_one_commit_and_stands_like_any_other() -> None:
    engine = await _begun()
    mark = len(engine.timeline)
    answer = await engine.report(
        1,
        "crm.create",
        {"name": "Ada"},
        "r1",
        output={"id": "u-7"},
        effect_class=COMPENSATABLE,
        undo=[("crm.delete", {"id": "u-7"}), ("crm.forget", {})],
        raw_context="why",
    )
    assert (answer.status, answer.next_step_id, answer.output) == (StepStatus.SUCCESS, 2, '{"id":"u-7"}')
    assert engine.writes_since(mark) == ["write 1.1=COMPLETED! undo1=PENDING undo2=PENDING -> ACTIVE"]
    (attempt,) = await engine.live_attempts()
    assert (attempt.tool_name, attempt.reported, attempt.undo_registered, attempt.tries) == (
        "crm.create",
        True,
        True,
        1,
    )
    assert engine.tools.calls == []
    assert await engine.undo_states() == [(2, REGISTERED), (1, REGISTERED)]
    assert (await engine.events())[-1] is EventType.STEP_COMPLETED
    assert [(entry.step_id, entry.raw_context) for entry in (await engine.view()).context] == [(1, "why")]
    await engine.assert_memory_equals_store()


@virtual_time
async def test_references_and_equal_values_link_reported_steps_as_they_do_others() -> None:
    engine = await _begun()
    await engine.report(1, "crm.create", output={"id": "u-7"})
    second = await engine.report(2, "crm.tag", {"user": "${steps.1.id}"}, output={"tag": 9})
    third = await engine.step(3, "note", {"user_id": "u-7", "output": {"tag": "${steps.2.tag}"}})
    (attempt,) = [item for item in await engine.live_attempts() if item.step_id == 2]
    assert attempt.resolved_arguments == '{"user":"u-7"}'
    assert [(edge.from_step, edge.kind) for edge in second.dependencies] == [(1, DependencyKind.EXPLICIT)]
    assert {(edge.from_step, edge.kind) for edge in third.dependencies} == {
        (1, DependencyKind.IMPLICIT),
        (2, DependencyKind.EXPLICIT),
    }
    assert third.output == '{"tag":9}'
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_reported_failure_is_traced_to_its_root_and_decided_on() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"output": {"id": "u-7"}})
    await engine.step(2, "note")
    await engine.step(3, "note")
    await engine.step(4, "note")
    answer = await engine.report(
        5,
        "db.insert",
        {"user_id": "${steps.1.id}"},
        error='insert or update on table "orders" violates foreign key constraint "fk"\n'
        'DETAIL:  Key (user_id)=(u-7) is not present in table "users".',
    )
    assert (answer.status, answer.strategy, answer.next_step_id) == (
        StepStatus.ROLLBACK_TRIGGERED,
        Strategy.DEPENDENCY_JUMP,
        1,
    )
    assert answer.hint is not None
    assert answer.constraints == (answer.hint.text,)
    assert (await engine.events())[-2:] == [EventType.STEP_FAILED, EventType.TRANSACTION_REWOUND]
    failed = (await engine.attempts())[-1]
    assert (failed.state, failed.reported) == (AttemptState.FAILED, True)


@virtual_time
async def test_a_reported_failure_counts_as_one_of_a_call_that_was_made() -> None:
    engine = await _begun(rejected_calls=RejectedCalls.RETRY_STEP)
    await engine.step(1, "note")
    answer = await engine.report(2, "crm.create", error="no such thing")
    assert (answer.strategy, answer.next_step_id) == (Strategy.LOCAL_BACKTRACK, 1)


@virtual_time
async def test_a_repeat_of_a_report_is_answered_as_recorded_also_after_a_crash() -> None:
    engine = await _begun()
    told: dict[str, Any] = {
        "output": {"id": 1},
        "effect_class": COMPENSATABLE,
        "undo": [("crm.delete", {"id": 1})],
    }
    first = await engine.report(1, "crm.create", {"a": 1}, "r1", **told)
    for _ in range(2):
        again = await engine.report(1, "crm.create", {"a": 1}, "r1", **told)
        assert again.replayed
        assert same_answer(first, again)
        await engine.crash()
    assert await engine.undo_states() == [(1, REGISTERED)]
    for other in (
        told | {"output": {"id": 2}},
        told | {"undo": [("crm.delete", {"id": 2})]},
        told | {"undo": [("crm.delete", {"id": 1})] * 2},
        {"output": {"id": 1}, "effect_class": EffectClass.IDEMPOTENT},
        {"error": "x"},
    ):
        assert isinstance(
            await outcome_of(engine.report(1, "crm.create", {"a": 1}, "r1", **other)), RequestIdReused
        )
    assert isinstance(await outcome_of(engine.step(1, "crm.create", {"a": 1}, "r1")), RequestIdReused)


@virtual_time
async def test_a_report_out_of_order_stale_or_too_late_records_nothing() -> None:
    engine = await _begun()
    await engine.report(1, "a", output=1)
    await engine.rewind(1)
    before = await engine.record()
    for report, reason in (
        (engine.report(2, "a", output=1), "STEP_OUT_OF_ORDER"),
        (engine.report(1, "a", output=1, generation=1), "STALE_GENERATION"),
    ):
        assert (await outcome_of(report)).reason == reason
    assert await engine.record() == before
    await engine.rollback()
    assert (await outcome_of(engine.report(1, "a", output=1))).reason == "TRANSACTION_ENDED"


@virtual_time
async def test_a_report_that_meets_a_running_step_waits_for_it() -> None:
    engine = await _begun()
    gate = engine.memory.hold_write(engine.memory.write_count + 1)
    running = asyncio.create_task(engine.step(1, "note"))
    await gate.reached()
    reporting = asyncio.create_task(engine.report(2, "a", output=1))
    await idle()
    assert not reporting.done()
    gate.open()
    await running
    assert (await reporting).status is StepStatus.SUCCESS


@virtual_time
async def test_a_write_whose_outcome_is_unknown_is_found_or_made_by_the_repeat() -> None:
    for applied in (True, False):
        engine = await _begun()
        engine.memory.fail_write(engine.memory.write_count + 1, applied=applied)
        told: dict[str, Any] = {"output": 1, "effect_class": COMPENSATABLE, "undo": [("undo", {})]}
        assert isinstance(await outcome_of(engine.report(1, "a", None, "r1", **told)), Unavailable)
        answer = await engine.report(1, "a", None, "r1", **told)
        assert (answer.status, answer.replayed) == (StepStatus.SUCCESS, applied)
        await idle()
        assert await engine.undo_states() == [(1, REGISTERED)]  # and no late effect is made of it
        assert len(await engine.live_attempts()) == 1


@virtual_time
async def test_a_report_is_never_cancelled_by_a_rewind_that_waits_for_it() -> None:
    engine = await _begun()
    await engine.step(1, "note")
    gate = engine.memory.hold_write(engine.memory.write_count + 1)
    reporting = asyncio.create_task(
        engine.report(2, "a", output=1, effect_class=COMPENSATABLE, undo=[("undo", {"n": 2})])
    )
    await gate.reached()
    rewinding = asyncio.create_task(engine.rewind(1))
    await idle()
    gate.open()
    assert (await reporting).status is StepStatus.SUCCESS
    answer = await rewinding
    assert (answer.rollback_incomplete, _asked(answer)) == (True, ['{"n":2}'])


# --- what is refused --------------------------------------------------------------------------


@virtual_time
async def test_all_that_is_wrong_with_a_report_is_told_at_once_and_nothing_is_recorded() -> None:
    engine = await _begun()
    before = await engine.record()
    refused = await outcome_of(
        engine.report(
            1,
            "",
            request_id="x" * 129,
            text='{"a":1,"a":2}',
            output=float("nan"),
            effect_class=None,
            undo=[("", {}), ("b", float("inf"))],
        )
    )
    assert isinstance(refused, InvalidRequest)
    assert [violation.field for violation in refused.violations] == [
        "tool_name",
        "request_id",
        "arguments_json",
        "output_json",
        "undo_actions[0].action",
        "undo_actions[1].arguments_json",
        "effect_class",
    ]
    assert await engine.record() == before


@pytest.mark.parametrize(
    ("effect_class", "undo", "is_taken"),
    [
        (EffectClass.READ_ONLY, 0, True),
        (EffectClass.READ_ONLY, 1, False),
        (EffectClass.TRANSACTIONAL, 0, True),
        (EffectClass.TRANSACTIONAL, 1, False),
        (EffectClass.IDEMPOTENT, 0, True),
        (EffectClass.IDEMPOTENT, 1, True),
        (EffectClass.COMPENSATABLE, 0, False),
        (EffectClass.COMPENSATABLE, 64, True),
        (EffectClass.COMPENSATABLE, 65, False),
        (EffectClass.IRREVERSIBLE, 0, True),
        (EffectClass.IRREVERSIBLE, 1, True),
    ],
)
@virtual_time
async def test_undo_and_effect_class_have_to_agree(
    effect_class: EffectClass, undo: int, is_taken: bool
) -> None:
    engine = await _begun()
    answer = await outcome_of(
        engine.report(1, "a", output=1, effect_class=effect_class, undo=[("undo", {})] * undo)
    )
    if is_taken:
        assert answer.status is StepStatus.SUCCESS
    else:
        assert [violation.field for violation in answer.violations] == ["undo_actions"]


@virtual_time
async def test_a_reference_that_leads_nowhere_is_refused_of_a_success_and_fails_a_failure() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"output": {"name": "Ada"}})
    before = await engine.record()
    for reference in ("${steps.1.user_id}", "${steps.7.id}"):
        refused = await outcome_of(engine.report(2, "crm.tag", {"user_id": reference}, output=1))
        assert isinstance(refused, InvalidRequest)
        assert [violation.field for violation in refused.violations] == ["arguments_json"]
    assert await engine.record() == before
    await engine.assert_memory_equals_store()
    answer = await engine.report(2, "crm.tag", {"user_id": "${steps.1.user_id}"}, error="bad id")
    assert (answer.strategy, answer.next_step_id) == (Strategy.DEPENDENCY_JUMP, 1)
    assert answer.hint is not None
    assert "user_id" in answer.hint.text


# --- undo by the agent -----------------------------------------------------------------------


@virtual_time
async def test_a_failure_asks_the_agent_newest_first_and_goes_on_when_all_is_acknowledged() -> None:
    engine = await _begun(max_local_depth=0, max_global_resets=1)
    await _trip(engine, "AB")
    held = await engine.step(3, "note", {"fail": "no"}, "r3")
    assert (held.status, held.rollback_incomplete, held.next_step_id, held.generation) == (
        StepStatus.ROLLBACK_TRIGGERED,
        True,
        1,
        1,
    )
    assert [(undo.sequence, undo.step_id, undo.undo_name) for undo in held.pending_undo] == [
        (2, 2, "hotel.cancel"),
        (1, 1, "hotel.cancel"),
    ]
    assert _asked(held) == ['{"ref":"B"}', '{"ref":"A"}']
    assert (await engine.record()).status is TransactionStatus.ROLLING_BACK
    for call in (engine.step(1, "note"), engine.report(1, "a", output=1), engine.commit()):
        refused = await outcome_of(call)
        assert isinstance(refused, PreconditionFailed)
        assert refused.reason == "ROLLBACK_INCOMPLETE"
        assert refused.metadata["awaiting_agent"] == "2"
        assert refused.metadata["compensation_id"] == "2"
    assert (await engine.events())[-1] is EventType.ROLLBACK_HELD

    first = await engine.acknowledge(2, request_id="k2")
    assert (first.state, first.rollback_incomplete, first.generation, _asked(first)) == (
        DONE,
        True,
        1,
        ['{"ref":"A"}'],
    )
    again = await engine.step(3, "note", {"fail": "no"}, "r3")
    assert (again.replayed, again.rollback_incomplete, _asked(again)) == (True, True, ['{"ref":"A"}'])
    last = await engine.acknowledge(1, request_id="k1")
    assert (last.state, last.rollback_incomplete, last.next_step_id, last.generation) == (DONE, False, 1, 2)
    assert last.pending_undo == ()
    final = await engine.step(3, "note", {"fail": "no"}, "r3")
    assert (final.replayed, final.rollback_incomplete, final.pending_undo, final.generation) == (
        True,
        False,
        (),
        2,
    )
    assert (await engine.step(1, "note", generation=2)).status is StepStatus.SUCCESS
    assert (await engine.events())[-4:-1] == [
        EventType.UNDO_COMPLETED,
        EventType.UNDO_COMPLETED,
        EventType.TRANSACTION_REWOUND,
    ]
    await engine.assert_memory_equals_store()


@virtual_time
async def test_undo_of_both_kinds_runs_in_one_order_newest_first() -> None:
    engine = await _begun()
    await _trip(engine, "aBcDEf")
    held = await engine.rewind(1, request_id="w")
    assert [undone.effect for undone in engine.tools.undone] == ["f"]  # newer than all of the agent's
    assert _asked(held) == ['{"ref":"E"}', '{"ref":"D"}']
    assert await engine.undo_states() == [
        (6, DONE),
        (5, AWAITING),
        (4, AWAITING),
        (3, PENDING),
        (2, PENDING),
        (1, PENDING),
    ]
    await engine.acknowledge(5)
    assert [undone.effect for undone in engine.tools.undone] == ["f"]
    answer = await engine.acknowledge(4)
    assert [undone.effect for undone in engine.tools.undone] == ["f", "c"]
    assert (answer.rollback_incomplete, _asked(answer)) == (True, ['{"ref":"B"}'])
    answer = await engine.acknowledge(2)
    assert [undone.effect for undone in engine.tools.undone] == ["f", "c", "a"]
    assert (answer.rollback_incomplete, answer.next_step_id, answer.generation) == (False, 1, 2)
    assert (await engine.rewind(1, request_id="w")).compensations_run == 6
    assert engine.tools.effects == []
    await engine.assert_memory_equals_store()


@virtual_time
async def test_only_the_newest_that_is_awaited_can_be_acknowledged() -> None:
    engine = await _begun()
    await _trip(engine, "AbCD")
    assert (await outcome_of(engine.acknowledge(4))).reason == "COMPENSATION_NOT_PENDING"  # nothing is undone
    await engine.rewind(1)
    out_of_order = await outcome_of(engine.acknowledge(3))
    assert (out_of_order.reason, out_of_order.metadata) == (
        "COMPENSATION_OUT_OF_ORDER",
        {"compensation_id": "3", "expected_compensation_id": "4"},
    )
    for sequence in (2, 1):  # the server's own, and one behind it
        refused = await outcome_of(engine.acknowledge(sequence))
        assert (refused.reason, refused.metadata["state"]) == ("COMPENSATION_NOT_PENDING", "PENDING")
    assert isinstance(await outcome_of(engine.acknowledge(9)), NotFound)
    await engine.acknowledge(4)
    assert (await outcome_of(engine.acknowledge(4))).reason == "COMPENSATION_NOT_PENDING"


@virtual_time
async def test_a_repeated_acknowledgement_takes_effect_once_and_says_how_things_stand() -> None:
    engine = await _begun()
    await _trip(engine, "AB")
    await engine.rewind(1)
    first = await engine.acknowledge(2, request_id="k2")
    assert await engine.acknowledge(2, request_id="k2") == first
    await engine.crash()
    assert await engine.acknowledge(2, request_id="k2") == first
    assert isinstance(await outcome_of(engine.acknowledge(2, "it failed", "k2")), RequestIdReused)
    assert isinstance(await outcome_of(engine.acknowledge(1, request_id="k2")), RequestIdReused)
    await engine.acknowledge(1)
    await engine.step(1, "note")
    again = await engine.acknowledge(2, request_id="k2")
    assert again.undo == first.undo
    assert (again.rollback_incomplete, again.next_step_id, again.generation) == (False, 2, 2)


@virtual_time
async def test_an_undo_that_the_agent_could_not_do_stops_no_other_and_holds_the_rewind() -> None:
    engine = await _begun()
    await _trip(engine, "aBc")
    await engine.rewind(1)
    answer = await engine.acknowledge(2, "the hotel does not answer: token=abc123secret")
    assert (answer.state, answer.rollback_incomplete) == (FAILED, True)
    assert answer.undo.hint is not None
    assert "abc123secret" not in answer.undo.raw_error
    assert [undone.effect for undone in engine.tools.undone] == ["c", "a"]
    assert await engine.undo_states() == [(3, DONE), (2, FAILED), (1, DONE)]
    refused = await outcome_of(engine.step(1, "note"))
    assert (refused.reason, refused.metadata["failed"]) == ("ROLLBACK_INCOMPLETE", "1")
    await engine.assert_memory_equals_store()


@pytest.mark.parametrize("way", ["rewind", "retry", "rollback"])
@virtual_time
async def test_the_agent_is_asked_again_for_what_it_could_not_do(way: str) -> None:
    engine = await _begun()
    await _trip(engine, "aBc")
    await engine.rewind(2)
    await engine.acknowledge(2, "no")
    key = (await engine.rebuilt()).undo[2].idempotency_key
    if way == "rewind":
        answer: Any = await engine.rewind(2)
    elif way == "rollback":
        answer = await engine.rollback()
    else:
        retried = await engine.retry_undo(2, "again")
        assert (retried.state, retried.rollback_incomplete) == (AWAITING, True)
        assert await engine.retry_undo(2, "again") == retried
        answer = retried
    assert [undo.idempotency_key for undo in answer.pending_undo] == [key]
    assert [undone.effect for undone in engine.tools.undone] == ["c"]
    done = await engine.acknowledge(2)
    assert (done.rollback_incomplete, done.undo.attempts) == (False, 2)
    assert done.next_step_id == (0 if way == "rollback" else 2)
    assert [undone.effect for undone in engine.tools.undone] == ["c", "a"][: 2 if way == "rollback" else 1]


@virtual_time
async def test_recovery_does_not_ask_again_for_what_the_agent_could_not_do() -> None:
    engine = await _begun()
    await _trip(engine, "aB")
    await engine.rewind(1)
    gate = engine.tools.hold_undo("a")
    acknowledging = asyncio.create_task(outcome_of(engine.acknowledge(2, "no", "k")))
    await gate.reached()
    await engine.crash()
    acknowledging.cancel()
    gate.open()
    again = await engine.acknowledge(2, "no", "k")
    assert (again.state, again.rollback_incomplete) == (FAILED, True)
    assert await engine.undo_states() == [(2, FAILED), (1, DONE)]


@pytest.mark.parametrize("resolution", list(UndoResolution))
@virtual_time
async def test_a_persons_word_stands_for_the_agents(resolution: UndoResolution) -> None:
    engine = await _begun()
    await _trip(engine, "aBCd")
    await engine.rewind(1)
    skipped = await engine.resolve_undo(
        2, resolution
    )  # not the newest: nothing is run, so no order is broken
    assert skipped.rollback_incomplete
    answer = await engine.resolve_undo(3, resolution, "by hand", "res")
    assert (answer.state, answer.rollback_incomplete, answer.next_step_id, answer.generation) == (
        CompensationState.RESOLVED,
        False,
        1,
        2,
    )
    assert [undone.effect for undone in engine.tools.undone] == ["d", "a"]
    assert await engine.resolve_undo(3, resolution, "by hand", "res") == answer
    if resolution is UndoResolution.KEPT:
        assert "was not done" in (await engine.record()).kept_effects[0].reason
    kept = [effect.step_id for effect in (await engine.record()).kept_effects]
    assert sorted(kept) == ([2, 3] if resolution is UndoResolution.KEPT else [])


@virtual_time
async def test_a_resolution_with_servers_undo_behind_it_that_fails_says_that_the_rewind_is_held() -> None:
    engine = await _begun()
    await _trip(engine, "aB")
    engine.tools.break_undo("a")
    await engine.rewind(1)
    answer = await engine.resolve_undo(2, request_id="res")
    assert (answer.rollback_incomplete, answer.generation) == (True, 1)
    assert await engine.undo_states() == [(2, CompensationState.RESOLVED), (1, FAILED)]
    engine.tools.break_undo("a", times=0)
    assert not (await engine.retry_undo(1)).rollback_incomplete
    assert not (await engine.resolve_undo(2, request_id="res")).rollback_incomplete


@virtual_time
async def test_servers_undo_that_failed_is_not_tried_again_by_an_acknowledgement() -> None:
    engine = await _begun()
    await _trip(engine, "aBc")
    engine.tools.break_undo("c")
    held = await engine.rewind(1)
    assert (_asked(held), len(held.compensation_errors)) == (['{"ref":"B"}'], 1)
    tried = len(engine.tools.undone)
    answer = await engine.acknowledge(2)
    assert [undone.effect for undone in engine.tools.undone[tried:]] == ["a"]
    assert answer.rollback_incomplete
    engine.tools.break_undo("c", times=0)
    assert not (await engine.retry_undo(3)).rollback_incomplete


@virtual_time
async def test_servers_undo_that_failed_can_be_settled_while_the_agent_is_awaited() -> None:
    engine = await _begun()
    await _trip(engine, "aBc")
    engine.tools.break_undo("c")
    await engine.rewind(1)
    engine.tools.break_undo("c", times=0)
    settled = await engine.retry_undo(3)
    assert (settled.state, settled.rollback_incomplete) == (DONE, True)
    assert await engine.undo_states() == [(3, DONE), (2, AWAITING), (1, PENDING)]
    assert not (await engine.acknowledge(2)).rollback_incomplete


@virtual_time
async def test_a_rewind_to_a_lower_step_asks_for_more_and_keeps_the_order() -> None:
    engine = await _begun()
    await _trip(engine, "AbC")
    assert _asked(await engine.rewind(3)) == ['{"ref":"C"}']
    assert _asked(await engine.rewind(1)) == ['{"ref":"C"}']
    answer = await engine.acknowledge(3)
    assert [undone.effect for undone in engine.tools.undone] == ["b"]
    assert _asked(answer) == ['{"ref":"A"}']
    assert (await engine.acknowledge(1)).next_step_id == 1


@virtual_time
async def test_under_continue_the_rewind_waits_for_the_agents_word_and_goes_on_over_a_no() -> None:
    engine = await _begun(on_undo_failure=OnUndoFailure.CONTINUE)
    await _trip(engine, "aB")
    held = await engine.rewind(1, request_id="w")
    assert (held.rollback_incomplete, _asked(held)) == (True, ['{"ref":"B"}'])
    assert (await outcome_of(engine.step(1, "note"))).reason == "ROLLBACK_INCOMPLETE"
    answer = await engine.acknowledge(2, "no room")
    assert (answer.state, answer.rollback_incomplete, answer.generation) == (FAILED, False, 2)
    assert (await engine.record()).undo_was_skipped
    assert len((await engine.rewind(1, request_id="w")).compensation_errors) == 1
    assert (await engine.step(1, "note")).status is StepStatus.SUCCESS
    assert await engine.undo_states(FAILED) == [(2, FAILED)]
    # Only the agent could run it, and later steps stand on top by now.
    assert (await outcome_of(engine.retry_undo(2))).reason == "COMPENSATION_NOT_PENDING"
    assert (await engine.resolve_undo(2)).state is CompensationState.RESOLVED
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_failed_report_may_have_left_something_to_undo() -> None:
    engine = await _begun()
    held = await engine.report(
        1, "a", error="half of it", effect_class=COMPENSATABLE, undo=[("clean", {"n": 1})]
    )
    assert (held.status, _asked(held)) == (StepStatus.ROLLBACK_TRIGGERED, ['{"n":1}'])
    assert not (await engine.acknowledge(1)).rollback_incomplete


@virtual_time
async def test_a_reported_step_without_undo_is_a_pivot_if_it_is_irreversible() -> None:
    engine = await _begun()
    await engine.report(1, "mail.send", output=1, effect_class=EffectClass.IRREVERSIBLE)
    assert (await outcome_of(engine.rewind(1))).reason == "IRREVERSIBLE_STEP"
    answer = await engine.report(2, "a", error="x")
    assert (answer.next_step_id, answer.rollback_incomplete) == (2, False)
    rewound = await engine.rewind(1, accept_irreversible=True)
    assert [kept.tool_name for kept in rewound.kept_effects] == ["mail.send"]


@virtual_time
async def test_an_idempotent_report_without_undo_is_named_in_what_a_rewind_kept() -> None:
    engine = await _begun()
    await engine.report(1, "put", output=1, effect_class=EffectClass.IDEMPOTENT)
    assert [kept.tool_name for kept in (await engine.rewind(1)).kept_effects] == ["put"]


@virtual_time
async def test_a_commit_releases_the_agents_undo() -> None:
    engine = await _begun()
    await _trip(engine, "A")
    await engine.commit()
    assert await engine.undo_states() == [(1, CompensationState.RELEASED)]


@virtual_time
async def test_a_commit_conflict_asks_the_agent_too() -> None:
    engine = await _begun()
    await _trip(engine, "A")
    mine = engine.transaction_id
    await engine.step(2, "note", {"put": {"kv/k": 1}})
    await engine.begin()
    await engine.step(1, "note", {"put": {"kv/k": 2}})
    await engine.commit()
    conflict = await outcome_of(engine.commit(transaction_id=mine))
    assert conflict.reason == "COMMIT_CONFLICT"
    assert conflict.metadata["rollback_incomplete"] == "true"
    engine.transaction_id = mine
    assert await engine.undo_states() == [(1, AWAITING)]
    assert (await engine.acknowledge(1)).next_step_id == 0
    assert (await engine.record()).status is TransactionStatus.FAILED


@virtual_time
async def test_an_idle_transaction_is_not_silently_rolled_back_while_the_agent_owes_undo() -> None:
    engine = await _begun(idle_timeout_us=10_000_000, deadline_us=20_000_000)
    await _trip(engine, "aB")
    await engine.coordinator.start()
    await asyncio.sleep(60)
    record = await engine.record()
    assert (record.status, record.abort_reason) == (TransactionStatus.ROLLING_BACK, "it was idle for 10 s")
    view = await engine.view()
    assert [undo.sequence for undo in view.pending_undo] == [2]
    assert await engine.undo_states(AWAITING) == [(2, AWAITING)]
    await asyncio.sleep(3600)
    assert (await engine.acknowledge(2)).next_step_id == 0
    assert (await engine.record()).status is TransactionStatus.ROLLED_BACK
    assert engine.tools.effects == []
    await engine.coordinator.stop()


@virtual_time
async def test_under_crash_policy_abort_the_agent_is_asked_after_the_crash() -> None:
    from agenttx_server.engine.records import CrashPolicy

    engine = await _begun(crash_policy=CrashPolicy.ABORT)
    await _trip(engine, "aB")
    for _ in range(2):
        await engine.crash()
        await engine.coordinator.start()
        assert await engine.undo_states(AWAITING) == [(2, AWAITING)]
    assert (await engine.acknowledge(2)).next_step_id == 0
    assert (await engine.record()).status is TransactionStatus.ROLLED_BACK


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("call", ["rewind", "acknowledge"])
@virtual_time
async def test_a_crash_before_any_write_loses_nothing_and_asks_for_nothing_twice(
    call: str, number: int
) -> None:
    engine = await _begun()
    await _trip(engine, "aBcd")
    if call == "acknowledge":
        await engine.rewind(1, request_id="w")
    gate = engine.memory.hold_write(engine.memory.write_count + number)
    work: Any = (
        engine.rewind(1, request_id="w") if call == "rewind" else engine.acknowledge(2, request_id="k")
    )
    running = asyncio.create_task(outcome_of(work))
    await idle()
    if not gate.is_reached:
        assert number > 3
        await running
    await engine.crash()
    running.cancel()
    if call == "rewind":
        held = await engine.rewind(1, request_id="w")
        assert _asked(held) == ['{"ref":"B"}']
        assert [undone.effect for undone in engine.tools.undone if undone.done][-1] == "c"
    answer = await engine.acknowledge(2, request_id="k")
    assert (answer.state, answer.rollback_incomplete, answer.generation) == (DONE, False, 2)
    assert await engine.acknowledge(2, request_id="k") == answer
    effects = [undone.effect for undone in engine.tools.undone]
    assert list(dict.fromkeys(effects)) == ["d", "c", "a"]
    assert engine.tools.effects == []
    await engine.assert_memory_equals_store()


@virtual_time
async def test_any_server_takes_the_acknowledgement() -> None:
    database = MemoryDatabase()
    one = await _begun(database=database, is_shared=True, name="one")
    other = Engine(database=database, is_shared=True, name="other")
    other.transaction_id = one.transaction_id
    for engine in (one, other):
        await engine.coordinator.start()
    await _trip(one, "aB")
    await one.rewind(1)
    other.tools.world = one.tools.world
    answer = await other.acknowledge(2, request_id="k")
    assert (answer.rollback_incomplete, answer.generation) == (False, 2)
    assert await one.acknowledge(2, request_id="k") == answer
    assert (await one.step(1, "note")).status is StepStatus.SUCCESS
    assert other.tools.effects == []
    for engine in (one, other):
        await engine.coordinator.stop()


@virtual_time
async def test_a_dry_run_names_the_agents_undo_too() -> None:
    engine = await _begun()
    await _trip(engine, "aB")
    preview = (await engine.rewind(1, dry_run=True)).preview
    assert preview is not None
    assert [(undo.sequence, undo.by_agent) for undo in preview.undo] == [(2, True), (1, False)]
    assert await engine.undo_states() == [(2, REGISTERED), (1, REGISTERED)]


@virtual_time
async def test_a_reported_tool_of_a_name_that_no_worker_has_is_not_waited_for() -> None:
    engine = Engine(settings=EngineSettings())
    await engine.begin()
    await engine.report(1, "crm.create", output=1)
    before = engine.clock.monotonic()
    answer = await engine.step(2, "crm.create")
    assert answer.hint is not None
    assert answer.hint.category == "unknown_tool"
    assert engine.clock.monotonic() == before
