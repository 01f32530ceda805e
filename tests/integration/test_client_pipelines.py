"""Pipelines and lineage from the SDK, against a real server: both clients, whole lives, lost connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.support import pipeline_tools
from tests.support.cutting_proxy import CuttingProxy
from tests.support.pipeline_process import PIPELINE
from tests.support.running_server import RunningServer, running_server

import agenttx
from agenttx import (
    AsyncClient,
    Client,
    InvalidArgument,
    NotFound,
    PipelineRowEnded,
    PipelineRun,
    PipelineRunStatus,
    PreconditionFailed,
)

KEEPING = 'pipeline: keeping\nactions:\n  - {name: a, tool: pipe.keep, args: {n: "${source.n}"}}\n'


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with running_server(tools=("tests.support.pipeline_tools",)) as running:
        yield running


async def test_a_run_and_its_records_by_the_synchronous_client(server: RunningServer):
    def use() -> None:
        with Client(server.address) as client:
            pipelines, lineage = client.pipelines, client.lineage
            checked = pipelines.validate(PIPELINE)
            assert checked.valid, checked.violations
            assert set(checked.order) == {"validate", "chunk", "level", "booked", "merge", "total"}
            registered = pipelines.register(PIPELINE)
            assert registered.pipeline.name == "killed"
            assert pipelines.get("killed").definition["pipeline"] == "killed"
            assert [item.version for item in pipelines.list()] == [checked.version]
            told = list(pipelines.stream("killed", ({"n": n} for n in range(3))))
            assert [type(item) for item in told] == [
                PipelineRun,
                PipelineRowEnded,
                PipelineRowEnded,
                PipelineRowEnded,
                PipelineRun,
            ]
            run = told[-1]
            assert isinstance(run, PipelineRun)
            assert (run.status, run.rows_committed) == (PipelineRunStatus.COMPLETED, 3)
            assert pipelines.get_run(run.run_id) == run
            assert [item.run_id for item in pipelines.runs(statuses=["COMPLETED"])] == [run.run_id]
            total = next(lineage.records(run.run_id, "total"))
            assert total.content["total"] == {"count": 3}
            assert lineage.record(total.target_id).edges
            assert len(list(lineage.ancestors(total.target_id, page_size=3))) == 12
            assert {item.target_id for item in lineage.by_root(total.root_target_id, content=False)} == {
                total.root_target_id,
                *(item.target_id for item in lineage.descendants(total.root_target_id)),
            }
            assert [item.target_id for item in lineage.siblings(total.root_target_id)] == [
                total.root_target_id
            ]
            assert len(lineage.trace(total.target_id).records) == 12
            assert lineage.draw(total.target_id, "MERMAID").startswith("flowchart TD")
            assert [item.type for item in lineage.events(target_id=total.root_target_id)] == [
                "RECEIVE",
                "MODIFY",
            ]
            assert lineage.verify(run.run_id).is_sound
            with pytest.raises(PreconditionFailed):
                pipelines.cancel(run.run_id)
            with pytest.raises(NotFound):
                list(pipelines.follow("none"))
            with pytest.raises(agenttx.InvalidValue, match=r"rows\[1\]"):
                pipelines.run(KEEPING, [{"n": 1}, [2]])  # type: ignore[list-item]

    await asyncio.to_thread(use)


async def test_a_run_by_the_asynchronous_client(server: RunningServer):
    async with asyncio.timeout(60), AsyncClient(server.address) as client:
        run = await client.pipelines.run(KEEPING, [{"n": 1}, agenttx.PipelineRow({"n": 2}, "a.csv")])
        assert run.rows_committed == 2
        records = [item async for item in client.lineage.records(run.run_id, "a")]
        assert [item.relative_path for item in records] == ["", "a.csv"]
        assert (await client.lineage.verify(run.run_id)).records == 4
        started = await client.pipelines.start(KEEPING, ({"n": n} for n in range(600)), request_id="big")
        again = await client.pipelines.run(KEEPING, [], request_id="big")
        assert (again.run_id, again.rows, again.status) == (started.run_id, 600, "COMPLETED")
        bad = {"pipeline": "p", "actions": [{"name": "a", "dependencies": ["b"]}]}
        with pytest.raises(InvalidArgument, match="there is no action 'b'"):
            await client.pipelines.run(bad, [{}])
        with pytest.raises(agenttx.InvalidValue):
            await client.pipelines.run(KEEPING, [{"n": float("nan")}])


async def test_a_row_that_no_request_can_carry_is_named(server: RunningServer):
    def use() -> None:
        def rows() -> Iterator[dict[str, Any]]:
            yield {"n": 1}
            yield {"n": float("nan")}

        with Client(server.address) as client:
            with pytest.raises(agenttx.InvalidValue):
                client.pipelines.run(KEEPING, rows())
            assert list(client.pipelines.runs()) == []

    await asyncio.to_thread(use)


async def test_a_run_is_exported_as_records_prov_and_openlineage(server: RunningServer):
    async with asyncio.timeout(60), AsyncClient(server.address) as client:
        run = await client.pipelines.run(PIPELINE, [{"n": 0}, {"n": 1}])

        async def exported(form: str) -> str:
            return "".join([piece async for piece in client.lineage.export(run.run_id, form)])

        lines = [json.loads(line) for line in (await exported("RECORDS")).splitlines()]
        assert len(lines) == 26
        assert [line["action"] for line in lines[:2]] == ["source", "validate"]
        assert "parent_target_id" not in lines[0]
        document = json.loads(await exported("PROV_JSON"))
        records = {f"record:{line['target_id']}" for line in lines}
        assert document["entity"].keys() == records
        activities = document["activity"].keys()
        for generated in document["wasGeneratedBy"].values():
            assert generated["prov:entity"] in records
            assert generated["prov:activity"] in activities
        derived = {
            (item["prov:generatedEntity"], item["prov:usedEntity"])
            for item in document["wasDerivedFrom"].values()
        }
        parents = {
            (f"record:{line['target_id']}", f"record:{line['parent_target_id']}")
            for line in lines
            if "parent_target_id" in line
        }
        assert parents < derived  # and the edges to other contributors
        assert {
            (u["prov:activity"] in activities, u["prov:entity"] in records) for u in document["used"].values()
        } == {(True, True)}
        events = [json.loads(line) for line in (await exported("OPENLINEAGE")).splitlines()]
        assert [event["eventType"] for event in events] == ["START"] * 7 + ["COMPLETE"] * 7
        assert {event["run"]["runId"] for event in events if event["job"]["name"] == "killed"} == {run.run_id}
        merge = next(e for e in events if e["job"]["name"] == "killed.merge" and e["eventType"] == "COMPLETE")
        assert [item["name"] for item in merge["inputs"]] == ["killed.booked", "killed.level"]
        assert merge["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 6
        assert merge["run"]["facets"]["parent"]["run"]["runId"] == run.run_id


GATED = 'pipeline: gated\nactions:\n  - {name: a, tool: pipe.gated, args: {n: "${source.n}"}}\n'


async def test_a_run_is_followed_over_lost_connections(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
):
    """Cut before anything was answered, the rows are sent again; cut later, the run is followed."""
    gate = asyncio.Event()
    monkeypatch.setattr(pipeline_tools, "GATE", gate)
    monkeypatch.setattr(pipeline_tools, "_begun", 0)
    rows = [{"n": n} for n in range(4)]
    port = int(server.address.rpartition(":")[2])

    def use(address: str) -> PipelineRun:
        with Client(address) as client:
            return client.pipelines.run(GATED, rows, request_id="cut")

    async def use_async(address: str) -> list[Any]:
        async with AsyncClient(address) as client:
            return [item async for item in client.pipelines.stream(GATED, rows, request_id="async")]

    with CuttingProxy(port) as proxy:
        async with asyncio.timeout(60):
            proxy.cut_replies(b"RunPipeline")
            running = asyncio.create_task(asyncio.to_thread(use, proxy.address))
            await pipeline_tools.started(4)
            assert proxy.wait_for_cuts(0) or await asyncio.to_thread(proxy.wait_for_cuts)
            following = asyncio.create_task(use_async(proxy.address))
            await pipeline_tools.started(8)
            proxy.cut_all()
            gate.set()
            done = await running
            *_, last = await following
        async with AsyncClient(server.address) as client:
            assert len([run async for run in client.pipelines.runs(pipeline="gated")]) == 2
    assert (done.status, done.rows_committed) == (PipelineRunStatus.COMPLETED, 4)
    assert (last.status, last.rows_committed) == (PipelineRunStatus.COMPLETED, 4)
