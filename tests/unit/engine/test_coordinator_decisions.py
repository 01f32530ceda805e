"""Failures decided on: where the transaction goes, what it remembers, and when it ends."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.engine_harness import Engine, call
from tests.support.scripted_tools import fail_with, raise_error
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.errors import PreconditionFailed
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.ports import ArgumentsRefused
from agenttx_server.engine.records import (
    AttemptState,
    EffectClass,
    EventType,
    HintCategory,
    PathElement,
    RejectedCalls,
    Strategy,
    TransactionStatus,
)
from agenttx_server.engine.requests import StepAnswer, StepStatus


def _summary(answer: StepAnswer) -> tuple[Strategy, int]:
    assert answer.decision is not None
    return answer.strategy, 0 if answer.strategy is Strategy.GLOBAL_RESET else answer.decision.target_step


async def _obedient_run(engine: Engine, plan: dict[int, tuple[str, object]]) -> list[StepAnswer]:
    """Drive a plan as an agent that does as it is told; return the answers that were no success."""
    failures = []
    step = 1
    while 0 < step <= len(plan):
        tool, arguments = plan[step]
        answer = await engine.step(step, tool, arguments)
        await engine.assert_memory_equals_store()
        if answer.status is not StepStatus.SUCCESS:
            failures.append(answer)
        step = answer.next_step_id
    return failures


# --- the ladder ---------------------------------------------------------------------------


@virtual_time
async def test_a_plan_of_four_with_a_step_that_always_fails_ends_after_eighteen_executions() -> None:
    engine = Engine()
    await engine.begin(max_local_depth=2, max_global_resets=1, replay_budget_factor=100.0)
    plan: dict[int, tuple[str, object]] = {
        1: ("note", {"put": {"kv/1": 1}}),
        2: ("book", {"effect": "room"}),
        3: ("book", {"effect": "table"}),
        4: ("lookup", {"fail": "it just fails"}),
    }
    failures = await _obedient_run(engine, plan)
    assert [_summary(answer) for answer in failures] == [
        (Strategy.LOCAL_BACKTRACK, 3),
        (Strategy.LOCAL_BACKTRACK, 2),
        (Strategy.GLOBAL_RESET, 0),
        (Strategy.LOCAL_BACKTRACK, 3),
        (Strategy.LOCAL_BACKTRACK, 2),
        (Strategy.ABORT, 0),
    ]
    assert engine.tools.count() == 18
    assert engine.tools.count("lookup") == 6
    assert [answer.next_step_id for answer in failures] == [3, 2, 1, 3, 2, 0]
    assert [answer.rollback_to_step for answer in failures] == [3, 2, 0, 3, 2, 0]
    assert [answer.generation for answer in failures] == [2, 3, 4, 5, 6, 7]
    assert [answer.context_reset for answer in failures] == [False, False, True, False, False, False]
    assert [answer.status for answer in failures] == [StepStatus.ROLLBACK_TRIGGERED] * 5 + [StepStatus.FAILED]
    assert [answer.decision.failure_number for answer in failures if answer.decision] == [1, 2, 3, 1, 2, 3]
    # Everything is undone, and the end says why.
    assert engine.tools.effects == []
    assert await engine.state("kv/1") == {"kv/1": None}
    record = await engine.record()
    assert record.status is TransactionStatus.FAILED
    assert record.next_step_id == 0
    assert record.global_resets == 1
    assert record.abort_reason == failures[-1].abort_reason
    assert "max_local_depth is 2" in record.abort_reason
    assert "max_global_resets is 1" in record.abort_reason
    assert engine.tools.ended == [engine.transaction_id]
    assert (await engine.events())[-1] is EventType.TRANSACTION_FAILED
    with pytest.raises(PreconditionFailed) as refused:
        await engine.step(1, "note")
    assert refused.value.reason == "TRANSACTION_ENDED"


@virtual_time
async def test_a_small_budget_gives_one_backtrack_and_then_a_reset() -> None:
    engine = Engine()
    await engine.begin(replay_budget_factor=0.1)
    plan: dict[int, tuple[str, object]] = {step: ("note", {}) for step in range(1, 8)}
    plan[8] = ("lookup", {"fail": "it just fails"})
    failures = await _obedient_run(engine, plan)
    # N = 8, c = 0.1: ⌈0.1 · 8 · 4⌉ = 4 steps; the first backtrack costs 2, the second would cost 3.
    assert [_summary(answer) for answer in failures] == [
        (Strategy.LOCAL_BACKTRACK, 7),
        (Strategy.GLOBAL_RESET, 0),
        (Strategy.LOCAL_BACKTRACK, 7),
        (Strategy.ABORT, 0),
    ]
    decision = failures[1].decision
    assert decision is not None
    assert (decision.budget_total, decision.budget_spent_before) == (4, 2)
    assert "budget" in decision.passed_over[-1].reason
    assert "budget" in failures[-1].abort_reason


@virtual_time
async def test_a_step_one_that_fails_is_sent_again_at_its_place() -> None:
    engine = Engine()
    await engine.begin()
    answer = await engine.step(1, "note", {"fail": "no"})
    assert (answer.strategy, answer.next_step_id, answer.generation) == (Strategy.LOCAL_BACKTRACK, 1, 2)
    assert (await engine.step(1, "note", generation=2)).attempt == 2


@virtual_time
async def test_depth_zero_and_no_resets_abort_at_once() -> None:
    engine = Engine()
    await engine.begin(max_local_depth=0, max_global_resets=0)
    await engine.step(1, "book", {"effect": "room"})
    answer = await engine.step(2, "note", {"fail": "no"})
    assert (answer.status, answer.strategy) == (StepStatus.FAILED, Strategy.ABORT)
    assert engine.tools.effects == []


# --- the jump -----------------------------------------------------------------------------


@virtual_time
async def test_a_foreign_key_violation_jumps_to_the_step_that_made_the_value() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note")
    await engine.step(2, "note", {"output": {"id": "u-7"}})
    for step in (3, 4):
        await engine.step(step, "book", {"effect": f"e{step}"})
    await engine.step(5, "note", {"user": "${steps.2.id}", "output": {"owner_id": "u-7"}})
    for step in (6, 7, 8):
        await engine.step(step, "note", {"put": {f"kv/{step}": step}})
    engine.tools.next(
        "note",
        fail_with(
            'psycopg.errors.ForeignKeyViolation: insert or update on table "orders" violates foreign key '
            'constraint "orders_user_id_fkey"\nDETAIL:  Key (user_id)=(u-7) is not present in table "users".'
        ),
    )
    answer = await engine.step(9, "note", {"user_id": "${steps.5.owner_id}"})
    assert (answer.strategy, answer.next_step_id) == (Strategy.DEPENDENCY_JUMP, 2)
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.FOREIGN_KEY_VIOLATION
    decision = answer.decision
    assert decision is not None
    assert decision.error_key == "user_id"
    assert decision.cost == 8
    assert decision.path[0] == PathElement(9, "user_id")
    assert decision.path[-1] == PathElement(2, "id")
    assert [element.step_id for element in decision.path if element.step_id != 5] == [9, 2]
    assert engine.tools.undo_order == ["e4", "e3"]
    assert [attempt.step_id for attempt in await engine.live_attempts()] == [1]
    assert answer.constraints == (answer.hint.text,)


@virtual_time
async def test_a_root_that_was_jumped_to_often_enough_is_passed_over() -> None:
    engine = Engine()
    await engine.begin(max_local_depth=1, replay_budget_factor=100.0)
    failure = {"category": "missing_record", "message": "no such user", "keys": ["user_id"]}
    plan: dict[int, tuple[str, object]] = {
        1: ("note", {"output": {"user_id": "u-1"}}),
        2: ("note", {}),
        3: ("note", {"user_id": "u-1", "fail": failure}),
    }
    failures = await _obedient_run(engine, plan)
    assert [_summary(answer) for answer in failures] == [
        (Strategy.DEPENDENCY_JUMP, 1),
        (Strategy.GLOBAL_RESET, 0),
        (Strategy.DEPENDENCY_JUMP, 1),
        (Strategy.ABORT, 0),
    ]


@virtual_time
async def test_no_edge_of_a_rewound_step_is_used() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"output": {"id": "old"}})
    await engine.step(2, "note", {"output": {"id": "u-1"}})
    await engine.rewind(2)
    await engine.step(2, "note", {"output": {"other": "x"}})
    failure = {"category": "missing_record", "message": "no such user", "keys": ["user_id"]}
    answer = await engine.step(3, "note", {"user_id": "u-1", "fail": failure})
    assert answer.strategy is Strategy.LOCAL_BACKTRACK
    assert answer.dependencies == ()


@virtual_time
async def test_a_missing_key_of_a_reference_jumps_to_its_producer() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"output": {"id": 7}})
    await engine.step(2, "note")
    answer = await engine.step(3, "note", {"who": "${steps.1.user_id}"})
    assert (answer.strategy, answer.next_step_id) == (Strategy.DEPENDENCY_JUMP, 1)
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.UNRESOLVED_REFERENCE
    assert answer.hint.text.startswith("Hint: Step 1 output has no 'user_id'. Re-run step 1")
    assert engine.tools.count() == 2


@pytest.mark.parametrize("reference", ["${steps.9.id}", "${steps.3.id}", "${steps.2.id}", "x ${steps.7} y"])
@virtual_time
async def test_a_reference_to_a_step_that_has_not_completed_makes_no_edge(reference: str) -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note")
    await engine.step(2, "note", {"output": {"id": 1}})
    await engine.rewind(2)
    await engine.step(2, "note", {"fail": "no"})  # back to step 1
    await engine.step(1, "note")
    answer = await engine.step(2, "note", {"who": [reference]})
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.UNRESOLVED_REFERENCE
    assert reference.strip("xy ") in answer.hint.text
    assert answer.dependencies == ()
    assert answer.strategy is Strategy.LOCAL_BACKTRACK


@virtual_time
async def test_references_keep_types_and_interpolate() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"output": {"n": 7, "list": [{"a": None}], "text": "t"}})
    await engine.step(
        2,
        "note",
        {
            "output": {
                "whole": "${steps.1}",
                "n": "${steps.1.n}",
                "deep": ["${steps.1.list.0}"],
                "mixed": "<${steps.1.n}|${steps.1.text}|${steps.1.list}>",
                "plain": "$${steps.1.n}",
            }
        },
    )
    assert engine.tools.calls[-1].arguments["output"] == {
        "whole": {"n": 7, "list": [{"a": None}], "text": "t"},
        "n": 7,
        "deep": [{"a": None}],
        "mixed": '<7|t|[{"a":null}]>',
        "plain": "${steps.1.n}",
    }
    engine.restart()
    await engine.step(3, "note", {"output": "${steps.2.whole.list}"})
    assert engine.tools.calls[-1].arguments["output"] == [{"a": None}]


@virtual_time
async def test_a_large_output_can_be_referred_to_though_memory_does_not_keep_it() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"output": {"text": "x" * 100_000, "id": "u"}})
    answer = await engine.step(2, "note", {"id": "${steps.1.id}", "output": {"n": "${steps.1.text}"}})
    assert answer.output is not None
    assert len(answer.output) > 100_000


@virtual_time
async def test_a_tool_that_changes_its_arguments_changes_nothing_else() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"output": {"list": [1]}})

    async def change(run: object) -> object:
        arguments = run.arguments  # type: ignore[attr-defined]
        arguments["list"].append(2)
        arguments["more"] = True
        return {}

    engine.tools.next("note", change)
    await engine.step(2, "note", {"list": "${steps.1.list}"})
    attempt = (await engine.attempts())[-1]
    assert attempt.resolved_arguments == '{"list":[1]}'
    answer = await engine.step(3, "note", {"output": "${steps.1.list}"})
    assert answer.output == "[1]"


# --- what is remembered -------------------------------------------------------------------


@virtual_time
async def test_constraints_are_kept_over_rewinds_and_resets_without_doubles_oldest_out_first() -> None:
    engine = Engine(limits=Limits(constraints=3))
    await engine.begin(max_local_depth=1, max_global_resets=16, replay_budget_factor=100.0)
    texts = ["alpha", "beta", "alpha", "gamma", "delta"]
    answers = [await engine.step(1, "note", {"fail": f"it is {text}"}) for text in texts]
    assert [len(answer.constraints) for answer in answers] == [1, 2, 2, 3, 3]
    for word, line in zip(("beta", "gamma", "delta"), answers[-1].constraints, strict=True):
        assert word in line
    success = await engine.step(1, "note")
    assert success.constraints == answers[-1].constraints
    await engine.rewind(1)
    assert [line.text for line in (await engine.record()).constraints] == list(success.constraints)


@virtual_time
async def test_a_reset_clears_the_context_and_a_rewind_only_what_it_took_back() -> None:
    engine = Engine()
    await engine.begin(max_local_depth=1)
    await engine.step(1, "note", raw_context="one")
    await engine.step(2, "note", raw_context="two")
    failed = await engine.step(3, "note", {"fail": "no"}, raw_context="three")
    assert failed.next_step_id == 2
    assert [entry.raw_context for entry in (await engine.view()).context] == ["one"]
    await engine.step(2, "note", raw_context="two again")
    reset = await engine.step(3, "note", {"fail": "no"})
    assert reset.context_reset
    view = await engine.view()
    assert view.context == ()
    assert (view.record.epoch, view.record.next_step_id, view.record.furthest_step) == (2, 1, 3)
    assert view.record.failures == view.record.jumps == ()
    assert view.record.budget_spent == 0
    assert view.replay_budget == 12


@virtual_time
async def test_the_budget_counts_what_was_replayed_and_the_furthest_step_is_kept() -> None:
    engine = Engine()
    await engine.begin(max_local_depth=3)
    for step in (1, 2, 3, 4):
        await engine.step(step, "note")
    first = await engine.step(5, "note", {"fail": "no"})
    assert first.decision is not None
    assert (first.decision.budget_total, first.decision.budget_spent_before, first.decision.cost) == (
        30,
        0,
        2,
    )
    second = await engine.step(4, "note", {"fail": "no"})
    assert second.decision is not None
    assert (second.decision.budget_total, second.decision.budget_spent_before) == (30, 2)
    record = await engine.record()
    assert (record.budget_spent, record.replayed_steps, record.furthest_step) == (4, 4, 5)


# --- before the tool ----------------------------------------------------------------------


@virtual_time
async def test_an_unknown_tool_is_a_failure_that_names_the_nearest() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note")
    answer = await engine.step(2, "lokup")
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.UNKNOWN_TOOL
    assert "lookup" in answer.hint.text
    assert (answer.strategy, answer.next_step_id) == (Strategy.LOCAL_BACKTRACK, 1)
    attempt = next(attempt for attempt in await engine.attempts() if attempt.step_id == 2)
    assert (attempt.effect_class, attempt.tries) == (None, 0)


@virtual_time
async def test_a_tool_whose_worker_has_met_another_server_only_is_waited_for() -> None:
    engine = Engine()
    await engine.begin()
    engine.tools.offer_elsewhere("note", 3.0)
    assert (await engine.step(1, "note")).status is StepStatus.SUCCESS
    engine.tools.offer_elsewhere("lookup", 1e6)
    before = asyncio.get_running_loop().time()
    answer = await engine.step(2, "lookup")
    assert answer.hint is not None
    assert (answer.hint.category, "No worker offers 'lookup' now" in answer.hint.text) == ("connection", True)
    assert asyncio.get_running_loop().time() - before == 30.0  # a step's own time


@pytest.mark.parametrize(
    ("tool", "text"), [("no-such", "{}"), ("note", "{oops"), ("note", '{"a": "${steps.7.x}"}')]
)
@virtual_time
async def test_a_rejected_call_can_be_told_to_stay_where_it_is(tool: str, text: str) -> None:
    engine = Engine()
    await engine.begin(rejected_calls=RejectedCalls.RETRY_STEP, max_local_depth=2)
    await engine.step(1, "pay", {"effect": "money"})
    await engine.step(2, "book", {"effect": "room"})
    for _ in range(2):
        answer = await engine.step(3, tool, text=text)
        assert (answer.strategy, answer.next_step_id) == (Strategy.LOCAL_BACKTRACK, 3)
        assert answer.decision is not None
        assert answer.decision.cost == 1
    assert engine.tools.effects == ["money", "room"]
    last = await engine.step(3, tool, text=text)
    assert last.strategy is Strategy.ABORT
    assert [kept.step_id for kept in last.kept_effects] == [1]


@pytest.mark.parametrize("tool", ["lookup", "book"])
@virtual_time
async def test_arguments_that_a_tool_refuses_are_a_call_that_was_never_made(tool: str) -> None:
    engine = Engine()
    await engine.begin(rejected_calls=RejectedCalls.RETRY_STEP)
    await engine.step(1, "book", {"effect": "room"})
    engine.tools.next(tool, raise_error(ArgumentsRefused("missing_argument", "'room' is missing", ("room",))))
    answer = await engine.step(2, tool)
    assert (answer.strategy, answer.next_step_id) == (Strategy.LOCAL_BACKTRACK, 2)
    assert answer.hint is not None
    assert answer.hint.keys == ("room",)
    attempt = (await engine.attempts())[-1]
    assert (attempt.step_id, attempt.state) == (2, AttemptState.FAILED)
    assert engine.tools.effects == ["room"]


# --- pivots -------------------------------------------------------------------------------


@virtual_time
async def test_a_backtrack_stops_behind_an_irreversible_step() -> None:
    engine = Engine()
    await engine.begin(max_local_depth=3)
    await engine.step(1, "note")
    await engine.step(2, "pay", {"effect": "money"})
    await engine.step(3, "book", {"effect": "room"})
    for _ in range(3):
        answer = await engine.step(4, "note", {"fail": "no"})
        assert (answer.strategy, answer.next_step_id) == (Strategy.LOCAL_BACKTRACK, 3)
        await engine.step(3, "book", {"effect": "room"})
    assert engine.tools.effects == ["money", "room"]
    last = await engine.step(4, "note", {"fail": "no"})
    assert last.strategy is Strategy.ABORT
    assert "irreversible step 2" in last.abort_reason
    assert [(kept.step_id, kept.effect_class) for kept in last.kept_effects] == [
        (2, EffectClass.IRREVERSIBLE)
    ]
    assert (await engine.record()).kept_effects == last.kept_effects
    assert engine.tools.effects == ["money"]


@virtual_time
async def test_a_jump_past_an_irreversible_step_is_passed_over() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"output": {"user_id": "u-1"}})
    await engine.step(2, "pay", {"effect": "money"})
    await engine.step(3, "note")
    failure = {"category": "missing_record", "message": "no such user", "keys": ["user_id"]}
    answer = await engine.step(4, "note", {"user_id": "u-1", "fail": failure})
    assert (answer.strategy, answer.next_step_id) == (Strategy.LOCAL_BACKTRACK, 3)
    assert answer.decision is not None
    [passed] = answer.decision.passed_over
    assert (passed.strategy, passed.target_step) == (Strategy.DEPENDENCY_JUMP, 1)
    assert passed.reason == "irreversible step 2"


@virtual_time
async def test_an_irreversible_step_with_an_undo_is_no_pivot() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "wire", {"effect": "money"})
    answer = await engine.step(2, "note", {"fail": "no"})
    assert (answer.strategy, answer.next_step_id) == (Strategy.LOCAL_BACKTRACK, 1)
    assert answer.kept_effects == ()
    assert engine.tools.effects == []


@virtual_time
async def test_an_idempotent_step_is_passed_and_named() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "upload", {"effect": "file"})
    answer = await engine.step(2, "note", {"fail": "no"})
    assert answer.next_step_id == 1
    [kept] = answer.kept_effects
    assert (kept.step_id, kept.attempt, kept.tool_name) == (1, 1, "upload")
    assert answer.decision is not None
    assert answer.decision.kept_effects == answer.kept_effects
    assert engine.tools.effects == ["file"]


@virtual_time
async def test_a_group_counts_as_one_for_backtracks_and_as_steps_for_jumps() -> None:
    engine = Engine()
    await engine.begin(max_local_depth=3, replay_budget_factor=100.0)
    await engine.step(1, "note")
    await engine.group(2, call("note"), call("note", {"output": {"user_id": "u-1"}}), call("note"))
    await engine.step(5, "note")
    assert (await engine.step(6, "note", {"fail": "no"})).next_step_id == 5
    await engine.step(5, "note")
    assert (await engine.step(6, "note", {"fail": "no"})).next_step_id == 2
    await engine.group(2, call("note"), call("note", {"output": {"user_id": "u-1"}}), call("note"))
    failure = {"category": "missing_record", "message": "no such user", "keys": ["user_id"]}
    answer = await engine.step(5, "note", {"user_id": "u-1", "fail": failure})
    assert (answer.strategy, answer.next_step_id) == (Strategy.DEPENDENCY_JUMP, 3)
    assert [attempt.step_id for attempt in await engine.live_attempts()] == [1, 2]
    await engine.assert_memory_equals_store()
