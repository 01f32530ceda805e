"""A database that fails at any write: nothing is undone wrongly, and a retry settles what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.engine_harness import Engine, call, outcome_of
from tests.support.memory_store import Gate
from tests.support.scripted_tools import ToolRun, hang, ignore_cancellation, obey
from tests.support.virtual_time import current_loop, idle, virtual_time

from agenttx_server.engine.errors import CommitConflict, EngineError, PreconditionFailed, Unavailable
from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.engine.records import AttemptState, EffectState, StepResolution, TransactionStatus
from agenttx_server.engine.requests import (
    BeginRequest,
    ResolveStepAnswer,
    ResolveStepRequest,
    StepAnswer,
    StepStatus,
)

FAILURE = {"category": "missing_record", "message": "no such room", "keys": ["room"]}


async def _prepared() -> Engine:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"put": {"kv/a": 1}, "output": {"room": "r-1"}})
    await engine.step(2, "book", {"effect": "room", "stage": [["mail", "m"], ["sms", "s"]]})
    return engine


CALLS: dict[str, Callable[[Engine], Awaitable[Any]]] = {
    "read": lambda engine: engine.step(3, "lookup", {"get": ["kv/a"]}, "r"),
    "write": lambda engine: engine.step(3, "note", {"put": {"kv/a": 2}, "stage": [["mail", "n"]]}, "r"),
    "prompt": lambda engine: engine.step(3, "jot", {"put": {"kv/a": 2}, "stage": [["mail", "n"]]}, "r"),
    "upload": lambda engine: engine.step(3, "upload", {"effect": "file"}, "r"),
    "book": lambda engine: engine.step(3, "book", {"effect": ["table", "chair"]}, "r"),
    "pay": lambda engine: engine.step(3, "pay", {"effect": "money"}, "r"),
    "failure": lambda engine: engine.step(3, "book", {"room": "r-1", "effect": "x", "fail": FAILURE}, "r"),
    "group": lambda engine: engine.group(
        3,
        call("book", {"effect": "b"}, "r"),
        call("note", {"put": {"kv/b": 1}}, "s"),
        call("lookup", {}, "t"),
    ),
    "failing group": lambda engine: engine.group(
        3, call("note", {"put": {"kv/b": 1}}, "r"), call("book", {"effect": "b", "fail": "no"}, "s")
    ),
    "rewind": lambda engine: engine.rewind(2, request_id="r"),
    "rewind without undo": lambda engine: engine.rewind(3, request_id="r"),
    "rollback": lambda engine: engine.rollback(request_id="r"),
    "commit": lambda engine: engine.commit("r"),
}
TAKES_BACK = {"failure", "failing group", "rewind", "rollback"}


async def _facts(engine: Engine) -> dict[str, Any]:
    record = await engine.record()
    return {
        "effects": engine.tools.effects,
        "staged": [(effect.channel, effect.state) for effect in await _effects(engine)],
        "state": await engine.state("kv/a", "kv/b"),
        "committed": engine.memory.database.committed,
        "live": [
            (item.step_id, item.state, item.output)
            for item in await engine.live_attempts()
            if item.state is not AttemptState.SUPERSEDED
        ],
        "status": record.status,
        "next": record.next_step_id,
        "generation": record.generation,
        "failures": record.failures,
        "constraints": record.constraints,
        "budget": record.budget_spent,
        "group": record.open_group,
        "pending": record.pending_rewind,
    }


async def _effects(engine: Engine) -> list[Any]:
    return list(await engine.store.list_effects(engine.transaction_id, frozenset()))


async def _settled(engine: Engine, send: Callable[[Engine], Awaitable[Any]]) -> Any:
    """Send the call again; where that is in doubt say what became of it, as a person would who looked."""
    again = await send(engine)
    if not isinstance(again, StepAnswer) or again.status is not StepStatus.IN_DOUBT:
        return again
    happened = "money" in engine.tools.effects
    resolution = StepResolution.SUCCEEDED if happened else StepResolution.RETRY
    return await engine.coordinator.resolve_step(
        ResolveStepRequest(engine.transaction_id, 3, resolution, '{"ok":true}' if happened else "")
    )


def _members(answer: Any) -> list[Any]:
    return list(answer) if isinstance(answer, tuple) else [answer]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("name", CALLS)
@virtual_time
async def test_a_retry_after_any_failed_write_settles_what_happened(name: str, applied: bool) -> None:
    engine = await _prepared()
    start = engine.memory.write_count
    answer = await CALLS[name](engine)
    expected = await _facts(engine)
    writes = engine.memory.write_count - start
    assert writes >= 1
    for number in range(1, writes + 1):
        where = f"write {number} of {writes}"
        engine = await _prepared()
        engine.memory.fail_write(engine.memory.write_count + number, applied=applied)
        failed = await outcome_of(CALLS[name](engine))
        # In a group a sibling's write may be refused first, as one behind the failed one: it begins anew by itself.
        assert isinstance(failed, Unavailable) or "group" in name, where
        if name not in TAKES_BACK and isinstance(failed, Unavailable):
            assert engine.tools.undone == [], where
        await idle()
        await engine.assert_memory_equals_store()
        again = await _settled(engine, CALLS[name])
        assert await _facts(engine) == expected, where
        if not isinstance(again, ResolveStepAnswer):
            for one, two in zip(_members(answer), _members(again), strict=True):
                for field in ("status", "next_step_id", "generation", "output", "strategy", "rewound"):
                    assert getattr(one, field, None) == getattr(two, field, None), (where, field)
                assert not getattr(two, "rollback_incomplete", False), where
        await engine.assert_memory_equals_store()


@pytest.mark.parametrize("name", CALLS)
@virtual_time
async def test_a_server_that_dies_at_any_write_leaves_what_the_next_one_can_go_on_with(name: str) -> None:
    engine = await _prepared()
    start = engine.memory.write_count
    await CALLS[name](engine)
    expected = await _facts(engine)
    writes = engine.memory.write_count - start
    for number in range(1, writes + 1):
        where = f"write {number} of {writes}"
        engine = await _prepared()
        held = engine.memory.hold_write(engine.memory.write_count + number)
        caller = asyncio.ensure_future(CALLS[name](engine))
        await held.reached()
        await engine.crash()
        assert caller.cancelled(), where
        await _settled(engine, CALLS[name])
        assert await _facts(engine) == expected, where
        await engine.assert_memory_equals_store()


@pytest.mark.parametrize("applied", [False, True])
@virtual_time
async def test_begin_after_a_failed_write_opens_one_transaction(applied: bool) -> None:
    engine = Engine()
    engine.memory.fail_next_write(applied=applied)
    request = BeginRequest("agent", request_id="b")
    with pytest.raises(Unavailable):
        await engine.coordinator.begin(request)
    answer = await engine.coordinator.begin(request)
    assert [*engine.memory.database.transactions] == [answer.transaction_id]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("applied", [False, True])
@virtual_time
async def test_a_commit_conflict_after_any_failed_write_is_told_in_the_end(
    number: int, applied: bool
) -> None:
    engine = await _prepared()
    engine.memory.refuse_commits_with("kv/a")
    engine.memory.fail_write(engine.memory.write_count + number, applied=applied)
    with pytest.raises((Unavailable, CommitConflict)):
        await engine.commit("c")
    for _ in range(2):
        with pytest.raises(CommitConflict) as conflict:
            await engine.commit("c")
        assert conflict.value.metadata["key"] == "kv/a"
    assert (await engine.record()).status is TransactionStatus.FAILED
    assert engine.tools.effects == []
    assert engine.sink.tried == []


# --- inside a tool ------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [False, True])
@virtual_time
async def test_an_undo_that_could_not_be_written_is_no_failure_of_the_step(applied: bool) -> None:
    engine = await _prepared()
    engine.memory.fail_write(engine.memory.write_count + 2, applied=applied)
    with pytest.raises(Unavailable):
        await engine.step(3, "book", {"effect": "table"})
    assert engine.tools.undone == []
    assert (await engine.record()).failures == ()


@pytest.mark.parametrize("applied", [False, True])
@virtual_time
async def test_a_tool_that_shrugs_at_an_unwritten_undo_is_not_believed(applied: bool) -> None:
    async def shrug(run: ToolRun) -> Any:
        try:
            await run.register_undo("table")
        except StoreUnavailable:
            run.cause("table")
        return {"ok": True}

    engine = await _prepared()
    engine.tools.next("book", shrug)
    engine.memory.fail_write(engine.memory.write_count + 2, applied=applied)
    with pytest.raises(Unavailable):
        await engine.step(3, "book")
    assert [item.step_id for item in await engine.live_attempts() if item.state == "COMPLETED"] == [1, 2]


@pytest.mark.parametrize("method", ["read_state", "scan_state"])
@virtual_time
async def test_a_read_that_fails_inside_a_tool_is_no_failure_of_the_step(method: str) -> None:
    engine = await _prepared()
    engine.memory.fail_reads(method)
    with pytest.raises(Unavailable):
        await engine.step(3, "note", {"get": ["kv/a"], "scan": ["kv/"]}, "r")
    engine.memory.fail_reads()
    assert (await engine.record()).failures == ()
    assert (
        await engine.step(3, "note", {"get": ["kv/a"], "scan": ["kv/"]}, "r")
    ).status is StepStatus.SUCCESS


@virtual_time
async def test_a_tool_whose_intent_to_run_long_could_not_be_written_is_stopped() -> None:
    told: list[str] = []

    async def run_long(run: ToolRun) -> Any:
        try:
            await Gate().wait()
        except asyncio.CancelledError:
            told.append("stop")
            raise

    engine = await _prepared()
    engine.tools.next("note", run_long)
    engine.memory.fail_next_write(applied=False)
    with pytest.raises(Unavailable):
        await engine.step(3, "note", None, "r")
    assert told == ["stop"]
    assert (await engine.step(3, "note", None, "r")).status is StepStatus.SUCCESS
    assert await engine.coordinator.drain(0) == 0


@virtual_time
async def test_one_that_does_not_stop_is_waited_for_by_the_drain() -> None:
    gate = Gate()
    engine = await _prepared()
    engine.tools.next("note", ignore_cancellation(gate))
    engine.memory.fail_next_write(applied=False)
    with pytest.raises(Unavailable):
        await engine.step(3, "note")
    assert await engine.coordinator.drain(1) == 1
    gate.open()
    assert await engine.coordinator.drain(1) == 0


@virtual_time
async def test_members_of_a_group_whose_sibling_could_not_be_written_are_waited_for() -> None:
    gate = Gate()
    engine = await _prepared()
    engine.tools.next("lookup", hang(gate))
    engine.memory.fail_next_write(applied=False)
    calls = (call("note", {"put": {"kv/b": 1}}, "g1"), call("lookup", None, "g2"))
    running = asyncio.ensure_future(engine.group(3, *calls))
    await gate.reached()
    await idle()
    current_loop().call_later(0.5, gate.open)
    with pytest.raises(Unavailable):
        await running
    answers = await engine.group(3, *calls)
    assert [answer.status for answer in answers] == [StepStatus.SUCCESS] * 2
    assert await engine.state("kv/b") == {"kv/b": 1}


# --- reads --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["load", "find_attempt", "find_response", "list_attempts", "load_output", "list_effects"]
)
@pytest.mark.parametrize("name", CALLS)
@virtual_time
async def test_a_failed_read_makes_the_call_unavailable_and_the_retry_good(name: str, method: str) -> None:
    engine = await _prepared()
    await CALLS[name](engine)
    expected = await _facts(engine)
    engine = await _prepared()
    engine.restart()
    engine.memory.fail_reads(method)
    failed = await outcome_of(CALLS[name](engine))
    assert not isinstance(failed, EngineError) or isinstance(failed, Unavailable)
    engine.memory.fail_reads()
    await CALLS[name](engine)
    assert await _facts(engine) == expected
    await engine.assert_memory_equals_store()


@virtual_time
async def test_reads_are_unavailable_while_the_database_is() -> None:
    engine = await _prepared()
    engine.memory.fail_reads("load_record")
    with pytest.raises(Unavailable) as error:
        await engine.view()
    assert error.value.reason == "DATABASE_UNAVAILABLE"
    engine.memory.fail_reads()
    assert (await engine.view()).record.status is TransactionStatus.ACTIVE


@virtual_time
async def test_a_call_that_finds_the_lock_taken_and_the_database_away_is_unavailable() -> None:
    engine = await _prepared()
    await engine.crash()
    await engine.coordinator.start()
    engine.memory.fail_reads("load", "load_record")
    first, second = engine.step(3, "note", {}, "a"), engine.step(3, "note", {}, "b")
    answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]


# --- after a crash ------------------------------------------------------------------------


@virtual_time
async def test_a_rewind_cut_off_in_its_undo_is_finished_by_the_next_call() -> None:
    engine = await _prepared()
    await engine.step(3, "book", {"effect": "table"})
    held = engine.memory.hold_write(engine.memory.write_count + 3)  # after the first undo is recorded
    rewind = asyncio.ensure_future(engine.rewind(2, request_id="w"))
    await held.reached()
    await engine.crash()
    assert rewind.cancelled()
    assert (await engine.record()).status is TransactionStatus.ROLLING_BACK
    # Whatever comes next finishes it first: no undo runs after a later forward step.
    assert (await engine.step(2, "note", {"put": {"kv/a": 5}})).generation == 2
    assert engine.tools.effects == []
    assert engine.tools.undo_order == ["table", "room", "room"]
    assert (await engine.rewind(2, request_id="w")).next_step_id == 2
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_failure_cut_off_in_its_undo_gives_its_answer_to_the_retry() -> None:
    engine = await _prepared()
    held = engine.memory.hold_write(engine.memory.write_count + 4)
    arguments = {"effect": "table", "fail": "no"}
    failing = asyncio.ensure_future(engine.step(3, "book", arguments, "r"))
    await held.reached()
    await engine.crash()
    assert failing.cancelled()
    answer = await engine.step(3, "book", arguments, "r")
    assert (answer.status, answer.next_step_id) == (StepStatus.ROLLBACK_TRIGGERED, 2)
    assert not answer.rollback_incomplete
    assert engine.tools.count("book", step_id=3) == 1
    assert engine.tools.effects == []


@virtual_time
async def test_a_compensatable_step_found_executing_is_undone_and_run_again_before_anything_else() -> None:
    engine = await _prepared()
    gate = Gate()
    engine.tools.next("book", hang(gate, first=obey))
    running = asyncio.ensure_future(engine.step(3, "book", {"effect": "table"}, "r"))
    await gate.reached()
    first_key = engine.tools.calls[-1].key
    await engine.crash()
    assert running.cancelled()
    with pytest.raises(PreconditionFailed) as error:  # whoever comes first has it settled
        await engine.step(3, "note", None, "s")
    assert error.value.reason == "STEP_OUT_OF_ORDER"
    assert engine.tools.undo_order == ["table"]
    assert engine.tools.effects == ["room", "table"]
    assert engine.tools.calls[-1].key != first_key
    answer = await engine.step(3, "book", {"effect": "table"}, "r")
    assert (answer.status, answer.attempt, answer.replayed) == (StepStatus.SUCCESS, 2, True)
    assert engine.tools.count("book", 3) == 2
    await engine.assert_memory_equals_store()


@virtual_time
async def test_an_irreversible_step_found_executing_needs_a_word_to_be_passed() -> None:
    engine = await _prepared()
    gate = Gate()
    engine.tools.next("pay", hang(gate, first=obey))
    paying = asyncio.ensure_future(engine.step(3, "pay", {"effect": "money"}, "r"))
    await gate.reached()
    await engine.crash()
    assert paying.cancelled()
    with pytest.raises(PreconditionFailed) as error:
        await engine.rewind(3)
    assert error.value.reason == "STEP_IN_DOUBT"
    rewound = await engine.rewind(3, accept_irreversible=True)
    assert [kept.tool_name for kept in rewound.kept_effects] == ["pay"]
    with pytest.raises(PreconditionFailed) as error:
        await engine.step(3, "pay", {"effect": "money"}, "r")
    assert error.value.reason == "STALE_GENERATION"
    assert engine.tools.count("pay") == 1


@virtual_time
async def test_effects_of_a_commit_that_was_cut_off_are_delivered_by_its_retry() -> None:
    engine = await _prepared()
    gate = engine.sink.hold("mail")
    committing = asyncio.ensure_future(engine.commit("c"))
    await gate.reached()
    await engine.crash()
    assert committing.cancelled()
    assert (await engine.record()).status is TransactionStatus.COMMITTED
    gate.open()
    answer = await engine.commit("c")
    assert (answer.steps_committed, answer.effects_dispatched, answer.effects_pending) == (2, 2, 0)
    assert (answer.keys_published, answer.commit_version) == (1, 1)
    assert await engine.effect_states() == [EffectState.DELIVERED] * 2
    assert await engine.commit("c") == answer
    with pytest.raises(PreconditionFailed):
        await engine.commit("another")
