"""Pruning and deleting threads: the same on every database and in the model."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.run_stores import Stores, run_stores  # noqa: F401
from tests.support.store_records import Driver

from agenttx_server.engine.ports import ExtraRowsRefused
from agenttx_server.graphs.runs.ports import Pruning, RunChange
from agenttx_server.graphs.runs.records import (
    CachedAnswer,
    CheckpointRecord,
    CheckpointSource,
    EmbeddedCheckpoint,
    EventRecord,
    InterruptRecord,
    InterruptState,
    RequestRecord,
    RunRecord,
    RunStatus,
    StopKind,
    StopRequest,
    TaskRecord,
    ThreadRecord,
    ValueRecord,
)


def _thread(name: str) -> RunChange:
    """A thread with one of everything."""
    run = f"r-{name}"
    asked = InterruptRecord(f"i-{name}", run, name, 1, "task", "a", 0, "1", InterruptState.PENDING, 5)
    return RunChange(
        [ThreadRecord(name, "g", "v1", run, 1, 2)],
        [RunRecord(run, name, "g", "v1", RunStatus.INTERRUPTED, 1, 2)],
        [
            CheckpointRecord(name, n, n - 1 if n else None, CheckpointSource.LOOP, n, run, "v1", 3)
            for n in range(3)
        ],
        [ValueRecord(name, "log", n, n - 1 if n else None, f"[{n}]", '["o"]') for n in range(3)],
        [TaskRecord(run, 1, 0, "task", "a", name)],
        [asked],
        [EventRecord(run, 0, "run.started", 4, thread_id=name)],
        [RequestRecord("p", f"q-{name}", "StartRun", "f", run)],
        embedded=[
            EmbeddedCheckpoint(name, 0, None, CheckpointSource.INPUT, 0, "c", "v1", 3, namespace="a#1.0")
        ],
        stops=[StopRequest(run, StopKind.DRAIN, "", 6)],
        cached=[CachedAnswer(f"k-{name}", name, "g", "a", "1", 7, None)],
    )


async def _kept(stores: Stores, name: str) -> ThreadRecord:
    thread = await stores.runs.load_thread(name)
    assert thread is not None
    return thread


async def test_a_pruning_rewrites_and_deletes_what_it_names_alone(run_stores: Stores) -> None:
    runs = run_stores.runs
    for name in ("t", "other"):
        await runs.write(_thread(name))
    places = (("log", 2, 2, 7, 0),)
    root = CheckpointRecord("t", 2, None, CheckpointSource.LOOP, 2, "r-t", "v1", 3, values=places)
    whole = ValueRecord("t", "log", 2, None, "[0,1,2]", '["o",3]')
    thread = await _kept(run_stores, "t")
    assert await runs.prune(
        thread, Pruning((root,), (whole,), (0, 1), (("log", 0), ("log", 1)), (("a#1.0", 0),))
    )
    assert (await runs.list_checkpoints("t", frozenset(), "", 10)).checkpoints == [root]
    assert await runs.all_values("t") == [whole]
    assert len(await runs.all_values("other")) == 3
    assert await runs.list_embedded("t", "a#1.0", None, 10) == []
    assert len(await runs.list_embedded("other", "a#1.0", None, 10)) == 1
    assert await runs.count_checkpoints("other") == 3


async def test_a_deleted_thread_leaves_nothing_and_others_stay(run_stores: Stores) -> None:
    runs = run_stores.runs
    for name in ("t", "other"):
        await runs.write(_thread(name))
    assert await runs.delete_thread(await _kept(run_stores, "t"))
    assert await runs.load_thread("t") is None
    assert await runs.load_run("r-t") is None
    assert await runs.count_checkpoints("t") == 0
    assert await runs.all_values("t") == []
    assert await runs.list_embedded("t", "a#1.0", None, 10) == []
    assert await runs.load_tasks("r-t", 1) == []
    assert await runs.list_interrupts("t") == []
    assert await runs.list_events("r-t", 0, 10) == []
    assert await runs.find_request("p", "q-t") is None
    assert await runs.list_stops(["r-t"]) == []
    assert await runs.find_cached("k-t", 8) is None

    assert await runs.load_thread("other") is not None
    assert len(await runs.list_embedded("other", "a#1.0", None, 10)) == 1
    assert await runs.find_request("p", "q-other") is not None
    assert len(await runs.list_events("r-other", 0, 10)) == 1
    assert len(await runs.list_stops(["r-other"])) == 1
    assert await runs.find_cached("k-other", 8) is not None
    # Its name is free again.
    await runs.write(_thread("t"))
    assert await runs.count_checkpoints("t") == 3


async def test_nothing_is_removed_of_a_thread_that_has_moved_on(run_stores: Stores) -> None:
    runs = run_stores.runs
    await runs.write(_thread("t"))
    before = await _kept(run_stores, "t")
    moved = replace(before, updated_at=before.updated_at + 1)
    await runs.write(RunChange(threads=[moved]))
    assert not await runs.prune(before, Pruning((), (), (0, 1), (("log", 0),)))
    assert not await runs.delete_thread(before)
    assert await runs.count_checkpoints("t") == 3
    assert len(await runs.all_values("t")) == 3
    # As it is now it can be.
    assert await runs.delete_thread(moved)
    assert not await runs.delete_thread(moved), "it is gone"
    assert not await runs.prune(moved, Pruning((), (), (), ()))


async def test_a_change_is_refused_where_what_it_builds_on_is_removed(run_stores: Stores) -> None:
    runs = run_stores.runs
    await runs.write(_thread("t"))
    event = EventRecord("r-t", 1, "run.started", 5, thread_id="t")
    await runs.write(RunChange(events=[event], standing_threads=["t"], standing_checkpoints=[("t", 2)]))
    further = replace(event, offset=2)
    for lost in (
        RunChange(events=[further], standing_threads=["t", "u"]),
        RunChange(events=[further], standing_checkpoints=[("t", 1), ("t", 3)]),
    ):
        with pytest.raises(ExtraRowsRefused):
            await runs.write(lost)
    assert len(await runs.list_events("r-t", 0, 10)) == 2


async def test_a_change_is_refused_where_its_thread_has_moved_on(run_stores: Stores) -> None:
    runs = run_stores.runs
    await runs.write(_thread("t"))
    thread = await _kept(run_stores, "t")
    event = EventRecord("r-t", 1, "run.started", 5, thread_id="t")
    await runs.write(RunChange(events=[event], unchanged_threads=[thread]))
    await runs.write(RunChange(threads=[replace(thread, updated_at=9)]))
    with pytest.raises(ExtraRowsRefused):
        await runs.write(RunChange(events=[replace(event, offset=2)], unchanged_threads=[thread]))
    assert len(await runs.list_events("r-t", 0, 10)) == 2


async def test_a_deletion_keeps_what_asked_for_it(run_stores: Stores) -> None:
    runs = run_stores.runs
    for name in ("t", "u"):
        await runs.write(_thread(name))
    asked = RequestRecord("p", "delete", "DeleteThread", "f", "3")
    assert await runs.delete_thread(await _kept(run_stores, "t"), asked)
    assert await runs.find_request("p", "delete") == asked
    with pytest.raises(ExtraRowsRefused):
        await runs.delete_thread(await _kept(run_stores, "u"), asked)
    assert await runs.count_checkpoints("u") == 3


async def test_a_thread_with_a_live_run_is_not_deleted(run_stores: Stores) -> None:
    runs = run_stores.runs
    await runs.write(_thread("t"))
    run = await runs.load_run("r-t")
    assert run is not None
    # Gone on with, which leaves the thread's record as it is.
    await runs.write(RunChange(runs=[replace(run, status=RunStatus.RUNNING)], standing_threads=["t"]))
    thread = await _kept(run_stores, "t")
    assert not await runs.delete_thread(thread)
    await runs.write(RunChange(runs=[run]))
    assert await runs.delete_thread(thread)


async def test_a_write_set_is_refused_where_the_thread_of_its_rows_has_moved_on(run_stores: Stores) -> None:
    runs = run_stores.runs
    await runs.write(_thread("t"))
    thread = await _kept(run_stores, "t")
    driver = await Driver(run_stores.transactions).begin()
    taken = replace(thread, updated_at=8)
    await driver.write({"extra": runs.rows(RunChange(threads=[taken], unchanged_threads=[thread]))})
    assert await runs.load_thread("t") == taken
    # Another one moved it on since it was read.
    late = runs.rows(RunChange(threads=[replace(thread, updated_at=9)], unchanged_threads=[thread]))
    with pytest.raises(ExtraRowsRefused):
        await driver.write({"extra": late})
    assert await runs.load_thread("t") == taken
    gone = replace(thread, thread_id="u")
    other = await Driver(run_stores.transactions, "other").begin()
    with pytest.raises(ExtraRowsRefused):
        await other.write({"extra": runs.rows(RunChange(unchanged_threads=[gone]))})


def _lone(name: str, status: RunStatus = RunStatus.COMPLETED, **fields: Any) -> RunChange:
    """A run without a thread, with one of everything that such a one has."""
    return RunChange(
        runs=[RunRecord(name, "", "g", "v1", status, 1, 2, **fields)],
        tasks=[TaskRecord(name, 1, 0, "task", "a", "")],
        events=[EventRecord(name, 0, "run.started", 4)],
        requests=[RequestRecord("p", f"q-{name}", "StartRun", "f", name)],
        stops=[StopRequest(name, StopKind.DRAIN, "", 6)],
    )


async def test_old_runs_without_a_thread_go_with_their_journals(run_stores: Stores) -> None:
    runs = run_stores.runs
    kept_by = await Driver(run_stores.transactions, "t-open").begin()
    for number in range(205):
        await runs.write(_lone(f"old-{number:03}", transaction_id="t-gone", ended_at=9))
    for status in (RunStatus.FAILED, RunStatus.CANCELLED):
        await runs.write(_lone(status.value, status))
    stay = {
        "young": _lone("young", ended_at=10),
        "live": _lone("live", RunStatus.RUNNING),
        "held": _lone("held", RunStatus.FAILED, transaction_id=kept_by.id),
        "r-t": _thread("t"),
    }
    for change in stay.values():
        await runs.write(change)
    assert await runs.purge_runs(10) == 207
    assert await runs.purge_runs(10) == 0
    for name in ("old-000", "old-204", "FAILED"):
        assert await runs.load_run(name) is None
        assert await runs.list_events(name, 0, 10) == []
        assert await runs.load_tasks(name, 1) == []
        assert await runs.find_request("p", f"q-{name}") is None
        assert await runs.list_stops([name]) == []
    for name in stay:
        assert await runs.load_run(name) is not None
        assert len(await runs.list_events(name, 0, 10)) == 1
        assert len(await runs.list_stops([name])) == 1
