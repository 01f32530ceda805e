"""Runs of pipelines on a real engine and database: roots as transactions, failures, conflicts, kills."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from tests.support import pipeline_tools
from tests.support.pipeline_flows import plan_of
from tests.support.pipeline_process import PIPELINE, pipeline_runs
from tests.support.postgres_cluster import shared_cluster

from agenttx_server.engine.errors import InvalidRequest, LimitExceeded, PreconditionFailed
from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.engine.records import ServerId, TransactionId, TransactionStatus
from agenttx_server.lineage.plan import Plan
from agenttx_server.lineage.records import Record
from agenttx_server.lineage.verification import verify_lineage
from agenttx_server.pipelines import row_receiving
from agenttx_server.pipelines.barrier import units_behind
from agenttx_server.pipelines.lineage_reading import LineageReading
from agenttx_server.pipelines.records import InputRecord, InputState, PipelineRunStatus
from agenttx_server.pipelines.run_coordinator import PipelineRuns, Progress, Row
from agenttx_server.pipelines.run_life import PipelineLife
from agenttx_server.store import SqlTransactionStore, lineage_retention
from agenttx_server.system_ports import SystemClock

Server = tuple[PipelineRuns, SqlTransactionStore]


@pytest.fixture(params=["sqlite", "postgresql"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    if request.param == "sqlite":
        async with pipeline_runs(f"sqlite:///{tmp_path / 'agenttx.db'}") as parts:
            yield parts
        return
    with shared_cluster().database() as address:
        async with pipeline_runs(address) as parts:
            yield parts


@asynccontextmanager
async def sqlite_server(path: Path) -> AsyncIterator[Server]:
    async with pipeline_runs(f"sqlite:///{path}") as parts:
        yield parts


async def run(server: Server, text: str, rows: Sequence[dict[str, Any]], seen: list[Progress] | None = None):
    runs, _ = server
    received = await runs.receive("alice", plan_of(text).definition, [Row(row) for row in rows])
    return await runs.carry(received.run_id, (seen if seen is not None else []).append)


async def inputs_of(server: Server, run_id: str) -> Sequence[InputRecord]:
    return await server[1].pipelines.list_inputs(run_id, -1, 1000, frozenset(InputState))


async def records_of(server: Server, run_id: str, action: str) -> list[Any]:
    page = await server[1].lineage.list_records(run_id, action, "", 1000)
    return [kept.record for kept in page.records]


async def assert_sound(server: Server, plan: Plan, run_id: str) -> None:
    """VerifyLineage over every transaction that was committed."""
    lineage = server[1].lineage
    for transaction_id in {item.transaction_id for item in await inputs_of(server, run_id)}:
        records = [kept.record for kept in await lineage.records_of(transaction_id)]
        events = [kept.event for kept in await lineage.events_of(transaction_id) if not kept.is_rewound]
        edges = await lineage.edges_of([record.target_id for record in records])
        assert verify_lineage(records, edges, events, plan.topology.consumers) == []


async def test_each_root_is_a_transaction_and_its_records_are_kept(server: Server):
    seen: list[Progress] = []
    ended = await run(server, PIPELINE, [{"n": n} for n in range(4)], seen)

    assert ended.status is PipelineRunStatus.COMPLETED
    assert {p.place for p in seen} == set(range(4))
    assert len({p.transaction_id for p in seen}) == 4
    assert [r.content["total"]["count"] for r in await records_of(server, ended.run_id, "total")] == [3] * 4
    assert [r.content["chunk"]["n"] for r in await records_of(server, ended.run_id, "merge")] == [
        10 * n + index for n in range(4) for index in range(3)
    ]
    counts = {item.action: item for item in ended.counts}
    assert (counts["level"].processed, counts["level"].skipped) == (3, 1)
    await assert_sound(server, plan_of(PIPELINE), ended.run_id)
    for item in await inputs_of(server, ended.run_id):
        loaded = await server[1].load(TransactionId(item.transaction_id))
        assert loaded is not None
        assert loaded.transaction.status is TransactionStatus.COMMITTED
        # validate, chunk, level (skipped for 1), three bookings, three merges, total
        assert loaded.transaction.next_step_id - 1 == (9 if item.place == 1 else 10)


async def test_a_failed_record_stays_failed_and_the_others_go_on(server: Server):
    text = """
