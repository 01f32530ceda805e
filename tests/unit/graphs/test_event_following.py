"""Followers of journals over the store in memory: nothing lost or repeated whenever events are written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine_harness import FakeClock
from tests.support.memory_run_store import MemoryRunStore
from tests.support.memory_store import MemoryDatabase
from tests.support.virtual_time import current_loop, virtual_time

from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.graphs.runs import event_following
from agenttx_server.graphs.runs.event_choice import EventChoice, EventMode
from agenttx_server.graphs.runs.event_following import (
    EventFollower,
    JournalPoll,
    RunFollower,
    SequenceFollower,
)
from agenttx_server.graphs.runs.ports import EventFilter, RunChange
from agenttx_server.graphs.runs.records import EventRecord, RunRecord, RunStatus
from agenttx_server.graphs.runs.requests import RunRefused

CLOCK = FakeClock()


class Journals:
    """Runs and their events in a store. ``before`` is called before each read of a kind, once."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self.database = MemoryDatabase()
        self.store = MemoryRunStore(self.database, is_shared=is_shared)
        self.runs: dict[str, RunRecord] = {}
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}
        self.reads = 0
        for name in ("list_events", "load_run", "last_sequence", "list_events_from"):
            setattr(self.store, name, self._told(name, getattr(self.store, name)))

    def _told(self, name: str, read: Any) -> Any:
        async def reading(*arguments: Any, **named: Any) -> Any:
            self.reads += 1
            if (first := self.before.pop(name, None)) is not None:
                await first()
            return await read(*arguments, **named)

        return reading

    async def add(
        self, run_id: str = "r", *kinds: str, status: RunStatus = RunStatus.RUNNING, **more: Any
    ) -> None:
        """Write events, by whichever server."""
        run = self.runs.get(run_id) or RunRecord(
            run_id, "t", "g", "v1", RunStatus.RUNNING, 1, 1, root_run_id=run_id
        )
        made = [
            replace(EventRecord(run_id, run.next_offset + n, kind, 1, "{}", "t", run_id, "g"), **more)
            for n, kind in enumerate(kinds or ("custom",))
        ]
        run = self.runs[run_id] = replace(run, next_offset=run.next_offset + len(made), status=status)
        await self.store.write(RunChange(runs=[run], events=made))

    def purge(self, run_id: str, before: int) -> None:
        events = self.database.extra["graph_events"]
        for key in [key for key in events if key[0] == run_id and key[1] < before]:
            del events[key]


async def all_of(follower: EventFollower) -> list[int]:
    offsets: list[int] = []
    while page := await follower.read():
        offsets += [event.offset for event in page]
    return offsets


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@virtual_time
async def test_a_run_is_followed_from_any_offset_to_its_end_and_no_page_is_large() -> None:
    journals = Journals()
    await journals.add("r", *["custom"] * 600)
    await journals.add("r", "custom", payload='{"data":"' + "x" * event_following._PAGE_BYTES + '"}')
    await journals.add("r", "custom", "run.completed", status=RunStatus.COMPLETED)
    for offset in (0, 1, 300, 602, 603, 10**6, 2**64):
        follower = RunFollower(journals.store, CLOCK, "r", offset)
        assert await all_of(follower) == list(range(min(offset, 603), 603))
    follower = RunFollower(journals.store, CLOCK, "r")
    sizes = []
    while page := await follower.read():
        sizes.append(len(page))
    assert sizes == [256, 256, 88, 1, 2], "by number, then by bytes"


@virtual_time
async def test_what_is_written_between_looking_and_waiting_is_read_at_once() -> None:
    for read in ("list_events", "load_run"):
        journals = Journals()
        await journals.add()
        follower = RunFollower(journals.store, CLOCK, "r", 1)
        journals.before[read] = journals.add
        assert [event.offset for event in await follower.read()] == [1]
        assert current_loop().time() == 0


@virtual_time
async def test_a_follower_waits_without_looking_and_is_woken_by_what_is_written() -> None:
    journals = Journals()
    await journals.add()
    follower = RunFollower(journals.store, CLOCK, "r", 1)
    others = SequenceFollower(journals.store, CLOCK, EventFilter(run_id="other"), 1)
    waiting, passing = asyncio.create_task(follower.read()), asyncio.create_task(others.read())
    await asyncio.sleep(10.0)
    reads = journals.reads
    await asyncio.sleep(4.0)
    assert journals.reads == reads, "where one process writes, nobody has to look"
    await journals.add("s")
    await settle()
    assert not waiting.done()
    await journals.add("r", "custom", "run.completed", status=RunStatus.COMPLETED)
    assert [event.offset for event in await waiting] == [1, 2]
    assert await follower.read() == ()
    assert current_loop().time() == 14.0
    await settle()
    assert others.position == await journals.store.last_sequence() + 1, "it moves on with what it passes over"
    passing.cancel()
    await settle()
    assert not journals.store.signals.is_waited_on


@virtual_time
async def test_a_signal_that_is_lost_costs_time_and_no_event() -> None:
    journals = Journals()
    await journals.add()
    follower = RunFollower(journals.store, CLOCK, "r", 1)
    waiting = asyncio.create_task(follower.read())
    await settle()
    journals.database.on_extra.clear()
    await journals.add()
    assert [event.offset for event in await waiting] == [1]
    assert current_loop().time() == event_following._LOOK_SECONDS


@virtual_time
async def test_a_pause_ends_who_follows_an_invocation_and_nobody_else() -> None:
    journals = Journals()
    await journals.add("r", "run.started", "run.interrupted", status=RunStatus.INTERRUPTED)
    assert await all_of(RunFollower(journals.store, CLOCK, "r", until_pause=True)) == [0, 1]
    on = asyncio.create_task(all_of(RunFollower(journals.store, CLOCK, "r", 1)))
    await asyncio.sleep(100.0)
    assert not on.done()
    await journals.add("r", "run.completed", status=RunStatus.COMPLETED)
    assert await on == [1, 2]


