"""Pipelines over real gRPC, on both databases: whole lives of runs, progress, cancelling, restarts, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from tests.support import pipeline_tools
from tests.support.pipeline_process import PIPELINE
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import running_server, server_process
from tests.support.running_worker import running_worker

from agenttx.v1 import lineage_pb2 as pb
from agenttx.v1 import lineage_pb2_grpc

COMPLETED = pb.PIPELINE_RUN_STATUS_COMPLETED
TOOLS = ("tests.support.pipeline_tools",)
KEEPING = """
pipeline: keeping
actions:
  - {name: a, tool: pipe.keep, args: {n: "${source.n}"}}
"""


@dataclass
class Served:
    """Stubs of a server."""

    pipelines: lineage_pb2_grpc.PipelineServiceStub
    lineage: lineage_pb2_grpc.LineageServiceStub
    address: str

    async def run(self, text: str, rows: Sequence[Any], **fields: Any) -> list[pb.PipelineProgress]:
        """Run a pipeline to its end; what was told of it."""
        async with asyncio.timeout(60):
            answers = self.pipelines.RunPipeline(requests(text, rows, **fields))
            return [answer.progress async for answer in answers]

    async def records(self, run_id: str, action: str) -> list[pb.LineageRecord]:
        answer = await self.lineage.ListRecords(pb.ListRecordsRequest(run_id=run_id, action=action))
        return list(answer.records)

    async def breaches(self, run_id: str) -> list[str]:
        answer = await self.lineage.VerifyLineage(pb.VerifyLineageRequest(run_id=run_id, page_size=1000))
        assert not answer.next_page_token
        return [f"{breach.code} {breach.message}" for breach in answer.breaches]

    async def state(self, run_id: str) -> pb.PipelineRun:
        return (await self.pipelines.GetPipelineRun(pb.GetPipelineRunRequest(run_id=run_id))).run


def row(value: Any, path: str = "") -> pb.PipelineRow:
    return pb.PipelineRow(row_json=json.dumps(value), relative_path=path)


async def requests(
    text: str, rows: Iterable[Any], batch: int = 1000, **fields: Any
) -> AsyncIterator[pb.RunPipelineRequest]:
    pending = [value if isinstance(value, pb.PipelineRow) else row(value) for value in rows]
    if not fields.get("name"):
        fields["definition_text"] = text
    yield pb.RunPipelineRequest(rows=pending[:batch], **fields)
    for at in range(batch, len(pending), batch):
        yield pb.RunPipelineRequest(rows=pending[at : at + batch])


@asynccontextmanager
async def stubs(address: str) -> AsyncIterator[Served]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield Served(
            lineage_pb2_grpc.PipelineServiceStub(channel),
            lineage_pb2_grpc.LineageServiceStub(channel),
            address,
        )


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Served]:
    async with running_server(tools=TOOLS, **settings) as server, stubs(server.address) as served:
        yield served


@pytest.fixture(params=["sqlite", "postgresql"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    if request.param == "sqlite":
        async with serving() as parts:
            yield parts
        return
    with shared_cluster().database() as address:
        async with serving(database_url=address) as parts:
            yield parts


@pytest.fixture
async def on_sqlite() -> AsyncIterator[Served]:
    async with serving() as parts:
        yield parts


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """What `pipe.gated` waits for."""
    event = asyncio.Event()
    monkeypatch.setattr(pipeline_tools, "_begun", 0)
    monkeypatch.setattr(pipeline_tools, "GATE", event)
    return event


GATED = """
pipeline: gated
max_concurrency: 1
actions:
  - {name: a, tool: pipe.gated, args: {n: "${source.n}"}}