pipeline: p
actions:
  - {name: a, tool: pipe.keep, args: {n: "${source.n}"}}
  - {name: b, tool: pipe.keep, dependencies: [a], args: {n: "${a.n}"}}
"""
    ended = await run(server, text, [{"n": 1}, {"n": -1}])

    assert ended.status is PipelineRunStatus.COMPLETED_WITH_FAILURES
    stones = [r for r in await records_of(server, ended.run_id, "b") if r.unprocessed]
    assert [(r.unprocessed.value, r.blocked_by) for r in stones] == [("upstream_unprocessed", "a")]
    await assert_sound(server, plan_of(text), ended.run_id)
    all_failed = await run(server, text, [{"n": -1}])
    assert all_failed.status is PipelineRunStatus.FAILED


async def test_one_bad_root_is_rolled_back_alone(server: Server):
    text = """
pipeline: p
actions:
  - {name: a, tool: pipe.chunk, args: {n: "${source.n}"}}
  - {name: b, tool: pipe.book, dependencies: [a], args: {n: "${a.n}"}}
  - {name: c, tool: pipe.keep, dependencies: [b], args: {n: "${source.n}"}, on_failure: rollback}
"""
    ended = await run(server, text, [{"n": 1}, {"n": -1}, {"n": 2}])

    states = {item.place: item.state for item in await inputs_of(server, ended.run_id)}
    assert states == {0: InputState.COMMITTED, 1: InputState.FAILED, 2: InputState.COMMITTED}
    assert ended.status is PipelineRunStatus.COMPLETED_WITH_FAILURES
    assert "row 1" in ended.reason
    assert {r.content["source"]["n"] for r in await records_of(server, ended.run_id, "b")} == {1, 2}
    # What became of the inputs of the root that was undone is still told.
    (failed,) = [i for i in await inputs_of(server, ended.run_id) if i.state is InputState.FAILED]
    assert any(event.is_rewound for event in await server[1].lineage.events_of(failed.transaction_id))


async def test_many_roots_hold_no_more_memory_than_few_and_the_bad_one_is_rolled_back_alone(tmp_path: Path):
    """What 100,000 of them take is measured by benchmarks/pipeline_records.py; here no timing and no megabytes."""
    text = """
pipeline: p
actions:
  - {name: a, tool: pipe.keep, args: {n: 1}}
  - {name: b, tool: pipe.keep, dependencies: [a], args: {n: "${source.n}"}, on_failure: rollback}
"""
    count, bad = 900, 500
    held: list[dict[str, int]] = []
    ended = 0

    def look(_: Progress) -> None:
        nonlocal ended
        ended += 1
        if ended in (50, 400, 850):
            alive = Counter(type(item).__name__ for item in gc.get_objects())
            held.append({name: alive[name] for name in ("InputRecord", "Dataflow", "Record", "UnitRun")})

    async with sqlite_server(tmp_path / "agenttx.db") as server:
        runs, store = server
        pulled = 0

        async def rows() -> AsyncIterator[Row]:
            nonlocal pulled
            for number in range(count):
                pulled += 1
                yield Row({"n": -1 if number == bad else number})
                if number == 600:
                    # Rows are written as they come: no more than a page of them waits.
                    (run_id,) = await store.pipelines.carried_by(runs.server_id)
                    states = await store.pipelines.count_inputs(run_id)
                    assert pulled - states[InputState.PENDING] <= 256

        run_id = (await runs.receive("", plan_of(text).definition, rows())).run_id
        done = await runs.carry(run_id, look)

        assert (done.status, done.committed, done.failed) == (
            PipelineRunStatus.COMPLETED_WITH_FAILURES,
            count - 1,
            1,
        )
        (failed,) = await store.pipelines.list_inputs(run_id, -1, count, frozenset({InputState.FAILED}))
        assert failed.place == bad
        assert await store.lineage.count_records(run_id) == {
            "source": count - 1,
            "a": count - 1,
            "b": count - 1,
        }
    # Pages of rows (the one that is carried, and what the next one is made of), and what as many roots hold as run side by side.
    for alive in held:
        assert alive["InputRecord"] <= 3 * 256 + 16
        assert max(alive["Dataflow"], alive["UnitRun"]) <= 16
        assert alive["Record"] <= 16 * 3


async def test_calls_of_one_action_that_touch_the_same_key_are_put_in_order(server: Server):
    text = """
