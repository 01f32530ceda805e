"""The outbox in virtual time: order, retries, giving up, what a person does, crashes, several servers."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.engine_harness import Engine, outcome_of
from tests.support.memory_store import MemoryDatabase
from tests.support.virtual_time import current_loop, idle, virtual_time

from agenttx_server.engine import outbox
from agenttx_server.engine.errors import EngineError
from agenttx_server.engine.ports import DeliveryFailed, StoreUnavailable
from agenttx_server.engine.records import EffectRecord, EffectState, EventType, TransactionId
from agenttx_server.engine.requests import CommitAnswer, EffectRequest
from agenttx_server.engine.services import EngineSettings

DOWN = ConnectionRefusedError(111, "Connection refused")
DELIVERED, DEAD, READY = EffectState.DELIVERED, EffectState.DEAD, EffectState.READY
DISCARDED = EffectState.DISCARDED


@asynccontextmanager
async def dispatching(engine: Engine) -> AsyncIterator[Engine]:
    """Have the server hold its lease and deliver in the background; drain it at the end."""
    coordinator = engine.coordinator
    await coordinator._lease.open()
    background = [asyncio.ensure_future(coordinator._outbox.run())]
    if engine.memory.is_shared:
        background.append(asyncio.ensure_future(coordinator._lease.keep()))
    try:
        yield engine
    finally:
        coordinator.begin_drain()
        await idle()
        for task in background:  # a killed server's wait for ever
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)


async def committed(engine: Engine, *effects: list[Any], request_id: str = "") -> CommitAnswer:
    """Begin, stage the effects ([channel, payload] each) in one step, and commit."""
    await engine.begin()
    await engine.step(1, "note", {"stage": list(effects)})
    return await engine.commit(request_id)


async def effects_of(engine: Engine, transaction_id: TransactionId | None = None) -> list[EffectRecord]:
    return list(await engine.store.list_effects(transaction_id or engine.transaction_id, frozenset()))


async def settled(engine: Engine) -> list[str]:
    """Wait, as long as it takes, until no effect is waiting; return the states."""
    while READY in await engine.effect_states() or (await engine.record()).outbox_owner:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    return await engine.effect_states()


def tries(engine: Engine, channel: str = "mail") -> list[tuple[Any, int]]:
    """Payload and attempt of each delivery that was begun."""
    return [
        (json.loads(effect.payload), effect.attempts)
        for effect in engine.sink.tried
        if effect.channel == channel
    ]


def request(engine: Engine, effect: EffectRecord, **fields: Any) -> EffectRequest:
    return EffectRequest(engine.transaction_id, effect.effect_id, **fields)


# --- retries --------------------------------------------------------------------------------


@virtual_time
async def test_a_failed_delivery_comes_again_and_holds_back_those_behind_it_in_its_channel() -> None:
    async with dispatching(Engine()) as engine:
        engine.sink.next("mail", DOWN, DOWN)
        answer = await committed(engine, ["mail", 1], ["sms", 2], ["mail", 3])
        assert (answer.effects_dispatched, answer.effects_pending, len(answer.dispatch_errors)) == (1, 2, 1)
        first = (await effects_of(engine))[0]
        assert (first.state, first.attempts, first.next_attempt_at) == (
            READY,
            1,
            engine.clock.now() + 750_000,
        )
        assert await settled(engine) == [DELIVERED] * 3
        assert tries(engine) == [(1, 1), (1, 2), (1, 3), (3, 1)]
        assert engine.sink.payloads() == [2, 1, 3]
        first = (await effects_of(engine))[0]
        assert (first.last_error, first.next_attempt_at) == ("", None)
        assert first.settled_at == first.delivered_at is not None
        events = await engine.events()
        assert events.count(EventType.EFFECT_FAILED) == 2
        assert events.count(EventType.EFFECT_DELIVERED) == 3


@virtual_time
async def test_waits_double_up_to_the_longest_and_the_last_attempt_makes_it_dead() -> None:
    settings = EngineSettings(effect_retry_base_seconds=1, effect_retry_max_seconds=4, effect_max_attempts=6)
    async with dispatching(Engine(settings=settings)) as engine:
        engine.sink.fail("mail", DOWN)
        await committed(engine, ["mail", 1])
        assert await settled(engine) == [DEAD]
        begun = engine.sink.tried_at
        waits = [later - earlier for earlier, later in itertools.pairwise(begun)]
        # Of each wait the later half is chance, which the harness always makes a half.
        assert waits == pytest.approx([0.75, 1.5, 3.0, 3.0, 3.0], abs=0.005)
        [effect] = await effects_of(engine)
        assert (effect.attempts, effect.next_attempt_at) == (6, None)
        assert "Connection refused" in effect.last_error
        assert effect.settled_at is not None
        assert (await engine.record()).outbox_due_at is None
        assert (await engine.events())[-1] is EventType.EFFECT_DEAD
        # It is forgotten by nobody, and tried by nobody.
        await asyncio.sleep(3600)
        assert len(engine.sink.tried) == 6


def test_a_wait_is_never_shorter_than_its_half_nor_longer_than_the_most() -> None:
    settings = EngineSettings(effect_retry_base_seconds=1, effect_retry_max_seconds=600)
    for failures, longest in ((1, 1), (2, 2), (10, 512), (11, 600), (5000, 600)):
        assert outbox.backoff_seconds(failures, settings, 0.0) == longest / 2
        assert longest / 2 < outbox.backoff_seconds(failures, settings, 0.999999) <= longest


@virtual_time
async def test_a_dead_effect_lets_those_behind_it_pass() -> None:
    async with dispatching(Engine()) as engine:
        engine.sink.next("mail", DeliveryFailed("answered 410 Gone", permanent=True))
        answer = await committed(engine, ["mail", 1], ["mail", 2])
        assert (answer.effects_dispatched, answer.effects_pending) == (1, 0)
        [error] = answer.dispatch_errors
        assert "410 Gone" in error
        assert error.endswith("Given up.")
        assert await engine.effect_states() == [DEAD, DELIVERED]
        assert tries(engine) == [(1, 1), (2, 1)]


@virtual_time
async def test_a_receiver_that_says_when_is_left_alone_until_then() -> None:
    async with dispatching(Engine()) as engine:
        engine.sink.next("mail", DeliveryFailed("answered 503", retry_after_seconds=40))
        await committed(engine, ["mail", 1])
        assert await settled(engine) == [DELIVERED]
        assert engine.sink.tried_at == pytest.approx([0, 40], abs=0.005)


@virtual_time
async def test_one_who_says_at_once_is_not_asked_sooner_than_otherwise() -> None:
    async with dispatching(Engine()) as engine:
        engine.sink.next("mail", DeliveryFailed("answered 503", retry_after_seconds=0))
        await committed(engine, ["mail", 1])
        assert await settled(engine) == [DELIVERED]
        assert engine.sink.tried_at == pytest.approx([0, 0.75], abs=0.005)


@virtual_time
async def test_a_sink_cancelled_from_inside_is_a_failure_like_others() -> None:
    class Cancelled(Exception):
        pass

    async with dispatching(Engine()) as engine:
        deliver, calls = engine.sink.deliver, []

        async def cancelled(transaction_id: TransactionId, effect: EffectRecord) -> None:
            calls.append(effect)
            if len(calls) == 1:
                raise asyncio.CancelledError
            await deliver(transaction_id, effect)

        engine.sink.deliver = cancelled  # type: ignore[method-assign]
        answer = await committed(engine, ["mail", 1])
        assert answer.effects_pending == 1
        assert await settled(engine) == [DELIVERED]


@virtual_time
async def test_transactions_go_side_by_side_but_not_too_many() -> None:
    settings = EngineSettings(dispatch_wait_seconds=0, max_concurrent_deliveries=3)
    async with dispatching(Engine(settings=settings)) as engine:
        gate = engine.sink.hold("mail")
        transactions = []
        for number in range(8):
            answer = await committed(engine, ["mail", number])
            assert (answer.effects_dispatched, answer.effects_pending) == (0, 1)
            transactions.append(engine.transaction_id)
        await idle()
        assert len(engine.sink.tried) == 3
        gate.open()
        await idle()
        assert sorted(engine.sink.payloads()) == list(range(8))
        assert engine.tasks_running == 0
        for transaction_id in transactions:
            [effect] = await effects_of(engine, transaction_id)
            assert effect.state is DELIVERED


@virtual_time
async def test_an_idle_dispatcher_asks_nothing() -> None:
    async with dispatching(Engine()) as engine:
        await idle()
        engine.memory.fail_reads("claim_outbox", "next_outbox_due")  # would be seen as a retry
        reads: list[str] = []
        original = engine.memory._read

        async def counted(method: str) -> None:
            reads.append(method)
            await original(method)

        engine.memory._read = counted  # type: ignore[method-assign]
        await asyncio.sleep(86_400)
        assert reads == []


@virtual_time
async def test_a_commit_that_delivers_all_it_has_asks_nothing_more_of_the_database() -> None:
    async with dispatching(Engine()) as engine:
        await idle()
        asked: list[str] = []
        read = engine.memory._read

        async def noted(method: str) -> None:
            asked.append(method)
            await read(method)

        engine.memory._read = noted  # type: ignore[method-assign]
        await committed(engine, ["mail", 1], ["sms", 2])
        await idle()
        assert asked.count("list_effects") == 1
        assert not {"claim_outbox", "next_outbox_due"} & set(asked)


@virtual_time
async def test_a_long_queue_is_recorded_as_it_goes() -> None:
    """A crash must not deliver again what went out long ago."""
    engine = Engine()
    async with dispatching(engine):
        count = 0

        async def hold_at_the_hundredth(transaction_id: TransactionId, effect: EffectRecord) -> None:
            nonlocal count
            count += 1
            if count == 100:
                await asyncio.get_running_loop().create_future()
            engine.sink.delivered.append(effect)

        engine.sink.deliver = hold_at_the_hundredth  # type: ignore[method-assign]
        answer = await committed(engine, *(["mail", number] for number in range(100)))
        assert (answer.effects_dispatched, answer.effects_pending) == (99, 1)
        assert await engine.effect_states() == [DELIVERED] * 99 + [READY]
        await engine.crash()
    delivered_before = len(engine.sink.delivered)
    del engine.sink.deliver  # type: ignore[method-assign]
    async with dispatching(engine):
        assert await settled(engine) == [DELIVERED] * 100
        assert engine.sink.payloads()[delivered_before:] == [99]
        assert tries(engine)[-1] == (99, 2)


@virtual_time
async def test_a_few_effects_of_a_channel_are_counted_ahead_and_no_more() -> None:
    settings = EngineSettings(dispatch_wait_seconds=0)
    async with dispatching(Engine(settings=settings)) as engine:
        gate = engine.sink.hold("mail")
        await committed(engine, *(["mail", number] for number in range(40)))
        assert [effect.attempts for effect in await effects_of(engine)] == [1] * 16 + [0] * 24
        gate.open()
        assert await settled(engine) == [DELIVERED] * 40
        assert tries(engine) == [(number, 1) for number in range(40)]


@virtual_time
async def test_what_is_claimed_while_a_delivery_is_about_to_end_is_not_forgotten() -> None:
    settings = EngineSettings(dispatch_wait_seconds=10)
    async with dispatching(Engine(settings=settings)) as engine:
        await engine.begin()
        await engine.step(1, "note", {"stage": [["mail", 1], ["sms", 2]]})
        engine.sink.next("mail", DOWN, DOWN)
        engine.sink.next("sms", DOWN)
        engine.memory.fail_write(engine.memory.write_count + 2, applied=False)  # the answer
        assert isinstance(await outcome_of(engine.commit("c")), EngineError)
        gate = engine.sink.hold("sms")
        await asyncio.sleep(1)  # the background task has both on their way again
        committing = asyncio.ensure_future(engine.commit("c"))
        await asyncio.sleep(1.5)  # the mail is due once more
        gate.open()
        # The commit writes the end of the delivery while the background task waits to do so.
        assert (await committing).effects_pending == 1
        assert await settled(engine) == [DELIVERED] * 2
        assert tries(engine) == [(1, 1), (1, 2), (1, 3)]


@virtual_time
async def test_a_slow_sink_is_recorded_effect_by_effect() -> None:
    settings = EngineSettings(dispatch_wait_seconds=0)
    async with dispatching(Engine(settings=settings)) as engine:
        deliver = engine.sink.deliver

        async def slowly(transaction_id: TransactionId, effect: EffectRecord) -> None:
            await asyncio.sleep(1)
            await deliver(transaction_id, effect)

        engine.sink.deliver = slowly  # type: ignore[method-assign]
        await committed(engine, *(["mail", number] for number in range(5)))
        for done in range(1, 5):
            await asyncio.sleep(done + 0.5 - current_loop().time())
            assert (await engine.effect_states()).count(DELIVERED) == done


# --- crashes --------------------------------------------------------------------------------


@virtual_time
async def test_a_crash_between_commit_and_delivery_loses_nothing() -> None:
    engine = Engine()
    async with dispatching(engine):
        await engine.begin()
        await engine.step(1, "note", {"stage": [["mail", 1]]})
        gate = engine.sink.hold("mail")
        committing = asyncio.ensure_future(engine.commit("c"))
        await gate.reached()
        await engine.crash()
        assert committing.cancelled()
    engine.sink.gates.clear()
    async with dispatching(engine):
        await idle()
        assert await settled(engine) == [DELIVERED]
        # The first delivery had begun, and may have arrived: the second one can be told from it.
        assert tries(engine) == [(1, 1), (1, 2)]
        assert len({effect.idempotency_key for effect in engine.sink.tried}) == 1
        answer = await engine.commit("c")
        assert (answer.effects_dispatched, answer.effects_pending, answer.dispatch_errors) == (1, 0, ())
        assert await engine.commit("c") == answer


@virtual_time
async def test_a_crash_after_a_delivery_and_before_it_is_marked_delivers_again_as_the_second_attempt() -> (
    None
):
    engine = Engine()
    async with dispatching(engine):
        await engine.begin()
        await engine.step(1, "note", {"stage": [["mail", 1], ["mail", 2]]})
        engine.memory.hold_write(engine.memory.write_count + 2)  # the answer, with the marks
        committing = asyncio.ensure_future(engine.commit("c"))
        await idle()
        assert engine.sink.payloads() == [1, 2]
        assert await engine.effect_states() == [READY, READY]
        await engine.crash()
        assert committing.cancelled()
    async with dispatching(engine):
        await idle()
        assert await settled(engine) == [DELIVERED] * 2
    assert tries(engine) == [(1, 1), (2, 1), (1, 2), (2, 2)]
    first, second, *again = [effect.idempotency_key for effect in engine.sink.delivered]
    assert again == [first, second]


@virtual_time
async def test_an_effect_that_was_counted_and_never_tried_is_counted_back() -> None:
    async with dispatching(Engine()) as engine:
        engine.sink.next("mail", DOWN)
        await committed(engine, ["mail", 1], ["mail", 2], ["mail", 3])
        assert [effect.attempts for effect in await effects_of(engine)] == [1, 0, 0]
        await settled(engine)
        assert tries(engine) == [(1, 1), (1, 2), (2, 1), (3, 1)]


@virtual_time
async def test_a_publication_of_unknown_outcome_is_looked_after() -> None:
    async with dispatching(Engine()) as engine:
        await engine.begin()
        await engine.step(1, "note", {"stage": [["mail", 1]]})
        engine.memory.fail_next_write(applied=True)
        assert isinstance(await outcome_of(engine.commit("c")), EngineError)
        await idle()
        assert await settled(engine) == [DELIVERED]
        assert (await engine.commit("c")).effects_dispatched == 1
        assert tries(engine) == [(1, 2)]


@virtual_time
async def test_a_database_that_fails_for_a_while_is_waited_for() -> None:
    async with dispatching(Engine()) as engine:
        engine.sink.next("mail", DOWN)
        await committed(engine, ["mail", 1], ["mail", 2])
        engine.memory.fail_reads("claim_outbox", "load_record", "list_effects", "next_outbox_due")
        await asyncio.sleep(60)
        assert len(engine.sink.tried) == 1
        engine.memory.fail_reads()
        assert await settled(engine) == [DELIVERED] * 2


@virtual_time
async def test_a_claim_that_was_made_although_its_answer_was_lost_is_found() -> None:
    async with dispatching(Engine()) as engine:
        engine.sink.next("mail", DOWN)
        await committed(engine, ["mail", 1])
        claim = engine.memory.claim_outbox

        async def lost(*asked: Any) -> Any:
            if await claim(*asked):
                engine.memory.claim_outbox = claim  # type: ignore[method-assign]
            raise StoreUnavailable("the answer was lost")

        engine.memory.claim_outbox = lost  # type: ignore[method-assign]
        async with asyncio.timeout(600):
            assert await settled(engine) == [DELIVERED]
        assert engine.memory.claim_outbox == claim, "no claim was lost"


@virtual_time
async def test_one_transaction_that_cant_be_read_is_tried_again_and_again_but_not_without_end() -> None:
    async with dispatching(Engine()) as engine:
        engine.sink.next("mail", DOWN)
        await committed(engine, ["mail", 1])
        engine.memory.fail_reads("list_effects")
        reads = 0
        read = engine.memory._read

        async def counted(method: str) -> None:
            nonlocal reads
            reads += 1
            await read(method)

        engine.memory._read = counted  # type: ignore[method-assign]
        await asyncio.sleep(60)
        assert 20 < reads < 2000
        engine.memory.fail_reads()
        assert await settled(engine) == [DELIVERED]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("number", range(1, 7))
@virtual_time
async def test_whatever_write_fails_each_effect_arrives_and_no_more_often_than_it_was_tried(
    number: int, applied: bool
) -> None:
    async with dispatching(Engine()) as engine:
        await engine.begin()
        await engine.step(1, "note", {"stage": [["mail", 1], ["sms", 2], ["mail", 3]]})
        engine.sink.next("mail", DOWN)
        engine.memory.fail_write(engine.memory.write_count + number, applied=applied)
        while isinstance(await outcome_of(engine.commit("c")), EngineError):  # noqa: ASYNC110
            await asyncio.sleep(1)
        assert await settled(engine) == [DELIVERED] * 3
        assert engine.sink.payloads("mail") == [1, 3]
        assert engine.sink.payloads("sms") == [2]
        events = await engine.events()
        assert events.count(EventType.EFFECT_DELIVERED) == 3


# --- what a person does ---------------------------------------------------------------------


@virtual_time
async def test_a_dead_effect_is_requeued_with_fresh_attempts_and_goes_out_at_once() -> None:
    settings = EngineSettings(effect_max_attempts=1)
    async with dispatching(Engine(settings=settings)) as engine:
        engine.sink.next("mail", DOWN)
        await committed(engine, ["mail", 1], ["mail", 2])
        dead, passed = await effects_of(engine)
        assert (dead.state, passed.state) == (DEAD, DELIVERED)
        wanted = request(engine, dead, request_id="again")
        answer = await engine.coordinator.requeue_effect(wanted)
        assert (answer.effect.state, answer.effect.attempts, answer.effect.last_error) == (READY, 0, "")
        assert answer.ready_at == (await engine.record()).ended_at
        await idle()
        assert await engine.effect_states() == [DELIVERED] * 2
        assert tries(engine) == [(1, 1), (2, 1), (1, 1)]
        assert await engine.coordinator.requeue_effect(wanted) == answer
        await idle()
        assert len(engine.sink.tried) == 3
        refused = await outcome_of(engine.coordinator.requeue_effect(request(engine, dead)))
        assert (refused.reason, refused.metadata["state"]) == ("EFFECT_NOT_DEAD", "DELIVERED")
        events = await engine.events()
        assert events[-2:] == [EventType.EFFECT_REQUEUED, EventType.EFFECT_DELIVERED]


@pytest.mark.parametrize("applied", [False, True])
@virtual_time
async def test_a_requeue_of_unknown_outcome_is_not_forgotten(applied: bool) -> None:
    settings = EngineSettings(effect_max_attempts=1)
    async with dispatching(Engine(settings=settings)) as engine:
        engine.sink.next("mail", DOWN)
        await committed(engine, ["mail", 1])
        [dead] = await effects_of(engine)
        engine.memory.fail_next_write(applied=applied)
        wanted = request(engine, dead, request_id="again")
        assert isinstance(await outcome_of(engine.coordinator.requeue_effect(wanted)), EngineError)
        await idle()
        assert await engine.effect_states() == [DELIVERED if applied else DEAD]
        answer = await engine.coordinator.requeue_effect(wanted)
        assert answer.effect.state is READY
        await idle()
        assert len(engine.sink.tried) == 2


@virtual_time
async def test_a_discarded_effect_is_not_delivered_and_lets_those_behind_it_pass() -> None:
    async with dispatching(Engine()) as engine:
        engine.sink.next("mail", DOWN)
        await committed(engine, ["mail", 1], ["mail", 2])
        waiting = (await effects_of(engine))[0]
        wanted = request(engine, waiting, reason="wrong address", request_id="d")
        answer = await engine.coordinator.discard_effect(wanted)
        assert (answer.effect.state, answer.effect.settled_at) == (DISCARDED, engine.clock.now())
        await idle()
        assert engine.sink.payloads() == [2]
        assert await settled(engine) == [DISCARDED, DELIVERED]
        assert engine.sink.payloads() == [2]
        assert await engine.coordinator.discard_effect(wanted) == answer
        again = await outcome_of(engine.coordinator.discard_effect(request(engine, waiting)))
        assert (again.reason, again.metadata["state"]) == ("EFFECT_SETTLED", "DISCARDED")
        other = await outcome_of(
            engine.coordinator.discard_effect(request(engine, waiting, request_id="d", reason="another"))
        )
        assert other.reason == "REQUEST_ID_REUSED"


@virtual_time
async def test_the_last_effect_discarded_leaves_nothing_due() -> None:
    async with dispatching(Engine()) as engine:
        engine.sink.next("mail", DOWN)
        await committed(engine, ["mail", 1])
        [waiting] = await effects_of(engine)
        await engine.coordinator.discard_effect(request(engine, waiting))
        assert (await engine.record()).outbox_due_at is None
        await asyncio.sleep(60)
        assert len(engine.sink.tried) == 1


@virtual_time
async def test_what_is_not_committed_can_neither_be_discarded_nor_requeued() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"stage": [["mail", 1]]})
    [staged] = await effects_of(engine)
    discarded = await outcome_of(engine.coordinator.discard_effect(request(engine, staged)))
    assert discarded.reason == "EFFECT_STAGED"
    requeued = await outcome_of(engine.coordinator.requeue_effect(request(engine, staged)))
    assert (requeued.reason, requeued.metadata["state"]) == ("EFFECT_NOT_DEAD", "STAGED")
    for ask in (engine.coordinator.discard_effect, engine.coordinator.requeue_effect):
        unknown = await outcome_of(ask(EffectRequest(engine.transaction_id, "none")))
        assert unknown.reason == "EFFECT_NOT_FOUND"
        elsewhere = await outcome_of(ask(EffectRequest(TransactionId("none"), staged.effect_id)))
        assert elsewhere.reason == "TRANSACTION_NOT_FOUND"


@virtual_time
async def test_an_effect_discarded_while_another_is_under_way_does_not_leave() -> None:
    settings = EngineSettings(dispatch_wait_seconds=0)
    async with dispatching(Engine(settings=settings)) as engine:
        gate = engine.sink.hold("mail")
        await committed(engine, ["mail", 1], ["mail", 2], ["mail", 3])
        second = (await effects_of(engine))[1]
        await engine.coordinator.discard_effect(request(engine, second))
        gate.open()
        assert await settled(engine) == [DELIVERED, DISCARDED, DELIVERED]
        assert engine.sink.payloads() == [1, 3]


@virtual_time
async def test_an_effect_discarded_while_its_delivery_is_under_way_stays_discarded() -> None:
    settings = EngineSettings(dispatch_wait_seconds=0)
    async with dispatching(Engine(settings=settings)) as engine:
        gate = engine.sink.hold("mail")
        await committed(engine, ["mail", 1], ["mail", 2])
        first = (await effects_of(engine))[0]
        await engine.coordinator.discard_effect(request(engine, first))
        gate.open()
        assert await settled(engine) == [DISCARDED, DELIVERED]
        # It may still arrive, and did.
        assert engine.sink.payloads() == [1, 2]
        assert (await engine.events()).count(EventType.EFFECT_DELIVERED) == 1


@virtual_time
async def test_an_effect_that_has_just_been_delivered_cant_be_discarded_though_it_is_not_marked_yet() -> None:
    settings = EngineSettings(dispatch_wait_seconds=0)
    async with dispatching(Engine(settings=settings)) as engine:
        gate = engine.sink.hold("sms")
        await committed(engine, ["mail", 1], ["sms", 2])
        await idle()
        assert engine.sink.payloads() == [1]
        first = (await effects_of(engine))[0]
        refused = await outcome_of(engine.coordinator.discard_effect(request(engine, first)))
        assert (refused.reason, refused.metadata["state"]) == ("EFFECT_SETTLED", "DELIVERED")
        gate.open()
        assert await settled(engine) == [DELIVERED] * 2


@virtual_time
async def test_an_effect_requeued_while_its_channel_is_busy_is_not_forgotten() -> None:
    settings = EngineSettings(dispatch_wait_seconds=0)
    async with dispatching(Engine(settings=settings)) as engine:
        engine.sink.next("mail", DeliveryFailed("no", permanent=True))
        gate = engine.sink.hold("sms")
        await committed(engine, ["mail", 1], ["sms", 2])
        await asyncio.sleep(1)
        dead = (await effects_of(engine))[0]
        assert dead.state is DEAD
        await engine.coordinator.requeue_effect(request(engine, dead))
        gate.open()
        assert await settled(engine) == [DELIVERED] * 2
        assert engine.sink.payloads() == [2, 1]


@virtual_time
async def test_effects_are_listed_by_state_channel_and_transaction_page_by_page() -> None:
    settings = EngineSettings(effect_max_attempts=1)
    engine = Engine(settings=settings)
    engine.sink.next("mail", DOWN)
    await committed(engine, ["mail", 1], ["sms", 2], ["mail", 3])
    first = engine.transaction_id
    await engine.begin()
    await engine.step(1, "note", {"stage": [["mail", 4]]})

    async def listed(
        transaction_id: TransactionId | None = None,
        states: frozenset[EffectState] = frozenset(),
        channel: str = "",
        limit: int = 100,
        principal: str = "anonymous",
    ) -> list[Any]:
        cursor, found = "", []
        while True:
            page = await engine.coordinator.list_effects(
                principal, transaction_id, states, channel, cursor, limit
            )
            assert len(page.effects) <= limit
            found += [json.loads(effect.payload) for _, effect in page.effects]
            cursor = page.next_cursor
            if not cursor:
                return found

    assert await listed() == await listed(limit=1) == [1, 2, 3, 4]
    assert await listed(first) == [1, 2, 3]
    assert await listed(states=frozenset({DEAD, EffectState.STAGED})) == [1, 4]
    assert await listed(first, channel="sms") == [2]
    assert await listed(principal="somebody else") == []
    refused = await outcome_of(listed(first, principal="somebody else"))
    assert refused.reason == "TRANSACTION_NOT_FOUND"
    refused = await outcome_of(
        engine.coordinator.list_effects("anonymous", None, frozenset(), "", "no cursor", 10)
    )
    assert refused.reason == "INVALID_REQUEST"


# --- the end of a server ----------------------------------------------------------------------


@virtual_time
async def test_a_drain_ends_the_delivery_under_way_and_begins_no_other() -> None:
    settings = EngineSettings(dispatch_wait_seconds=0)
    engine = Engine(settings=settings)
    async with dispatching(engine):
        gate = engine.sink.hold("mail")
        await committed(engine, ["mail", 1], ["mail", 2], ["sms", 3])
        await gate.reached()
        engine.coordinator.begin_drain()
        draining = asyncio.ensure_future(engine.coordinator.drain(30))
        await idle()
        assert not draining.done()
        gate.open()
        assert await draining == 0
    assert await engine.effect_states() == [DELIVERED, READY, DELIVERED]
    record = await engine.record()
    assert (record.outbox_owner, record.outbox_due_at) == ("", engine.clock.now())
    assert [effect.attempts for effect in await effects_of(engine)] == [1, 0, 1]
    engine.restart()
    async with dispatching(engine):
        assert await settled(engine) == [DELIVERED] * 3
        assert tries(engine) == [(1, 1), (2, 1)]


# --- several servers --------------------------------------------------------------------------


@virtual_time
async def test_no_other_server_delivers_while_the_lease_lives() -> None:
    database = MemoryDatabase()
    settings = EngineSettings(dispatch_wait_seconds=0)
    one = Engine(settings=settings, database=database, is_shared=True, name="one")
    other = Engine(settings=settings, database=database, is_shared=True, name="other")
    async with dispatching(one), dispatching(other):
        gate = one.sink.hold("mail")
        await committed(one, ["mail", 1], ["mail", 2])
        await asyncio.sleep(10 * settings.lease_seconds)
        assert other.sink.tried == []
        gate.open()
        assert await settled(one) == [DELIVERED] * 2
        assert one.sink.payloads() == [1, 2]
    assert other.sink.tried == []


@virtual_time
async def test_a_dead_servers_effects_are_taken_over_once_its_lease_has_ended() -> None:
    database = MemoryDatabase()
    settings = EngineSettings(dispatch_wait_seconds=0)
    one = Engine(settings=settings, database=database, is_shared=True, name="one")
    other = Engine(settings=settings, database=database, is_shared=True, name="other")
    async with dispatching(other):
        async with dispatching(one):
            gate = one.sink.hold("mail")
            await committed(one, ["mail", 1], ["mail", 2])
            await gate.reached()
            one.memory.kill()
            died_at = current_loop().time()
        other.transaction_id = one.transaction_id
        assert await settled(other) == [DELIVERED] * 2
        assert tries(other) == [(1, 2), (2, 1)] or tries(other) == [(1, 2), (2, 2)]
        assert other.sink.tried_at[0] - died_at <= settings.lease_seconds + 1.5
        assert other.sink.tried_at[0] - died_at > settings.lease_seconds / 2


@virtual_time
async def test_a_server_whose_effects_were_taken_over_delivers_no_more_of_them() -> None:
    """It hung, as in a paused process, while its lease ended; the delivery under way can't be called back."""
    database = MemoryDatabase()
    settings = EngineSettings(dispatch_wait_seconds=0)
    one = Engine(settings=settings, database=database, is_shared=True, name="one")
    other = Engine(settings=settings, database=database, is_shared=True, name="other")
    await one.coordinator._lease.open()
    async with dispatching(other):
        gate = one.sink.hold("mail")
        await committed(one, ["mail", 1], ["mail", 2], ["mail", 3])
        other.transaction_id = one.transaction_id
        assert await settled(other) == [DELIVERED] * 3
        gate.open()
        await idle()
        assert tries(one) == [(1, 1)]
        assert other.sink.payloads() == [1, 2, 3]
        assert (await one.events()).count(EventType.EFFECT_DELIVERED) == 3


