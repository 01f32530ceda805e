"""Servers that are behind, outlived tools and open groups over several servers: what simulated histories found."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.engine_harness import Engine, call, outcome_of
from tests.support.memory_store import Gate, MemoryDatabase
from tests.support.scripted_tools import ToolRun, fail_with, hang, ignore_cancellation, obey
from tests.support.virtual_time import idle, virtual_time

from agenttx_server.engine.errors import EngineError, PreconditionFailed, Unavailable
from agenttx_server.engine.ports import StoreUnavailable, WriteReceipt, WriteSet
from agenttx_server.engine.records import (
    AttemptState,
    EffectClass,
    OnUndoFailure,
    ServerId,
    TransactionId,
    TransactionStatus,
)
from agenttx_server.engine.requests import CancelStepRequest, StepStatus
from agenttx_server.engine.services import EngineSettings

SETTINGS = EngineSettings(lease_seconds=10, stop_grace_seconds=1, compensation_retries=1)


@asynccontextmanager
async def _servers() -> AsyncIterator[tuple[Engine, Engine]]:
    """Two servers of one database and one world, with a transaction begun."""
    database = MemoryDatabase()
    one, two = (
        Engine(database=database, is_shared=True, name=name, settings=SETTINGS) for name in ("one", "two")
    )
    two.tools.world = one.tools.world
    for engine in (one, two):
        await engine.coordinator.start()
    two.transaction_id = await one.begin()
    yield one, two
    for engine in (one, two):
        await engine.coordinator.stop()


async def _deaf_after_undo(run: ToolRun, gate: Gate) -> object:
    await run.register_undo("room")
    await ignore_cancellation(gate)(run)
    run.cause("room")
    return {}


@virtual_time
async def test_a_member_writes_nothing_on_the_row_that_another_server_wrote_meanwhile() -> None:
    async with _servers() as (one, two):
        await two.step(1, "note")
        await one.step(2, "note")  # the other one is behind by one write now
        answers = await two.group(
            3, *(call("book", {"effect": f"e{number}"}, f"r{number}") for number in range(3))
        )
        assert {answer.status for answer in answers} == {StepStatus.SUCCESS}
        assert [event.sequence for event in await one.store.list_events(one.transaction_id, 1, 100)] == list(
            range(1, 10)
        )
        assert one.tools.effects == ["e0", "e1", "e2"]


@virtual_time
async def test_a_step_that_comes_late_is_refused_though_another_server_never_stops_writing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _servers() as (one, two):
        await two.step(1, "note")
        done = 1
        load_revision = one.store.load_revision

        async def outrun(transaction_id: TransactionId) -> int:
            nonlocal done
            done += 1
            await two.step(done, "note")
            return await load_revision(transaction_id)

        monkeypatch.setattr(one.store, "load_revision", outrun)
        with pytest.raises(PreconditionFailed) as refused:
            await one.step(1, "note")
        assert refused.value.reason == "STEP_OUT_OF_ORDER"
        assert done < 8


@virtual_time
async def test_members_that_register_at_once_over_a_shared_database_get_numbers_of_their_own() -> None:
    async with _servers() as (one, _):
        await one.group(1, *(call("book", {"effect": [f"a{number}", f"b{number}"]}) for number in range(4)))
        assert sorted((await one.rebuilt()).undo) == list(range(1, 9))
        await one.rollback()
        assert one.tools.effects == []


@virtual_time
async def test_an_idempotent_member_that_loses_a_conflict_is_named() -> None:
    engine = Engine(settings=SETTINGS)
    await engine.begin()
    lost = call("upload", {"effect": "file", "put": {"kv/a": 2}})
    answers = await engine.group(1, call("note", {"put": {"kv/a": 1}}), lost)
    assert [answer.status for answer in answers] == [StepStatus.SUCCESS, StepStatus.ROLLBACK_TRIGGERED]
    kept = (await engine.record()).kept_effects
    assert [(item.step_id, item.effect_class) for item in kept] == [(2, EffectClass.IDEMPOTENT)]
    assert engine.tools.effects == ["file"]


@virtual_time
async def test_what_stands_is_not_undone_because_its_server_stood_still() -> None:
    async with _servers() as (one, two):
        gate = Gate()
        one.tools.next("book", obey, hang(gate))
        first, second = call("book", {"effect": "room"}, "r1"), call("book", {"effect": "seat"}, "r2")
        running = asyncio.ensure_future(one.group(1, first, second))
        await gate.reached()
        for task in one.coordinator._background:
            task.cancel()
        await asyncio.sleep(25)  # its lease ends; the other one settles the second member, and runs it again
        await one.coordinator._lease.renew()
        gate.open()
        answers = await running
        assert {answer.status for answer in answers} == {StepStatus.SUCCESS}
        await idle()
        assert one.tools.effects == ["room", "seat"]
        assert "room" not in one.tools.undo_order + two.tools.undo_order


@virtual_time
async def test_a_retried_undo_runs_on_no_server_that_is_behind() -> None:
    async with _servers() as (one, two):
        await one.step(1, "book", {"effect": "room"})
        one.tools.break_undo("room", times=1)
        assert (await one.rewind(1)).rollback_incomplete
        assert await two.undo_states()
        held = await outcome_of(two.step(1, "note"))
        assert isinstance(held, PreconditionFailed)
        assert held.reason == "ROLLBACK_INCOMPLETE"
        done = await one.retry_undo(1, "retry")
        await one.step(1, "book", {"effect": "table"})
        assert await two.retry_undo(1, "retry") == done
        assert two.tools.undone == []


@virtual_time
async def test_an_undo_that_is_retried_is_waited_for_by_other_servers() -> None:
    async with _servers() as (one, two):
        await one.step(1, "book", {"effect": "room"})
        one.tools.break_undo("room", times=1)
        await one.rewind(1)
        gate = one.tools.hold_undo("room")
        retrying = asyncio.ensure_future(one.retry_undo(1))
        await gate.reached()
        other = asyncio.ensure_future(outcome_of(two.step(1, "note")))
        await asyncio.sleep(2)
        assert not other.done()
        gate.open()
        assert not (await retrying).rollback_incomplete
        assert (await other).status is StepStatus.SUCCESS
        assert (await one.record()).owner == ""


@virtual_time
async def test_a_step_that_left_nothing_was_not_stopped() -> None:
    engine = Engine(settings=SETTINGS)
    await engine.begin()
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    running = asyncio.ensure_future(outcome_of(engine.step(1, "lookup", None, "r")))
    await gate.reached()
    engine.memory.fail_next_write(applied=False)
    cancelling = engine.coordinator.cancel_step(CancelStepRequest(engine.transaction_id, 1, request_id="c"))
    refused = await outcome_of(cancelling)
    assert isinstance(refused, EngineError)
    assert refused.reason == "STEP_NOT_EXECUTING"
    await running


@pytest.mark.parametrize("step_by", ["the other", "itself"])
@virtual_time
async def test_undo_of_a_tool_that_outlives_its_step_runs_at_its_end_whoever_worked_meanwhile(
    step_by: str,
) -> None:
    async with _servers() as (one, two):
        gate = Gate()
        one.tools.next("book", lambda run: _deaf_after_undo(run, gate))
        failed = await one.step(1, "book", {"effect": "room"}, timeout=1)
        assert failed.status is StepStatus.ROLLBACK_TRIGGERED
        worker = two if step_by == "the other" else one
        await worker.step(1, "note", {"put": {"kv/a": 1}})
        await worker.commit()
        await asyncio.sleep(5)
        gate.open()
        await asyncio.sleep(5)
        assert one.tools.effects == []
        assert one.tools.timeline[-2].startswith("undo room") or one.tools.timeline[-1] == "undo room"
        assert (await one.record()).owner == ""


@virtual_time
async def test_late_undo_of_a_dead_server_is_run_by_the_one_that_worked_since() -> None:
    async with _servers() as (one, two):
        gate = Gate()
        one.tools.next("book", lambda run: _deaf_after_undo(run, gate))
        await one.step(1, "book", {"effect": "room"}, timeout=1)
        await two.step(1, "note")
        one.memory.kill()  # nothing is heard of it any more
        for task in one.coordinator._background:
            task.cancel()
        await two.commit()
        await asyncio.sleep(1)
        assert (await two.record()).owner == ""
        assert "room" in two.tools.undo_order
        one.coordinator._lease._is_open = False
        gate.open()


@virtual_time
async def test_a_step_that_was_undone_after_a_crash_and_not_begun_again_leaves_no_step_running() -> None:
    engine = Engine(settings=SETTINGS)
    await engine.begin()
    gate = Gate()
    engine.tools.next("book", hang(gate, first=obey))
    running = asyncio.ensure_future(outcome_of(engine.step(1, "book", {"effect": "room"}, "r", timeout=3600)))
    await gate.reached()
    await engine.crash()
    running.cancel()
    # The fence, the undo's outcome, that the attempt is superseded; the next would begin it anew.
    engine.memory.fail_write(4, applied=False)
    await engine.coordinator.start()
    await asyncio.sleep(5)
    record = await engine.record()
    assert (record.status, record.owner) == (TransactionStatus.ACTIVE, "")
    assert [attempt.state for attempt in await engine.attempts()] == [AttemptState.SUPERSEDED]
    assert (await engine.step(1, "book", {"effect": "room"}, "r")).status is StepStatus.SUCCESS
    await engine.coordinator.stop()


@virtual_time
async def test_undo_of_an_irreversible_tool_that_outlives_its_accepted_rewind_runs_at_its_end() -> None:
    engine = Engine(settings=SETTINGS)
    await engine.begin()
    gate = Gate()

    async def late(run: ToolRun) -> object:
        await run.register_undo("money")
        await ignore_cancellation(gate)(run)
        run.cause("money")
        return {}

    engine.tools.next("wire", late)
    assert (await engine.step(1, "wire", timeout=1)).status is StepStatus.IN_DOUBT
    await engine.rewind(1, accept_irreversible=True)
    gate.open()
    await asyncio.sleep(2)
    assert engine.tools.effects == []
    assert engine.tools.undo_order == ["money", "money"]


@virtual_time
async def test_undo_of_an_irreversible_tool_in_doubt_is_left_alone_when_it_ends() -> None:
    engine = Engine(settings=SETTINGS)
    await engine.begin()
    gate = Gate()
    engine.tools.next("wire", ignore_cancellation(gate))
    assert (await engine.step(1, "wire", {"effect": "money"}, timeout=1)).status is StepStatus.IN_DOUBT
    gate.open()
    await asyncio.sleep(2)
    assert engine.tools.undone == []
    assert (await engine.record()).status is TransactionStatus.IN_DOUBT


@virtual_time
async def test_what_ended_while_another_server_undid_it_is_undone_once_more() -> None:
    async with _servers() as (one, two):
        gate = Gate()
        one.tools.next("book", lambda run: _deaf_after_undo(run, gate))
        running = asyncio.ensure_future(
            outcome_of(one.step(1, "book", {"effect": "room"}, "r", timeout=3600))
        )
        await gate.reached()
        for task in one.coordinator._background:
            task.cancel()
        undoing = two.tools.hold_undo("room")
        await asyncio.sleep(25)
        assert undoing.is_reached  # settled as after a crash
        await one.coordinator._lease.renew()
        undoing.open()
        await idle()
        gate.open()
        await running
        await asyncio.sleep(2)
        assert [key for _, key in one.tools.world] == [(await one.attempts())[-1].idempotency_key] or (
            one.tools.effects == []
        )


@virtual_time
async def test_a_begin_whose_answer_is_late_puts_nothing_old_in_the_place_of_what_was_done_since() -> None:
    engine = Engine(settings=SETTINGS)
    slow = engine.memory.write

    async def late(write_set: WriteSet) -> WriteReceipt:
        receipt = await slow(write_set)
        await asyncio.sleep(1)
        return receipt

    engine.memory.write = late  # type: ignore[method-assign]
    first = asyncio.ensure_future(engine.begin(request_id="b"))
    await asyncio.sleep(0.5)
    engine.memory.write = slow  # type: ignore[method-assign]
    await engine.begin(request_id="b")
    step = await engine.step(1, "note", {"put": {"kv/a": 1}})
    await first
    assert step.status is StepStatus.SUCCESS
    await engine.assert_memory_equals_store()
    assert (await engine.step(2, "note")).status is StepStatus.SUCCESS


@virtual_time
async def test_a_step_whose_undo_failed_after_a_crash_is_not_stopped_but_held() -> None:
    engine = Engine(settings=SETTINGS)
    await engine.begin()
    gate = Gate()
    engine.tools.next("book", hang(gate, first=obey))
    running = asyncio.ensure_future(outcome_of(engine.step(1, "book", {"effect": "room"}, "r", timeout=3600)))
    await gate.reached()
    await engine.crash()
    running.cancel()
    engine.tools.break_undo("room")
    await engine.coordinator.start()
    refused = await outcome_of(
        engine.coordinator.cancel_step(CancelStepRequest(engine.transaction_id, 1, request_id="c"))
    )
    assert isinstance(refused, PreconditionFailed)
    assert refused.reason == "ROLLBACK_INCOMPLETE"
    await engine.coordinator.stop()


@virtual_time
async def test_an_abort_that_goes_on_with_a_decision_names_what_that_one_named() -> None:
    engine = Engine(settings=SETTINGS)
    await engine.begin()
    await engine.step(1, "book", {"effect": "room"})
    engine.tools.break_undo("room")
    answers = await engine.group(
        2, call("note", {"put": {"kv/a": 1}}), call("upload", {"effect": "file", "put": {"kv/a": 2}})
    )
    assert answers[0].rollback_incomplete
    engine.tools.break_undo("room", times=0)
    answer = await engine.rollback(accept_irreversible=True)
    assert [(kept.step_id, kept.tool_name) for kept in answer.kept_effects] == [(3, "upload")]
    assert engine.tools.effects == ["file"]


@virtual_time
async def test_a_start_that_recovers_for_longer_than_a_lease_keeps_it() -> None:
    async with _servers() as (one, two):
        gate = Gate()
        one.tools.next("book", hang(gate, first=obey))
        running = asyncio.ensure_future(
            outcome_of(one.step(1, "book", {"effect": "room"}, "r", timeout=3600))
        )
        await gate.reached()
        one.memory.kill()
        two.memory.kill()
        for task in one.coordinator._background + two.coordinator._background:
            task.cancel()
        running.cancel()
        three = Engine(database=one.memory.database, is_shared=True, name="three", settings=SETTINGS)
        three.transaction_id = one.transaction_id
        three.tools.world = one.tools.world
        await asyncio.sleep(20)
        three.tools.always("book", hang(Gate()))
        name = three.coordinator._lease.id
        await three.coordinator.start()
        await asyncio.sleep(20)
        assert three.coordinator._lease.id == name
        assert (await three.record()).owner == name
        await three.coordinator.stop()
        one.coordinator._lease._is_open = two.coordinator._lease._is_open = False


@pytest.mark.parametrize("applied", [False, True])
@virtual_time
async def test_undo_of_an_outlived_tool_runs_at_its_end_though_its_settlement_was_lost(applied: bool) -> None:
    engine = Engine(settings=SETTINGS)
    await engine.begin()
    gate = Gate()
    engine.tools.next("book", lambda run: _deaf_after_undo(run, gate))
    running = asyncio.ensure_future(outcome_of(engine.step(1, "book", {"effect": "room"}, "r", timeout=2)))
    await asyncio.sleep(1.5)
    engine.memory.fail_next_write(applied=applied)
    await running
    await asyncio.sleep(5)
    gate.open()
    await asyncio.sleep(5)
    standing = {key for _, key in engine.tools.world}
    attempts = await engine.attempts()
    assert attempts[0].idempotency_key not in standing


@virtual_time
async def test_undo_begun_under_a_lease_that_ended_is_not_tried_again_under_the_next() -> None:
    async with _servers() as (one, two):
        await one.step(1, "book", {"effect": "room"})
        gate = one.tools.hold_undo("room")
        rewinding = asyncio.ensure_future(outcome_of(one.rewind(1, request_id="w")))
        await gate.reached()
        for task in one.coordinator._background:
            task.cancel()
        lost = one.coordinator._lease.id
        del one.memory.database.leases[lost]
        await one.coordinator._lease.renew()
        undo = one.cached()
        assert undo is not None
        with pytest.raises(StoreUnavailable):
            one.coordinator._lease.check(undo.record.owner)
        gate.open()
        await rewinding
        await asyncio.sleep(5)
        assert one.tools.effects == []
        assert (await two.record()).status is TransactionStatus.ACTIVE


@virtual_time
async def test_a_group_of_which_only_a_failure_is_durable_does_not_execute_for_ever() -> None:
    engine = Engine(settings=SETTINGS)
    await engine.begin()
    engine.memory.fail_write(engine.memory.write_count + 2, applied=False)
    await outcome_of(
        engine.group(1, call("book", {"effect": "room"}), call("note", {"user_id": "${steps.7.id}"}))
    )
    await asyncio.sleep(5)
    record = await engine.record()
    assert (record.status, record.owner) == (TransactionStatus.ACTIVE, "")


@virtual_time
async def test_recovery_goes_on_over_an_undo_that_failed_where_the_policy_says_so() -> None:
    engine = Engine(settings=SETTINGS)
    await engine.begin(on_undo_failure=OnUndoFailure.CONTINUE)
    engine.tools.next("book", hang(Gate(), first=obey))
    running = asyncio.ensure_future(outcome_of(engine.step(1, "book", {"effect": "room"}, "r", timeout=3600)))
    await idle()
    await engine.crash()
    running.cancel()
    engine.tools.break_undo("room", times=1)
    await engine.coordinator.start()
    await asyncio.sleep(5)
    record = await engine.record()
    assert (record.status, record.next_step_id, record.undo_was_skipped) == (
        TransactionStatus.ACTIVE,
        2,
        True,
    )
    assert len((await engine.view()).undo_failed) == 1
    await engine.coordinator.stop()


@virtual_time
async def test_whoever_takes_a_step_over_from_a_dead_server_fences_it_before_it_undoes_anything() -> None:
    async with _servers() as (one, two):
        gate = Gate()
        one.tools.next("book", hang(gate, first=obey))
        running = asyncio.ensure_future(
            outcome_of(one.step(1, "book", {"effect": "room"}, "r", timeout=3600))
        )
        await gate.reached()
        for task in one.coordinator._background:
            task.cancel()
        del one.memory.database.leases[one.coordinator._lease.id]
        mark = len(two.timeline)
        answer = await two.step(1, "book", {"effect": "room"}, "r")  # before orphans are looked for
        assert (answer.status, answer.attempt) == (StepStatus.SUCCESS, 2)
        first_two = [line.split()[0] for line in two.timeline[mark:][:2]]
        assert first_two == ["write", "undo"]
        gate.open()
        await running


@virtual_time
async def test_undo_of_an_outlived_tool_in_doubt_that_is_taken_back_is_owed_though_its_server_dies() -> None:
    engine = Engine(settings=SETTINGS)
    await engine.begin()
    gate, end = Gate(), Gate()

    async def late(run: ToolRun) -> object:
        await run.register_undo("money")
        await ignore_cancellation(gate)(run)
        run.cause("money")
        return await hang(end)(run)

    engine.tools.next("wire", late)
    assert (await engine.step(1, "wire", timeout=1)).status is StepStatus.IN_DOUBT
    await engine.rollback(accept_irreversible=True)
    await engine.assert_memory_equals_store()
    assert engine.tools.undo_order == ["money"]
    gate.open()
    await idle()
    assert engine.tools.effects == ["money"]
    await engine.crash()
    await engine.coordinator.start()
    assert engine.tools.effects == []
    assert (await engine.record()).owner == ""
    await engine.coordinator.stop()


@pytest.mark.parametrize("is_repeated", [True, False])
@virtual_time
async def test_an_idempotent_effect_after_the_step_failed_elsewhere_is_told(is_repeated: bool) -> None:
    async with _servers() as (one, two):
        gate = Gate()
        one.tools.next("upload", hang(gate))
        if not is_repeated:
            two.tools.next("upload", fail_with("no room"))
        running = asyncio.ensure_future(
            outcome_of(one.step(1, "upload", {"effect": "file"}, "r", timeout=3600))
        )
        await gate.reached()
        for task in one.coordinator._background:
            task.cancel()
        await asyncio.sleep(25)  # its lease ends, and the other one settles the step
        state = AttemptState.COMPLETED if is_repeated else AttemptState.FAILED
        assert [attempt.state for attempt in await two.attempts()] == [state]
        await one.coordinator._lease.renew()
        gate.open()
        await running
        await idle()
        assert one.tools.effects == ["file"]
        listed = [(undo.step_id, undo.tool_name, undo.late) for undo in (await two.view()).undo_failed]
        assert listed == ([] if is_repeated else [(1, "upload", True)])


@pytest.mark.parametrize("what", ["tool", "undo"])
@virtual_time
async def test_a_server_that_stands_still_after_it_looked_at_its_lease_has_begun_already(what: str) -> None:
    async with _servers() as (one, _):
        lease = one.coordinator._lease
        looks = 2 if what == "tool" else 1  # before the intent is written, and before the tool is called
        look, begin = lease.check, getattr(one.tools, "run" if what == "tool" else "undo")
        if what == "undo":
            await one.step(1, "book", {"effect": "room"})

        def check(*owner: ServerId) -> None:
            nonlocal looks
            look(*owner)
            looks -= 1
            if not looks:
                asyncio.get_running_loop().call_soon(setattr, lease, "_held_until", 0.0)

        async def begun(*arguments: Any) -> Any:
            look()
            return await begin(*arguments)

        lease.check = check  # type: ignore[method-assign]
        setattr(one.tools, "run" if what == "tool" else "undo", begun)
        if what == "tool":
            assert (await one.step(1, "upload", {"effect": "file"})).status is StepStatus.SUCCESS
        else:
            assert not (await one.rewind(1)).rollback_incomplete
        assert looks == 0


@virtual_time
async def test_what_was_not_begun_for_want_of_a_lease_is_settled_by_who_has_one() -> None:
    async with _servers() as (one, two):
        await one.step(1, "book", {"effect": "room"})
        one.coordinator._lease._held_until = 0.0
        for task in one.coordinator._background:
            task.cancel()
        refused = await outcome_of(one.rewind(1, request_id="w"))
        assert isinstance(refused, Unavailable)
        assert one.tools.undone == []
        await asyncio.sleep(25)
        assert two.tools.undo_order == ["room"]
        assert (await two.record()).status is TransactionStatus.ACTIVE


@virtual_time
async def test_a_server_whose_lease_ends_while_it_starts_claims_orphans_once_under_the_next() -> None:
    async with _servers() as (one, two):
        gate = Gate()
        one.tools.next("book", hang(gate, first=obey))
        running = asyncio.ensure_future(
            outcome_of(one.step(1, "book", {"effect": "room"}, "r", timeout=3600))
        )
        await gate.reached()
        for task in one.coordinator._background + two.coordinator._background:
            task.cancel()
        running.cancel()
        await asyncio.sleep(20)
        three = Engine(database=one.memory.database, is_shared=True, name="three", settings=SETTINGS)
        three.transaction_id = one.transaction_id
        three.tools.world = one.tools.world
        lease, claim, claims = three.coordinator._lease, three.memory.claim_orphans, 0
        register, first = lease.open, lease.id

        async def stand_still() -> None:
            await register()
            lease.open = register  # type: ignore[method-assign]
            del one.memory.database.leases[first]
            lease._held_until = 0.0

        async def counted(*arguments: Any) -> Any:
            nonlocal claims
            claims += 1
            assert claims < 10
            return await claim(*arguments)

        lease.open = stand_still  # type: ignore[method-assign]
        three.memory.claim_orphans = counted  # type: ignore[method-assign]
        await three.coordinator.start()
        assert (claims, lease.id == first) == (2, False)
        assert (await three.record()).owner == ""
        await three.coordinator.stop()
        gate.open()
        one.coordinator._lease._is_open = two.coordinator._lease._is_open = False


@virtual_time
async def test_a_group_that_ends_elsewhere_between_two_looks_is_answered_as_it_ended() -> None:
    async with _servers() as (one, two):
        gate = Gate()
        one.tools.next("book", obey, hang(gate))
        calls = call("book", {"effect": "room"}, "r1"), call("book", {"effect": "seat"}, "r2")
        running = asyncio.ensure_future(one.group(1, *calls))
        await gate.reached()
        find_attempt = two.memory.find_attempt

        async def ended_meanwhile(*where: Any) -> Any:
            found = await find_attempt(*where)
            gate.open()
            await running
            return found

        two.memory.find_attempt = ended_meanwhile  # type: ignore[method-assign]
        assert two.coordinator._cache.peek(one.transaction_id) is None, (
            "what is loaded for the call is behind too"
        )
        answers = await two.group(1, *calls)
        assert [(answer.status, answer.replayed) for answer in answers] == [(StepStatus.SUCCESS, True)] * 2
        assert one.tools.effects == ["room", "seat"]


@virtual_time
async def test_what_a_cancelled_member_may_have_done_is_told_though_its_group_was_cut_off() -> None:
    engine = Engine(settings=SETTINGS)
    await engine.begin()
    gate, never = Gate(), Gate()
    engine.tools.next("upload", hang(never, first=obey))
    engine.tools.next("book", ignore_cancellation(gate))
    calls = call("upload", {"effect": "file"}, "r1"), call("book", {"effect": "room"}, "r2")
    running = asyncio.ensure_future(outcome_of(engine.group(1, *calls)))
    await never.reached()
    await gate.reached()
    rewinding = asyncio.ensure_future(outcome_of(engine.rewind(1)))
    await asyncio.sleep(0.5)  # "upload" has stopped, "book" will not
    await engine.crash()
    gate.open()
    for task in (running, rewinding):
        task.cancel()
    answers = await engine.group(1, *calls)
    assert answers[0].status is StepStatus.ROLLBACK_TRIGGERED
    assert [(kept.step_id, kept.tool_name) for kept in (await engine.record()).kept_effects] == [
        (1, "upload")
    ]


@virtual_time
async def test_a_write_that_waits_when_its_server_dies_leaves_nothing_that_was_never_awaited() -> None:
    async with _servers() as (one, _):
        first = one.memory.hold_write(one.memory.write_count + 1)
        running = asyncio.ensure_future(
            outcome_of(one.group(1, *(call("book", {"effect": f"e{number}"}) for number in range(3))))
        )
        await first.reached()
        await idle()
        entry = one.coordinator._cache.peek(one.transaction_id)
        assert entry is not None
        assert entry.transaction is not None
        waiting = entry.transaction.last_write
        assert waiting is not None
        waiting.cancel()
        first.open()
        await asyncio.wait((running,))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            del running, waiting, entry
            gc.collect()
    assert told == []