pipeline: p
actions:
  - {name: a, tool: pipe.chunk, args: {n: "${source.n}"}}
  - {name: b, tool: pipe.count, dependencies: [a], args: {n: "${a.n}"}}
"""
    ended = await run(server, text, [{"n": 1}])

    assert ended.status is PipelineRunStatus.COMPLETED
    assert [r.content["b"]["before"] for r in await records_of(server, ended.run_id, "b")] == [0, 1, 2]
    await assert_sound(server, plan_of(text), ended.run_id)


async def test_a_run_in_one_transaction_has_file_tools(server: Server):
    text = """
pipeline: p
transaction: whole
actions:
  - {name: a, tool: pipe.keep, args: {n: "${source.n}"}}
  - {name: f, tool: pipe.first, dependencies: [a], granularity: FILE}
  - {name: b, tool: pipe.keep, dependencies: [f], args: {n: 1}}
"""
    ended = await run(server, text, [{"n": 1}, {"n": 2}, {"n": 3}])

    assert ended.status is PipelineRunStatus.COMPLETED
    assert len({item.transaction_id for item in await inputs_of(server, ended.run_id)}) == 1
    kept, aggregate = await records_of(server, ended.run_id, "f")
    assert (kept.is_root, aggregate.is_root) == (False, True)
    ancestors = await server[1].lineage.list_ancestors(aggregate.target_id, "", 100)
    assert len(ancestors.records) == 6
    await assert_sound(server, plan_of(text), ended.run_id)


C56 = """
pipeline: p
transaction: whole
actions:
  - {name: start, tool: pipe.keep, args: {n: "${source.n}"}}
  - {name: branch_a, tool: pipe.keep, dependencies: [start], args: {n: "${start.n}"}}
  - {name: branch_b, tool: pipe.keep, dependencies: [start], args: {n: "${start.n}"}}
  - {name: branch_c, tool: pipe.keep, dependencies: [start], args: {n: "${start.n}"},
     guard: {condition: "start.n == 2", on_false: skip}}
  - {name: merge, tool: pipe.flaky, dependencies: [branch_a, branch_b, branch_c], args: {n: "${branch_a.n}"},
     on_failure: rollback}
  - {name: chunk, tool: pipe.split, dependencies: [merge], args: {n: "${merge.n}"}}
  - {name: total, tool: pipe.total, dependencies: [chunk], reduce: {by: root}}
  - {name: dedupe, tool: pipe.dedupe, dependencies: [chunk], granularity: FILE}
"""


async def test_c56_identity_survives_merges_splits_a_file_tool_a_skip_and_a_rewind(server: Server):
    ended = await run(server, C56, [{"n": 1}])
    lineage = server[1].lineage
    assert ended.status is PipelineRunStatus.COMPLETED

    async def of(action: str) -> list[Any]:
        return await records_of(server, ended.run_id, action)

    (root,) = await of("source")
    (merged,) = await of("merge")
    chunks, kept = await of("chunk"), await of("dedupe")
    assert root.is_root
    assert (await of("branch_c"))[0].content["branch_c"] is None
    assert len(merged.lineage_sources) == 3
    assert [r.content["total"]["count"] for r in await of("total")] == [5]
    # By identity, not by equal content: of the two equal chunks the first was kept, and it is the parent.
    assert [r.parent_target_id for r in kept[:4]] == [chunks[i].target_id for i in (0, 1, 2, 4)]
    (summary,) = kept[4:]
    assert (summary.is_root, summary.lineage) == (True, (summary.node_id,))
    assert [e.parent for e in await lineage.edges_of([summary.target_id])] == [c.target_id for c in chunks]
    # The rewind: what was made before it is gone, and what became of it is told and flagged.
    (item,) = await inputs_of(server, ended.run_id)
    events = await lineage.events_of(item.transaction_id)
    assert any(kept_event.is_rewound for kept_event in events)
    everything = {
        kept_record.record.target_id for kept_record in await lineage.records_of(item.transaction_id)
    }
    below = await lineage.list_descendants(root.target_id, "", 1000)
    assert {kept_record.record.target_id for kept_record in below.records} == everything - {root.target_id}
    loaded = await server[1].load(TransactionId(item.transaction_id))
    assert loaded is not None
    assert loaded.transaction.generation > 1
    await assert_sound(server, plan_of(C56), ended.run_id)


async def test_tools_that_cant_be_undone_are_called_one_by_one(tmp_path: Path):
    text = """