@virtual_time
async def test_a_server_that_comes_back_after_its_effects_were_taken_over_leaves_them_alone() -> None:
    database = MemoryDatabase()
    settings = EngineSettings(dispatch_wait_seconds=0)
    one = Engine(settings=settings, database=database, is_shared=True, name="one")
    other = Engine(settings=settings, database=database, is_shared=True, name="other")
    await one.coordinator._lease.open()
    async with dispatching(other):
        gate = one.sink.hold("mail")
        await committed(one, ["mail", 1], ["mail", 2], ["mail", 3])
        held = other.sink.hold("mail")
        await held.reached()
        await one.coordinator._lease.renew()  # it has a lease again, and a new id
        gate.open()
        await asyncio.sleep(1)
        assert tries(one) == [(1, 1)]
        held.open()
        other.transaction_id = one.transaction_id
        assert await settled(other) == [DELIVERED] * 3
        assert tries(one) == [(1, 1)]


@virtual_time
async def test_a_server_that_cant_renew_its_lease_begins_no_delivery() -> None:
    settings = EngineSettings(dispatch_wait_seconds=0)
    one = Engine(settings=settings, database=MemoryDatabase(), is_shared=True, name="one")
    await one.coordinator._lease.open()
    deliver = one.sink.deliver

    async def slowly(transaction_id: TransactionId, effect: EffectRecord) -> None:
        await asyncio.sleep(1)
        await deliver(transaction_id, effect)

    one.sink.deliver = slowly  # type: ignore[method-assign]
    await committed(one, *(["mail", number] for number in range(30)))
    await asyncio.sleep(60)
    assert 0 < len(one.sink.tried) <= settings.lease_seconds
    assert one.tasks_running == 0
    assert (await one.record()).outbox_owner == ""