@virtual_time
async def test_what_is_purged_or_gone_is_refused() -> None:
    journals = Journals()
    await journals.add("r", *["custom"] * 5)
    journals.purge("r", 3)
    for offset in (0, 2):
        with pytest.raises(RunRefused, match="from offset 3 on") as refused:
            await RunFollower(journals.store, CLOCK, "r", offset).read()
        assert refused.value.metadata["oldest_offset"] == "3"
    follower = RunFollower(journals.store, CLOCK, "r", 3)
    assert [event.offset for event in await follower.read()] == [3, 4]
    await journals.add()
    journals.purge("r", 99)
    with pytest.raises(RunRefused, match="from offset 6 on"):
        await follower.read()
    del journals.database.extra["graph_runs"]["r",]
    with pytest.raises(RunRefused) as gone:
        await RunFollower(journals.store, CLOCK, "r", 7).read()
    assert gone.value.reason == "RUN_NOT_FOUND"


@virtual_time
async def test_sequences_are_looked_through_in_parts_and_the_position_moves_with_them() -> None:
    journals = Journals()
    for number in range(50):
        await journals.add("rare" if number in (20, 41) else "often")
    looked_through = event_following._LOOKED_THROUGH
    event_following._LOOKED_THROUGH = 7
    try:
        follower = SequenceFollower(journals.store, CLOCK, EventFilter(run_id="rare"), 0)
        assert [event.sequence for event in await follower.read()] == [21]
        assert follower.position == 22
        assert [event.sequence for event in await follower.read()] == [42]
        coming = asyncio.create_task(follower.read())
        await settle()
        assert follower.position == 51
        await journals.add("rare")
        assert [event.sequence for event in await coming] == [51]
    finally:
        event_following._LOOKED_THROUGH = looked_through
    now = await SequenceFollower.from_now(journals.store, CLOCK, EventFilter())
    assert now.position == 52
    late = SequenceFollower(journals.store, CLOCK, EventFilter(), 2**64)
    waiting = asyncio.create_task(late.read())
    await asyncio.sleep(60.0)
    assert not waiting.done()
    waiting.cancel()


@virtual_time
async def test_what_other_servers_write_is_found_by_one_poll_for_all() -> None:
    journals = Journals(is_shared=True)
    await journals.add()
    poll = asyncio.create_task(JournalPoll(journals.store, CLOCK).follow())
    await asyncio.sleep(10.0)
    reads = journals.reads
    await asyncio.sleep(10.0)
    assert journals.reads == reads, "while nobody follows, nobody looks"

    followers = [RunFollower(journals.store, CLOCK, "r", 1) for _ in range(20)]
    waiting = [asyncio.create_task(follower.read()) for follower in followers]
    # Before the poll knows where the journal is, and while it does.
    for offset, pause in ((1, 0.2), (2, 0.7), (3, 0.7)):
        await asyncio.sleep(pause)
        before = current_loop().time()
        await journals.add()
        assert [[event.offset for event in page] for page in await asyncio.gather(*waiting)] == [
            [offset]
        ] * 20
        assert current_loop().time() - before <= 0.5
        waiting = [asyncio.create_task(follower.read()) for follower in followers]

    many = SequenceFollower(journals.store, CLOCK, EventFilter(), 5)
    waiting.append(asyncio.create_task(many.read()))
    await asyncio.sleep(2.0)
    journals.store.written_since = fails_once(journals.store.written_since)
    await journals.add("r", "custom", "run.completed", status=RunStatus.COMPLETED)
    pages = await asyncio.gather(*waiting)
    assert {len(page) for page in pages} == {2}
    poll.cancel()


def fails_once(read: Any) -> Any:
    left = [1]

    async def reading(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StoreUnavailable("away")
        return await read(*arguments)

    return reading


def kinds_taken(choice: EventChoice, kinds: Sequence[str]) -> list[str]:
    return [kind for kind in kinds if choice.takes(EventRecord("r", 0, kind, 1))]


def test_modes_say_which_kinds_are_seen() -> None:
    kinds = [
        "run.started",
        "state.updated",
        "custom",
        "interrupt.emitted",
        "checkpoint.saved",
        "rollback.decided",
    ]
    for modes, expected in (
        ((), kinds),
        ((EventMode.DEBUG, EventMode.CUSTOM), kinds),
        ((EventMode.UPDATES,), ["run.started", "state.updated", "rollback.decided"]),
        ((EventMode.VALUES,), ["run.started", "checkpoint.saved", "rollback.decided"]),
        ((EventMode.INTERRUPTS, EventMode.CUSTOM), ["run.started", "custom", "interrupt.emitted"]),
        ((EventMode.MESSAGES,), []),
    ):
        assert kinds_taken(EventChoice(modes=frozenset(modes)), kinds) == expected
    chosen = EventChoice(kinds=frozenset({"custom"}), modes=frozenset({EventMode.VALUES}))
    assert kinds_taken(chosen, kinds) == ["custom"]
    assert chosen.with_states


def test_a_namespace_is_taken_exactly_or_by_the_names_of_its_nodes() -> None:
    event = EventRecord("r", 0, "custom", 1, namespace="outer#3.0/inner#1.2")
    for namespace, expected in (
        ("", True),
        ("outer#3.0/inner#1.2", True),
        ("outer/inner", True),
        ("outer", False),
        ("outer#3.0/inner", False),
        ("inner", False),
    ):
        assert EventChoice(namespace=namespace).takes(event) is expected
