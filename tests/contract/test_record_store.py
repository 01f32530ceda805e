"""Records, edges and events: the same on SQLite and PostgreSQL, written with the steps that made them."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event
from tests.support.pipeline_flows import Ran, run
from tests.support.store_databases import reopen, store  # noqa: F401
from tests.support.store_records import Driver

from agenttx_server.engine.ports import ExtraRowsRefused
from agenttx_server.lineage.ledger import Batch
from agenttx_server.lineage.ports import KeptBatch, RecordChange, RecordCommit, RecordPage
from agenttx_server.lineage.records import to_json
from agenttx_server.lineage.verification import verify_lineage
from agenttx_server.store import SqlTransactionStore, StoreSettings, open_store, record_reading
from agenttx_server.store.database import reader_engine

PIPELINE = """
actions:
  - {name: extract}
  - {name: branch_a, dependencies: [extract]}
  - {name: branch_b, dependencies: [extract]}
  - {name: branch_c, dependencies: [extract]}
  - {name: merge, dependencies: [branch_a, branch_b, branch_c]}
  - {name: chunk_document, dependencies: [merge]}
  - {name: process_chunk, dependencies: [chunk_document]}
  - {name: total, dependencies: [process_chunk], reduce: {by: root}}
"""
CHUNKS = {"chunk_document": lambda a: [{"n": n} for n in range(3)]}


def batch_of(ran: Ran, run_id: str, transaction_id: str, *, attempt: int = 1) -> KeptBatch:
    batch = Batch(tuple(ran.made), tuple(ran.edges), tuple(ran.flow.events()))
    return KeptBatch(batch, run_id, "catalog", transaction_id, 1, 0, attempt, 1_000)


async def keep(
    store: SqlTransactionStore, ran: Ran, run_id: str, *, committed_at: int | None = 10, principal: str = ""
) -> Driver:
    """Write a run's records with a step; with the commit, if there is one, that they count."""
    driver = await Driver(store, f"t-{run_id}").begin()
    change = RecordChange([batch_of(ran, run_id, driver.id)])
    if committed_at is not None:
        change = RecordChange(
            change.batches, [RecordCommit(driver.id, run_id, "catalog", committed_at, principal)]
        )
    await driver.write({"extra": store.lineage.rows(change)})
    return driver


def ids(page: RecordPage) -> set[str]:
    return {kept.record.target_id for kept in page.records}


async def test_records_come_back_as_they_were(store: SqlTransactionStore):
    ran = run(PIPELINE, [{"doc": "ä\u0000\n", "n": 1}, {"n": 2.5}], CHUNKS, run_id="r1")
    driver = await keep(store, ran, "r1")

    kept = await store.lineage.records_of(driver.id)
    assert [to_json(item.record) for item in kept] == [to_json(record) for record in ran.made]
    assert [item.sequence for item in kept] == list(range(len(ran.made)))
    events = [item.event for item in await store.lineage.events_of(driver.id)]
    assert sorted(map(repr, events)) == sorted(map(repr, ran.flow.events()))
    edges = await store.lineage.edges_of([record.target_id for record in ran.made])
    assert sorted(map(repr, edges)) == sorted(map(repr, ran.edges))
    assert verify_lineage([i.record for i in kept], edges, events, ran.plan.topology.consumers) == []


async def test_what_is_not_committed_is_seen_by_its_transaction_only(store: SqlTransactionStore):
    ran = run(PIPELINE, [{"n": 1}], CHUNKS, run_id="r1")
    driver = await keep(store, ran, "r1", committed_at=None)
    (root,) = ran.records("source")

    assert await store.lineage.get_record(root.target_id) is None
    assert ids(await store.lineage.list_by_root(root.target_id, "", 100)) == set()
    assert ids(await store.lineage.list_by_root(root.target_id, "", 100, driver.id)) == {
        record.target_id for record in ran.made
    }
    assert len(await store.lineage.events_of(driver.id)) == len(ran.flow.events())

    await driver.write(
        {"extra": store.lineage.rows(RecordChange(commits=[RecordCommit(driver.id, "r1", "catalog", 1)]))}
    )
    assert await store.lineage.get_record(root.target_id) is not None


