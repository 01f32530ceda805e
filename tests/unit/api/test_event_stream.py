"""Following events: nothing missed between looking and waiting, and an end only when there is no more."""

import asyncio
from types import SimpleNamespace

import pytest

from agenttx_server.api import event_stream
from agenttx_server.api.drain_signal import DrainSignal
from agenttx_server.api.event_stream import follow_events
from agenttx_server.engine.errors import Unavailable
from agenttx_server.engine.records import EventRecord, EventType, MicrosecondsUtc, TransactionId


class Journal:
    """A transaction's events as a coordinator tells them; ``before_read`` happens just before each read."""

    def __init__(self):
        self.events = []
        self.has_ended = False
        self.pending_effects = 0
        self.reads = 0
        self.more = asyncio.Event()
        self.before_read = {}

    def add(self, kind=EventType.STEP_COMPLETED):
        self.events.append(EventRecord(len(self.events) + 1, kind, 1, MicrosecondsUtc(0)))
        self.more.set()

    def end(self, kind=EventType.TRANSACTION_COMMITTED):
        self.has_ended = True
        self.add(kind)

    async def is_ended(self, principal, transaction_id):
        return self.has_ended

    async def get(self, principal, transaction_id):
        return SimpleNamespace(pending_effects=self.pending_effects)

    async def events_after(self, principal, transaction_id, from_sequence, limit):
        self.reads += 1
        self.before_read.pop(self.reads, lambda: None)()
        return self.events[from_sequence - 1 : from_sequence - 1 + limit]

    async def wait_for_event(self, transaction_id, after_sequence):
        while len(self.events) <= after_sequence:
            self.more.clear()
            await self.more.wait()


@pytest.fixture
def journal():
    return Journal()


def follow(journal, from_sequence=0, drain=None):
    return follow_events(journal, drain or DrainSignal(), "ann", TransactionId("t"), from_sequence)


async def sequences(following):
    return [event.sequence async for event, _ in following]


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_events_are_read_in_pages(journal, monkeypatch):
    monkeypatch.setattr(event_stream, "PAGE", 3)
    for _ in range(7):
        journal.add()
    journal.end()

    assert await sequences(follow(journal)) == list(range(1, 9))


async def test_a_sequence_that_no_database_can_count_to_is_beyond_the_end(journal):
    asked = []
    read = journal.events_after

    async def events_after(principal, transaction_id, from_sequence, limit):
        asked.append(from_sequence)
        return await read(principal, transaction_id, from_sequence, limit)

    journal.events_after = events_after
    journal.end()

    assert await sequences(follow(journal, 2**64 - 1)) == []
    assert max(asked) < 2**63


async def test_an_event_between_asking_for_the_end_and_reading_is_told(journal):
    journal.add()
    journal.before_read[1] = journal.end

    assert await sequences(follow(journal)) == [1, 2]


async def test_an_event_between_reading_and_waiting_is_told(journal):
    journal.add()
    following = asyncio.create_task(sequences(follow(journal)))
    await settle()
    journal.add()
    await settle()
    journal.end()

    assert await following == [1, 2, 3]


async def test_an_ended_transaction_with_an_effect_to_deliver_is_followed_on(journal):
    journal.pending_effects = 1
    journal.end()
    following = asyncio.create_task(sequences(follow(journal)))
    await settle()
    assert not following.done()

    journal.pending_effects = 0
    journal.add(EventType.EFFECT_DELIVERED)

    assert await following == [1, 2]


async def test_following_from_behind_the_end_ends(journal):
    journal.end()

    assert await sequences(follow(journal, from_sequence=2)) == []


async def test_a_live_watch_waits_and_does_not_ask_over_and_over(journal):
    journal.add()
    following = asyncio.create_task(sequences(follow(journal)))
    await settle()
    reads = journal.reads
    await settle()

    assert journal.reads == reads <= 2
    journal.end()
    await following


async def test_draining_says_where_to_go_on(journal):
    for _ in range(4):
        journal.add()
    drain = DrainSignal()
    following = asyncio.create_task(sequences(follow(journal, 2, drain)))
    await settle()
    drain.begin_drain()

    with pytest.raises(Unavailable, match="resume from sequence 5"):
        await following
