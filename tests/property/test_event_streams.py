"""However events are written, by whichever server, and however often followers are cut: each has every event once, in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.engine_harness import FakeClock
from tests.support.memory_run_store import MemoryRunStore
from tests.support.memory_store import MemoryDatabase
from tests.support.virtual_time import run_in_virtual_time

from agenttx_server.graphs.runs import event_following
from agenttx_server.graphs.runs.event_following import JournalPoll, RunFollower, SequenceFollower
from agenttx_server.graphs.runs.ports import EventFilter, RunChange
from agenttx_server.graphs.runs.records import EventRecord, RunRecord, RunStatus

CLOCK = FakeClock()
RUNS = ("a", "b", "c")
# Who writes (this server or another), to which run, how many events, and how long after the one before.
WRITES = st.lists(
    st.tuples(
        st.booleans(), st.sampled_from(RUNS), st.integers(1, 5), st.sampled_from([0.0, 0.1, 3.0, 20.0])
    ),
    max_size=12,
)
# A follower: of a run (or all), from where, and after how many events each of its connections is cut.
FOLLOWERS = st.lists(
    st.tuples(
        st.sampled_from((*RUNS, "")), st.integers(0, 12), st.lists(st.integers(1, 4), min_size=1, max_size=5)
    ),
    min_size=1,
    max_size=4,
)


class Servers:
    """Two servers on one database; followers are on the first, where the other's writes are polled for."""

    def __init__(self) -> None:
        database = MemoryDatabase()
        self.here = MemoryRunStore(database, is_shared=True)
        self.other = MemoryRunStore(database, is_shared=True)
        self.runs = {name: RunRecord(name, "t", "g", "v", RunStatus.RUNNING, 1, 1) for name in RUNS}

    async def write(self, is_here: bool, name: str, count: int, *, ends: bool = False) -> None:
        run = self.runs[name]
        first = run.next_offset
        events = [EventRecord(name, first + n, "custom", 1, "{}", "t", name, "g") for n in range(count)]
        if ends:
            events[-1] = replace(events[-1], kind="run.completed")
        status = RunStatus.COMPLETED if ends else RunStatus.RUNNING
        self.runs[name] = run = replace(run, next_offset=first + count, status=status)
        await (self.here if is_here else self.other).write(RunChange(runs=[run], events=events))
        if is_here:
            # What a store of this process does once the write is durable.
            self.here.signals.notify(name)
            self.here.signals.notify("")

    async def follow(self, name: str, start: int, cuts: list[int]) -> list[EventRecord]:
        """Follow up to the end, over connections that are cut after so many events each."""
        seen: list[EventRecord] = []
        ends = len(RUNS) if not name else 1
        for number in range(10_000):
            position = start
            if seen:
                position = seen[-1].offset + 1 if name else seen[-1].sequence + 1
            follower: Any = (
                RunFollower(self.here, CLOCK, name, position)
                if name
                else SequenceFollower(self.here, CLOCK, EventFilter(), position)
            )
            left = cuts[number % len(cuts)]
            while left > 0:
                page = await follower.read()
                if not page:
                    return seen
                seen += page[:left]
                left -= len(page)
                if not name and sum(event.kind == "run.completed" for event in seen) == ends:
                    return seen
        raise AssertionError("never ended")


async def scenario(writes: list[Any], followers: list[Any]) -> None:
    servers = Servers()
    for name in RUNS:
        await servers.write(False, name, 1)
    poll = asyncio.create_task(JournalPoll(servers.here, CLOCK).follow())
    # One that begins behind a run's end, or at all runs behind the last sequence, has nothing to wait for.
    following = [
        asyncio.create_task(servers.follow(name, min(start, 1 if name else 3), cuts))
        for name, start, cuts in followers
    ]
    for is_here, name, count, pause in writes:
        await asyncio.sleep(pause)
        await servers.write(is_here, name, count)
    for name in RUNS:
        await servers.write(name == "a", name, 1, ends=True)
    everything = servers.here._events()
    for (name, start, _), task in zip(followers, following, strict=True):
        position = min(start, 1 if name else 3)
        assert await task == [
            event
            for event in everything
            if (event.run_id == name and event.offset >= position if name else event.sequence >= position)
        ]
    poll.cancel()


@given(WRITES, FOLLOWERS, st.sampled_from([1, 2, 256]), st.sampled_from([1, 3, 20_000]))
def test_every_follower_has_every_event_once_and_in_order(
    writes: list[Any], followers: list[Any], page: int, looked_through: int
) -> None:
    kept = event_following._PAGE_EVENTS, event_following._LOOKED_THROUGH
    event_following._PAGE_EVENTS, event_following._LOOKED_THROUGH = page, looked_through
    try:
        run_in_virtual_time(scenario(writes, followers))
    finally:
        event_following._PAGE_EVENTS, event_following._LOOKED_THROUGH = kept