"""


async def refusal(call: Any) -> tuple[grpc.StatusCode, str, list[str]]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async with asyncio.timeout(30):
            await call
    status = rpc_status.from_call(refused.value)
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
    return refused.value.code(), info.reason, [violation.field for violation in bad.field_violations]


async def last_of(call: Any) -> pb.PipelineProgress:
    """Read a stream on to its end."""
    last = pb.PipelineProgress()
    while (answer := await call.read()) is not grpc.aio.EOF:
        last = answer.progress
    return last


async def drained_by_reading(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def drained(call: Any) -> None:
    async for _ in call:
        pass


async def test_a_run_is_told_as_it_comes_on_and_its_records_can_be_read(served: Served):
    told = await served.run(PIPELINE, [{"n": n} for n in range(4)], batch=3)

    first, *ended, last = told
    assert (first.run.status, first.run.rows, first.last) == (pb.PIPELINE_RUN_STATUS_RUNNING, 4, False)
    assert {item.row.place for item in ended} == {0, 1, 2, 3}
    assert all(item.row.committed for item in ended)
    counts = {item.action: item for item in last.run.counts}
    assert (last.run.status, last.last, last.run.rows_committed) == (COMPLETED, True, 4)
    assert (counts["level"].processed, counts["level"].skipped) == (3, 1)
    run_id = last.run.run_id
    assert [json.loads(r.content_json)["total"] for r in await served.records(run_id, "total")] == [
        {"count": 3}
    ] * 4
    assert await served.breaches(run_id) == []
    assert await served.state(run_id) == last.run
    listed = await served.pipelines.ListPipelineRuns(
        pb.ListPipelineRunsRequest(pipeline="killed", statuses=[COMPLETED])
    )
    assert [run.run_id for run in listed.runs] == [run_id]


async def test_the_same_request_id_is_the_same_run(served: Served):
    first = await served.run(KEEPING, [{"n": 1}], request_id="once")
    again = await served.run(KEEPING, [{"n": 1}, {"n": 2}], request_id="once")

    assert {item.run.run_id for item in (*first, *again) if item.HasField("run")} == {first[0].run.run_id}
    assert again[-1].run.rows == 1
    other = KEEPING.replace("keeping", "another")
    call = drained(served.pipelines.RunPipeline(requests(other, [], request_id="once")))
    assert await refusal(call) == (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_ID_REUSED", ["request_id"])


async def test_pipelines_are_registered_in_versions_and_run_by_name(served: Served):
    register = served.pipelines.RegisterPipeline
    one = await register(pb.RegisterPipelineRequest(definition_text=KEEPING))
    changed = KEEPING.replace("{n:", "{n: 2, m:")
    two = await register(pb.RegisterPipelineRequest(definition_text=changed))
    again = await register(pb.RegisterPipelineRequest(definition_text=KEEPING))
    assert (one.existed, two.existed, again.existed) == (False, False, True)
    assert again.pipeline == one.pipeline

    newest = await served.pipelines.GetPipeline(pb.GetPipelineRequest(name="keeping"))
    assert newest.pipeline == two.pipeline
    old = await served.pipelines.GetPipeline(
        pb.GetPipelineRequest(name="keeping", version=one.pipeline.version)
    )
    assert json.loads(old.definition_json)["actions"][0]["args"] == {"n": "${source.n}"}
    versions = await served.pipelines.ListPipelines(pb.ListPipelinesRequest(name="keeping", page_size=1))
    rest = await served.pipelines.ListPipelines(
        pb.ListPipelinesRequest(name="keeping", page_size=1, page_token=versions.next_page_token)
    )
    assert [*versions.pipelines, *rest.pipelines] == [two.pipeline, one.pipeline]
    names = await served.pipelines.ListPipelines(pb.ListPipelinesRequest())
    assert list(names.pipelines) == [two.pipeline]
    told = await served.run("", [{"n": 7}], name="keeping", version=one.pipeline.version)
    assert told[-1].run.version == one.pipeline.version
    (made,) = await served.records(told[-1].run.run_id, "a")
    assert json.loads(made.content_json)["a"] == {"n": 7}


async def test_a_message_is_the_pipeline_that_its_text_is(on_sqlite: Served):
    text = """
