"""What a server finds after a crash, and how each class of step is settled."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.engine_harness import Engine, call, outcome_of
from tests.support.memory_store import Gate
from tests.support.scripted_tools import ToolRun, hang, ignore_cancellation, obey, raise_error
from tests.support.virtual_time import idle, virtual_time

from agenttx_server.engine.errors import InvalidRequest, LimitExceeded, NotFound, PreconditionFailed
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.ports import OutcomeUnknown, TransactionFilter
from agenttx_server.engine.records import (
    AttemptState,
    CrashPolicy,
    EventType,
    StepResolution,
    TransactionStatus,
    UndoState,
)
from agenttx_server.engine.requests import (
    BeginRequest,
    CancelStepRequest,
    ResolveStepRequest,
    RetryCompensationRequest,
    StepStatus,
)
from agenttx_server.engine.services import EngineSettings


async def _crashed_in(engine: Engine, tool_name: str, effect: str, step_id: int = 1) -> str:
    """Crash after a tool had its effect and before its step was recorded; return the key it had."""
    gate = Gate()
    engine.tools.next(tool_name, hang(gate, first=obey))
    arguments = {"effect": effect} if tool_name not in ("lookup", "note") else {"put": {"kv/a": 1}}
    running = asyncio.ensure_future(engine.step(step_id, tool_name, arguments, "r"))
    await gate.reached()
    await asyncio.sleep(2)  # longer than a step may run unrecorded
    await engine.crash()
    assert running.cancelled()
    return engine.tools.calls[-1].key


# --- by class -----------------------------------------------------------------------------


@pytest.mark.parametrize("tool_name", ["lookup", "note"])
@virtual_time
async def test_a_step_without_outside_effects_counts_for_nothing_and_is_run_again_by_its_retry(
    tool_name: str,
) -> None:
    engine = Engine()
    await engine.begin()
    await _crashed_in(engine, tool_name, "")
    assert (await engine.record()).status is TransactionStatus.EXECUTING
    await engine.coordinator.start()
    record = await engine.record()
    assert (record.status, record.open_group, record.owner) == (TransactionStatus.ACTIVE, None, "")
    assert engine.tools.count() == 1
    answer = await engine.step(1, tool_name, {"put": {"kv/a": 1}}, "r")
    assert (answer.status, answer.attempt, answer.replayed) == (StepStatus.SUCCESS, 2, False)
    states = [attempt.state for attempt in await engine.attempts()]
    assert states == [AttemptState.SUPERSEDED, AttemptState.COMPLETED]
    await engine.assert_memory_equals_store()


@virtual_time
async def test_an_idempotent_step_is_run_to_its_end_as_the_same_attempt_under_the_same_key() -> None:
    engine = Engine()
    await engine.begin()
    key = await _crashed_in(engine, "upload", "file")
    await engine.coordinator.start()
    assert [(item.attempt, item.key) for item in engine.tools.calls] == [(1, key), (1, key)]
    assert engine.tools.effects == ["file"]
    answer = await engine.step(1, "upload", {"effect": "file"}, "r")
    assert (answer.status, answer.attempt, answer.replayed) == (StepStatus.SUCCESS, 1, True)
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_compensatable_step_is_undone_and_run_again_with_a_new_key() -> None:
    engine = Engine()
    await engine.begin()
    key = await _crashed_in(engine, "book", "room")
    await engine.coordinator.start()
    assert engine.tools.undo_order == ["room"]
    assert engine.tools.effects == ["room"]
    assert engine.tools.calls[-1].key != key
    answer = await engine.step(1, "book", {"effect": "room"}, "r")
    assert (answer.attempt, answer.replayed) == (2, True)
    assert EventType.STEP_SUPERSEDED in await engine.events()
    await engine.commit()
    assert engine.tools.count("book") == 2


@virtual_time
async def test_an_irreversible_step_is_in_doubt_and_never_repeated_by_itself() -> None:
    engine = Engine()
    await engine.begin()
    await _crashed_in(engine, "pay", "money")
    await engine.coordinator.start()
    assert (await engine.record()).status is TransactionStatus.IN_DOUBT
    assert (await engine.step(1, "pay", {"effect": "money"}, "r")).status is StepStatus.IN_DOUBT
    for refused in (engine.step(1, "note"), engine.commit(), engine.rewind(1), engine.rollback()):
        with pytest.raises(PreconditionFailed) as error:
            await refused
        assert error.value.reason == "STEP_IN_DOUBT"
    assert engine.tools.count("pay") == 1
    await engine.crash()  # a doubt outlives every crash
    await engine.coordinator.start()
    assert (await engine.view()).record.status is TransactionStatus.IN_DOUBT
    await engine.assert_memory_equals_store()


# --- ResolveStep --------------------------------------------------------------------------


async def _in_doubt() -> Engine:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"output": {"id": 7}})
    await _crashed_in(engine, "pay", "money", 2)
    await engine.coordinator.start()
    return engine


def _say(engine: Engine, resolution: StepResolution, **fields: object) -> ResolveStepRequest:
    return ResolveStepRequest(engine.transaction_id, 2, resolution, **fields)  # type: ignore[arg-type]


@virtual_time
async def test_a_doubt_said_to_have_succeeded_completes_the_step_with_the_output_given() -> None:
    engine = await _in_doubt()
    said = _say(engine, StepResolution.SUCCEEDED, output_json='{"receipt": 5}', request_id="s")
    answer = await engine.coordinator.resolve_step(said)
    assert answer.result is not None
    assert (answer.result.status, answer.result.output) == (StepStatus.SUCCESS, '{"receipt":5}')
    assert answer.next_step_id == 3
    again = await engine.coordinator.resolve_step(said)
    assert again.result is not None
    assert again.result.replayed
    assert (await engine.step(2, "pay", {"effect": "money"}, "r")).output == '{"receipt":5}'
    follow = await engine.step(3, "note", {"put": {"kv/r": "${steps.2.receipt}"}})
    assert follow.status is StepStatus.SUCCESS
    with pytest.raises(PreconditionFailed) as error:
        await engine.rewind(1)
    assert error.value.reason == "IRREVERSIBLE_STEP"
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_doubt_said_to_have_failed_is_decided_on_like_any_failure() -> None:
    engine = await _in_doubt()
    said = _say(engine, StepResolution.FAILED, error="402 card declined")
    answer = await engine.coordinator.resolve_step(said)
    assert answer.result is not None
    assert answer.result.status is StepStatus.ROLLBACK_TRIGGERED
    assert answer.result.decision is not None
    assert answer.next_step_id == 1
    assert (await engine.step(2, "pay", {"effect": "money"}, "r")).status is StepStatus.ROLLBACK_TRIGGERED
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_doubt_to_be_tried_again_runs_as_the_same_attempt_under_the_same_key() -> None:
    engine = await _in_doubt()
    key = engine.tools.calls[-1].key
    answer = await engine.coordinator.resolve_step(_say(engine, StepResolution.RETRY))
    assert answer.result is not None
    assert answer.result.status is StepStatus.SUCCESS
    assert engine.tools.calls[-1].key == key
    assert engine.tools.calls[-1].attempt == 1
    assert (await engine.step(2, "pay", {"effect": "money"}, "r")).replayed
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_crash_while_a_doubt_is_tried_again_is_a_doubt_again() -> None:
    engine = await _in_doubt()
    gate = Gate()
    engine.tools.next("pay", hang(gate))
    retry = asyncio.ensure_future(engine.coordinator.resolve_step(_say(engine, StepResolution.RETRY)))
    await gate.reached()
    await engine.crash()
    assert retry.cancelled()
    await engine.coordinator.start()
    assert (await engine.record()).status is TransactionStatus.IN_DOUBT
    assert engine.tools.count("pay") == 2


@virtual_time
async def test_what_can_t_be_resolved_is_refused() -> None:
    engine = await _in_doubt()
    with pytest.raises(NotFound):
        await engine.coordinator.resolve_step(
            ResolveStepRequest(engine.transaction_id, 9, StepResolution.RETRY)
        )
    with pytest.raises(PreconditionFailed) as error:
        await engine.coordinator.resolve_step(
            ResolveStepRequest(engine.transaction_id, 1, StepResolution.RETRY)
        )
    assert error.value.reason == "STEP_NOT_IN_DOUBT"
    for bad in (
        _say(engine, StepResolution.SUCCEEDED, output_json="{"),
        _say(engine, StepResolution.SUCCEEDED, error="no"),
        _say(engine, StepResolution.RETRY, output_json="1"),
    ):
        with pytest.raises(InvalidRequest):
            await engine.coordinator.resolve_step(bad)
    with pytest.raises(PreconditionFailed) as error:
        await engine.coordinator.resolve_step(_say(engine, StepResolution.RETRY, generation=9))
    assert error.value.reason == "STALE_GENERATION"
    assert engine.tools.count("pay") == 1


@virtual_time
async def test_a_group_with_one_in_doubt_waits_for_it_and_keeps_what_its_siblings_did() -> None:
    engine = Engine()
    await engine.begin()
    engine.tools.next("wire", raise_error(OutcomeUnknown("no reply")))
    calls = (
        call("note", {"put": {"kv/a": 1}}, "g1"),
        call("wire", {}, "g2"),
        call("book", {"effect": "b"}, "g3"),
    )
    answers = await engine.group(1, *calls)
    assert [answer.status for answer in answers] == [
        StepStatus.SUCCESS,
        StepStatus.IN_DOUBT,
        StepStatus.SUCCESS,
    ]
    await engine.crash()
    await engine.coordinator.start()
    answer = await engine.coordinator.resolve_step(
        ResolveStepRequest(engine.transaction_id, 2, StepResolution.SUCCEEDED)
    )
    assert answer.next_step_id == 4
    assert [item.status for item in await engine.group(1, *calls)] == [StepStatus.SUCCESS] * 3
    assert engine.tools.count() == 3
    assert await engine.state("kv/a") == {"kv/a": 1}
    await engine.assert_memory_equals_store()


# --- CancelStep ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool_name", "status", "state"),
    [
        ("lookup", StepStatus.ROLLBACK_TRIGGERED, AttemptState.FAILED),
        ("upload", StepStatus.ROLLBACK_TRIGGERED, AttemptState.FAILED),
        ("book", StepStatus.ROLLBACK_TRIGGERED, AttemptState.FAILED),
        ("pay", StepStatus.IN_DOUBT, AttemptState.IN_DOUBT),
    ],
)
@virtual_time
async def test_a_cancelled_step_is_settled_as_one_whose_outcome_is_unknown(
    tool_name: str, status: StepStatus, state: AttemptState
) -> None:
    engine = Engine()
    await engine.begin()
    gate = Gate()
    engine.tools.next(tool_name, hang(gate, first=obey))
    arguments = {} if tool_name == "lookup" else {"effect": "x"}
    running = asyncio.ensure_future(engine.step(1, tool_name, arguments, "r"))
    await gate.reached()
    asked = CancelStepRequest(engine.transaction_id, 1, "enough", request_id="c")
    stopped = await engine.coordinator.cancel_step(asked)
    answer = await running
    assert (stopped.state, answer.status) == (state, status)
    assert stopped.next_step_id == answer.next_step_id
    assert engine.tools.count(tool_name) == 1  # never run again by itself
    assert await engine.coordinator.cancel_step(asked) == stopped
    if tool_name == "upload":
        assert [kept.tool_name for kept in answer.kept_effects] == ["upload"]
    if tool_name == "book":
        assert engine.tools.effects == []
    await engine.assert_memory_equals_store()


@virtual_time
async def test_only_the_member_named_is_cancelled() -> None:
    engine = Engine()
    await engine.begin()
    first, second = Gate(), Gate()
    engine.tools.next("lookup", hang(first))
    engine.tools.next("book", hang(second))
    running = asyncio.ensure_future(
        engine.group(1, call("lookup", {}, "a"), call("book", {"effect": "x"}, "b"))
    )
    await first.reached()
    await second.reached()
    stopping = asyncio.ensure_future(
        engine.coordinator.cancel_step(CancelStepRequest(engine.transaction_id, 1))
    )
    await idle()
    assert not running.done()
    second.open()
    answers = await running
    assert (await stopping).state is AttemptState.FAILED
    assert answers[0].hint is not None
    assert answers[0].hint.category == "cancelled"
    assert answers[1].rewound
    assert engine.tools.effects == []


@virtual_time
async def test_a_step_that_does_not_run_can_t_be_cancelled() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note")
    for step_id in (1, 2):
        with pytest.raises(PreconditionFailed) as error:
            await engine.coordinator.cancel_step(CancelStepRequest(engine.transaction_id, step_id))
        assert error.value.reason == "STEP_NOT_EXECUTING"


@virtual_time
async def test_a_tool_that_outlives_its_cancellation_is_undone_then_and_once_more_when_it_ends() -> None:
    engine = Engine(settings=EngineSettings(stop_grace_seconds=5))
    await engine.begin()
    gate = Gate()

    async def book_late(run: ToolRun) -> object:
        await run.register_undo("room")
        return await ignore_cancellation(gate, first=None)(run)

    engine.tools.next("book", book_late)
    running = asyncio.ensure_future(engine.step(1, "book", {"effect": "room"}, "r", timeout=1))
    assert (await running).status is StepStatus.ROLLBACK_TRIGGERED
    assert engine.tools.undo_order == ["room"]
    assert (await engine.step(1, "note")).status is StepStatus.SUCCESS  # the agent goes on meanwhile
    gate.open()
    await idle()
    assert engine.tools.undo_order == ["room", "room"]
    assert engine.tools.effects == []
    await engine.assert_memory_equals_store()


@virtual_time
async def test_undo_that_waits_for_a_late_tool_is_run_by_the_next_server_if_this_one_dies() -> None:
    engine = Engine(settings=EngineSettings(stop_grace_seconds=5))
    await engine.begin()
    gate = Gate()

    async def book_late(run: ToolRun) -> object:
        await run.register_undo("room")
        run.cause("room")
        return await ignore_cancellation(gate, first=None)(run)

    engine.tools.next("book", book_late)
    assert (await engine.step(1, "book", {}, "r", timeout=1)).status is StepStatus.ROLLBACK_TRIGGERED
    assert (await engine.record()).owner
    gate.open()
    await engine.crash()
    undone = len(engine.tools.undone)
    await engine.coordinator.start()
    assert len(engine.tools.undone) == undone + 1
    assert (await engine.record()).owner == ""
    assert all(undo.state is UndoState.DONE for undo in (await engine.rebuilt()).undo.values())


# --- policy, holds, failures --------------------------------------------------------------


@virtual_time
async def test_under_crash_policy_abort_an_open_transaction_is_compensated_and_ended() -> None:
    engine = Engine()
    idle_one = await engine.begin(crash_policy=CrashPolicy.ABORT)
    await engine.step(1, "book", {"effect": "room"})
    ended = await engine.begin(crash_policy=CrashPolicy.ABORT)
    await engine.step(1, "note")
    await engine.commit()
    resumed = await engine.begin()
    await engine.step(1, "book", {"effect": "table"})
    paying = await engine.begin(crash_policy=CrashPolicy.ABORT)
    await _crashed_in(engine, "pay", "money")
    await engine.coordinator.start()
    assert (await engine.record(idle_one)).status is TransactionStatus.ROLLED_BACK
    assert (await engine.record(ended)).status is TransactionStatus.COMMITTED
    assert (await engine.record(resumed)).status is TransactionStatus.ACTIVE
    record = await engine.record(paying)
    assert record.status is TransactionStatus.ROLLED_BACK
    assert [kept.tool_name for kept in record.kept_effects] == ["pay"]
    assert engine.tools.effects == ["money", "table"]
    assert "crash policy" in record.abort_reason


@virtual_time
async def test_a_transaction_that_aborts_at_crashes_is_left_alone_while_its_server_lives() -> None:
    engine = Engine()
    await engine.begin(crash_policy=CrashPolicy.ABORT)
    await engine.step(1, "book", {"effect": "room"})
    engine.memory.fail_next_write(applied=False)
    await outcome_of(engine.step(2, "book", {"effect": "table"}, "r"))
    await idle()
    assert (await engine.step(2, "book", {"effect": "table"}, "r")).status is StepStatus.SUCCESS
    await engine.coordinator.start()
    await engine.coordinator.stop()  # a stop in order is no crash
    engine.restart()
    await engine.coordinator.start()
    assert (await engine.record()).status is TransactionStatus.ACTIVE


@virtual_time
async def test_an_undo_that_fails_in_recovery_holds_the_transaction() -> None:
    engine = Engine()
    await engine.begin()
    engine.tools.break_undo("room")
    await _crashed_in(engine, "book", "room")
    await engine.coordinator.start()
    view = await engine.view()
    assert view.record.status is TransactionStatus.ROLLING_BACK
    assert [undo.step_id for undo in view.undo_failed] == [1]
    with pytest.raises(PreconditionFailed) as error:
        await engine.step(1, "book", {"effect": "room"}, "s")
    assert error.value.reason == "ROLLBACK_INCOMPLETE"
    assert engine.tools.count("book") == 1
    engine.tools.break_undo("room", 0)
    assert not (await engine.rewind(1)).rollback_incomplete
    assert engine.tools.effects == []
    assert (await engine.step(1, "book", {"effect": "room"}, "r")).status is StepStatus.SUCCESS
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_doubt_beside_a_step_whose_undo_is_held_is_resolved_after_that() -> None:
    engine = Engine()
    await engine.begin()
    gate = Gate()
    resolution = ResolveStepRequest(engine.transaction_id, 1, StepResolution.SUCCEEDED)
    engine.tools.next("wire", raise_error(OutcomeUnknown("no reply")))
    engine.tools.next("book", hang(gate, first=obey))
    engine.tools.break_undo("room")
    calls = (call("wire", {}, "g1"), call("book", {"effect": "room"}, "g2"))
    running = asyncio.ensure_future(engine.group(1, *calls))
    await gate.reached()
    await asyncio.sleep(2)
    await engine.crash()
    assert running.cancelled()
    await engine.coordinator.start()
    with pytest.raises(PreconditionFailed) as error:
        await engine.coordinator.resolve_step(resolution)
    assert error.value.reason == "ROLLBACK_INCOMPLETE"
    engine.tools.break_undo("room", 0)
    held = (await engine.view()).undo_failed[0]
    await engine.coordinator.retry_compensation(
        RetryCompensationRequest(engine.transaction_id, str(held.sequence))
    )
    await engine.coordinator.resolve_step(resolution)
    answers = await engine.group(1, *calls)
    assert [item.status for item in answers] == [StepStatus.SUCCESS] * 2
    assert (engine.tools.count("wire"), engine.tools.count("book")) == (1, 2)
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_group_cut_off_keeps_what_was_done_and_waits_for_the_rest() -> None:
    engine = Engine()
    await engine.begin()
    gate = Gate()
    engine.tools.next("upload", hang(gate, first=obey))
    engine.tools.next("lookup", hang(gate))
    calls = (
        call("note", {"put": {"kv/a": 1}}, "g1"),
        call("upload", {"effect": "file"}, "g2"),
        call("lookup", {}, "g3"),
    )
    running = asyncio.ensure_future(engine.group(1, *calls))
    await gate.reached()
    await idle()
    await engine.crash()
    assert running.cancelled()
    await engine.coordinator.start()
    record = await engine.record()
    assert (record.status, record.open_group, record.owner) == (TransactionStatus.ACTIVE, (1, 3), "")
    assert engine.tools.count("upload") == 2  # its intent was recorded: it is run to its end
    answers = await engine.group(1, *calls)
    assert [answer.status for answer in answers] == [StepStatus.SUCCESS] * 3
    assert (engine.tools.count("note"), engine.tools.count("upload")) == (1, 2)
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_transaction_that_can_t_be_recovered_is_listed_and_tried_again() -> None:
    engine = Engine()
    await engine.begin()
    await _crashed_in(engine, "upload", "file")
    engine.tools.add(engine.tools.describe("upload"))  # type: ignore[arg-type]
    broken = engine.store.load

    async def fail(*_: object) -> None:
        raise ValueError("a row that can't be read")

    engine.memory.load = fail  # type: ignore[method-assign,assignment]
    await engine.coordinator.start()
    assert "ValueError" in engine.memory.database.unrecovered[engine.transaction_id]
    listed = await engine.store.list_transactions(TransactionFilter(), "", 10)
    assert "ValueError" in listed.unrecovered[engine.transaction_id]
    engine.memory.load = broken  # type: ignore[method-assign]
    await asyncio.sleep(60)
    assert engine.memory.database.unrecovered == {}
    assert (await engine.step(1, "upload", {"effect": "file"}, "r")).replayed


# --- expiry -------------------------------------------------------------------------------


@virtual_time
async def test_an_idle_transaction_is_rolled_back_and_one_in_use_is_not() -> None:
    engine = Engine(settings=EngineSettings(idle_timeout_seconds=60, reap_interval_seconds=5))
    await engine.coordinator.start()
    forgotten = await engine.begin()
    await engine.step(1, "book", {"effect": "room"})
    never = await engine.begin(idle_timeout_us=0)
    used = await engine.begin()
    for step in range(1, 5):
        await asyncio.sleep(40)
        await engine.step(step, "note", transaction_id=used)
    record = await engine.record(forgotten)
    assert record.status is TransactionStatus.ROLLED_BACK
    assert "idle" in record.abort_reason
    assert engine.tools.effects == []
    assert (await engine.record(never)).status is TransactionStatus.ACTIVE
    assert (await engine.record(used)).status is TransactionStatus.ACTIVE
    await engine.coordinator.stop()


@virtual_time
async def test_an_outage_lets_nothing_expire() -> None:
    engine = Engine(settings=EngineSettings(idle_timeout_seconds=60, reap_interval_seconds=5))
    await engine.begin()
    await engine.step(1, "note")
    await asyncio.sleep(3600)
    await engine.crash()
    await engine.coordinator.start()
    await asyncio.sleep(50)
    assert (await engine.record()).status is TransactionStatus.ACTIVE
    await asyncio.sleep(30)
    assert (await engine.record()).status is TransactionStatus.ROLLED_BACK
    await engine.coordinator.stop()


@virtual_time
async def test_a_deadline_ends_a_transaction_also_while_a_step_runs() -> None:
    engine = Engine(settings=EngineSettings(reap_interval_seconds=5, idle_timeout_seconds=0))
    await engine.coordinator.start()
    await engine.begin(deadline_us=20_000_000)
    gate = Gate()
    engine.tools.next("book", hang(gate, first=obey))
    running = asyncio.ensure_future(engine.step(1, "book", {"effect": "x"}, "r", timeout=3600))
    await asyncio.sleep(30)
    assert (await running).status is StepStatus.FAILED
    record = await engine.record()
    assert (record.status, record.abort_reason) == (TransactionStatus.ROLLED_BACK, "its deadline passed")
    assert engine.tools.effects == []
    await engine.coordinator.stop()


@virtual_time
async def test_a_deadline_waits_for_the_person_whom_a_doubt_waits_for() -> None:
    engine = Engine(settings=EngineSettings(reap_interval_seconds=5))
    await engine.coordinator.start()
    await engine.begin(deadline_us=20_000_000)
    engine.tools.next("pay", raise_error(OutcomeUnknown("no reply")))
    assert (await engine.step(1, "pay", {})).status is StepStatus.IN_DOUBT
    await asyncio.sleep(60)
    assert (await engine.record()).status is TransactionStatus.IN_DOUBT
    await engine.coordinator.resolve_step(
        ResolveStepRequest(engine.transaction_id, 1, StepResolution.SUCCEEDED)
    )
    await asyncio.sleep(10)
    record = await engine.record()
    assert record.status is TransactionStatus.ROLLED_BACK
    assert [kept.tool_name for kept in record.kept_effects] == ["pay"]
    await engine.coordinator.stop()


@virtual_time
async def test_ended_transactions_are_deleted_after_their_retention() -> None:
    engine = Engine(settings=EngineSettings(retention_seconds=100, reap_interval_seconds=5))
    await engine.coordinator.start()
    ended = await engine.begin()
    await engine.step(1, "note", {"put": {"kv/a": 1}})
    await engine.commit()
    going_on = await engine.begin()
    await asyncio.sleep(90)
    assert (await engine.record(ended)).status is TransactionStatus.COMMITTED
    await asyncio.sleep(20)
    with pytest.raises(NotFound):
        await engine.view(ended)
    assert await engine.committed("kv/a") == 1
    assert (await engine.view(going_on)).record.status is TransactionStatus.ACTIVE
    await engine.coordinator.stop()


@virtual_time
async def test_more_open_transactions_than_the_quota_are_refused_and_a_repeated_begin_is_not() -> None:
    engine = Engine(limits=Limits(open_per_principal=2, open_transactions=3))
    first = await engine.coordinator.begin(BeginRequest("a", request_id="one"))
    await engine.begin(principal="p")
    await engine.begin()
    for principal in ("anonymous", "q"):
        with pytest.raises(LimitExceeded) as error:
            await engine.coordinator.begin(BeginRequest("a", principal=principal))
        assert error.value.reason == "QUOTA_EXCEEDED"
    assert await engine.coordinator.begin(BeginRequest("a", request_id="one")) == first
    await engine.rollback(transaction_id=first.transaction_id)
    await engine.begin()