pipeline: p
actions:
  - {name: a, tool: pipe.chunk, args: {n: "${source.n}"}}
  - {name: b, tool: pipe.send, dependencies: [a], args: {n: "${a.n}"}}
"""
    async with sqlite_server(tmp_path / "agenttx.db") as server:
        ended = await run(server, text, [{"n": 1}])
        assert [r.content["b"]["sent"] for r in await records_of(server, ended.run_id, "b")] == [10, 11, 12]
        await assert_sound(server, plan_of(text), ended.run_id)


async def test_a_merge_that_is_not_said_how_rolls_its_root_back(tmp_path: Path):
    text = """
pipeline: p
actions:
  - {name: a, tool: pipe.chunk, args: {n: "${source.n}"}}
  - {name: b, tool: pipe.chunk, args: {n: "${source.n}"}}
  - {name: c, tool: pipe.keep, dependencies: [a, b], args: {n: 1}}
"""
    async with sqlite_server(tmp_path / "agenttx.db") as server:
        ended = await run(server, text, [{"n": 1}])
        assert ended.status is PipelineRunStatus.FAILED
        assert "a (3), b (3)" in ended.reason
        assert await records_of(server, ended.run_id, "a") == []


async def test_what_is_refused(tmp_path: Path):
    async with sqlite_server(tmp_path / "agenttx.db") as server:
        runs, _ = server
        barrier = plan_of("{pipeline: p, actions: [{name: f, granularity: file}]}").definition
        with pytest.raises(InvalidRequest):
            await runs.receive("", replace(barrier, actions=()), [])
        ended = await run(server, PIPELINE, [{"n": 1}])
        with pytest.raises(PreconditionFailed):
            await runs.carry(ended.run_id)


async def test_a_run_in_one_transaction_takes_fewer_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(row_receiving, "MAX_ROWS_TOGETHER", 3)
    text = "{pipeline: p, transaction: whole, actions: [{name: a, tool: pipe.keep, args: {n: 1}}]}"
    async with sqlite_server(tmp_path / "agenttx.db") as server:
        assert (await run(server, text, [{"n": n} for n in range(3)])).status is PipelineRunStatus.COMPLETED
        with pytest.raises(LimitExceeded, match="one transaction takes 3 rows"):
            await run(server, text, [{"n": n} for n in range(4)])
        by_row = text.replace("whole", "root")
        assert (await run(server, by_row, [{"n": n} for n in range(4)])).status is PipelineRunStatus.COMPLETED


async def test_a_cancelled_run_keeps_what_is_committed(tmp_path: Path):
    async with pipeline_runs(f"sqlite:///{tmp_path / 'agenttx.db'}", max_concurrency=1) as server:
        runs, _ = server
        rows = [Row({"n": n}) for n in range(20)]
        received = await runs.receive("", plan_of(PIPELINE).definition, rows)
        ended = await runs.carry(received.run_id, lambda progress: runs.cancel(progress.run_id))

        assert ended.status is PipelineRunStatus.CANCELLED
        states = Counter(item.state for item in await inputs_of(server, received.run_id))
        assert states[InputState.COMMITTED] >= 1
        assert states[InputState.PENDING] >= 1
        assert states[InputState.RUNNING] == 0


def process(database: Path, log: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.pipeline_process", f"sqlite:///{database}", *arguments]
    environment = {**os.environ, "PIPELINE_LOG": str(log), **variables}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def wait_for_lines(log: Path, count: int, life: subprocess.Popen[str]) -> None:
    """Wait until the run is so far, or has ended: a line of the log is a moment of it."""
    while len(log.read_text().splitlines()) < count and life.poll() is None:
        time.sleep(0.01)


async def test_a_run_that_is_killed_goes_on_and_nothing_is_lost_or_kept_twice(tmp_path: Path):
    database, log = tmp_path / "agenttx.db", tmp_path / "calls.log"
    log.touch()
    run_id = ""
    for kill_after in (9, 31, 55):
        with process(database, log, "8", *([run_id] if run_id else [])) as life:
            assert life.stdout is not None
            run_id = life.stdout.readline().strip()
            wait_for_lines(log, kill_after, life)
            life.kill()
    with process(database, log, "8", run_id) as life:
        assert life.stdout is not None
        assert life.stdout.read().split() == [run_id, "COMPLETED"]

    async with sqlite_server(database) as server:
        assert len(await records_of(server, run_id, "total")) == 8
        booked = [r.content["booked"]["booked"] for r in await records_of(server, run_id, "booked")]
        assert booked == [10 * n + index for n in range(8) for index in range(3)]
        await assert_sound(server, plan_of(PIPELINE), run_id)
    last = dict(reversed(line.split()) for line in log.read_text().splitlines() if "book" in line)
    # What was under way when it was killed was undone, perhaps before it happened, and is made again.
    assert {last[str(number)] for number in booked} == {"book"}


BEHIND = """
pipeline: p
{scope}
actions:
  - {{name: a, tool: pipe.chunk, args: {{n: "${{source.n}}"}}}}
  - {{name: odd, tool: pipe.keep, dependencies: [a], args: {{n: "${{a.n}}"}}, guard: {{condition: "a.n != 11", on_false: filter}}}}
  - {{name: f, tool: pipe.first, dependencies: [odd], granularity: FILE}}
  - {{name: both, tool: pipe.keep, dependencies: [f, a], args: {{n: "${{a.n}}"}}}}
  - {{name: grouped, tool: pipe.total, dependencies: [odd], reduce: {{by: source.kind}}}}
  - {{name: root, tool: pipe.total, dependencies: [odd], reduce: {{by: root}}}}