pipeline: both
description: said twice
max_concurrency: 3
transaction: whole
actions:
  - {name: a, tool: pipe.keep, args: {n: "${source.n}"}, timeout_seconds: 2.5, on_failure: rollback,
     versions: {param: k, range: [1, 2], mode: sequential}, metadata: {kind: model}}
  - {name: b, dependencies: [a], tool: pipe.keep, prompt: "{{ source.n }}", guard: {condition: "source.n == 1", on_false: skip},
     context_scope: {observe: [source.n], passthrough: [], drop: [source.m]}, on_multiple: collect, on_empty: warn,
     on_failed_branch: continue}
  - {name: c, dependencies: [b], tool: pipe.first, granularity: file}
  - {name: d, dependencies: [b], tool: pipe.total, reduce: {by: b.n}}
"""
    message = json_format.ParseDict(
        {
            "name": "both",
            "description": "said twice",
            "max_concurrency": 3,
            "transaction": "PIPELINE_TRANSACTION_WHOLE",
            "actions": [
                {
                    "name": "a",
                    "tool": "pipe.keep",
                    "args": {"n": "${source.n}"},
                    "timeout": "2.5s",
                    "on_failure": "PIPELINE_ON_FAILURE_ROLLBACK",
                    "versions": {"param": "k", "first": 1, "last": 2, "sequential": True},
                    "metadata": {"kind": "model"},
                },
                {
                    "name": "b",
                    "dependencies": ["a"],
                    "tool": "pipe.keep",
                    "prompt": "{{ source.n }}",
                    "guard": {"condition": "source.n == 1", "on_false": "PIPELINE_ON_FALSE_SKIP"},
                    "context_scope": {"observe": ["source.n"], "drop": ["source.m"]},
                    "on_multiple": "PIPELINE_ON_MULTIPLE_COLLECT",
                    "on_empty": "PIPELINE_ON_EMPTY_WARN",
                    "on_failed_branch": "PIPELINE_ON_FAILED_BRANCH_CONTINUE",
                },
                {
                    "name": "c",
                    "dependencies": ["b"],
                    "tool": "pipe.first",
                    "granularity": "PIPELINE_GRANULARITY_FILE",
                },
                {"name": "d", "dependencies": ["b"], "tool": "pipe.total", "reduce_by": "b.n"},
            ],
        },
        pb.PipelineDefinition(),
    )
    validate = on_sqlite.pipelines.ValidatePipeline
    as_text = await validate(pb.ValidatePipelineRequest(definition_text=text))
    as_message = await validate(pb.ValidatePipelineRequest(definition=message))
    assert as_text.valid, as_text.violations
    assert as_message == as_text
    assert list(as_text.order) == ["a_1", "a_2", "b", "c", "d"]


async def test_validation_finds_everything_at_once(on_sqlite: Served):
    text = """
pipeline: wrong
actions:
  - {name: extract, tool: no.such}
  - {name: a, dependencies: [extrat]}
  - {name: b, dependencies: [c]}
  - {name: c, dependencies: [b]}
  - {name: own, dependencies: [own]}
  - {name: extract}
  - {name: source}
  - {name: bare, dependencies: [extract], guard: {condition: "extract.flag"}}
  - {name: all, dependencies: [extract], reduce: {by: extract.kind}}