@virtual_time
async def test_an_effect_discarded_through_another_server_does_not_leave() -> None:
    database = MemoryDatabase()
    settings = EngineSettings(dispatch_wait_seconds=0)
    one = Engine(settings=settings, database=database, is_shared=True, name="one")
    other = Engine(settings=settings, database=database, is_shared=True, name="other")
    async with dispatching(one), dispatching(other):
        gate = one.sink.hold("mail")
        await committed(one, ["mail", 1], ["mail", 2], ["mail", 3])
        second = (await effects_of(one))[1]
        await other.coordinator.discard_effect(request(one, second))
        gate.open()
        assert await settled(one) == [DELIVERED, DISCARDED, DELIVERED]
        assert one.sink.payloads() == [1, 3]
        assert other.sink.tried == []


@virtual_time
async def test_an_effect_discarded_through_another_server_while_the_commit_waits_does_not_leave() -> None:
    database = MemoryDatabase()
    one = Engine(database=database, is_shared=True, name="one")
    other = Engine(database=database, is_shared=True, name="other")
    async with dispatching(one), dispatching(other):
        gate = one.sink.hold("mail")
        await one.begin()
        await one.step(1, "note", {"stage": [["mail", 1], ["mail", 2], ["mail", 3]]})
        committing = asyncio.ensure_future(one.commit("c"))
        await gate.reached()
        second = (await effects_of(one))[1]
        await other.coordinator.discard_effect(request(one, second))
        gate.open()
        answer = await committing
        assert (answer.effects_dispatched, answer.effects_pending) == (2, 0)
        assert await settled(one) == [DELIVERED, DISCARDED, DELIVERED]
        assert one.sink.payloads() == [1, 3]
        assert current_loop().time() < 1