"""


async def told(server: Server, run_id: str) -> Counter[Any]:
    """What a run made, without the ids: each record with what it came of, by content."""
    made: Counter[Any] = Counter()
    for action in ("source", "a", "odd", "f", "both", "grouped", "root"):
        for record in await records_of(server, run_id, action):
            edges = await server[1].lineage.edges_of([record.target_id])
            above = []
            for edge in edges:
                kept = await server[1].lineage.get_record(edge.parent)
                assert kept is not None
                above.append((kept.record.action, edge.kind, canonical(dict(kept.record.content))))
            made[record.action, canonical(dict(record.content)), tuple(above), record.is_root] += 1
    return made


async def test_behind_a_barrier_all_is_as_in_one_transaction_but_roots_are_committed_by_themselves(
    server: Server,
):
    rows = [{"n": n, "kind": n % 2} for n in range(4)]
    apart = await run(server, BEHIND.format(scope=""), rows)
    whole = await run(server, BEHIND.format(scope="transaction: whole"), rows)

    # The aggregate came of many rows: it has no a.n for both's argument.
    assert apart.status is whole.status is PipelineRunStatus.COMPLETED_WITH_FAILURES
    assert apart.counts == whole.counts
    assert await told(server, apart.run_id) == await told(server, whole.run_id)
    inputs = await inputs_of(server, apart.run_id)
    assert len({item.transaction_id for item in inputs}) == 4
    first = (await server[1].lineage.list_records(apart.run_id, "f", "", 10)).records[0]
    assert first.transaction_id not in {item.transaction_id for item in inputs}
    for ended in (apart, whole):
        verified = await LineageReading(server[1].pipelines).verify("alice", ended.run_id, "", 100)
        assert (list(verified.breaches), verified.rows) == ([], 4)
        assert verified.records == sum((await told(server, ended.run_id)).values())


async def test_a_root_that_was_rolled_back_is_not_behind_the_barrier_and_none_starts_it_early(server: Server):
    text = """
pipeline: p
actions:
  - {name: a, tool: pipe.keep, args: {n: "${source.n}"}, on_failure: rollback}
  - {name: f, tool: pipe.first, dependencies: [a], granularity: FILE}
"""
    ended = await run(server, text, [{"n": 1}, {"n": -1}, {"n": 3}])

    assert ended.status is PipelineRunStatus.COMPLETED_WITH_FAILURES
    assert (ended.committed, ended.failed) == (2, 1)
    kept, aggregate = await records_of(server, ended.run_id, "f")
    assert kept.content["a"] == {"n": 1}
    assert aggregate.content["f"] == {"all": 2}
    none = await run(server, text, [{"n": -1}])
    assert none.status is PipelineRunStatus.FAILED
    assert await records_of(server, none.run_id, "f") == []


async def test_what_is_behind_a_barrier_fails_alone_and_goes_on_from_what_is_durable(server: Server):
    runs, store = server
    text = """
pipeline: p
actions:
  - {name: a, tool: pipe.keep, args: {n: "${source.n}"}}
  - {name: f, tool: pipe.dedupe, dependencies: [a], granularity: FILE}
