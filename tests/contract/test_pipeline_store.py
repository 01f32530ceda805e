"""Runs of pipelines in the store: who carries one, what is begun once, what ends early; on SQLite and PostgreSQL."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.store_databases import reopen, store  # noqa: F401
from tests.support.store_records import Driver

from agenttx_server.engine.ports import ExtraRowsRefused
from agenttx_server.engine.records import MicrosecondsUtc, ServerId
from agenttx_server.pipelines.barrier import units_behind
from agenttx_server.pipelines.records import (
    InputRecord,
    InputState,
    PipelineRunRecord,
    PipelineRunStatus,
    PipelineVersionRecord,
    StopRecord,
)
from agenttx_server.store import SqlTransactionStore

NOW = MicrosecondsUtc(1_000_000)
ALL = frozenset(InputState)


def run_record(run_id: str, created_at: int = 1, principal: str = "ada") -> PipelineRunRecord:
    return PipelineRunRecord(
        run_id, principal, "p", PipelineRunStatus.RUNNING, created_at, created_at, 3, "{}", version="v"
    )


def row(run_id: str, place: int, state: InputState = InputState.PENDING) -> InputRecord:
    return InputRecord(run_id, place, state, "", "{}")


async def alive(store: SqlTransactionStore, *names: str) -> None:
    """Have servers hold a lease: on SQLite the last one alone, as a start does."""
    for name in names:
        await store.register_server(ServerId(name), 3600.0, MicrosecondsUtc(2**50))


async def test_a_run_is_received_once_and_what_did_not_come_whole_leaves_nothing(store: SqlTransactionStore):
    pipelines = store.pipelines
    await alive(store, "s1")
    assert await pipelines.begin_receiving("r", "s1")
    assert not await pipelines.begin_receiving("r", "s2")
    await pipelines.write(None, [row("r", place) for place in range(2)])
    assert await pipelines.carried_by("s1") == ["r"]
    await pipelines.discard("r")
    assert await pipelines.carried_by("s1") == []
    assert await pipelines.list_inputs("r", -2, 10, ALL) == []
    # There now, it is never received again, whoever carries it or not.
    assert await pipelines.begin_receiving("r", "s1")
    await pipelines.write(run_record("r"), [row("r", 0)])
    assert await pipelines.save(run_record("r"), "s1", release=True)
    assert not await pipelines.begin_receiving("r", "s1")


async def test_a_run_is_carried_by_one_server_until_that_is_dead(store: SqlTransactionStore):
    pipelines = store.pipelines
    await pipelines.write(run_record("r"), [])
    await alive(store, "alive")
    assert not await pipelines.take("none", "alive", NOW)
    assert await pipelines.take("r", "alive", NOW)
    assert await pipelines.take("r", "alive", NOW)  # again: it is its own
    assert not await pipelines.take("r", "other", NOW)
    assert await pipelines.claim_runs("other", NOW, 10) == []
    changed = replace(run_record("r"), reason="other")
    assert not await pipelines.save(changed, "other", release=True)
    loaded = await pipelines.load_run("r")
    assert loaded is not None
    assert loaded.reason == ""
    await store.retire_server(ServerId("alive"))
    assert await pipelines.claim_runs("other", NOW, 10) == ["r"]
    assert not await pipelines.save(changed, "alive", release=True)
    assert await pipelines.save(changed, "other", release=True)
    assert await pipelines.carried_by("other") == []
    # Nobody carries it: whoever goes on with it takes it.
    assert await pipelines.take("r", "third", NOW)
    ended = replace(changed, status=PipelineRunStatus.COMPLETED)
    assert await pipelines.save(ended, "third", release=True)
    assert not await pipelines.take("r", "third", NOW)


async def test_a_row_is_begun_once_whoever_thinks_the_run_its_own(store: SqlTransactionStore):
    pipelines = store.pipelines
    first, second = await Driver(store, "t1").begin(), await Driver(store, "t2").begin()
    await first.write({"extra": [pipelines.begun("r", 0, first.id)]})
    with pytest.raises(ExtraRowsRefused):
        await second.write({"extra": [pipelines.begun("r", 0, second.id)]})
    third = await Driver(store, "t3").begin()
    await third.write({"extra": [pipelines.begun("r", 1, third.id)]})


async def test_what_is_behind_barriers_is_no_row(store: SqlTransactionStore):
    pipelines = store.pipelines
    await pipelines.write(run_record("r"), [row("r", 0, InputState.COMMITTED), row("r", 1)])
    assert [unit async for unit in units_behind(pipelines, "r")] == []
    await pipelines.write(None, [row("r", place, InputState.RUNNING) for place in range(-300, 0)])
    units = [unit async for unit in units_behind(pipelines, "r", frozenset({InputState.RUNNING}))]
    assert [unit.place for unit in units] == list(range(-300, 0))
    assert [unit.place async for unit in units_behind(pipelines, "r", after=-3)] == [-2, -1]
    assert [item.place for item in await pipelines.list_inputs("r", -1, 10, ALL)] == [0, 1]
    assert [item.place for item in (await pipelines.page_inputs("r", "", 10)).inputs] == [0, 1]
    counted = await pipelines.count_inputs("r")
    assert {state.value: count for state, count in counted.items() if count} == {"COMMITTED": 1, "PENDING": 1}


async def test_the_first_word_to_end_early_stays(store: SqlTransactionStore):
    pipelines = store.pipelines
    await pipelines.request_stop(StopRecord("r", "enough", 1))
    await pipelines.request_stop(StopRecord("r", "again", 2))
    assert await pipelines.stops_of(["other", "r"]) == [StopRecord("r", "enough", 1)]


async def test_runs_are_listed_newest_first_and_each_to_its_principal(store: SqlTransactionStore):
    pipelines = store.pipelines
    for number in range(5):
        await pipelines.write(run_record(f"r{number}", created_at=number // 2), [])
    await pipelines.write(run_record("theirs", principal="bob"), [])
    seen: list[str] = []
    cursor = ""
    while True:
        page = await pipelines.list_runs("ada", "", cursor, 2)
        seen += [run.run_id for run in page.runs]
        cursor = page.next_cursor
        if not cursor:
            break
    assert seen == ["r4", "r3", "r2", "r1", "r0"]
    assert (await pipelines.list_runs("ada", "other", "", 10)).runs == []
    with pytest.raises(ValueError, match="cursor"):
        await pipelines.list_runs("ada", "", "x", 10)


async def test_versions_are_kept_once_and_the_newest_is_the_last_that_came(store: SqlTransactionStore):
    pipelines = store.pipelines
    one = PipelineVersionRecord("p", "v1", 0, 1, "said", 3, "{}")
    two = replace(one, version="v2")
    kept, existed = await pipelines.register(one)
    assert (kept.sequence, existed) == (1, False)
    assert (await pipelines.register(two))[0].sequence == 2
    assert await pipelines.register(one) == (kept, True)
    await pipelines.register(replace(one, name="a"))
    newest = await pipelines.find_version("p", "")
    assert newest is not None
    assert newest.version == "v2"
    assert await pipelines.find_version("p", "v3") is None
    names = await pipelines.list_versions("", "", 1)
    rest = await pipelines.list_versions("", names.next_cursor, 1)
    assert [(item.name, item.version) for item in (*names.versions, *rest.versions)] == [
        ("a", "v1"),
        ("p", "v2"),
    ]
    assert [item.version for item in (await pipelines.list_versions("p", "", 10)).versions] == ["v2", "v1"]