"""
    answer = await on_sqlite.pipelines.ValidatePipeline(pb.ValidatePipelineRequest(definition_text=text))
    assert not answer.valid
    said = "\n".join(f"{item.code} {item.where}: {item.message}" for item in answer.violations)
    for expected in (
        "did you mean 'extract'",
        "b -> c -> b",
        "SELF_DEPENDENCY",
        "RESERVED_NAME action source",
        "action bare, guard",
    ):
        assert expected in said, said
    assert any(item.warning and "no.such" in item.message for item in answer.violations)
    call = on_sqlite.pipelines.RegisterPipeline(pb.RegisterPipelineRequest(definition_text=text))
    code, _, fields = await refusal(call)
    assert (code, len(fields) > 5) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    no_yaml = await on_sqlite.pipelines.ValidatePipeline(pb.ValidatePipelineRequest(definition_text="a: ["))
    assert "line 1" in no_yaml.violations[0].message


async def test_what_is_malformed_is_refused_naming_the_field(on_sqlite: Served):
    stub = on_sqlite.pipelines
    definition = pb.PipelineDefinition(name="p", actions=[pb.PipelineAction(name="a", on_failure=9)])  # type: ignore[arg-type]

    async def run(*messages: pb.RunPipelineRequest) -> None:
        async def sent() -> AsyncIterator[pb.RunPipelineRequest]:
            for message in messages:
                yield message

        await drained(stub.RunPipeline(sent()))

    good = pb.RunPipelineRequest(definition_text=KEEPING)
    cases: list[tuple[Any, list[str]]] = [
        (stub.ValidatePipeline(pb.ValidatePipelineRequest()), ["definition"]),
        (
            stub.ValidatePipeline(pb.ValidatePipelineRequest(definition=definition)),
            ["definition.actions[0].on_failure"],
        ),
        (stub.GetPipeline(pb.GetPipelineRequest()), ["name"]),
        (stub.ListPipelines(pb.ListPipelinesRequest(page_token="x")), ["page_token"]),
        (stub.ListPipelineRuns(pb.ListPipelineRunsRequest(page_token="x")), ["page_token"]),
        (stub.ListPipelineRuns(pb.ListPipelineRunsRequest(statuses=[99])), ["statuses[0]"]),  # type: ignore[list-item]
        (stub.GetPipelineRun(pb.GetPipelineRunRequest(run_id="a\tb")), ["run_id"]),
        (
            stub.CancelPipelineRun(pb.CancelPipelineRunRequest(run_id="a", reason="r" * 1025)),
            ["reason"],
        ),
        (run(), ["pipeline"]),
        (run(pb.RunPipelineRequest(definition_text=KEEPING, version="v")), ["version"]),
        (run(pb.RunPipelineRequest(name="keeping", request_id="a\n")), ["request_id"]),
        (
            run(
                good,
                pb.RunPipelineRequest(rows=[row({}), row([1]), pb.PipelineRow(row_json='{"a":1,"a":2}')]),
            ),
            ["rows[1].row_json", "rows[2].row_json"],
        ),
        (run(good, pb.RunPipelineRequest(rows=[row({}, "a\nb")])), ["rows[0].relative_path"]),
        (run(good, good), ["pipeline"]),
        (run(good, pb.RunPipelineRequest(detach=True)), ["detach"]),
    ]
    for call, fields in cases:
        assert await refusal(call) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", fields)
    unknown = "PIPELINE_RUN_NOT_FOUND"
    for call in (
        stub.GetPipelineRun(pb.GetPipelineRunRequest(run_id="none")),
        stub.CancelPipelineRun(pb.CancelPipelineRunRequest(run_id="none")),
        drained(stub.ResumePipelineRun(pb.ResumePipelineRunRequest(run_id="none"))),
    ):
        assert await refusal(call) == (grpc.StatusCode.NOT_FOUND, unknown, [])
    assert (await refusal(run(pb.RunPipelineRequest(name="none"))))[1] == "PIPELINE_NOT_FOUND"
    # Nothing is left of what was refused, of streams that had sent rows neither.
    assert not (await stub.ListPipelineRuns(pb.ListPipelineRunsRequest())).runs


async def test_a_client_that_goes_away_stops_nothing_and_another_follows(served: Served, gate: asyncio.Event):
    async with asyncio.timeout(60):
        call = served.pipelines.RunPipeline(requests(GATED, [{"n": n} for n in range(3)]))
        run_id = (await call.read()).progress.run.run_id
        call.cancel()
        following = served.pipelines.ResumePipelineRun(pb.ResumePipelineRunRequest(run_id=run_id))
        first = (await following.read()).progress
        assert first.run.status == pb.PIPELINE_RUN_STATUS_RUNNING
        gate.set()
        last = await last_of(following)
    assert (last.run.status, last.run.rows_committed) == (COMPLETED, 3)
    call = drained(served.pipelines.ResumePipelineRun(pb.ResumePipelineRunRequest(run_id=run_id)))
    assert (await refusal(call))[1] == "ILLEGAL_TRANSITION"


async def test_a_cancelled_run_begins_no_further_row_and_keeps_what_is_through(
    served: Served, gate: asyncio.Event
):
    async with asyncio.timeout(60):
        call = served.pipelines.RunPipeline(requests(GATED, [{"n": n} for n in range(3)]))
        run_id = (await call.read()).progress.run.run_id
        await pipeline_tools.started(1)
        cancelled = await served.pipelines.CancelPipelineRun(pb.CancelPipelineRunRequest(run_id=run_id))
        assert cancelled.run.cancel_requested
        gate.set()
        last = await last_of(call)
    assert (last.run.status, last.run.rows_committed) == (pb.PIPELINE_RUN_STATUS_CANCELLED, 1)
    again = served.pipelines.CancelPipelineRun(pb.CancelPipelineRunRequest(run_id=run_id))
    assert (await refusal(again))[1] == "ILLEGAL_TRANSITION"


async def test_actions_are_tools_of_workers_too(on_sqlite: Served):
    from agenttx.worker import tool

    @tool("hosted.double", effects="read_only")
    def double(n: int) -> dict[str, int]:
        """Twice that."""
        return {"n": 2 * n}

    text = """