"""
    ended = await run(server, text, [{"n": 1}, {"n": 2}])  # dedupe looks for what is not there

    assert ended.status is PipelineRunStatus.FAILED
    assert ended.committed == 2
    assert len(await records_of(server, ended.run_id, "a")) == 2
    # As a crash leaves it: the roots are through, and what is behind them was not begun.
    received = await runs.receive(
        "alice", plan_of(BEHIND.format(scope="")).definition, [Row({"n": 1, "kind": 0})]
    )
    calls = 0

    async def no_barrier(*_: Any) -> None:
        nonlocal calls
        calls += 1

    carry_barrier, runs._carry_barrier = runs._carry_barrier, no_barrier  # type: ignore[method-assign]
    left = await runs.carry(received.run_id)
    assert (left.status, calls) == (PipelineRunStatus.INTERRUPTED, 1)
    runs._carry_barrier = carry_barrier  # type: ignore[method-assign]
    assert (await runs.carry(received.run_id)).status is PipelineRunStatus.COMPLETED_WITH_FAILURES
    assert len(await records_of(server, received.run_id, "f")) == 2
    assert await store.pipelines.carried_by(runs.server_id) == []


UNITS = """
pipeline: p
actions:
  - {{name: a, tool: pipe.keep, args: {{n: "${{source.n}}"}}}}
  - {{name: f, tool: {tool}, dependencies: [a], {what}, on_failure: rollback}}
  - {{name: b, tool: pipe.total, dependencies: [f], reduce: {{by: root}}}}
"""


async def test_each_file_behind_a_barrier_is_a_transaction_and_fails_alone(server: Server):
    runs, store = server
    text = UNITS.format(tool="pipe.whole_file", what="granularity: file")
    rows = [Row({"n": n}, ("x", "bad", "", "x", "y", "bad")[n]) for n in range(6)]
    received = await runs.receive("alice", plan_of(text).definition, rows)
    ended = await runs.carry(received.run_id)

    assert ended.status is PipelineRunStatus.COMPLETED_WITH_FAILURES
    page = await store.lineage.list_records(ended.run_id, "f", "", 100)
    made = {
        (kept.record.relative_path, kept.record.content["f"]["of"], kept.transaction_id)
        for kept in page.records
    }
    assert {(path, count) for path, count, _ in made} == {("x", 2), ("", 1), ("y", 1)}
    # One a file, behind those of the rows.
    assert len({transaction_id for _, _, transaction_id in made}) == 3
    assert len(page.records) == 4
    failed = [
        item.relative_path
        async for item in units_behind(store.pipelines, ended.run_id, frozenset({InputState.FAILED}))
    ]
    assert failed == ["bad"]
    assert "behind the barriers, file 'bad'" in ended.reason
    reading = LineageReading(store.pipelines)
    seen = 0
    cursor = ""
    pages = 0
    while True:
        verified = await reading.verify("alice", ended.run_id, cursor, 2)
        assert list(verified.breaches) == []
        seen += verified.records
        pages += 1
        cursor = verified.next_cursor
        if not cursor:
            break
    assert pages == 4  # of rows three, the last with the first units, and one of units
    counted = await store.lineage.count_records(ended.run_id)
    assert seen == sum(counted.values())
    with pytest.raises(InvalidRequest):
        await reading.verify("alice", ended.run_id, "behind:0", 2)


async def test_each_group_behind_a_barrier_is_a_transaction_and_those_that_share_a_root_are_one(
    server: Server,
):
    runs, store = server
    text = UNITS.format(tool="pipe.total", what="reduce: {by: source.kind}")
    kinds = ["p", "q", "p", None, "r", "q"]
    received = await runs.receive(
        "alice", plan_of(text).definition, [Row({"n": n, "kind": kind}) for n, kind in enumerate(kinds)]
    )
    ended = await runs.carry(received.run_id)

    assert ended.status is PipelineRunStatus.COMPLETED
    page = await store.lineage.list_records(ended.run_id, "f", "", 100)
    assert [kept.record.content["f"]["count"] for kept in page.records] == [2, 2, 1]
    assert len({kept.transaction_id for kept in page.records}) == 3
    units = [json.loads(item.row)["rows"] async for item in units_behind(store.pipelines, ended.run_id)]
    assert units == [[[0, 0], [2, 2]], [[1, 1], [5, 5]], [[3, 3]], [[4, 4]]]
    verified = await LineageReading(store.pipelines).verify("alice", ended.run_id, "", 100)
    assert (list(verified.breaches), verified.next_cursor) == ([], "")
    # Behind another barrier the groups are not known before its calls: all is one unit.
    nested = """
