"""Notices of supersteps under way: told at once, kept by nobody, never in place of the journal."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.engine_harness import FakeClock
from tests.support.graph_definitions import SUM
from tests.support.graph_runs import Call, GraphRuns, adds
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.json_values import load
from agenttx_server.engine.ports import ToolFailure
from agenttx_server.graphs.definition import NodeRetryPolicy
from agenttx_server.graphs.runs import live_notices
from agenttx_server.graphs.runs.event_following import RunFollower, SequenceFollower
from agenttx_server.graphs.runs.live_notices import NO_OFFSET, LiveNotices
from agenttx_server.graphs.runs.ports import EventFilter
from agenttx_server.graphs.runs.records import EventRecord, RunRecord, RunStatus, TaskRecord

CLOCK = FakeClock()


def told(events: Any) -> list[tuple[str, str]]:
    return [(event.kind, event.node) for event in events]


@virtual_time
async def test_tasks_are_told_of_as_they_go_and_again_by_the_journal_when_the_superstep_ends() -> None:
    failures, goes_on = [1], asyncio.Event()

    async def flaky(call: Call) -> Any:
        if failures:
            failures.pop()
            raise ToolFailure("invalid_value", "not yet")
        return {"value": 1}

    async def slow(call: Call) -> Any:
        await goes_on.wait()
        return {"value": 2}

    retry = NodeRetryPolicy(max_attempts=2, initial_interval_us=1000)
    runs = GraphRuns(
        "START->flaky, START->slow, flaky->last",
        {"flaky": flaky, "slow": slow, "last": adds(4)},
        channels=SUM,
        nodes={"flaky": {"retry": retry}},
    )
    notices = runs.runs._parts.notices
    box = notices.open(EventFilter(thread_id="t"))
    other = notices.open(EventFilter(thread_id="other"))
    running = asyncio.create_task(runs.start({"value": 0}))
    await asyncio.sleep(10.0)
    live = box.take()
    assert told(live) == [
        ("node.started", "flaky"),
        ("node.started", "slow"),
        ("node.retry_scheduled", "flaky"),
        ("node.started", "flaky"),
        ("node.completed", "flaky"),
        ("state.updated", "flaky"),
    ]
    assert {event.offset for event in live} == {NO_OFFSET}
    assert [load(event.payload)["attempt"] for event in live[:5]] == [1, 1, 1, 2, 2]
    assert load(live[-1].payload) == {"update": {"value": 1}}

    follower = RunFollower(runs.store, CLOCK, live[0].run_id, 0, box)
    seen = list(await follower.read())
    goes_on.set()
    run_id = (await running).run.run_id
    while page := await follower.read():
        seen += page
    assert [event for event in seen if event.offset != NO_OFFSET] == await runs.events(run_id)
    assert box.take() == (), "what the journal has told is told no more"
    assert other.take() == ()
    notices.close(box)
    assert notices.boxes_of((await runs.start({"value": 0})).run) == []


@virtual_time
async def test_who_follows_is_woken_by_a_notice_and_reads_the_journal_first() -> None:
    runs = GraphRuns("START->a", {"a": adds(1)}, channels=SUM)
    run = (await runs.start({"value": 0}, thread="")).run
    notices = LiveNotices()
    which = EventFilter(graph=run.graph)
    box = notices.open(which)
    follower = SequenceFollower(runs.store, CLOCK, which, 1, box)
    box.put(notice(run.run_id, 99))
    journal = await follower.read()
    assert [event.offset for event in journal] == list(range(run.next_offset))
    waiting = asyncio.create_task(follower.read())
    await asyncio.sleep(1.0)
    assert not waiting.done(), "the run has ended: what was told of it before is old"
    box.put(notice("another", 1))
    assert [event.run_id for event in await waiting] == ["another"]


def notice(run_id: str = "r", superstep: int = 1, payload: str = "{}") -> EventRecord:
    return EventRecord(run_id, NO_OFFSET, "custom", 1, payload, superstep=superstep)


async def test_a_box_is_bounded_by_number_and_by_size_and_keeps_the_newest() -> None:
    box = LiveNotices().open(EventFilter())
    for number in range(live_notices._MOST_NOTICES + 10):
        box.put(notice(superstep=number))
    taken = box.take()
    assert [event.superstep for event in taken] == list(range(10, live_notices._MOST_NOTICES + 10))
    for number in range(9):
        box.put(notice(superstep=number, payload="x" * (live_notices._MOST_CHARACTERS // 4)))
    assert [event.superstep for event in box.take()] == [5, 6, 7, 8]
    arrival = box.arrival()
    assert not arrival.done()
    box.put(notice())
    await asyncio.wait_for(arrival, 10)
    assert box.arrival().done()


def test_a_box_wants_the_runs_that_its_filter_names() -> None:
    run = RunRecord("r", "t", "g", "v", RunStatus.RUNNING, 1, 1, root_run_id="root", principal="ann")
    for fields, expected in (
        ({}, True),
        ({"principal": "ann", "run_id": "r", "root_run_id": "root", "thread_id": "t", "graph": "g"}, True),
        ({"principal": "bob"}, False),
        ({"run_id": "s"}, False),
        ({"root_run_id": "r"}, False),
        ({"thread_id": "u"}, False),
        ({"graph": "h"}, False),
    ):
        notices = LiveNotices()
        box = notices.open(EventFilter(**fields))
        assert (notices.boxes_of(run) == [box]) is expected


def test_what_nobody_follows_is_not_made() -> None:
    run = RunRecord("r", "t", "g", "v", RunStatus.RUNNING, 1, 1)
    task = TaskRecord("r", 1, 0, "task", "a", "t")
    clock: Any = None  # asked for the time of each notice
    live_notices.TaskNotices(LiveNotices(), clock, lambda: run).started(task)
