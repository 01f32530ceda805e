"""Whatever fails, crashes or is decided by people: order holds, nothing is lost, nothing that is settled moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.support.engine_harness import Engine, outcome_of
from tests.support.virtual_time import current_loop, idle, run_in_virtual_time

from agenttx_server.engine import outbox
from agenttx_server.engine.errors import EngineError, Unavailable
from agenttx_server.engine.ports import DeliveryFailed
from agenttx_server.engine.records import EffectRecord, EffectState, EventType, TransactionId
from agenttx_server.engine.requests import EffectRequest
from agenttx_server.engine.services import EngineSettings

CHANNELS = ("mail", "sms")
LONGEST_STORY_SECONDS = 2000
SETTINGS = EngineSettings(
    effect_retry_base_seconds=1, effect_retry_max_seconds=4, effect_max_attempts=3, dispatch_wait_seconds=0.5
)
SETTLED = (EffectState.DELIVERED, EffectState.DEAD, EffectState.DISCARDED)

_effects = st.lists(st.sampled_from(CHANNELS), min_size=1, max_size=24)
_outcomes = st.lists(st.sampled_from(["ok", "ok", "ok", "fail", "refused", "slow"]), max_size=40)
_deeds = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0, 2.5]),
        st.sampled_from(["crash", "discard", "requeue", "lost write", "failed write", "nothing"]),
        st.integers(0, 23),
    ),
    max_size=8,
)


class Receiver:
    """Takes effects as told, and checks of each that it was its turn."""

    def __init__(self, engine: Engine, outcomes: list[str]) -> None:
        self.engine = engine
        self.outcomes = list(outcomes)
        self.arrived: Counter[str] = Counter()
        self.tries: list[tuple[str, int]] = []
        # What the sink said last of each effect, in this life of the server.
        self.said: dict[str, EffectState] = {}

    async def deliver(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        self.check_turn(transaction_id, effect)
        self.tries.append((effect.effect_id, effect.attempts))
        self.said.pop(effect.effect_id, None)
        outcome = self.outcomes.pop(0) if self.outcomes else "ok"
        if outcome == "slow":
            await asyncio.sleep(0.2)
        if outcome == "fail":
            if effect.attempts >= SETTINGS.effect_max_attempts:
                self.said[effect.effect_id] = EffectState.DEAD
            raise ConnectionError("no")
        if outcome == "refused":
            self.said[effect.effect_id] = EffectState.DEAD
            raise DeliveryFailed("no", permanent=True)
        self.arrived[effect.effect_id] += 1
        self.said[effect.effect_id] = EffectState.DELIVERED

    def check_turn(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        stored = self.engine.memory.database.transactions[transaction_id].effects
        assert stored[effect.effect_id].state is EffectState.READY
        for earlier in outbox.by_channel(stored.values())[effect.channel]:
            if earlier.effect_id == effect.effect_id:
                break
            is_settled = earlier.state in SETTLED or self.said.get(earlier.effect_id) in SETTLED
            assert is_settled, f"{effect.effect_id} overtook {earlier.effect_id}"


async def _story(channels: list[str], outcomes: list[str], deeds: list[tuple[float, str, int]]) -> None:
    engine = Engine(settings=SETTINGS)
    receiver = Receiver(engine, outcomes)
    engine.sink.deliver = receiver.deliver  # type: ignore[method-assign]
    background = await _serve(engine)
    await engine.begin()
    # Two steps: order is by step, then by staging.
    half = len(channels) // 2
    staged = [[channel, number] for number, channel in enumerate(channels)]
    await engine.step(1, "note", {"stage": staged[:half]})
    await engine.step(2, "note", {"stage": staged[half:]})
    hidden = 0  # how often something may have happened that nobody remembers
    requeues: Counter[str] = Counter()
    committing = asyncio.ensure_future(outcome_of(engine.commit("c")))
    for delay, deed, number in deeds:
        await asyncio.sleep(delay)
        if deed == "crash":
            background.cancel()
            await engine.crash()
            hidden += 1
            receiver.said.clear()
            background = await _serve(engine)
            committing = asyncio.ensure_future(outcome_of(engine.commit("c")))
        elif deed.endswith("write"):
            engine.memory.fail_next_write(applied=deed == "lost write")
            hidden += 1
        elif deed != "nothing":
            await _interfere(engine, deed, number, receiver, requeues)
        event(deed)
    await _settle(engine, committing)
    background.cancel()
    await _check(engine, receiver, hidden, requeues)


async def _serve(engine: Engine) -> asyncio.Future[Any]:
    await engine.coordinator._lease.open()
    return asyncio.ensure_future(engine.coordinator._outbox.run())


async def _interfere(
    engine: Engine, deed: str, number: int, receiver: Receiver, requeues: Counter[str]
) -> None:
    effects = await engine.store.list_effects(engine.transaction_id, frozenset())
    effect = effects[number % len(effects)]
    coordinator = engine.coordinator
    call = coordinator.discard_effect if deed == "discard" else coordinator.requeue_effect
    answer = await outcome_of(call(EffectRequest(engine.transaction_id, effect.effect_id)))
    if isinstance(answer, EngineError):
        event(answer.reason)
    # One whose outcome is unknown may have been made.
    if deed == "requeue" and (not isinstance(answer, EngineError) or isinstance(answer, Unavailable)):
        requeues[effect.effect_id] += 1
        receiver.said.pop(effect.effect_id, None)


async def _settle(engine: Engine, committing: asyncio.Future[Any]) -> None:
    while isinstance(await committing, EngineError):
        await asyncio.sleep(1)
        assert current_loop().time() < LONGEST_STORY_SECONDS
        committing = asyncio.ensure_future(outcome_of(engine.commit("c")))
    while True:
        states = set(await engine.effect_states())
        if states <= set(SETTLED) and not (await engine.record()).outbox_owner:
            return
        await asyncio.sleep(1)
        assert current_loop().time() < LONGEST_STORY_SECONDS, f"{states} for ever"


async def _check(engine: Engine, receiver: Receiver, hidden: int, requeues: Counter[str]) -> None:
    await idle()
    assert engine.tasks_running == 0
    record = await engine.record()
    assert record.outbox_due_at is None
    events = await engine.store.list_events(engine.transaction_id, 1, 10_000)
    delivered = [item for item in events if item.type is EventType.EFFECT_DELIVERED]
    effects = await engine.store.list_effects(engine.transaction_id, frozenset())
    assert len(delivered) == sum(effect.state is EffectState.DELIVERED for effect in effects)
    for effect in effects:
        arrived = receiver.arrived[effect.effect_id]
        if effect.state is EffectState.DELIVERED:
            assert arrived >= 1
        # Once, and once more for each time that it was forgotten or asked for again.
        assert arrived <= 1 + hidden + requeues[effect.effect_id]
        numbers = [number for effect_id, number in receiver.tries if effect_id == effect.effect_id]
        assert all(number >= 1 for number in numbers)
        repeated = len(numbers) - len(set(numbers))
        # No two tries look the same, unless a person had it begin anew.
        assert repeated == 0 or requeues[effect.effect_id]


@given(_effects, _outcomes, _deeds)
@settings(max_examples=150, deadline=None)
def test_order_holds_and_nothing_is_lost(
    channels: list[str], outcomes: list[str], deeds: list[tuple[float, str, int]]
) -> None:
    run_in_virtual_time(_story(channels, outcomes, deeds))