pipeline: hosted
actions:
  - {name: a, tool: hosted.double, args: {n: "${source.n}"}}
  - {name: b, tool: pipe.keep, dependencies: [a], args: {n: "${a.n}"}}
"""
    async with running_worker(on_sqlite.address, tools=[double]):
        told = await on_sqlite.run(text, [{"n": 21}])
    (made,) = await on_sqlite.records(told[-1].run.run_id, "b")
    assert json.loads(made.content_json)["b"] == {"n": 42}


async def test_tools_are_told_what_an_action_says_of_itself_here_and_in_workers(on_sqlite: Served):
    from agenttx.worker import ToolCallContext, tool

    @tool("hosted.told", effects="read_only")
    async def asynchronous(ctx: ToolCallContext, n: int) -> dict[str, Any]:
        """What it was told."""
        return {"told": ctx.metadata}

    @tool("hosted.told_blocking", effects="read_only")
    def blocking(ctx, n: int):
        """What it was told."""
        return {"told": ctx.metadata}

    text = """
pipeline: told
actions:
  - {name: here, tool: pipe.told, args: {n: 1}, kind: llm, model_vendor: openai, metadata: {size: 7}}
  - {name: there, tool: hosted.told, args: {n: 1}, model_vendor: gemini}
  - {name: waiting, tool: hosted.told_blocking, args: {n: 1}, model_name: x}
  - {name: plain, tool: pipe.told, args: {n: 1}}
