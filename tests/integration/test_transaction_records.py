"""Records of plain transactions: kept with the commit where the transaction asks for it, on both databases, by gRPC and SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from tests.support import pipeline_tools
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import running_server
from tests.support.running_worker import running_worker

from agenttx import AsyncClient, AsyncTransaction, InvalidArgument, NotFound
from agenttx_server.engine.errors import NotFound as EngineNotFound
from agenttx_server.engine.records import MicrosecondsUtc, TransactionId
from agenttx_server.engine.visibility import ANONYMOUS_OWNER
from agenttx_server.pipelines.lineage_reading import LineageReading
from agenttx_server.pipelines.run_coordinator import PipelineRuns
from agenttx_server.pipelines.run_life import PipelineLife
from agenttx_server.store import open_store
from agenttx_server.system_ports import SystemClock, SystemIds

FAR_FUTURE = MicrosecondsUtc(4_000_000_000_000_000)


@dataclass
class Served:
    client: AsyncClient
    url: str


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Served]:
    async with (
        running_server(database_url=url, tools=("tests.support.pipeline_tools",)) as server,
        AsyncClient(server.address) as client,
    ):
        yield Served(client, url)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'agenttx.db'}"
        return
    with shared_cluster().database() as address:
        yield address


@pytest.fixture
async def served(url: str) -> AsyncIterator[Served]:
    async with serving(url) as parts:
        yield parts


async def all_records(served: Served, transaction_id: str) -> dict[int, list[Any]]:
    """By step."""
    found: dict[int, list[Any]] = {}
    async for record in served.client.lineage.records(transaction_id):
        found.setdefault(record.step_id, []).append(record)
    return found


async def steps(tx: AsyncTransaction) -> None:
    await tx.step("pipe.keep", n=1)
    await tx.step("pipe.keep", n="${steps.1.n}")
    await tx.step("pipe.many", n="${steps.1.n}")
    await tx.step("pipe.join", one="${steps.2.n}", others="${steps.3.records}")
    # Equal values are no descent, and equal outputs are told apart.
    await tx.step("pipe.keep", n=1)
    await tx.step("pipe.keep", n="${steps.5.n}")


async def test_a_transaction_leaves_records_of_what_its_steps_gave_and_took(served: Served):
    lineage = served.client.lineage
    async with served.client.transaction(agent_id="a", keep_records=True) as tx:
        await steps(tx)
        await tx.rewind(6, reason="another way")
        await tx.step("pipe.keep", n=7)
        with pytest.raises(NotFound):  # they are made with the commit
            await all_records(served, tx.transaction_id)
    made = await all_records(served, tx.transaction_id)

    assert {step: len(records) for step, records in made.items()} == {1: 1, 2: 1, 3: 2, 4: 1, 5: 1, 6: 1}
    (first,), (second,), many, (joined,), (equal,), (last,) = (made[step] for step in range(1, 7))
    assert [first.parent_target_id, equal.parent_target_id, last.parent_target_id] == [None] * 3
    assert first.content == equal.content == {"pipe.keep": {"n": 1}}
    assert len({first.source_guid, equal.source_guid, last.source_guid}) == 3
    assert {record.parent_target_id for record in (second, *many)} == {first.target_id}
    assert [record.content["pipe.many"]["n"] for record in many] == [10, 11]
    assert [record.node_id.rpartition("_")[2] for record in many] == ["0", "1"]
    assert (joined.parent_target_id, joined.root_target_id) == (second.target_id, first.target_id)
    assert joined.lineage == (first.node_id, second.node_id, joined.node_id)
    assert joined.lineage_sources == (second.node_id, *(record.node_id for record in many))
    ancestors = [record.target_id async for record in lineage.ancestors(joined.target_id)]
    assert set(ancestors) == {record.target_id for record in (first, second, *many)}
    below = {record.target_id async for record in lineage.descendants(first.target_id)}
    assert below == {record.target_id for record in (second, joined, *many)}
    by_tool = [record.step_id async for record in lineage.records(tx.transaction_id, "pipe.keep")]
    assert by_tool == [1, 2, 5, 6]
    assert joined.action in await lineage.draw(joined.target_id)
    assert (await lineage.verify(tx.transaction_id)).is_sound

    told = [event async for event in lineage.events(transaction_id=tx.transaction_id)]
    live = {(event.action, event.input_id): event for event in told if not event.rewound}
    assert len(live) == len([event for event in told if not event.rewound])
    assert live["source", first.target_id].type == "RECEIVE"
    assert live["pipe.keep", first.target_id].outputs == (second.target_id,)
    assert live["pipe.many", first.target_id].type == "FORK"
    assert live["pipe.join", many[1].target_id].outputs == (joined.target_id,)
    (undone,) = [event for event in told if event.rewound]
    assert (undone.action, undone.input_id) == ("pipe.keep", equal.target_id)
    assert not set(undone.outputs) & {record.target_id for records in made.values() for record in records}


async def test_only_what_was_committed_and_asked_for_leaves_records(served: Served):
    async with served.client.transaction(agent_id="a") as silent:
        await silent.step("pipe.keep", n=1)
    undone = served.client.transaction(agent_id="a", keep_records=True)
    await undone.step("pipe.keep", n=1)
    await undone.rollback("no")
    empty = served.client.transaction(agent_id="a", keep_records=True)
    await empty.step("pipe.many", n=0)
    await empty.commit()
    for transaction in (silent, undone):
        with pytest.raises(NotFound):
            await all_records(served, transaction.transaction_id)
        with pytest.raises(NotFound):
            await served.client.lineage.verify(transaction.transaction_id)
    assert await all_records(served, empty.transaction_id) == {}


async def test_records_outlive_the_history_are_exported_and_go_with_their_own_retention(url: str):
    async with serving(url) as served:
        async with served.client.transaction(agent_id="a", keep_records=True) as tx:
            await steps(tx)
        lineage = served.client.lineage
        pieces = [piece async for piece in lineage.export(tx.transaction_id, "RECORDS")]
        lines = [json.loads(line) for line in "".join(pieces).splitlines()]
        assert sorted(line["action"] for line in lines) == [
            "pipe.join",
            *["pipe.keep"] * 4,
            *["pipe.many"] * 2,
        ]
        prov = [piece async for piece in lineage.export(tx.transaction_id, "PROV_JSON")]
        assert len(json.loads("".join(prov))["wasDerivedFrom"]) == 1 + 2 + 3 + 1
        with pytest.raises(InvalidArgument, match="PROV-JSON"):
            [piece async for piece in lineage.export(tx.transaction_id, "OPENLINEAGE")]

    async with open_store(url) as store:
        await store.purge_ended(FAR_FUTURE, 100)
        assert await store.load(TransactionId(tx.transaction_id)) is None
        reading = LineageReading(store.pipelines)
        verified = await reading.verify(ANONYMOUS_OWNER, tx.transaction_id, "", 100)
        assert (verified.records, verified.breaches) == (7, [])
        with pytest.raises(EngineNotFound):
            await reading.of_action("somebody else", tx.transaction_id, "", "", 10)
        life = PipelineLife(
            PipelineRuns(None, store, store.pipelines, SystemClock(), SystemIds()),  # type: ignore[arg-type]
            store.pipelines,
            SystemClock(),
            is_shared=False,
            retention_seconds=1e-6,
        )
        assert await life.purge_old() == 1
        with pytest.raises(EngineNotFound):
            await reading.of_action(ANONYMOUS_OWNER, tx.transaction_id, "", "", 10)


async def test_verify_notices_what_was_changed_and_the_view_is_of_pipelines_alone(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'agenttx.db'}"
    async with serving(url) as served:
        async with served.client.transaction(agent_id="a", keep_records=True) as tx:
            await steps(tx)
        engine = create_engine(url)
        with engine.begin() as connection:
            assert connection.execute(text("SELECT COUNT(*) FROM target_data")).scalar() == 0
            assert connection.execute(text("SELECT COUNT(*) FROM target_data_all")).scalar() == 7
            connection.exec_driver_sql("UPDATE records SET data = replace(data, '\"n\":11', '\"n\":12')")
        engine.dispose()
        report = await served.client.lineage.verify(tx.transaction_id)
        assert [breach.code for breach in report.breaches] == ["CONTENT_CHANGED"]


async def test_tools_of_workers_say_that_they_emit_records(tmp_path: Path):
    async with (
        running_server(data_dir=tmp_path) as server,
        AsyncClient(server.address) as client,
    ):
        async with running_worker(server.address, tools=[pipeline_tools.many]):
            (described,) = [item async for item in client.tools() if item.name == "pipe.many"]
            assert described.emits_records
            async with client.transaction(agent_id="a", keep_records=True) as tx:
                await tx.step("pipe.many", n=2)
        found = [record.content["pipe.many"] async for record in client.lineage.records(tx.transaction_id)]
        assert found == [{"n": 20}, {"n": 21}]
