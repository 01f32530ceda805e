"""Records over real gRPC, on both databases: reading, tracing and checking them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from sqlalchemy import create_engine, text
from tests.support.pipeline_flows import plan_of
from tests.support.pipeline_process import PIPELINE, pipeline_runs
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import running_server

from agenttx.v1 import lineage_pb2 as pb
from agenttx.v1 import lineage_pb2_grpc
from agenttx_server.api.interceptors.authentication import ANONYMOUS
from agenttx_server.pipelines.run_coordinator import Row

ROWS = [{"n": n} for n in range(3)]


@dataclass
class Served:
    """A server with two runs of one pipeline: the caller's, and another's."""

    stub: lineage_pb2_grpc.LineageServiceStub
    run_id: str
    others_run_id: str
    url: str

    async def records(self, action: str, run_id: str = "") -> list[pb.LineageRecord]:
        answer = await self.stub.ListRecords(
            pb.ListRecordsRequest(run_id=run_id or self.run_id, action=action)
        )
        return list(answer.records)


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Served]:
    async with pipeline_runs(url) as (runs, _):
        ids = []
        for principal in (ANONYMOUS, "somebody else"):
            received = await runs.receive(principal, plan_of(PIPELINE).definition, map(Row, ROWS))
            ids.append((await runs.carry(received.run_id)).run_id)
    async with (
        running_server(database_url=url) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        yield Served(lineage_pb2_grpc.LineageServiceStub(channel), ids[0], ids[1], url)


@pytest.fixture(params=["sqlite", "postgresql"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    if request.param == "sqlite":
        async with serving(f"sqlite:///{tmp_path / 'agenttx.db'}") as parts:
            yield parts
        return
    with shared_cluster().database() as address:
        async with serving(address) as parts:
            yield parts


@pytest.fixture
async def on_sqlite(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(f"sqlite:///{tmp_path / 'agenttx.db'}") as parts:
        yield parts


def ids(records: Any) -> set[str]:
    return {record.target_id for record in records}


async def refusal(call: Any) -> tuple[grpc.StatusCode, str, list[str]]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    status = rpc_status.from_call(refused.value)
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
    return refused.value.code(), info.reason, [violation.field for violation in bad.field_violations]


async def test_relatives_of_a_record_are_found_whichever_way_it_is_asked(served: Served):
    stub = served.stub
    source, *_ = await served.records("source")
    chunks = await served.records("chunk")
    mine = [chunk for chunk in chunks if chunk.root_target_id == source.target_id]
    merged = next(item for item in await served.records("merge") if item.root_target_id == source.target_id)

    assert not source.HasField("parent_target_id")
    assert json.loads(source.content_json) == {"source": {"n": 0}}
    siblings = await stub.ListSiblings(pb.ListSiblingsRequest(target_id=mine[0].target_id))
    # Of any action: chunk and level both take what validate made.
    levels = [item for item in await served.records("level") if item.root_target_id == source.target_id]
    assert ids(siblings.records) == ids(mine) | ids(levels)
    by_root = await stub.ListByRoot(
        pb.ListByRootRequest(root_target_id=source.target_id, page_size=1000, omit_content=True)
    )
    below = await stub.ListDescendants(pb.ListDescendantsRequest(target_id=source.target_id, page_size=1000))
    assert ids(by_root.records) == ids(below.records) | {source.target_id}
    assert {record.content_json for record in by_root.records} == {""}
    above = await stub.ListAncestors(pb.ListAncestorsRequest(target_id=merged.target_id))
    assert {record.action for record in above.records} == {"source", "validate", "chunk", "booked", "level"}
    got = await stub.GetRecord(pb.GetRecordRequest(target_id=merged.target_id))
    assert got.record == merged
    assert [edge.kind for edge in got.edges] == [pb.RECORD_EDGE_KIND_MERGE] * 2
    assert got.edges[0].parent == merged.parent_target_id
    skipped = [item for item in await served.records("level") if item.unprocessed]
    assert [item.unprocessed for item in skipped] == [pb.UNPROCESSED_REASON_GUARD_SKIP]


async def test_pages_go_on_and_end(served: Served):
    seen: list[str] = []
    token = ""
    while True:
        page = await served.stub.ListRecords(
            pb.ListRecordsRequest(run_id=served.run_id, action="merge", page_size=4, page_token=token)
        )
        seen += [record.target_id for record in page.records]
        token = page.next_page_token
        if not token:
            break
    assert seen == [record.target_id for record in await served.records("merge")]
    assert len(set(seen)) == 9


async def test_what_became_of_inputs_is_told_by_record_and_by_transaction(served: Served):
    (chunk, *_) = await served.records("chunk")
    of_record = await served.stub.ListRecordEvents(pb.ListRecordEventsRequest(target_id=chunk.target_id))
    # booked made a record of it; merge reads it through booked only.
    assert [(event.action, event.type) for event in of_record.events] == [
        ("booked", pb.RECORD_EVENT_TYPE_MODIFY)
    ]
    found: list[tuple[str, str]] = []
    token = ""
    while True:
        page = await served.stub.ListRecordEvents(
            pb.ListRecordEventsRequest(transaction_id=chunk.transaction_id, page_size=3, page_token=token)
        )
        found += [(event.input_id, event.action) for event in page.events]
        token = page.next_page_token
        if not token:
            break
    assert found == sorted(set(found))
    by_root = await served.stub.ListByRoot(pb.ListByRootRequest(root_target_id=chunk.root_target_id))
    assert {input_id for input_id, _ in found} == ids(by_root.records) - ids(
        record for record in by_root.records if record.action == "total"
    )


async def test_a_trace_has_the_edges_between_what_it_names(served: Served):
    total = (await served.records("total"))[0]
    up = await served.stub.TraceRecord(pb.TraceRecordRequest(target_id=total.target_id))
    assert up.records[0].action == "source"
    assert {edge.child for edge in up.edges} | {edge.parent for edge in up.edges} == ids(up.records) | {
        total.target_id
    }
    assert not up.truncated
    down = await served.stub.TraceRecord(
        pb.TraceRecordRequest(
            target_id=total.root_target_id, direction=pb.TRACE_DIRECTION_DESCENDANTS, max_records=4
        )
    )
    assert (len(down.records), down.truncated) == (4, True)
    assert len(down.events) == 2  # it was received, and validated


async def test_a_trace_is_drawn(on_sqlite: Served):
    total = (await on_sqlite.records("total"))[0]
    tree = await on_sqlite.stub.TraceRecord(
        pb.TraceRecordRequest(target_id=total.target_id, format=pb.TRACE_FORMAT_TREE)
    )
    lines = tree.text.splitlines()
    assert lines[0] == f"total {total.target_id}  ◀"
    assert lines[1].startswith("├── merge ")
    assert sum("(above)" in line for line in lines) == 5  # validate from level; both from each other merge
    assert not tree.records
    chart = await on_sqlite.stub.TraceRecord(
        pb.TraceRecordRequest(
            target_id=total.target_id, format=pb.TRACE_FORMAT_MERMAID, direction=pb.TRACE_DIRECTION_BOTH
        )
    )
    assert chart.text.startswith("flowchart TD\n    r0([")
    assert chart.text.count("-- reduce -->") == 3
    assert chart.text.count("-- merge -->") == 6


async def test_verify_finds_a_run_sound_and_notices_what_was_tampered_with(served: Served):
    async def verified() -> list[pb.VerifyLineageResponse]:
        answers, token = [], ""
        while True:
            answer = await served.stub.VerifyLineage(
                pb.VerifyLineageRequest(run_id=served.run_id, page_size=2, page_token=token)
            )
            answers.append(answer)
            token = answer.next_page_token
            if not token:
                return answers

    sound = await verified()
    assert [answer.breach_count for answer in sound] == [0, 0]
    assert [answer.rows for answer in sound] == [2, 1]
    chunk = (await served.records("chunk"))[0]
    engine = create_engine(served.url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE records SET data = replace(data, :before, :after) WHERE target_id = :id"),
            {"id": chunk.target_id, "before": '"chunk":{', "after": '"chunk":{"x":1,'},
        )
    engine.dispose()
    breaches = [breach for answer in await verified() for breach in answer.breaches]
    assert [(breach.code, breach.target_id) for breach in breaches] == [("CONTENT_CHANGED", chunk.target_id)]


async def test_a_root_has_no_sibling_but_itself(on_sqlite: Served):
    """All roots have no parent; listed by that, they would be those of everybody."""
    source = (await on_sqlite.records("source"))[0]
    answer = await on_sqlite.stub.ListSiblings(pb.ListSiblingsRequest(target_id=source.target_id))
    assert ids(answer.records) == {source.target_id}
    assert await refusal(on_sqlite.stub.ListSiblings(pb.ListSiblingsRequest())) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
        ["target_id"],
    )


async def test_nobody_sees_records_of_anothers_runs(on_sqlite: Served):
    url = on_sqlite.url
    engine = create_engine(url)
    with engine.begin() as connection:
        found = connection.execute(
            text(
                "SELECT target_id, source_guid, transaction_id FROM records WHERE run_id = :run AND action = 'source'"
            ),
            {"run": on_sqlite.others_run_id},
        ).first()
    engine.dispose()
    assert found is not None
    theirs, guid, transaction_id = found
    stub = on_sqlite.stub
    for call in (
        stub.GetRecord(pb.GetRecordRequest(target_id=theirs)),
        stub.GetRecord(pb.GetRecordRequest(target_id=theirs, transaction_id=transaction_id)),
        stub.ListSiblings(pb.ListSiblingsRequest(target_id=theirs)),
        stub.ListAncestors(pb.ListAncestorsRequest(target_id=theirs)),
        stub.ListDescendants(pb.ListDescendantsRequest(target_id=theirs)),
        stub.ListByRoot(pb.ListByRootRequest(root_target_id=theirs)),
        stub.TraceRecord(pb.TraceRecordRequest(target_id=theirs)),
        stub.ListRecordEvents(pb.ListRecordEventsRequest(target_id=theirs)),
    ):
        assert await refusal(call) == (grpc.StatusCode.NOT_FOUND, "RECORD_NOT_FOUND", [])
    others = on_sqlite.others_run_id
    for call in (
        stub.ListRecords(pb.ListRecordsRequest(run_id=others, action="source")),
        stub.VerifyLineage(pb.VerifyLineageRequest(run_id=others)),
    ):
        assert await refusal(call) == (grpc.StatusCode.NOT_FOUND, "PIPELINE_RUN_NOT_FOUND", [])
    events = stub.ListRecordEvents(pb.ListRecordEventsRequest(transaction_id=transaction_id))
    assert await refusal(events) == (grpc.StatusCode.NOT_FOUND, "TRANSACTION_NOT_FOUND", [])
    # Rows with the same content have the same source_guid, whoever ran them.
    same = await stub.ListRecords(pb.ListRecordsRequest(source_guid=guid, page_size=1000))
    assert {record.run_id for record in same.records} == {on_sqlite.run_id}


async def test_what_is_malformed_is_refused_naming_the_field(on_sqlite: Served):
    stub = on_sqlite.stub
    source = (await on_sqlite.records("source"))[0].target_id
    page = await stub.ListRecords(pb.ListRecordsRequest(run_id=on_sqlite.run_id, action="merge", page_size=1))
    token = page.next_page_token
    cases: list[tuple[Any, list[str]]] = [
        (stub.GetRecord(pb.GetRecordRequest(target_id="a\nb")), ["target_id"]),
        (stub.GetRecord(pb.GetRecordRequest(target_id="x" * 129)), ["target_id"]),
        (stub.GetRecord(pb.GetRecordRequest(target_id="x", transaction_id="\x7f")), ["transaction_id"]),
        (stub.ListRecords(pb.ListRecordsRequest()), ["run_id"]),
        (stub.ListRecords(pb.ListRecordsRequest(source_guid="g", run_id="r")), ["run_id"]),
        (stub.ListByRoot(pb.ListByRootRequest(root_target_id="a\x00")), ["root_target_id"]),
        (stub.ListRecordEvents(pb.ListRecordEventsRequest()), ["target_id"]),
        (stub.ListRecordEvents(pb.ListRecordEventsRequest(target_id="a", transaction_id="b")), ["target_id"]),
        (
            stub.TraceRecord(
                pb.TraceRecordRequest(target_id=source, direction=9, format=9, max_records=5001)  # type: ignore[arg-type]
            ),
            ["direction", "format", "max_records"],
        ),
        (
            stub.ListDescendants(pb.ListDescendantsRequest(target_id=source, page_size=1001)),
            ["page_size"],
        ),
    ]
    # A token is of the list that gave it out: made up, changed, or of another list it is refused.
    for bad in ("x", "W10", token[:-3], "[]", token + "=" * 9):
        cases.append(
            (
                stub.ListRecords(
                    pb.ListRecordsRequest(run_id=on_sqlite.run_id, action="merge", page_token=bad)
                ),
                ["page_token"],
            )
        )
    for call in (
        stub.ListSiblings(pb.ListSiblingsRequest(target_id=source, page_token=token)),
        stub.ListDescendants(pb.ListDescendantsRequest(target_id=source, page_token=token)),
        stub.ListRecordEvents(pb.ListRecordEventsRequest(target_id=source, page_token=token)),
        stub.VerifyLineage(pb.VerifyLineageRequest(run_id=on_sqlite.run_id, page_token=token)),
    ):
        cases.append((call, ["page_token"]))
    for call, fields in cases:
        assert await refusal(call) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", fields)


async def test_a_page_goes_on_with_its_own_query_alone(on_sqlite: Served):
    """Places of one list fit another: it would answer with a part of itself, as if that were all."""
    stub, run_id = on_sqlite.stub, on_sqlite.run_id
    sources, totals = await on_sqlite.records("source"), await on_sqlite.records("total")
    validated, chunks = await on_sqlite.records("validate"), await on_sqlite.records("chunk")
    guid, other_guid = sources[0].source_guid, sources[1].source_guid

    def related(method: Any, request: Any, field: str, records: list[pb.LineageRecord]) -> list[Any]:
        return [
            lambda token, value=record.target_id: method(
                request(**{field: value}, page_size=1, page_token=token)
            )
            for record in records[:2]
        ]

    def listed(method: Any, request: Any, *queries: dict[str, str]) -> list[Any]:
        return [
            lambda token, query=query: method(request(**query, page_size=1, page_token=token))
            for query in queries
        ]

    lists = [
        *related(stub.ListSiblings, pb.ListSiblingsRequest, "target_id", chunks[::3]),
        *related(stub.ListByRoot, pb.ListByRootRequest, "root_target_id", sources),
        *related(stub.ListDescendants, pb.ListDescendantsRequest, "target_id", sources),
        *related(stub.ListDescendants, pb.ListDescendantsRequest, "target_id", validated),
        *related(stub.ListAncestors, pb.ListAncestorsRequest, "target_id", totals),
        *listed(
            stub.ListRecords,
            pb.ListRecordsRequest,
            {"run_id": run_id, "action": "merge"},
            {"run_id": run_id, "action": "chunk"},
            {"source_guid": guid},
            {"source_guid": other_guid},
        ),
        *listed(
            stub.ListRecordEvents,
            pb.ListRecordEventsRequest,
            {"transaction_id": sources[0].transaction_id},
            {"transaction_id": sources[1].transaction_id},
            {"target_id": validated[0].target_id},
        ),
        *listed(stub.VerifyLineage, pb.VerifyLineageRequest, {"run_id": run_id}),
    ]
    for own in lists:
        token = (await own("")).next_page_token
        assert token
        await own(token)
        for other in lists:
            if other is not own:
                assert await refusal(other(token)) == (
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "INVALID_REQUEST",
                    ["page_token"],
                )