pipeline: p
actions:
  - {name: f, tool: pipe.keep_all, granularity: file}
  - {name: b, tool: pipe.total, dependencies: [f], reduce: {by: source.kind}}
"""
    received = await runs.receive(
        "alice", plan_of(nested).definition, [Row({"kind": kind}, kind or "") for kind in kinds]
    )
    assert (await runs.carry(received.run_id)).status is PipelineRunStatus.COMPLETED
    assert [item.row async for item in units_behind(store.pipelines, received.run_id)] == ["null"]


async def test_units_behind_a_barrier_hold_no_more_than_their_own_rows(tmp_path: Path):
    """However many files there are, as many roots are in memory as are of those that run side by side."""
    text = UNITS.format(tool="pipe.whole_file", what="granularity: file")
    held: list[int] = []
    async with pipeline_runs(f"sqlite:///{tmp_path / 'agenttx.db'}", max_concurrency=2) as (runs, _):

        def look() -> None:
            held.append(sum(isinstance(item, Record) for item in gc.get_objects()))

        received = await runs.receive(
            "", plan_of(text).definition, [Row({"n": n}, f"file {n // 3}") for n in range(90)]
        )
        pipeline_tools.ON_WHOLE_FILE = look
        try:
            ended = await runs.carry(received.run_id)
        finally:
            pipeline_tools.ON_WHOLE_FILE = None
        assert ended.status is PipelineRunStatus.COMPLETED
    assert len(held) == 30
    # Of two files each: three rows with two records each, and one more for the tool's answers.
    assert max(held) <= 2 * 3 * 4


async def test_a_run_that_is_killed_behind_its_barrier_goes_on_there(tmp_path: Path):
    database, log = tmp_path / "agenttx.db", tmp_path / "calls.log"
    log.touch()
    with process(database, log, "4", PIPELINE_BARRIER="1") as life:
        assert life.stdout is not None
        run_id = life.stdout.readline().strip()
        wait_for_lines(log, 8, life)  # four chunks, keep_all, and some of twelve bookings
        life.kill()
    with process(database, log, "4", run_id) as life:
        assert life.stdout is not None
        assert life.stdout.read().split() == [run_id, "COMPLETED"]

    async with sqlite_server(database) as server:
        booked = [record.content["booked"]["booked"] for record in await records_of(server, run_id, "booked")]
        assert booked == [10 * n + index for n in range(4) for index in range(3)]
        verified = await LineageReading(server[1].pipelines).verify("", run_id, "", 100)
        assert list(verified.breaches) == []
    # Each root and what is behind them was asked once: the answers are stored.
    assert Counter(line.split()[0] for line in log.read_text().splitlines())["chunk"] == 4
    last = dict(reversed(line.split()) for line in log.read_text().splitlines() if "book" in line)
    assert {last[str(number)] for number in booked} == {"book"}


async def test_a_server_that_lost_its_lease_lets_go_and_no_row_is_carried_twice(
    monkeypatch: pytest.MonkeyPatch,
):
    """Paused for longer than its lease, it goes on as if nothing was: another one has the run by then."""
    text = """
pipeline: p
max_concurrency: 2
actions:
  - {name: a, tool: pipe.gated, args: {n: "${source.n}"}}
  - {name: b, tool: pipe.keep, dependencies: [a], args: {n: "${a.n}"}}