"""
    async with running_worker(on_sqlite.address, tools=[asynchronous, blocking]):
        ended = (await on_sqlite.run(text, [{"n": 1}]))[-1].run
    assert ended.status == COMPLETED
    expected = {
        "here": {"kind": "llm", "model_vendor": "openai", "size": 7},
        "there": {"model_vendor": "gemini"},
        "waiting": {"model_name": "x"},
        "plain": {},
    }
    for action, metadata in expected.items():
        (made,) = await on_sqlite.records(ended.run_id, action)
        assert json.loads(made.content_json)[action] == {"told": metadata}


async def test_a_run_and_its_cancelling_survive_stops_and_kills_of_the_server(tmp_path: Path):
    """Stopped while it runs, it goes on by itself after the start; killed behind a cancel, it ends cancelled."""
    log = tmp_path / "calls.log"
    log.touch()
    settings: dict[str, Any] = {"tools": TOOLS, "environment": {"PIPELINE_LOG": str(log)}}
    rows = [{"n": n} for n in range(60)]
    slow = PIPELINE.replace("pipe.book,", "pipe.slow_book,").replace(
        "actions:", "max_concurrency: 1\nactions:"
    )
    async with asyncio.timeout(120):
        with server_process(tmp_path, **settings) as life:
            async with stubs(life.address) as served:
                call = served.pipelines.RunPipeline(requests(slow, rows))
                run_id = (await call.read()).progress.run.run_id
                await call.read()  # one row has ended, others are to come
                life.terminate()
                assert (await refusal(drained_by_reading(call)))[1] == "DRAINING"
            assert await asyncio.to_thread(life.wait) == 0
        with server_process(tmp_path, **settings) as life:
            async with stubs(life.address) as served:
                following = served.pipelines.ResumePipelineRun(pb.ResumePipelineRunRequest(run_id=run_id))
                await following.read()
                cancelled = await served.pipelines.CancelPipelineRun(
                    pb.CancelPipelineRunRequest(run_id=run_id, reason="enough")
                )
                assert cancelled.run.rows_committed >= 1
                life.process.kill()
        with server_process(tmp_path, **settings) as life:
            async with stubs(life.address) as served:
                while (run := await served.state(run_id)).status == pb.PIPELINE_RUN_STATUS_RUNNING:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                assert run.status == pb.PIPELINE_RUN_STATUS_CANCELLED
                assert cancelled.run.rows_committed <= run.rows_committed < 60
                assert run.rows_running == 0
                assert len(await served.records(run_id, "total")) == run.rows_committed
                assert await served.breaches(run_id) == []


async def test_two_servers_begin_no_row_twice(gate: asyncio.Event):
    """A run is carried by one server; another one that is asked follows, and cancels it."""
    with shared_cluster().database() as url:
        async with asyncio.timeout(60), serving(database_url=url) as one, serving(database_url=url) as two:
            # Enough rows that the carrier finds the word in the database long before the last of them.
            call = one.pipelines.RunPipeline(requests(GATED, [{"n": n} for n in range(1000)]))
            run_id = (await call.read()).progress.run.run_id
            await pipeline_tools.started(1)
            following = two.pipelines.ResumePipelineRun(pb.ResumePipelineRunRequest(run_id=run_id))
            await following.read()
            assert (await two.state(run_id)).rows_running == 1
            await two.pipelines.CancelPipelineRun(pb.CancelPipelineRunRequest(run_id=run_id))
            gate.set()
            last = await last_of(following)
            assert last.run.status == pb.PIPELINE_RUN_STATUS_CANCELLED
            assert 1 <= last.run.rows_committed < 1000
            assert len(await two.records(run_id, "a")) == min(last.run.rows_committed, 100)


async def test_rows_are_told_by_a_server_that_does_not_carry_them(gate: asyncio.Event):
    """Each row once, those that had failed too, and none that had ended before anybody asked."""
    text = """
pipeline: told
max_concurrency: 3
actions:
  - {name: a, tool: pipe.gated, args: {n: "${source.n}"}}
  - {name: b, tool: pipe.keep, dependencies: [a], args: {n: "${source.n}"}, on_failure: rollback}
"""
    with shared_cluster().database() as url:
        async with asyncio.timeout(60), serving(database_url=url) as one, serving(database_url=url) as two:
            call = one.pipelines.RunPipeline(requests(text, [{"n": -n if n == 5 else n} for n in range(600)]))
            run_id = (await call.read()).progress.run.run_id
            await pipeline_tools.started(3)
            following = two.pipelines.ResumePipelineRun(pb.ResumePipelineRunRequest(run_id=run_id))
            await following.read()
            gate.set()
            told: list[pb.PipelineRowEnded] = []
            while (answer := await following.read()) is not grpc.aio.EOF:
                last = answer.progress
                if last.HasField("row"):
                    told.append(last.row)
    assert (last.run.rows_committed, last.run.rows_failed) == (599, 1)
    assert sorted(row.place for row in told) == list(range(600))
    assert [row.place for row in told if not row.committed] == [5]
    assert all(row.counts for row in told if row.committed)