async def test_one_query_finds_descendants_ancestors_siblings_and_roots(store: SqlTransactionStore):
    ran = run(PIPELINE, [{"n": 1}, {"n": 1}], CHUNKS, run_id="r1")
    await keep(store, ran, "r1")
    first, second = ran.records("source")
    lineage = store.lineage

    of_first = {record.target_id for record in ran.made if record.root_target_id == first.target_id}
    assert ids(await lineage.list_descendants(first.target_id, "", 100)) == of_first - {first.target_id}
    assert ids(await lineage.list_by_root(first.target_id, "", 100)) == of_first
    total = ran.records("total")[0]
    assert ids(await lineage.list_ancestors(total.target_id, "", 100)) == of_first - {total.target_id}
    extracted = ran.records("extract")[0]
    siblings = await lineage.list_siblings(extracted.target_id, "", 100)
    assert sorted(kept.record.action for kept in siblings.records) == ["branch_a", "branch_b", "branch_c"]
    assert first.source_guid != second.source_guid
    assert ids(await lineage.list_by_source("", first.source_guid, "", 100)) == of_first


async def test_pages_go_on_where_they_ended(store: SqlTransactionStore):
    ran = run(PIPELINE, [{"n": n} for n in range(3)], CHUNKS, run_id="r1")
    await keep(store, ran, "r1")

    listed, cursor = [], ""
    while True:
        page = await store.lineage.list_records("r1", "process_chunk", cursor, 2)
        listed += [kept.record.target_id for kept in page.records]
        cursor = page.next_cursor
        if not cursor:
            break
    assert listed == [record.target_id for record in ran.records("process_chunk")]
    root = ran.records("source")[0].target_id
    walked, cursor = set(), ""
    while True:
        page = await store.lineage.list_descendants(root, cursor, 4)
        assert not walked & ids(page)
        walked |= ids(page)
        cursor = page.next_cursor
        if not cursor:
            break
    assert len(walked) == 12


async def test_records_of_one_content_come_in_full_pages_whoever_else_has_some(store: SqlTransactionStore):
    for number, principal in enumerate(("alice", "bob", "bob", "alice", "bob", "alice")):
        ran = run(PIPELINE, [{"n": 1}], CHUNKS, run_id=f"r{number}")
        await keep(store, ran, f"r{number}", principal=principal)
    guid = ran.records("source")[0].source_guid
    for principal, runs in (
        ("alice", {"r0", "r3", "r5"}),
        ("bob", {"r1", "r2", "r4"}),
        ("", None),
        ("eve", set()),
    ):
        seen: list[str] = []
        cursor = ""
        while True:
            page = await store.lineage.list_by_source(principal, guid, cursor, 7)
            seen += [kept.run_id for kept in page.records]
            cursor = page.next_cursor
            if not cursor:
                break
            assert len(page.records) == 7
        assert set(seen) == ({f"r{number}" for number in range(6)} if runs is None else runs)
        assert len(seen) == 13 * len(set(seen))
    assert await store.lineage.owner_of("t-r1") == "bob"
    assert await store.lineage.owner_of("t-none") is None


async def test_records_of_all_actions_are_listed_by_action(store: SqlTransactionStore):
    ran = run(PIPELINE, [{"n": n} for n in range(2)], CHUNKS, run_id="r1")
    await keep(store, ran, "r1")
    listed: list[tuple[str, int]] = []
    cursor = ""
    while True:
        page = await store.lineage.list_records("r1", "", cursor, 5)
        listed += [(kept.record.action, kept.sequence) for kept in page.records]
        cursor = page.next_cursor
        if not cursor:
            break
    assert listed == sorted(listed)
    assert len(set(listed)) == len(ran.made)


async def test_a_target_id_is_never_written_twice(store: SqlTransactionStore):
    ran = run(PIPELINE, [{"n": 1}], CHUNKS, run_id="r1")
    driver = await keep(store, ran, "r1")
    again = store.lineage.rows(RecordChange([batch_of(ran, "r1", driver.id)]))

    with pytest.raises(ExtraRowsRefused):
        await driver.write({"extra": again})