"""
    gate = asyncio.Event()
    monkeypatch.setattr(pipeline_tools, "GATE", gate)
    monkeypatch.setattr(pipeline_tools, "_begun", 0)
    with shared_cluster().database() as address:
        async with (
            asyncio.timeout(60),
            pipeline_runs(address) as (paused, store),
            pipeline_runs(address) as second,
        ):
            rows = [Row({"n": n}) for n in range(30)]
            received = await paused.receive("alice", plan_of(text).definition, rows)
            first = asyncio.create_task(paused.carry(received.run_id))
            await pipeline_tools.started(2)
            with pytest.raises(PreconditionFailed):
                await second[0].carry(received.run_id)
            await store.retire_server(ServerId(paused.server_id))
            carrying = asyncio.create_task(second[0].carry(received.run_id))
            await pipeline_tools.started(4)
            gate.set()
            ended = await carrying
            assert (await first).status is not PipelineRunStatus.CANCELLED
            assert (ended.status, ended.committed) == (PipelineRunStatus.COMPLETED, 30)
            made = await records_of(second, received.run_id, "b")
            assert [record.content["b"]["n"] for record in made] == list(range(30))
            assert len({item.transaction_id for item in await inputs_of(second, received.run_id)}) == 30
            await assert_sound(second, plan_of(text), received.run_id)
            assert await store.pipelines.carried_by(second[0].server_id) == []


async def test_a_database_that_does_not_answer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither where rows are read nor where a root has its turn does a run end in that."""
    async with sqlite_server(tmp_path / "agenttx.db") as server:
        runs, store = server
        lists, turns = store.pipelines.list_inputs, runs._coordinator.held_turn
        failures = {"list": 2, "turn": 2}

        async def list_inputs(*given: Any) -> Any:
            if failures["list"] and given[1] == -1:
                failures["list"] -= 1
                raise StoreUnavailable("it is restarted")
            return await lists(*given)

        def held_turn(*given: Any) -> Any:
            if failures["turn"]:
                failures["turn"] -= 1
                raise StoreUnavailable("it is restarted")
            return turns(*given)

        monkeypatch.setattr(store.pipelines, "list_inputs", list_inputs)
        monkeypatch.setattr(runs._coordinator, "held_turn", held_turn)
        ended = await run(server, PIPELINE, [{"n": n} for n in range(3)])

        assert (ended.status, failures) == (PipelineRunStatus.COMPLETED, {"list": 0, "turn": 0})
        assert len(await records_of(server, ended.run_id, "total")) == 3


@pytest.mark.parametrize("scope", ["", "transaction: whole"])
async def test_old_runs_are_removed_a_whole_root_at_a_time_and_what_is_left_holds(
    server: Server, monkeypatch: pytest.MonkeyPatch, scope: str
):
    """With what is behind a barrier first; a run under way stays, as one that has ended since."""
    monkeypatch.setattr(lineage_retention, "_ROWS_A_BATCH", 1)
    runs, store = server
    rows = [{"n": n, "kind": n % 2} for n in range(3)]
    old = await run(server, BEHIND.format(scope=scope), rows)
    under_way = await runs.receive("alice", plan_of(PIPELINE).definition, [Row({"n": 1})])
    await asyncio.sleep(0.001)
    between = SystemClock().now()
    young = await run(server, BEHIND.format(scope=scope), rows)
    made = await told(server, young.run_id)
    reading = LineageReading(store.pipelines)
    counts = []
    while await store.pipelines.purge_old_run(between):
        if await store.pipelines.load_run(old.run_id) is None:
            break
        verified = await reading.verify("alice", old.run_id, "", 100)
        assert list(verified.breaches) == []
        counts.append((verified.rows, verified.records))

    assert len(counts) >= 3
    assert counts == sorted(counts, reverse=True)
    assert not await store.pipelines.purge_old_run(between)
    assert await told(server, old.run_id) == Counter()
    assert (await store.pipelines.load_run(under_way.run_id)) is not None
    assert await told(server, young.run_id) == made
    assert list((await reading.verify("alice", young.run_id, "", 100)).breaches) == []

    def left(connection: Connection) -> list[int]:
        tables = ("records", "record_events", "record_commits", "pipeline_inputs", "pipeline_units")
        queries = [f"SELECT count(*) FROM {table} WHERE run_id = '{old.run_id}'" for table in tables]
        queries.append("SELECT count(*) FROM record_edges WHERE child NOT IN (SELECT target_id FROM records)")
        return [int(connection.exec_driver_sql(query).scalar_one()) for query in queries]

    assert await store._pool.read(left) == [0] * 6


async def test_runs_are_kept_for_ever_or_as_long_as_it_is_said(tmp_path: Path):
    async with sqlite_server(tmp_path / "agenttx.db") as (runs, store):
        ended = await run((runs, store), PIPELINE, [{"n": 1}])
        for seconds, batches, is_there in ((0.0, 0, True), (3600.0, 0, True), (1e-6, 1, False)):
            life = PipelineLife(
                runs, store.pipelines, SystemClock(), is_shared=False, retention_seconds=seconds
            )
            assert await life.purge_old() == batches
            assert (await store.pipelines.load_run(ended.run_id) is not None) == is_there
