"""What is stored is measured from the rows, by owner, and the count that servers share is put right by it."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import asyncio
from typing import Any

from tests.contract.test_record_store import CHUNKS, PIPELINE, keep
from tests.contract.test_run_store import checkpoint, event, thread
from tests.contract.test_run_store import run as a_run
from tests.support.pipeline_flows import run
from tests.support.store_databases import reopen, store  # noqa: F401
from tests.support.store_records import NOW, Driver

from agenttx_server.engine.records import MicrosecondsUtc, TransactionStatus
from agenttx_server.graphs.ports import GraphRecord
from agenttx_server.graphs.runs.ports import RunChange
from agenttx_server.store import SqlTransactionStore

LONG = "ö" * 1_000  # two bytes each


async def totals(store: SqlTransactionStore) -> dict[str, int]:
    return dict((await store.stored_totals()).by_owner)


async def test_each_owners_rows_are_measured_and_what_tenants_share_is_theirs(store: SqlTransactionStore):
    ann = await Driver(store, "t-1", principal="ann").begin()
    await ann.step({"kv/a": f'"{LONG}"'}, output=f'"{LONG}"')
    amy = await Driver(store, "t-2", principal="@acme/amy").begin()
    await amy.step({"@acme/kv/a": f'"{LONG}"'})
    before = await store.measure_stored()
    assert 4_000 < before.totals["ann"] < 8_000
    assert 2_000 < before.totals["@acme/amy"] < before.totals["ann"] - 1_500
    assert before.parts["ann"].keys() == {"transactions"}
    await ann.commit()
    await amy.commit()
    await store.register_graph(GraphRecord("@acme/g", "1", "", 1, 1, NOW, f'"{LONG}"', 0))
    after = await store.measure_stored()
    assert 2_000 < after.parts["@/"]["state"] < 3_000  # sealed ones are longer
    assert after.parts["@acme/"].keys() == {"state", "definitions"}
    assert after.parts["@acme/"]["definitions"] > 2_000
    assert await totals(store) == after.totals


async def test_runs_and_records_are_their_owners(store: SqlTransactionStore):
    ran = run(PIPELINE, [{"doc": LONG, "n": 1}], CHUNKS, run_id="r1")
    await keep(store, ran, "r1", principal="@acme/amy")  # a transaction of alice's
    await keep(store, run(PIPELINE, [{"n": 2}], CHUNKS, run_id="r2"), "r2", committed_at=None)
    change = RunChange(
        threads=[thread(principal="bob")],
        runs=[a_run(principal="bob")],
        checkpoints=[checkpoint(0)],
        events=[event(0)],
    )
    await store.runs.write(change)
    parts = (await store.measure_stored()).parts
    assert parts["@acme/amy"].keys() == {"records"}
    assert parts["@acme/amy"]["records"] > 2_000
    assert parts["alice"].keys() == {"records", "transactions"}
    assert parts["bob"].keys() == {"runs"}


async def test_what_is_purged_is_found_gone(store: SqlTransactionStore):
    ended: dict[str, Any] = {"status": TransactionStatus.ROLLED_BACK, "ended_at": MicrosecondsUtc(NOW)}
    driver = await Driver(store, "t-1", principal="ann").begin()
    await driver.step(output=f'"{LONG}"')
    await driver.write(**ended)
    await store.measure_stored()
    assert (await totals(store))["ann"] > 2_000
    assert await store.purge_ended(MicrosecondsUtc(NOW + 1), 10) == 1
    assert await store.measure_stored()
    assert await totals(store) == {}


async def test_additions_meet_a_measurement_in_any_order_and_of_two_measurements_one_counts(
    store: SqlTransactionStore,
):
    driver = await Driver(store, "t-1", principal="ann").begin()
    await store.measure_stored()
    exact = await totals(store)
    # Two servers add what they wrote, and what they add is put right.
    await asyncio.gather(store.add_stored({"ann": 5, "bob": 7}), store.add_stored({"bob": 1, "ann": 2}))
    assert await totals(store) == {"ann": exact["ann"] + 7, "bob": 8}
    await driver.step(output=f'"{LONG}"')
    measured = await asyncio.gather(*(store.measure_stored() for _ in range(4)))
    found = measured[0].totals
    assert found["ann"] > exact["ann"] + 2_000
    assert await totals(store) == {"ann": found["ann"]}
    assert {one.totals["ann"] for one in measured} == {found["ann"]}


async def test_who_writes_is_told_of_with_the_length(store: SqlTransactionStore):
    told: dict[str, int] = {}
    store.count_added(lambda owner, size: told.update({owner: told.get(owner, 0) + size}))
    driver = await Driver(store, "t-1", principal="ann").begin()
    assert told["ann"] < 200
    await driver.step(output=f'"{LONG}"')
    assert 1_000 < told["ann"] < 1_500