@virtual_time
async def test_an_effect_requeued_through_another_server_leaves_once() -> None:
    database = MemoryDatabase()
    settings = EngineSettings(effect_max_attempts=1)
    one = Engine(settings=settings, database=database, is_shared=True, name="one")
    other = Engine(settings=settings, database=database, is_shared=True, name="other")
    async with dispatching(one), dispatching(other):
        one.sink.next("mail", DOWN)
        await committed(one, ["mail", 1])
        [dead] = await effects_of(one)
        await other.coordinator.requeue_effect(request(one, dead))
        assert await settled(one) == [DELIVERED]
        assert one.sink.payloads() + other.sink.payloads() == [1]


@virtual_time
async def test_leftovers_of_a_server_that_went_in_order_are_delivered_by_another() -> None:
    database = MemoryDatabase()
    settings = EngineSettings(dispatch_wait_seconds=0)
    one = Engine(settings=settings, database=database, is_shared=True, name="one")
    other = Engine(settings=settings, database=database, is_shared=True, name="other")
    async with dispatching(other):
        async with dispatching(one):
            one.sink.fail("mail", DOWN)
            await committed(one, ["mail", 1])
            await idle()
        other.transaction_id = one.transaction_id
        assert await settled(other) == [DELIVERED]
        assert tries(other) == [(1, 2)]