async def test_records_of_rewound_steps_are_gone_and_their_events_are_flagged(store: SqlTransactionStore):
    ran = run(PIPELINE, [{"n": 1}], CHUNKS, run_id="r1")
    driver = await keep(store, ran, "r1")
    lineage = store.lineage
    gone = [kept for kept in await lineage.records_of(driver.id) if kept.record.action == "total"]
    edges = await lineage.edges_of([kept.record.target_id for kept in gone])
    events = [kept for kept in await lineage.events_of(driver.id) if kept.event.action == "total"]
    flagged = [
        type(kept)(
            kept.event, kept.run_id, kept.transaction_id, kept.step_id, kept.attempt, kept.occurred_at, True
        )
        for kept in events
    ]

    change = RecordChange(rewound=gone, rewound_edges=edges, rewound_events=flagged)
    await driver.write({"extra": lineage.rows(change)})

    assert await lineage.get_record(gone[0].record.target_id) is None
    assert list(await lineage.edges_of([gone[0].record.target_id])) == []
    kept_events = [kept for kept in await lineage.events_of(driver.id) if kept.event.action == "total"]
    assert [kept.is_rewound for kept in kept_events] == [True] * 3


# --- by hand ----------------------------------------------------------------------------------------

ANCESTRY = """
  SELECT json_extract(r.value, '$.source_guid'),
         json_extract(r.value, '$.target_id'),
         json_extract(r.value, '$.parent_target_id'),
         json_extract(r.value, '$.root_target_id'),
         json_extract(r.value, '$.lineage')
  FROM target_data t, json_each(t.data) r
  WHERE t.action_name = 'merge'
  LIMIT 1
"""
SIBLINGS = """
  SELECT t.action_name, json_extract(r.value, '$.parent_target_id')
  FROM target_data t, json_each(t.data) r
  WHERE t.action_name IN ('branch_a', 'branch_b', 'branch_c')
"""
ROOTS = """
  SELECT DISTINCT json_extract(r.value, '$.root_target_id')
  FROM target_data t, json_each(t.data) r
  WHERE t.action_name = 'process_chunk'
"""


def sqlite3_program(path: Path, query: str) -> list[list[str]]:
    command = ["sqlite3", str(path), query]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [line.split("|") for line in answer.stdout.splitlines()]


async def test_the_three_debugging_queries_run_with_the_sqlite3_program(tmp_path: Path):
    path = tmp_path / "agenttx.db"
    async with open_store(f"sqlite:///{path}") as store:
        # An older run of the pipeline, and a transaction that was not committed: not shown.
        await keep(store, run(PIPELINE, [{"n": 0}], CHUNKS, run_id="r0"), "r0", committed_at=5)
        ran = run(PIPELINE, [{"n": 1}], CHUNKS, run_id="r1")
        await keep(store, ran, "r1", committed_at=10)
        await keep(store, run(PIPELINE, [{"n": 2}], CHUNKS, run_id="r2"), "r2", committed_at=None)

    (merged,) = ran.records("merge")
    ((guid, target_id, parent, root, lineage),) = sqlite3_program(path, ANCESTRY)
    assert (guid, target_id, root) == (merged.source_guid, merged.target_id, merged.root_target_id)
    assert parent == ran.records("branch_a")[0].target_id
    assert lineage.count(",") == len(merged.lineage) - 1
    siblings = sqlite3_program(path, SIBLINGS)
    assert sorted(action for action, _ in siblings) == ["branch_a", "branch_b", "branch_c"]
    assert {found for _, found in siblings} == {ran.records("extract")[0].target_id}
    assert sqlite3_program(path, ROOTS) == [[merged.root_target_id]]
    has_parent = "SELECT DISTINCT json_type(data, '$[0].parent_target_id') IS NULL FROM target_data WHERE action_name = "
    assert sqlite3_program(path, has_parent + "'source'") == [["1"]]
    assert sqlite3_program(path, "SELECT count(DISTINCT run_id) FROM target_data_all") == [["2"]]


