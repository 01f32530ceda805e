"""Commits: what becomes visible, to whom, when it is refused, and what leaves the house."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.engine_harness import Engine, call, outcome_of
from tests.support.memory_store import Gate
from tests.support.scripted_tools import ToolRun, hang, obey
from tests.support.virtual_time import current_loop, idle, virtual_time

from agenttx_server.engine.errors import CommitConflict, InvalidRequest, PreconditionFailed
from agenttx_server.engine.records import (
    EffectState,
    EventType,
    TransactionStatus,
)
from agenttx_server.engine.requests import StepCall, StepStatus

MAIL = [["mail", 1], ["sms", 2], ["mail", 3]]


async def _begun(**fields: Any) -> Engine:
    engine = Engine(**fields)
    await engine.begin()
    return engine


# --- state --------------------------------------------------------------------------------


@virtual_time
async def test_a_commit_publishes_the_newest_value_of_each_key_at_once() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"put": {"kv/a": 1, "kv/b": 1, "kv/c": 1}})
    await engine.step(2, "note", {"put": {"kv/a": 2}, "delete": ["kv/b"]})
    await engine.step(3, "book", {"effect": "room"})
    assert [await engine.committed(key) for key in ("kv/a", "kv/b", "kv/c")] == [None, None, None]
    answer = await engine.commit()
    assert (answer.steps_committed, answer.keys_published, answer.commit_version) == (3, 3, 1)
    assert [await engine.committed(key) for key in ("kv/a", "kv/b", "kv/c")] == [2, None, 1]
    record = await engine.record()
    assert (record.status, record.commit_version) == (TransactionStatus.COMMITTED, 1)
    assert record.ended_at is not None
    assert engine.tools.effects == ["room"]
    assert engine.tools.undone == []
    assert engine.tools.ended == [engine.transaction_id]
    assert (await engine.events())[-1] is EventType.TRANSACTION_COMMITTED


@virtual_time
async def test_an_empty_transaction_commits() -> None:
    engine = await _begun()
    answer = await engine.commit()
    assert (answer.steps_committed, answer.keys_published, answer.effects_dispatched) == (0, 0, 0)


@virtual_time
async def test_rewound_steps_are_not_published() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"put": {"kv/a": 1}, "stage": [["mail", 1]]})
    await engine.step(2, "note", {"put": {"kv/a": 2, "kv/b": 2}, "stage": [["mail", 2]]})
    await engine.rewind(2)
    answer = await engine.commit()
    assert (answer.steps_committed, answer.keys_published) == (1, 1)
    assert [await engine.committed(key) for key in ("kv/a", "kv/b")] == [1, None]
    assert engine.sink.payloads() == [1]


@virtual_time
async def test_open_transactions_do_not_see_one_another() -> None:
    engine = await _begun()
    first = engine.transaction_id
    await engine.step(1, "note", {"put": {"kv/a": "first"}})
    second = await engine.begin()
    answer = await engine.step(1, "lookup", {"get": ["kv/a"], "scan": ["kv/"]})
    assert answer.output == '{"ok":true,"read":{"kv/":[],"kv/a":null}}'
    await engine.commit(transaction_id=first)
    answer = await engine.step(2, "lookup", {"get": ["kv/a"], "scan": ["kv/"]}, transaction_id=second)
    assert answer.output == '{"ok":true,"read":{"kv/":["kv/a"],"kv/a":"first"}}'


# --- conflicts ----------------------------------------------------------------------------


@virtual_time
async def test_of_two_that_wrote_a_key_over_one_base_the_second_is_compensated_and_ends() -> None:
    engine = await _begun()
    first = engine.transaction_id
    await engine.step(1, "note", {"get": ["kv/a"], "put": {"kv/a": "first"}})
    second = await engine.begin()
    await engine.step(1, "book", {"effect": "room"})
    await engine.step(2, "note", {"get": ["kv/a"], "put": {"kv/a": "second"}, "stage": [["mail", 1]]})
    await engine.commit(transaction_id=first)
    for _ in range(3):
        with pytest.raises(CommitConflict) as conflict:
            await engine.commit("c", transaction_id=second)
        assert conflict.value.reason == "COMMIT_CONFLICT"
        assert conflict.value.metadata["key"] == "kv/a"
    engine.restart()
    with pytest.raises(CommitConflict) as again:
        await engine.commit("c", transaction_id=second)
    assert (again.value.message, again.value.metadata) == (conflict.value.message, conflict.value.metadata)
    record = await engine.record(second)
    assert record.status is TransactionStatus.FAILED
    assert "kv/a" in record.abort_reason
    assert engine.tools.effects == []
    assert engine.sink.tried == []
    assert await engine.committed("kv/a") == "first"
    assert EventType.COMMIT_CONFLICT in await engine.events(second)
    assert engine.tools.ended == [first, second]
    with pytest.raises(PreconditionFailed):
        await engine.commit("other", transaction_id=second)


@virtual_time
async def test_a_key_that_was_only_read_conflicts_with_nobody() -> None:
    engine = await _begun()
    first = engine.transaction_id
    await engine.step(1, "note", {"put": {"kv/a": 1}})
    second = await engine.begin()
    await engine.step(1, "note", {"get": ["kv/a"], "put": {"kv/b": 1}})
    await engine.commit(transaction_id=first)
    assert (await engine.commit(transaction_id=second)).keys_published == 1


@virtual_time
async def test_a_write_over_what_was_read_again_does_not_conflict() -> None:
    engine = await _begun()
    first = engine.transaction_id
    await engine.step(1, "note", {"put": {"kv/a": 1}})
    second = await engine.begin()
    await engine.step(1, "lookup", {"get": ["kv/a"]})
    await engine.commit(transaction_id=first)
    await engine.step(2, "lookup", {"get": ["kv/a"]}, transaction_id=second)
    await engine.step(3, "note", {"put": {"kv/a": 2}}, transaction_id=second)
    assert (await engine.commit(transaction_id=second)).commit_version == 2


@virtual_time
async def test_a_conflict_of_a_rewound_step_is_none() -> None:
    engine = await _begun()
    first = engine.transaction_id
    await engine.step(1, "note", {"put": {"kv/a": 1}})
    second = await engine.begin()
    await engine.step(1, "note", {"get": ["kv/a"], "put": {"kv/a": 2}})
    await engine.commit(transaction_id=first)
    await engine.rewind(1, transaction_id=second)
    await engine.step(1, "note", {"get": ["kv/a"], "put": {"kv/a": 3}}, transaction_id=second)
    await engine.commit(transaction_id=second)
    assert await engine.committed("kv/a") == 3


@virtual_time
async def test_a_check_that_no_longer_holds_at_commit_is_a_conflict() -> None:
    async def require(run: ToolRun) -> Any:
        await run.context.require_exists("record/users/1", "orders.user_id has no user 1")
        await run.context.put("record/orders/1", "{}")

    engine = await _begun()
    first = engine.transaction_id
    await engine.step(1, "note", {"put": {"record/users/1": {}}})
    await engine.commit()
    second = await engine.begin()
    engine.tools.next("note", require)
    await engine.step(1, "note")
    third = await engine.begin()
    await engine.step(1, "note", {"delete": ["record/users/1"]})
    await engine.commit(transaction_id=third)
    with pytest.raises(CommitConflict) as conflict:
        await engine.commit(transaction_id=second)
    assert "orders.user_id has no user 1" in conflict.value.message
    assert first != second


@virtual_time
async def test_a_conflict_whose_undo_fails_is_told_and_held() -> None:
    engine = await _begun()
    await engine.step(1, "book", {"effect": "room", "put": {"kv/a": 1}})
    engine.tools.break_undo("room")
    engine.memory.refuse_commits_with("kv/a")
    for _ in range(2):
        with pytest.raises(CommitConflict):
            await engine.commit("c")
    assert (await engine.record()).status is TransactionStatus.ROLLING_BACK
    with pytest.raises(PreconditionFailed) as refused:
        await engine.commit("d")
    assert refused.value.reason == "ROLLBACK_INCOMPLETE"
    engine.tools.break_undo("room", times=0)
    assert (await engine.rewind(1)).status is TransactionStatus.FAILED
    with pytest.raises(CommitConflict):
        await engine.commit("c")
    assert engine.tools.ended == [engine.transaction_id]


# --- repeats and refusals -----------------------------------------------------------------


@virtual_time
async def test_a_repeated_commit_gets_its_answer_and_everything_else_is_refused() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"put": {"kv/a": 1}, "stage": MAIL}, "r1")
    answer = await engine.commit("c")
    for _ in range(3):
        assert await engine.commit("c") == answer
    engine.restart()
    assert await engine.commit("c") == answer
    for refused in (
        engine.commit("another"),
        engine.step(2, "note"),
        engine.step(1, "note"),
        engine.rewind(1),
        engine.rewind(1, dry_run=True),
        engine.rollback(),
    ):
        with pytest.raises(PreconditionFailed) as error:
            await refused
        assert error.value.reason == "TRANSACTION_ENDED"
        assert error.value.metadata["status"] == "COMMITTED"
        assert "COMMITTED" in error.value.message
    assert len(engine.sink.delivered) == 3
    assert engine.tools.count() == 1


@virtual_time
@pytest.mark.parametrize("request_id", ["c", ""])
async def test_a_commit_without_effects_is_one_write_and_is_answered_again_all_the_same(
    request_id: str,
) -> None:
    engine = await _begun()
    await engine.step(1, "note", {"put": {"kv/a": 1, "kv/b": 1}})
    await engine.step(2, "note", {"put": {"kv/a": 2}, "delete": ["kv/b"]})
    mark = len(engine.timeline)
    answer = await engine.commit(request_id)
    assert len(engine.writes_since(mark)) == 1
    assert (answer.steps_committed, answer.keys_published, answer.commit_version) == (2, 2, 1)
    await engine.assert_memory_equals_store()
    first = engine.transaction_id
    await engine.begin()
    await engine.step(1, "note", {"put": {"kv/a": 3}})
    assert (await engine.commit("d")).commit_version == 2
    engine.transaction_id = first
    assert await engine.commit(request_id) == answer
    engine.restart()
    assert await engine.commit(request_id) == answer


@virtual_time
async def test_a_commit_of_more_keys_than_are_counted_keeps_its_answer() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"put": {f"kv/{number}": 1 for number in range(1001)}})
    await engine.step(2, "note", {"put": {"kv/0": 2}})
    answer = await engine.commit("c")
    assert answer.keys_published == 1001
    engine.restart()
    assert await engine.commit("c") == answer


@virtual_time
async def test_a_commit_without_an_id_is_answered_again_too() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"stage": MAIL})
    answer = await engine.commit()
    assert await engine.commit() == answer
    assert len(engine.sink.delivered) == 3


@virtual_time
async def test_commits_in_flight_under_one_id_are_one() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"put": {"kv/a": 1}, "stage": MAIL})
    answers = await asyncio.gather(*(engine.commit("c") for _ in range(4)))
    assert len(set(answers)) == 1
    assert engine.memory.database.commit_version == 1
    assert len(engine.sink.tried) == 3


@virtual_time
async def test_a_commit_waits_for_the_running_step() -> None:
    engine = await _begun()
    gate = Gate()
    engine.tools.next("note", hang(gate))
    running = asyncio.create_task(engine.step(1, "note", {"put": {"kv/a": 1}}))
    await gate.reached()
    committing = asyncio.create_task(engine.commit())
    late = asyncio.create_task(outcome_of(engine.step(2, "note")))
    await idle()
    gate.open()
    assert (await running).status is StepStatus.SUCCESS
    assert (await committing).steps_committed == 1
    assert (await late).reason == "TRANSACTION_ENDED"
    assert await engine.committed("kv/a") == 1


# --- effects ------------------------------------------------------------------------------


@virtual_time
async def test_effects_leave_after_the_commit_once_in_staging_order_by_channel() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"stage": MAIL})
    await engine.group(2, *[_stage(["mail", number]) for number in (4, 5)])
    assert engine.sink.tried == []
    answer = await engine.commit()
    assert (answer.effects_dispatched, answer.dispatch_errors, answer.effects_pending) == (5, (), 0)
    assert engine.sink.payloads("mail") == [1, 3, 4, 5]
    assert engine.sink.payloads("sms") == [2]
    assert await engine.effect_states() == [EffectState.DELIVERED] * 5
    assert len({effect.idempotency_key for effect in engine.sink.delivered}) == 5
    assert (await engine.events()).count(EventType.EFFECT_DELIVERED) == 5
    stored = await engine.store.list_effects(engine.transaction_id, frozenset())
    assert [effect.sequence for effect in stored] == [1, 2, 3, 4, 5]


def _stage(effect: list[Any]) -> StepCall:
    return call("note", {"stage": [effect]})


@virtual_time
async def test_effects_of_a_group_leave_in_step_order_whoever_staged_first() -> None:
    async def stage_late(run: ToolRun) -> Any:
        await asyncio.sleep(0.1)
        return await obey(run)

    engine = await _begun()
    engine.tools.next("note", stage_late)
    await engine.group(1, _stage(["mail", "first step"]), _stage(["mail", "second step"]))
    await engine.commit()
    assert engine.sink.payloads() == ["first step", "second step"]


@virtual_time
async def test_a_failing_channel_holds_back_its_own_effects_only() -> None:
    engine = await _begun()
    engine.sink.fail("mail", ConnectionRefusedError(111, "Connection refused"))
    await engine.step(1, "note", {"stage": MAIL})
    answer = await engine.commit("c")
    assert (answer.effects_dispatched, answer.effects_pending) == (1, 2)
    [error] = answer.dispatch_errors
    assert error.startswith("mail: effect ")
    assert "of step 1: Hint: " in error
    assert [effect.channel for effect in engine.sink.tried].count("mail") == 1
    assert await engine.effect_states() == [EffectState.READY, EffectState.DELIVERED, EffectState.READY]
    stored = await engine.store.list_effects(engine.transaction_id, frozenset({EffectState.READY}))
    assert [(effect.attempts, effect.last_error != "") for effect in stored] == [(1, True), (0, False)]
    assert await engine.commit("c") == answer
    assert EventType.EFFECT_FAILED in await engine.events()


@virtual_time
async def test_a_slow_sink_is_not_waited_for_beyond_the_dispatch_wait_and_recorded_later() -> None:
    engine = await _begun()
    gate = engine.sink.hold("mail")
    await engine.step(1, "note", {"put": {"kv/a": 1}, "stage": MAIL})
    answer = await engine.commit("c")
    assert current_loop().time() == engine.settings.dispatch_wait_seconds
    assert (answer.effects_dispatched, answer.effects_pending) == (1, 2)
    assert await engine.committed("kv/a") == 1
    assert await engine.effect_states() == [EffectState.READY, EffectState.DELIVERED, EffectState.READY]
    gate.open()
    await idle()
    assert await engine.effect_states() == [EffectState.DELIVERED] * 3
    assert engine.sink.payloads("mail") == [1, 3]
    # The answer was fixed after the wait.
    assert await engine.commit("c") == answer
    assert await engine.coordinator.drain(0) == 0
    assert (await engine.events()).count(EventType.EFFECT_DELIVERED) == 3


@virtual_time
async def test_a_late_record_that_cant_be_written_spoils_nothing() -> None:
    engine = await _begun()
    gate = engine.sink.hold("mail")
    await engine.step(1, "note", {"stage": MAIL}, "r1")
    answer = await engine.commit("c")
    engine.memory.fail_next_write(applied=False)
    gate.open()
    await idle()
    assert await engine.commit("c") == answer
    assert (await engine.step(1, "note", {"stage": MAIL}, "r1")).replayed
    await engine.assert_memory_equals_store()


@virtual_time
async def test_effects_of_rewound_and_aborted_steps_never_leave() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"stage": [["mail", "kept"]]})
    await engine.step(2, "note", {"stage": [["mail", "dropped"]]})
    await engine.rewind(2)
    await engine.commit()
    await engine.begin()
    await engine.step(1, "note", {"stage": [["mail", "aborted"]]})
    await engine.rollback()
    assert engine.sink.payloads() == ["kept"]


@virtual_time
async def test_an_effect_may_carry_its_own_key() -> None:
    async def stage(run: ToolRun) -> Any:
        return [
            await run.context.stage_effect("mail", "1", "mine"),
            await run.context.stage_effect("mail", "2"),
        ]

    engine = await _begun()
    engine.tools.next("note", stage)
    await engine.step(1, "note")
    await engine.commit()
    first, second = engine.sink.delivered
    assert first.idempotency_key == "mine"
    assert second.idempotency_key == second.effect_id
    assert first.effect_id != second.effect_id


# --- reads --------------------------------------------------------------------------------


@virtual_time
async def test_reads_say_what_is_durable_and_what_runs() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"stage": MAIL}, raw_context="because")
    view = await engine.view()
    assert (view.record.status, view.pending_effects, view.unsettled) == (TransactionStatus.ACTIVE, 3, ())
    assert [(entry.step_id, entry.raw_context) for entry in view.context] == [(1, "because")]
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    running = asyncio.create_task(engine.step(2, "lookup"))
    await gate.reached()
    view = await engine.view()
    assert view.record.status is TransactionStatus.EXECUTING
    assert [step.step_id for step in view.unsettled] == [2]
    gate.open()
    await running
    assert not await engine.coordinator.is_ended("anonymous", engine.transaction_id)
    await engine.commit()
    assert await engine.coordinator.is_ended("anonymous", engine.transaction_id)
    assert (await engine.view()).pending_effects == 0


@virtual_time
async def test_a_follower_of_events_misses_none() -> None:
    engine = await _begun()
    coordinator, transaction_id = engine.coordinator, engine.transaction_id
    seen: list[int] = []

    async def follow() -> None:
        while True:
            found = await coordinator.events_after("anonymous", transaction_id, len(seen) + 1, 2)
            seen.extend(event.sequence for event in found)
            if not found:
                if await coordinator.is_ended("anonymous", transaction_id):
                    return
                await coordinator.wait_for_event(transaction_id, len(seen))

    follower = asyncio.create_task(follow())
    for step in (1, 2, 3):
        await engine.step(step, "book", {"effect": str(step)})
    await engine.rewind(2)
    await engine.commit()
    await follower
    assert seen == list(range(1, len(await engine.events()) + 1))


@virtual_time
async def test_an_event_that_is_there_is_not_waited_for() -> None:
    engine = await _begun()
    waited = engine.coordinator.wait_for_event(engine.transaction_id, 0)
    await asyncio.wait_for(waited, timeout=1)
    coming = asyncio.create_task(engine.coordinator.wait_for_event(engine.transaction_id, 1))
    await idle()
    assert not coming.done()
    await engine.step(1, "note")
    await coming


@virtual_time
async def test_listing_walks_pages_and_refuses_strange_tokens() -> None:
    engine = await _begun()
    for step in range(1, 6):
        await engine.step(step, "note")
    await engine.rewind(4)
    coordinator, transaction_id = engine.coordinator, engine.transaction_id
    cursor, steps = "", []
    while True:
        page = await coordinator.list_steps("anonymous", transaction_id, cursor, 2)
        steps += list(zip([attempt.step_id for attempt in page.attempts], page.rewound, strict=True))
        cursor = page.next_cursor
        if not cursor:
            break
    assert steps == [(1, False), (2, False), (3, False), (4, True), (5, True)]
    live = await coordinator.list_steps("anonymous", transaction_id, "", 10, include_rewound=False)
    assert [attempt.step_id for attempt in live.attempts] == [1, 2, 3]
    with pytest.raises(InvalidRequest) as refused:
        await coordinator.list_steps("anonymous", transaction_id, "bogus", 2)
    assert refused.value.violations[0].field == "page_token"
