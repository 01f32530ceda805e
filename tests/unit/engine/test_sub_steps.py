"""Sub-steps: calls of tools that a running step makes, durable one by one, and answered again from the journal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.engine_harness import Engine, call, outcome_of
from tests.support.memory_store import Gate
from tests.support.scripted_tools import Behaviour, ToolRun, hang, obey, raise_error
from tests.support.virtual_time import virtual_time

from agenttx_server.engine import json_values
from agenttx_server.engine.errors import PreconditionFailed
from agenttx_server.engine.ports import OutcomeUnknown, SubStepFailed, ToolFailure
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    EffectClass,
    EventType,
    StepResolution,
    Strategy,
    ToolDescription,
    TransactionStatus,
)
from agenttx_server.engine.requests import ResolveStepRequest, StepStatus

NODE = ToolDescription("node", "Calls other tools.", "{}", EffectClass.TRANSACTIONAL, restartable=True)
PLAIN = ToolDescription("plain", "Calls other tools.", "{}", EffectClass.TRANSACTIONAL)


async def make(run: ToolRun, tool_name: str, arguments: Any = None) -> Any:
    """Call a tool as a sub-step."""
    return json_values.load(await run.context.step(tool_name, json_values.canonical(arguments or {})))


async def make_all(run: ToolRun) -> Any:
    """A node that calls what its arguments list: [tool, arguments] each."""
    return {"made": [await make(run, tool, arguments) for tool, arguments in run.arguments["calls"]]}


def engine_with(behaviour: Behaviour = make_all) -> Engine:
    engine = Engine()
    engine.tools.add(NODE, behaviour)
    engine.tools.add(PLAIN, behaviour)
    return engine


async def sub_steps(engine: Engine, step_id: int | None = None) -> list[AttemptRecord]:
    """All attempts of sub-steps, in order."""
    page = await engine.store.list_attempts(
        engine.transaction_id, "", 10_000, 1 << 30, step_id=step_id, include_sub_steps=True
    )
    return [attempt for attempt in page.attempts if attempt.sub_step]


async def states(engine: Engine, step_id: int | None = None) -> list[str]:
    return [f"{item.sub_step}.{item.attempt} {item.state}" for item in await sub_steps(engine, step_id)]


# --- made, and durable --------------------------------------------------------------------------


@virtual_time
async def test_calls_of_a_step_are_numbered_and_durable_before_they_are_answered() -> None:
    seen: list[list[str]] = []

    async def node(run: ToolRun) -> Any:
        first = await make(run, "book", {"effect": "room", "output": {"id": "b-1"}})
        seen.append(await states(engine))
        second = await make(run, "note", {"put": {"kv/a": 1}})
        seen.append(await states(engine))
        return [first, second]

    engine = engine_with(node)
    await engine.begin()
    answer = await engine.step(1, "node", {}, "r")
    assert (answer.status, answer.next_step_id) == (StepStatus.SUCCESS, 2)
    assert seen == [["1.1 COMPLETED"], ["1.1 COMPLETED", "2.1 COMPLETED"]]
    assert await engine.state("kv/a") == {"kv/a": 1}
    assert [(item.tool_name, item.output) for item in await sub_steps(engine)] == [
        ("book", '{"id":"b-1"}'),
        ("note", '{"ok":true}'),
    ]
    await engine.assert_memory_equals_store()
    assert (await engine.record()).next_step_id == 2


@virtual_time
async def test_a_sub_step_sees_what_its_step_wrote_and_the_step_what_its_sub_steps_wrote() -> None:
    read: list[Any] = []

    async def node(run: ToolRun) -> Any:
        await run.context.put("kv/a", "1")
        read.append(await make(run, "note", {"get": ["kv/a", "kv/b"], "put": {"kv/a": 2, "kv/b": 5}}))
        read.append(await run.context.get("kv/a"))
        read.append([key for key, _ in await run.context.scan("kv/")])
        await run.context.put("kv/a", "3")
        read.append(await make(run, "lookup", {"get": ["kv/a", "kv/b"]}))
        return None

    engine = engine_with(node)
    await engine.begin()
    await engine.step(1, "node", {})
    assert read[0]["read"] == {"kv/a": 1, "kv/b": None}
    assert read[1:3] == ["2", ["kv/a", "kv/b"]]
    assert read[3]["read"] == {"kv/a": 3, "kv/b": 5}
    assert await engine.state("kv/a", "kv/b") == {"kv/a": 3, "kv/b": 5}
    await engine.commit()
    assert (await engine.committed("kv/a"), await engine.committed("kv/b")) == (3, 5)


@virtual_time
async def test_of_a_key_that_a_sub_step_wrote_last_its_value_stands() -> None:
    async def node(run: ToolRun) -> Any:
        await run.context.put("kv/a", "1")
        await make(run, "note", {"put": {"kv/a": 2}})

    engine = engine_with(node)
    await engine.begin()
    await engine.step(1, "node", {})
    assert await engine.state("kv/a") == {"kv/a": 2}


@virtual_time
async def test_calls_side_by_side_are_numbered_as_they_were_asked() -> None:
    gate = Gate()

    async def node(run: ToolRun) -> Any:
        first = asyncio.ensure_future(make(run, "book", {"effect": "a"}))
        second = asyncio.ensure_future(make(run, "note", {"put": {"kv/b": 1}}))
        await second
        gate.open()
        await first

    engine = engine_with(node)
    engine.tools.next("book", hang(gate))
    await engine.begin()
    await engine.step(1, "node", {})
    assert [item.tool_name for item in await sub_steps(engine)] == ["book", "note"]


@virtual_time
async def test_references_in_a_sub_steps_arguments_are_left_as_they_are() -> None:
    engine = engine_with()
    await engine.begin()
    await engine.step(1, "lookup", {"output": {"id": "u-1"}})
    answer = await engine.step(2, "node", {"calls": [["lookup", {"output": {"text": "$${steps.1.id}"}}]]})
    assert json_values.load(answer.output or "") == {"made": [{"text": "${steps.1.id}"}]}


# --- undone -------------------------------------------------------------------------------------


@virtual_time
async def test_a_rewind_undoes_a_step_whole_its_sub_steps_newest_first() -> None:
    engine = engine_with()
    await engine.begin()
    await engine.step(1, "book", {"effect": "a"})
    await engine.step(
        2,
        "node",
        {
            "calls": [
                ["book", {"effect": "b"}],
                ["note", {"put": {"kv/x": 1}, "stage": [["m", 1]]}],
                ["book", {"effect": "c"}],
            ]
        },
    )
    await engine.step(3, "book", {"effect": "d"})
    answer = await engine.rewind(2)
    assert (answer.status, answer.compensations_run) == (TransactionStatus.ACTIVE, 3)
    assert engine.tools.undo_order == ["d", "c", "b"]
    assert engine.tools.effects == ["a"]
    assert await engine.state("kv/x") == {"kv/x": None}
    assert await engine.staged() == []
    await engine.assert_memory_equals_store()
    # Nothing is answered from the journal after a rewind.
    await engine.step(2, "node", {"calls": [["book", {"effect": "b"}]]})
    assert engine.tools.effects == ["a", "b"]
    assert (await states(engine, 2))[1] == "1.2 COMPLETED"


@virtual_time
async def test_a_failing_sub_step_is_undone_at_once_and_its_step_may_go_on() -> None:
    async def node(run: ToolRun) -> Any:
        await make(run, "book", {"effect": "kept"})
        with pytest.raises(SubStepFailed) as failed:
            await make(run, "book", {"effect": "lost", "fail": "no rooms left"})
        assert engine.tools.undo_order == ["lost"]
        await make(run, "note", {"put": {"kv/a": 1}})
        return failed.value.message

    engine = engine_with(node)
    await engine.begin()
    answer = await engine.step(1, "node", {})
    assert answer.status is StepStatus.SUCCESS
    assert "no rooms left" in (answer.output or "")
    assert engine.tools.effects == ["kept"]
    assert await states(engine) == ["1.1 COMPLETED", "2.1 FAILED", "3.1 COMPLETED"]
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_failure_let_through_is_decided_on_by_where_the_sub_steps_argument_came_from() -> None:
    engine = engine_with()
    await engine.begin()
    await engine.step(1, "lookup", {"output": {"region": "eu"}})
    await engine.step(2, "lookup", {"output": {"id": "u-7"}})
    await engine.step(3, "lookup", {"output": {"other": 1}})
    failure = {"category": "foreign_key_violation", "message": "no such user", "keys": ["user_id"]}
    answer = await engine.step(4, "node", {"calls": [["note", {"user_id": "u-7", "fail": failure}]]})
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert (answer.strategy, answer.rollback_to_step) == (Strategy.DEPENDENCY_JUMP, 2)
    assert answer.hint is not None
    assert answer.hint.text.startswith("Hint: ")
    assert not answer.hint.text.startswith("Hint: Hint: ")
    assert answer.decision is not None
    assert [(stop.step_id, stop.key) for stop in answer.decision.path] == [(4, "user_id"), (2, "id")]


@virtual_time
async def test_the_trace_goes_back_through_earlier_sub_steps_of_the_same_step() -> None:
    engine = engine_with()
    await engine.begin()
    await engine.step(1, "lookup", {"output": {"user_id": "u-7"}})
    await engine.step(2, "lookup", {"output": {"other": 1}})
    failure = {"category": "foreign_key_violation", "message": "no such owner", "keys": ["owner_id"]}
    calls = [
        ["lookup", {"user_id": "u-7", "output": {"owner_id": "u-7"}}],
        ["note", {"owner_id": "u-7", "fail": failure}],
    ]
    answer = await engine.step(3, "node", {"calls": calls})
    assert (answer.strategy, answer.rollback_to_step) == (Strategy.DEPENDENCY_JUMP, 1)


@virtual_time
async def test_what_a_sub_step_gave_counts_for_later_steps_as_given_by_its_step() -> None:
    engine = engine_with()
    await engine.begin()
    await engine.step(1, "node", {"calls": [["lookup", {"output": {"id": "u-7"}}]]})
    await engine.step(2, "lookup", {"output": {}})
    failure = {"category": "foreign_key_violation", "message": "no such user", "keys": ["user_id"]}
    answer = await engine.step(3, "note", {"user_id": "u-7", "fail": failure})
    assert (answer.strategy, answer.rollback_to_step) == (Strategy.DEPENDENCY_JUMP, 1)


@virtual_time
async def test_undo_that_fails_in_mid_step_ends_the_step_and_holds_its_rewind() -> None:
    async def node(run: ToolRun) -> Any:
        try:
            await make(run, "book", {"effect": "stuck", "fail": "no rooms"})
        except Exception:
            await make(run, "note", {"put": {"kv/a": 1}})  # refused: nothing runs on top of failed undo

    engine = engine_with(node)
    engine.tools.break_undo("stuck")
    await engine.begin()
    answer = await engine.step(1, "node", {})
    assert (answer.status, answer.rollback_incomplete) == (StepStatus.ROLLBACK_TRIGGERED, True)
    assert (await engine.record()).status is TransactionStatus.ROLLING_BACK
    assert engine.tools.count("note") == 0
    engine.tools.break_undo("stuck", 0)
    assert (await engine.retry_undo(1)).rollback_incomplete is False
    assert (await engine.record()).status is TransactionStatus.ACTIVE


# --- run again ----------------------------------------------------------------------------------


async def _crashed_after(engine: Engine, gate: Gate, calls: list[Any], tool_name: str = "node") -> None:
    """Crash while the call at the gate runs."""
    running = asyncio.ensure_future(engine.step(1, tool_name, {"calls": calls}, "r"))
    await gate.reached()
    await asyncio.sleep(2)
    await engine.crash()
    assert running.cancelled()


@virtual_time
async def test_after_a_crash_a_restartable_step_starts_again_and_its_calls_are_answered_from_the_journal() -> (
    None
):
    engine, gate = engine_with(), Gate()
    calls = [
        ["book", {"effect": "a"}],
        ["pay", {"effect": "b"}],
        ["note", {"put": {"kv/a": 1}}],
        ["upload", {"effect": "c"}],
    ]
    await engine.begin()
    engine.tools.next("upload", hang(gate))
    await _crashed_after(engine, gate, calls)
    keys = [item.key for item in engine.tools.calls if item.tool_name == "upload"]
    await engine.coordinator.start()
    answer = await engine.step(1, "node", {"calls": calls}, "r")
    assert (answer.status, answer.replayed, answer.attempt) == (StepStatus.SUCCESS, True, 1)
    assert [engine.tools.count(name) for name in ("node", "book", "pay", "note", "upload")] == [2, 1, 1, 1, 2]
    assert engine.tools.effects == ["a", "b", "c"]
    # The one that was cut off went on as the same attempt under the same key.
    assert [item.key for item in engine.tools.calls if item.tool_name == "upload"] == keys * 2
    assert await states(engine) == [f"{number}.1 COMPLETED" for number in (1, 2, 3, 4)]
    assert await engine.state("kv/a") == {"kv/a": 1}
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_step_that_is_not_restartable_keeps_its_journal_for_its_clients_retry() -> None:
    engine, gate = engine_with(), Gate()
    calls = [["book", {"effect": "a"}], ["lookup", {}]]
    await engine.begin()
    engine.tools.next("lookup", hang(gate))
    await _crashed_after(engine, gate, calls, "plain")
    await engine.coordinator.start()
    with pytest.raises(PreconditionFailed, match="not settled"):
        await engine.commit()
    answer = await engine.step(1, "plain", {"calls": calls}, "r")
    assert (answer.status, answer.attempt) == (StepStatus.SUCCESS, 2)
    assert (engine.tools.count("book"), engine.tools.effects) == (1, ["a"])


@virtual_time
async def test_another_request_for_that_step_undoes_its_journal_first() -> None:
    engine, gate = engine_with(), Gate()
    await engine.begin()
    engine.tools.next("lookup", hang(gate))
    await _crashed_after(engine, gate, [["book", {"effect": "a"}], ["lookup", {}]], "plain")
    await engine.coordinator.start()
    answer = await engine.step(1, "plain", {"calls": [["book", {"effect": "z"}]]}, "other")
    assert answer.status is StepStatus.SUCCESS
    assert engine.tools.undo_order == ["a"]
    assert engine.tools.effects == ["z"]
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_compensatable_call_that_was_cut_off_is_undone_and_made_anew() -> None:
    engine, gate = engine_with(), Gate()
    calls = [["book", {"effect": "a"}], ["book", {"effect": "b"}]]
    await engine.begin()
    engine.tools.next("book", obey, hang(gate, first=obey))
    await _crashed_after(engine, gate, calls)
    await engine.coordinator.start()
    answer = await engine.step(1, "node", {"calls": calls}, "r")
    assert answer.status is StepStatus.SUCCESS
    assert engine.tools.undo_order == ["b"]
    assert engine.tools.effects == ["a", "b"]
    assert await states(engine) == ["1.1 COMPLETED", "2.1 SUPERSEDED", "2.2 COMPLETED"]


@virtual_time
async def test_a_step_that_asks_for_something_else_has_what_is_behind_it_undone() -> None:
    engine, gate = engine_with(), Gate()
    diverges = False

    async def node(run: ToolRun) -> Any:
        await make(run, "book", {"effect": "a"})
        await make(run, "book", {"effect": "x" if diverges else "b"})
        if not diverges:
            await make(run, "note", {"put": {"kv/a": 1}})
            await gate.wait()

    engine.tools.add(NODE, node)
    await engine.begin()
    await _crashed_after(engine, gate, [])
    diverges = True
    await engine.coordinator.start()
    answer = await engine.step(1, "node", {"calls": []}, "r")
    assert answer.status is StepStatus.SUCCESS
    assert engine.tools.undo_order == ["b"]
    assert engine.tools.effects == ["a", "x"]
    assert await engine.state("kv/a") == {"kv/a": None}
    assert await states(engine) == [
        "1.1 COMPLETED",
        "2.1 SUPERSEDED",
        "2.2 COMPLETED",
        "3.1 SUPERSEDED",
    ]
    await engine.assert_memory_equals_store()


@virtual_time
async def test_calls_that_are_no_longer_made_are_undone_when_the_step_completes() -> None:
    engine, gate = engine_with(), Gate()
    count = 2

    async def node(run: ToolRun) -> Any:
        for number in range(count):
            await make(run, "book", {"effect": f"e{number}"})
        if count == 2:
            await gate.wait()

    engine.tools.add(NODE, node)
    await engine.begin()
    await _crashed_after(engine, gate, [])
    count = 0
    await engine.coordinator.start()
    assert (await engine.step(1, "node", {"calls": []}, "r")).status is StepStatus.SUCCESS
    assert engine.tools.effects == []
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_step_that_does_not_repeat_an_irreversible_call_fails_and_nothing_goes_back_past_it() -> None:
    engine, gate = engine_with(), Gate()
    diverges = False

    async def node(run: ToolRun) -> Any:
        await make(run, "lookup" if diverges else "pay", {"effect": "money"})
        await gate.wait()

    engine.tools.add(NODE, node)
    await engine.begin()
    await _crashed_after(engine, gate, [])
    diverges = True
    gate.open()
    await engine.coordinator.start()
    answer = await engine.step(1, "node", {"calls": []}, "r")
    assert (answer.status, answer.strategy) == (StepStatus.FAILED, Strategy.ABORT)
    assert [(kept.step_id, kept.sub_step) for kept in answer.kept_effects] == [(1, 1)]
    assert engine.tools.count("pay") == 1


@virtual_time
async def test_a_step_retried_in_place_is_answered_from_its_journal() -> None:
    engine = engine_with()
    tries = 0

    async def node(run: ToolRun) -> Any:
        nonlocal tries
        tries += 1
        await make(run, "book", {"effect": "a"})
        await make(run, "note", {"put": {"kv/a": 1}})
        if tries == 1:
            raise ToolFailure("timeout", "the model did not answer")

    engine.tools.add(ToolDescription("patient", "", "{}", EffectClass.TRANSACTIONAL, retries=2), node)
    await engine.begin()
    assert (await engine.step(1, "patient", {})).status is StepStatus.SUCCESS
    assert (tries, engine.tools.count("book"), engine.tools.count("note")) == (2, 1, 1)
    assert await engine.state("kv/a") == {"kv/a": 1}


@virtual_time
async def test_a_failed_call_is_made_again_when_its_step_is_retried() -> None:
    engine = engine_with()
    engine.tools.add(ToolDescription("patient", "", "{}", EffectClass.TRANSACTIONAL, retries=2), make_all)
    engine.tools.next("book", obey, raise_error(ToolFailure("connection", "refused")))
    await engine.begin()
    calls = [["book", {"effect": "a"}], ["book", {"effect": "b"}]]
    assert (await engine.step(1, "patient", {"calls": calls})).status is StepStatus.SUCCESS
    assert await states(engine) == ["1.1 COMPLETED", "2.1 FAILED", "2.2 COMPLETED"]
    assert engine.tools.effects == ["a", "b"]


# --- in doubt -----------------------------------------------------------------------------------


def resolution(engine: Engine, how: StepResolution, sub_step: int = 1, **fields: Any) -> ResolveStepRequest:
    return ResolveStepRequest(engine.transaction_id, 1, how, sub_step=sub_step, **fields)


@pytest.mark.parametrize("how", list(StepResolution))
@virtual_time
async def test_an_irreversible_call_that_a_crash_cut_off_is_in_doubt_until_it_is_resolved(
    how: StepResolution,
) -> None:
    engine, gate = engine_with(), Gate()
    calls = [["pay", {"effect": "money", "output": {"receipt": 1}}], ["note", {"put": {"kv/a": 1}}]]
    await engine.begin()
    engine.tools.next("pay", hang(gate, first=obey))
    await _crashed_after(engine, gate, calls)
    await engine.coordinator.start()
    view = await engine.view()
    assert view.record.status is TransactionStatus.IN_DOUBT
    assert [(step.step_id, step.sub_step, step.state) for step in view.unsettled] == [
        (1, 0, AttemptState.IN_DOUBT),
        (1, 1, AttemptState.IN_DOUBT),
    ]
    refused = await outcome_of(engine.coordinator.resolve_step(resolution(engine, how, 0)))
    assert refused.reason == "STEP_IN_DOUBT"
    output = {"output_json": '{"receipt":7}'} if how is StepResolution.SUCCEEDED else {}
    answer = await engine.coordinator.resolve_step(resolution(engine, how, request_id="q", **output))
    assert (answer.result, answer.next_step_id) == (None, 2)
    assert engine.tools.count("pay") == (1 if how is StepResolution.SUCCEEDED else 2)
    keys = {item.key for item in engine.tools.calls if item.tool_name == "pay"}
    assert len(keys) == 1
    step = await engine.step(1, "node", {"calls": calls}, "r")
    assert (step.status, step.replayed) == (StepStatus.SUCCESS, True)
    receipt = 7 if how is StepResolution.SUCCEEDED else 1
    assert json_values.load(step.output or "")["made"][0] == {"receipt": receipt}
    again = await engine.coordinator.resolve_step(resolution(engine, how, request_id="q", **output))
    assert again.result is None
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_call_whose_outcome_its_tool_does_not_know_stops_its_step() -> None:
    engine = engine_with()
    engine.tools.next("pay", raise_error(OutcomeUnknown("the bank did not answer")))
    await engine.begin()
    calls = [["pay", {"effect": "money"}], ["note", {"put": {"kv/a": 1}}]]
    answer = await engine.step(1, "node", {"calls": calls}, "r")
    assert answer.status is StepStatus.IN_DOUBT
    assert engine.tools.count("note") == 0
    assert (await engine.record()).status is TransactionStatus.IN_DOUBT
    await engine.coordinator.resolve_step(resolution(engine, StepResolution.SUCCEEDED))
    assert engine.tools.count("note") == 1
    assert (await engine.record()).next_step_id == 2


@virtual_time
async def test_an_abort_names_the_call_in_doubt_among_what_stays() -> None:
    engine = engine_with()
    engine.tools.next("pay", raise_error(OutcomeUnknown("the bank did not answer")))
    await engine.begin()
    await engine.step(1, "node", {"calls": [["book", {"effect": "a"}], ["pay", {"effect": "money"}]]}, "r")
    answer = await engine.rollback(accept_irreversible=True)
    assert [(kept.step_id, kept.sub_step, kept.tool_name) for kept in answer.kept_effects] == [(1, 2, "pay")]
    assert engine.tools.effects == []


# --- stopped ------------------------------------------------------------------------------------


@virtual_time
async def test_a_step_that_runs_past_its_deadline_has_its_calls_ended_and_undone() -> None:
    engine, gate = engine_with(), Gate()
    engine.tools.next("book", obey, hang(gate, first=obey))
    await engine.begin()
    calls = [["book", {"effect": "a"}], ["book", {"effect": "b"}]]
    answer = await engine.step(1, "node", {"calls": calls}, timeout=5)
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert answer.hint is not None
    assert answer.hint.category == "timeout"
    assert engine.tools.effects == []
    assert engine.tools.undo_order == ["b", "a"]
    assert await states(engine) == ["1.1 COMPLETED", "2.1 FAILED"]


@virtual_time
async def test_a_rewind_that_waits_stops_a_step_with_the_call_it_waits_for() -> None:
    engine, gate = engine_with(), Gate()
    engine.tools.next("book", obey, hang(gate, first=obey))
    await engine.begin()
    calls = [["book", {"effect": "a"}], ["book", {"effect": "b"}]]
    running = asyncio.ensure_future(engine.step(1, "node", {"calls": calls}, "r"))
    await gate.reached()
    answer = await engine.rewind(1)
    assert answer.status is TransactionStatus.ACTIVE
    assert (await running).status is StepStatus.ROLLBACK_TRIGGERED
    assert engine.tools.effects == []
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_rewind_waits_for_an_irreversible_call() -> None:
    engine, gate = engine_with(), Gate()
    engine.tools.next("pay", hang(gate))
    await engine.begin()
    running = asyncio.ensure_future(engine.step(1, "node", {"calls": [["pay", {"effect": "m"}]]}, "r"))
    await gate.reached()
    rewind = asyncio.ensure_future(outcome_of(engine.rewind(1)))
    await asyncio.sleep(1)
    assert not rewind.done()
    gate.open()
    refused = await rewind
    assert refused.reason in ("IRREVERSIBLE_STEP", "TRANSACTION_ENDED")
    await running
    assert engine.tools.effects == ["m"]


# --- groups, events -----------------------------------------------------------------------------


@virtual_time
async def test_members_of_a_group_conflict_by_what_their_sub_steps_touched() -> None:
    engine = engine_with()
    await engine.begin()
    first, second = await engine.group(
        1,
        call("node", {"calls": [["note", {"put": {"kv/a": 1}}]]}),
        call("node", {"calls": [["note", {"get": ["kv/a"]}]]}),
    )
    assert first.rewound
    assert second.hint is not None
    assert second.hint.category == "conflict"


@virtual_time
async def test_events_and_history_name_the_sub_step() -> None:
    engine = engine_with()
    await engine.begin()
    await engine.step(1, "node", {"calls": [["book", {"effect": "a"}]]})
    found = await engine.store.list_events(engine.transaction_id, 1, 100)
    told = [(event.type, event.step_id, event.sub_step) for event in found if event.step_id]
    assert told == [
        (EventType.STEP_STARTED, 1, 0),
        (EventType.STEP_STARTED, 1, 1),
        (EventType.STEP_COMPLETED, 1, 1),
        (EventType.STEP_COMPLETED, 1, 0),
    ]
    page = await engine.coordinator.list_steps("anonymous", engine.transaction_id, "", 1)
    assert [(item.step_id, item.sub_step) for item in page.attempts] == [(1, 0)]
    page = await engine.coordinator.list_steps("anonymous", engine.transaction_id, page.next_cursor, 10)
    assert [(item.step_id, item.sub_step) for item in page.attempts] == [(1, 1)]


@virtual_time
async def test_calls_inside_a_sub_step_have_a_count_of_their_own() -> None:
    engine, gate = engine_with(), Gate()

    async def inner(run: ToolRun) -> Any:
        return [await make(run, "book", {"effect": f"{run.arguments['name']}{number}"}) for number in (1, 2)]

    async def node(run: ToolRun) -> Any:
        await asyncio.gather(make(run, "inner", {"name": "x"}), make(run, "inner", {"name": "y"}))
        await gate.wait()

    engine.tools.add(ToolDescription("inner", "", "{}", EffectClass.TRANSACTIONAL, restartable=True), inner)
    engine.tools.add(NODE, node)
    await engine.begin()
    await _crashed_after(engine, gate, [])
    gate.open()
    await engine.coordinator.start()
    assert (await engine.step(1, "node", {"calls": []}, "r")).status is StepStatus.SUCCESS
    assert (engine.tools.count("inner"), engine.tools.count("book")) == (2, 4)
    assert sorted((item.scope, item.ordinal) for item in await sub_steps(engine)) == [
        ("", 1),
        ("", 2),
        ("1/", 1),
        ("1/", 2),
        ("2/", 1),
        ("2/", 2),
    ]


@virtual_time
async def test_a_call_that_a_person_must_be_asked_about_is_refused_inside_a_step() -> None:
    engine = engine_with()
    engine.tools.add(ToolDescription("wipe", "", "{}", EffectClass.IRREVERSIBLE, needs_approval=True), obey)
    await engine.begin()
    answer = await engine.step(1, "node", {"calls": [["wipe", {}]]})
    assert answer.hint is not None
    assert answer.hint.category == "permission_denied"
    assert engine.tools.count("wipe") == 0
