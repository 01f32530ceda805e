"""Several servers on one database: any of them serves, one of them works, a dead one is taken over from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.engine_harness import Engine, call, outcome_of
from tests.support.memory_store import Gate, MemoryDatabase
from tests.support.scripted_tools import ToolRun, hang, ignore_cancellation, obey, raise_error
from tests.support.virtual_time import idle, virtual_time

from agenttx_server.engine.errors import PreconditionFailed, Unavailable
from agenttx_server.engine.ports import OutcomeUnknown
from agenttx_server.engine.records import AttemptState, StepResolution, TransactionStatus, UndoState
from agenttx_server.engine.requests import (
    CancelStepRequest,
    ResolveStepAnswer,
    ResolveStepRequest,
    StepAnswer,
    StepStatus,
)
from agenttx_server.engine.services import EngineSettings

SETTINGS = EngineSettings(lease_seconds=10, reap_interval_seconds=5)


@asynccontextmanager
async def _servers(count: int = 2) -> AsyncIterator[list[Engine]]:
    """Servers of one database and one world."""
    database = MemoryDatabase()
    engines = [
        Engine(database=database, is_shared=True, name=f"server-{number}", settings=SETTINGS)
        for number in range(1, count + 1)
    ]
    for engine in engines:
        engine.tools.world = engines[0].tools.world
        await engine.coordinator.start()
    yield engines
    for engine in engines:
        await engine.coordinator.stop()


def _pause(engine: Engine) -> None:
    """Have a server renew nothing any more, as one that was stopped does."""
    for task in engine.coordinator._background:
        task.cancel()


async def _begun(engines: list[Engine]) -> None:
    transaction_id = await engines[0].begin()
    for engine in engines:
        engine.transaction_id = transaction_id


@virtual_time
async def test_any_server_serves_any_transaction_also_with_an_old_copy_in_memory() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        for step in range(1, 21):
            answer = await (one, two)[step % 2].step(step, "book", {"effect": f"e{step}"}, f"r{step}")
            assert answer.status is StepStatus.SUCCESS
        with pytest.raises(PreconditionFailed) as error:
            await two.step(20, "note")
        assert error.value.metadata["expected_step"] == "21"
        assert (await one.step(20, "book", {"effect": "e20"}, "r20")).replayed
        await two.rewind(11)
        assert (await one.step(11, "note", {"put": {"kv/a": 1}})).generation == 2
        assert len(one.tools.effects) == 10
        assert (await two.commit()).steps_committed == 11
        with pytest.raises(PreconditionFailed) as error:
            await one.step(12, "note")
        assert error.value.reason == "TRANSACTION_ENDED"


@virtual_time
async def test_two_clients_on_two_servers_make_one_chain() -> None:
    async with _servers() as engines:
        await _begun(engines)
        made = {0: 0, 1: 0}

        async def run(number: int) -> None:
            engine, step = engines[number], 1
            while made[number] < 100:
                answer = await outcome_of(engine.step(step, "note", {"put": {f"kv/{number}": step}}))
                if isinstance(answer, StepAnswer):
                    made[number] += 1
                    step = answer.next_step_id
                else:
                    assert isinstance(answer, PreconditionFailed), answer
                    step = int(answer.metadata["expected_step"])

        await asyncio.gather(run(0), run(1))
        attempts = await engines[0].attempts()
        assert [attempt.step_id for attempt in attempts] == list(range(1, 201))
        assert (await engines[1].record()).next_step_id == 201


@virtual_time
async def test_a_request_that_runs_on_another_server_is_waited_for() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        gate = Gate()
        one.tools.next("book", hang(gate, first=obey))
        first = asyncio.ensure_future(one.step(1, "book", {"effect": "room"}, "r", timeout=3600))
        await gate.reached()
        again = asyncio.ensure_future(two.step(1, "book", {"effect": "room"}, "r", timeout=3600))
        await asyncio.sleep(60)
        assert not again.done()
        for other in (two.step(1, "note", None, "s"), two.commit(), two.step(1, "note")):
            with pytest.raises(PreconditionFailed) as error:
                await other
            assert error.value.reason == "STEP_EXECUTING"
        assert (await two.view()).record.status is TransactionStatus.EXECUTING
        gate.open()
        assert (await first).output == (await again).output
        assert (await again).replayed
        assert (one.tools.count(), two.tools.count()) == (1, 0)


@virtual_time
async def test_a_rewind_on_one_server_stops_the_step_that_runs_on_another() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        await one.step(1, "book", {"effect": "room"})
        gate = Gate()
        one.tools.next("book", hang(gate, first=obey))
        running = asyncio.ensure_future(one.step(2, "book", {"effect": "table"}, "r", generation=1))
        await gate.reached()
        answer = await two.rewind(1)
        assert (answer.next_step_id, answer.generation) == (1, 2)
        assert one.tools.effects == []
        with pytest.raises(PreconditionFailed) as error:
            await running
        assert error.value.reason == "STALE_GENERATION"
        assert (await one.step(1, "note")).status is StepStatus.SUCCESS


@virtual_time
async def test_a_step_is_cancelled_through_any_server() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        gate = Gate()
        one.tools.next("book", hang(gate, first=obey))
        running = asyncio.ensure_future(one.step(1, "book", {"effect": "room"}, "r"))
        await gate.reached()
        stopped = await two.coordinator.cancel_step(CancelStepRequest(two.transaction_id, 1, request_id="c"))
        assert stopped.state is AttemptState.FAILED
        assert (await running).status is StepStatus.ROLLBACK_TRIGGERED
        assert one.tools.effects == []
        assert (
            await one.coordinator.cancel_step(CancelStepRequest(two.transaction_id, 1, request_id="c"))
            == stopped
        )


@virtual_time
async def test_to_cancel_a_member_through_another_server_leaves_its_siblings_alone() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        first, second = Gate(), Gate()
        one.tools.next("upload", hang(first))
        one.tools.next("book", hang(second, first=obey))
        running = asyncio.ensure_future(
            one.group(1, call("upload", {}, "a"), call("book", {"effect": "room"}, "b"))
        )
        await second.reached()
        asked = CancelStepRequest(two.transaction_id, 1, request_id="c")
        stopping = asyncio.ensure_future(two.coordinator.cancel_step(asked))
        await asyncio.sleep(5)
        assert not stopping.done()
        assert (await one.record()).owner == one.coordinator._lease.id
        second.open()
        answers = await running
        assert [answer.status for answer in answers] == [StepStatus.ROLLBACK_TRIGGERED, StepStatus.SUCCESS]
        assert (await stopping).state is AttemptState.FAILED
        assert (one.tools.count("book"), two.tools.count()) == (1, 0)
        assert one.tools.effects == []


@pytest.mark.parametrize("tool_name", ["upload", "book", "pay", "note"])
@virtual_time
async def test_a_dead_server_s_step_is_taken_over_within_its_lease(tool_name: str) -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        gate = Gate()
        one.tools.next(tool_name, hang(gate, first=obey))
        running = asyncio.ensure_future(one.step(1, tool_name, {"effect": "x"}, "r", timeout=3600))
        await gate.reached()
        await asyncio.sleep(2)
        key = one.tools.calls[-1].key
        await one.crash()
        assert running.cancelled()
        await asyncio.sleep(SETTINGS.lease_seconds * 1.5)  # nobody asks: it is taken over all the same
        record = await two.record()
        if tool_name == "pay":
            assert record.status is TransactionStatus.IN_DOUBT
            assert two.tools.count() == 0
        elif tool_name == "note":
            assert (record.status, record.open_group) == (TransactionStatus.ACTIVE, None)
        else:
            assert (record.status, record.next_step_id) == (TransactionStatus.ACTIVE, 2)
            assert (two.tools.calls[-1].key == key) == (tool_name == "upload")
            assert (await two.step(1, tool_name, {"effect": "x"}, "r")).replayed
        assert two.tools.effects.count("x") == 1


@virtual_time
async def test_what_a_live_server_is_at_is_never_taken_over() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        gate = Gate()
        one.tools.next("upload", hang(gate))
        running = asyncio.ensure_future(one.step(1, "upload", {"effect": "x"}, "r", timeout=3600))
        await gate.reached()
        await asyncio.sleep(20 * SETTINGS.lease_seconds)
        assert two.tools.count() == 0
        gate.open()
        assert (await running).status is StepStatus.SUCCESS


@virtual_time
async def test_a_server_that_was_paused_can_t_write_after_it_was_fenced_and_reports_what_it_did() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        gate = Gate()
        one.tools.next("book", hang(gate))
        running = asyncio.ensure_future(one.step(1, "book", {"effect": "room"}, "r", timeout=3600))
        await gate.reached()
        _pause(one)
        await asyncio.sleep(3 * SETTINGS.lease_seconds)
        assert (await two.record()).next_step_id == 2  # two ran it again, as another attempt
        assert two.tools.effects == ["room"]
        gate.open()  # the tool goes on: it can register nothing, so it causes nothing
        answer = await outcome_of(running)
        assert isinstance(answer, (Unavailable, StepAnswer))
        assert two.tools.effects == ["room"]
        assert [attempt.state for attempt in await two.attempts()] == [
            AttemptState.SUPERSEDED,
            AttemptState.COMPLETED,
        ]


@virtual_time
async def test_an_effect_of_a_superseded_attempt_is_undone_once_more_though_its_undo_ran() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        gate = Gate()

        async def late(run: ToolRun) -> object:
            await run.register_undo("room")
            await ignore_cancellation(gate, first=None)(run)
            run.cause("room")
            return {"ok": True}

        one.tools.next("book", late)
        running = asyncio.ensure_future(one.step(1, "book", {"effect": "room"}, "r", timeout=3600))
        await gate.reached()
        _pause(one)
        await asyncio.sleep(3 * SETTINGS.lease_seconds)
        assert two.tools.undo_order == ["room"]  # before there was anything to undo
        await one.coordinator._lease.renew()  # it comes to, under a new name
        gate.open()
        answer = await outcome_of(running)
        await idle()
        assert isinstance(answer, StepAnswer)
        assert (answer.attempt, answer.replayed) == (2, True)
        assert len(one.tools.effects) == 1  # the newer attempt's
        assert [undo.late for undo in (await one.rebuilt()).undo.values()].count(True) == 1
        assert (await one.record()).owner == ""


@virtual_time
async def test_an_irreversible_effect_of_a_superseded_attempt_is_listed() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        gate = Gate()
        one.tools.next("pay", hang(gate))
        running = asyncio.ensure_future(one.step(1, "pay", {"effect": "money"}, "r", timeout=3600))
        await gate.reached()
        _pause(one)
        await asyncio.sleep(3 * SETTINGS.lease_seconds)
        assert (await two.record()).status is TransactionStatus.IN_DOUBT
        gate.open()
        assert (await running).status is StepStatus.IN_DOUBT
        late = [undo for undo in (await two.view()).undo_failed if undo.late]
        assert [(undo.step_id, undo.undo_name, undo.state) for undo in late] == [(1, "", UndoState.FAILED)]


@virtual_time
async def test_a_server_that_can_t_renew_its_lease_starts_nothing_that_acts_outside() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        _pause(one)
        await asyncio.sleep(SETTINGS.lease_seconds)
        with pytest.raises(Unavailable):
            await one.step(1, "book", {"effect": "room"})
        assert one.tools.count() == 0
        await one.coordinator._lease.renew()
        assert (await one.step(1, "book", {"effect": "room"})).status is StepStatus.SUCCESS


@virtual_time
async def test_a_rewind_cut_off_on_one_server_is_finished_by_another() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        for step in range(1, 6):
            await one.step(step, "book", {"effect": f"e{step}"})
        held = one.memory.hold_write(one.memory.write_count + 4)
        rewind = asyncio.ensure_future(one.rewind(1, request_id="w"))
        await held.reached()
        await one.crash()
        assert rewind.cancelled()
        done_before = list(one.tools.undo_order)
        await asyncio.sleep(2 * SETTINGS.lease_seconds)
        record = await two.record()
        assert (record.status, record.next_step_id, record.generation) == (TransactionStatus.ACTIVE, 1, 2)
        assert two.tools.effects == []
        assert len(done_before) + len(two.tools.undo_order) in (5, 6)
        assert (await two.rewind(1, request_id="w")).next_step_id == 1


@virtual_time
async def test_groups_are_taken_over_whole() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        gate = Gate()
        one.tools.next("book", hang(gate, first=obey))
        calls = (call("note", {"put": {"kv/a": 1}}, "a"), call("book", {"effect": "b"}, "b"))
        running = asyncio.ensure_future(one.group(1, *calls))
        await gate.reached()
        await idle()
        await one.crash()
        assert running.cancelled()
        await asyncio.sleep(2 * SETTINGS.lease_seconds)
        record = await two.record()
        assert (record.status, record.next_step_id) == (TransactionStatus.ACTIVE, 3)
        answers = await two.group(1, *calls)
        assert [(answer.status, answer.replayed) for answer in answers] == [(StepStatus.SUCCESS, True)] * 2
        assert two.tools.effects == ["b"]
        await two.assert_memory_equals_store()


@virtual_time
async def test_a_doubt_is_not_resolved_while_another_servers_retry_of_its_sibling_runs() -> None:
    async with _servers() as (one, two):
        await _begun([one, two])
        one.tools.always("upload", raise_error(OutcomeUnknown("the line was cut")))
        answers = await one.group(1, call("upload", {"effect": "a"}), call("upload", {"effect": "b"}))
        assert {answer.status for answer in answers} == {StepStatus.IN_DOUBT}
        with pytest.raises(PreconditionFailed):
            await two.step(3, "note")  # has it in memory so
        one.tools.always("upload", None)
        gate = Gate()
        one.tools.next("upload", hang(gate))
        retrying = asyncio.ensure_future(_resolve(one, 1, StepResolution.RETRY))
        await gate.reached()
        other = asyncio.ensure_future(outcome_of(_resolve(two, 2, StepResolution.SUCCEEDED)))
        await asyncio.sleep(1)
        assert not other.done()
        gate.open()
        await retrying
        assert (await other).result.status is StepStatus.SUCCESS
        assert (await one.record()).next_step_id == 3


async def _resolve(engine: Engine, step_id: int, resolution: StepResolution) -> ResolveStepAnswer:
    return await engine.coordinator.resolve_step(
        ResolveStepRequest(engine.transaction_id, step_id, resolution)
    )