async def test_the_views_answer_on_postgresql(tmp_path: Path):
    from tests.support.postgres_cluster import shared_cluster

    with shared_cluster().database() as address:
        async with open_store(address) as store:
            ran = run(PIPELINE, [{"n": 1}], CHUNKS, run_id="r1")
            await keep(store, ran, "r1")

            def ask(connection: Any) -> Sequence[Any]:
                return connection.exec_driver_sql(
                    "SELECT DISTINCT r.value ->> 'root_target_id' FROM target_data t, "
                    "jsonb_array_elements(t.data) r WHERE t.action_name = 'process_chunk'"
                ).all()

            found = await store._pool.read(ask)
    assert [row[0] for row in found] == [ran.records("source")[0].target_id]


READS: dict[str, tuple[Any, ...]] = {
    "get_record": (record_reading.get_record, "x", ""),
    "list_records": (record_reading.list_records, "r", "a", "", 10, ""),
    "siblings": (record_reading.list_sharing, "parent_target_id", "x", "", 10, ""),
    "by root": (record_reading.list_sharing, "root_target_id", "x", "", 10, ""),
    "all records": (record_reading.list_records, "r", "", "", 10, ""),
    "by source": (record_reading.list_by_source, "alice", "x", "", 10, ""),
    "owner_of": (record_reading.owner_of, "t"),
    "edges_of": (record_reading.edges_of, ["x"]),
    "events_of": (record_reading.events_of, "t"),
    "records_of": (record_reading.records_of, "t"),
    "descendants": (lambda c: record_reading.list_along_edges(c, "x", "", 10, "", downwards=True),),
    "ancestors": (lambda c: record_reading.list_along_edges(c, "x", "", 10, "", downwards=False),),
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from agenttx_server.store import migrate

    path = tmp_path_factory.mktemp("records") / "agenttx.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.mark.parametrize("name", READS)
def test_a_query_walks_no_table(database: Path, name: str):
    seen: list[tuple[str, Any]] = []
    engine = reader_engine(database, StoreSettings())
    with engine.connect() as connection:

        @event.listens_for(connection, "before_cursor_execute")
        def note(connection: Any, cursor: Any, statement: str, parameters: Any, *others: Any) -> None:
            seen.append((statement, parameters))

        function, *arguments = READS[name]
        function(connection, *arguments)
        event.remove(connection, "before_cursor_execute", note)
        ((statement, parameters),) = seen
        plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
    engine.dispose()
    # What the recursion has found so far, and all that it found in the end.
    assert [line for line in plan if line.startswith("SCAN") and line not in ("SCAN w", "SCAN walked")] == []


async def test_postgresql_looks_up_each_record_that_a_walk_reaches():
    """On tables that grew and were never analysed, where it knows least: it would sort all edges for each walk."""
    from tests.support.postgres_cluster import shared_cluster

    def plans(connection: Any) -> list[str]:
        for statement in (
            "INSERT INTO record_edges SELECT 'c' || n, 0, 'p' || n, 'DERIVE' FROM generate_series(1, 5000) n",
            "INSERT INTO records SELECT 'c' || n, 'r', 'a', n, 'p' || n, 'p' || n, 'g', 't' || n, 1, 'p', '', '', '{}' "
            "FROM generate_series(1, 5000) n",
        ):
            connection.exec_driver_sql(statement)
        found = []
        for walk in (record_reading.DESCENDANTS, record_reading.ANCESTORS):
            given = {"target_id": "p1", "after": "", "limit": 101, "transaction_id": ""}
            statement, parameters = walk.for_database(connection).call(connection.dialect, given)
            rows = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)
            found.append("\n".join(str(row[0]) for row in rows))
        return found

    with shared_cluster().database() as address:
        engine = create_engine(address.replace("postgresql://", "postgresql+psycopg://"))
        with engine.connect() as connection:
            for setting in ("enable_seqscan = off", "jit = off"):
                connection.exec_driver_sql(f"SET {setting}")
            found = plans(connection)
        engine.dispose()
    for plan in found:
        assert "Merge" not in plan
        assert "Hash Join" not in plan
        assert "Seq Scan on record" not in plan
        assert "records_pkey" in plan
