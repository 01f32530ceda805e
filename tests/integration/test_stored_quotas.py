"""Quotas of stored bytes over real gRPC: filled, refused, freed, and on again; of several servers one count."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.test_access import Tokens, tokens  # noqa: F401
from tests.support.metrics_reading import scrape
from tests.support.pipeline_process import PIPELINE
from tests.support.running_server import running_server
from tests.support.store_databases import DATABASES
from tests.support.store_records import Driver

import agenttx
from agenttx import START, GraphBuilder, ToolCall
from agenttx.tools import ToolCallContext, UndoContext, tool
from agenttx.v1 import graph_pb2 as graph_pb
from agenttx.v1 import graph_pb2_grpc, lineage_pb2_grpc
from agenttx.v1 import lineage_pb2 as lineage_pb
from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.command_line import main
from agenttx_server.store import open_store

LONG = "x" * 20_000


@pytest.fixture(autouse=True)
def in_short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agenttx_server.stored_quotas.SHARE_SECONDS", 0.05)
    monkeypatch.setattr("agenttx_server.stored_quotas.SOON_SECONDS", 0.05)
    monkeypatch.setattr("agenttx_server.stored_quotas.TooMuchStored.retry_after_seconds", 0.05)


def once() -> agenttx.RetryPolicy:
    return agenttx.RetryPolicy(max_attempts=1)


async def until(tried: Callable[[], Awaitable[Any]], *, is_refused: bool) -> Any:
    """Try until it is refused for what is stored, or until it is not; return the refusal, or what came of it."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await tried()
            except agenttx.LimitExceeded as refused:
                if refused.reason != "QUOTA_EXCEEDED":
                    raise
                if is_refused:
                    return refused
            else:
                if not is_refused:
                    return answer
            await asyncio.sleep(0.02)


async def begin(client: agenttx.AsyncClient) -> agenttx.AsyncTransaction:
    tx = client.transaction(agent_id="a")
    await tx.begin()
    return tx


def usage(url: str, *arguments: str) -> tuple[int, str]:
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        code = main(["tenant", "usage", "--json", "--database-url", url, *arguments])
    return code, told.getvalue()


def keeping() -> GraphBuilder:
    graph = GraphBuilder("keeping").channel("text").channel("wrote")
    put = ToolCall("kv.put", {"key": "a", "value": 1}, output={"wrote": "${result.key}"})
    return graph.node("put", put).edge(START, "put")


@pytest.mark.parametrize("tokens", DATABASES, indirect=True)
async def test_a_principal_fills_what_it_may_is_refused_deletes_and_goes_on(tokens: Tokens):
    quotas = {"max_stored_bytes_per_principal": 150_000, "anonymous": "never"}
    async with (
        running_server(database_url=tokens.url, **quotas) as server,
        agenttx.AsyncClient(server.address, token=tokens.make("ann"), retry=once()) as ann,
        agenttx.AsyncClient(server.address, token=tokens.make("bob"), retry=once()) as bob,
    ):
        await ann.graphs.register(keeping())
        await ann.pipelines.register(PIPELINE)
        graph = await ann.graphs.get("keeping")
        open_before = ann.transaction(agent_id="a")
        await open_before.step("kv.put", key="b", value=1)
        threads = 0

        async def run() -> Any:
            nonlocal threads
            threads += 1
            return await graph.run({"text": LONG}, thread=f"t-{threads}")

        refused = await until(run, is_refused=True)
        assert refused.metadata["of"] == "stored bytes of a principal"
        assert int(refused.metadata["used"]) >= 150_000
        assert 1 < threads < 9
        # Nothing that stores more is begun, by whatever way; what ends work is never refused.
        for adds in (
            lambda: begin(ann),
            lambda: open_before.step("kv.put", key="c", value=2),
            lambda: ann.graphs.register(keeping().channel("more")),
            lambda: graph.update_state("t-1", {"text": LONG}, as_node="put"),
            lambda: graph.copy("t-1", new_thread="t-copy"),
            lambda: ann.pipelines.register(PIPELINE.replace("killed", "another")),
        ):
            with pytest.raises(agenttx.LimitExceeded, match="bytes stored"):
                await adds()
        # An agent that registers what it runs at each start can start.
        assert (await ann.graphs.register(keeping())).existed
        assert (await ann.pipelines.register(PIPELINE)).existed
        await open_before.commit()
        assert (await ann.get_state("b")).value == 1
        await begin(bob)  # another's are another's
        for number in range(1, threads):
            await graph.delete_thread(f"t-{number}")
        tx = await until(lambda: begin(ann), is_refused=False)
        await tx.step("kv.put", key="c", value=2)
        await tx.commit()


@tool("quota.call", effects="compensatable")
async def call(ctx: ToolCallContext) -> None:
    """Act outside, and register the undo of it."""
    await ctx.register_undo("quota.uncall")


@call.undo("quota.uncall")
async def uncall(ctx: UndoContext) -> None:
    """Undo it, and tell."""
    undone.append(ctx.transaction_id)


TOOLS = [call]
ROWS = """
pipeline: rows
actions:
  - {name: put, tool: kv.put, args: {key: "${source.key}", value: 1}}
"""
undone: list[str] = []


async def test_what_was_done_before_it_was_full_is_answered_reported_and_undone(tokens: Tokens):
    quotas = {"max_stored_bytes_per_principal": 100_000, "anonymous": "never"}
    given: dict[str, Any] = {"tools": (f"{__name__}:TOOLS",), "database_url": tokens.url}
    async with (
        running_server(**given, **quotas) as server,
        agenttx.AsyncClient(server.address, token=tokens.make("ann"), retry=once()) as ann,
    ):
        tx = await begin(ann)
        metadata = (("authorization", f"Bearer {tokens.make('ann')}"),)
        tools = [("kv.put", '{"key":"a","value":1}'), ("quota.call", "{}")]
        steps = [
            pb.ExecuteStepRequest(
                transaction_id=tx.transaction_id,
                step_id=number,
                tool_name=name,
                arguments_json=json_,
                request_id=name,
            )
            for number, (name, json_) in enumerate(tools, start=1)
        ]
        answered = [await server.stub.ExecuteStep(step, metadata=metadata) for step in steps]
        await ann.graphs.register(keeping())
        start = graph_pb.StartRunRequest(
            request_id="start", graph="keeping", thread_id="t", input_json='{"text":"x"}', wait=True
        )
        copy = graph_pb.CopyThreadRequest(request_id="copy", thread_id="t", new_thread_id="t-copy")
        update = graph_pb.UpdateStateRequest(request_id="update", thread_id="t", graph="keeping")
        update.supersteps.add().updates.add(as_node="put", update_json='{"text":"y"}')
        rows = lineage_pb.RunPipelineRequest(request_id="rows", definition_text=ROWS)
        rows.rows.add(row_json='{"key":"p"}')
        graphs = graph_pb2_grpc.GraphServiceStub(server.channel)
        pipelines = lineage_pb2_grpc.PipelineServiceStub(server.channel)

        async def carried() -> list[Any]:
            streamed = graphs.StreamRun(graph_pb.StreamRunRequest(start=start), metadata=metadata)
            return [
                (await graphs.StartRun(start, metadata=metadata)).outcome.run_id,
                (await streamed.read()).event.run_id,
                (await graphs.CopyThread(copy, metadata=metadata)).thread_id,
                (await graphs.UpdateState(update, metadata=metadata)).checkpoint.checkpoint_id,
                [one async for one in pipelines.RunPipeline(iter([rows]), metadata=metadata)][-1],
            ]

        runs = await carried()
        filling = await begin(ann)
        await until(lambda: filling.step("kv.put", key="b", value=LONG), is_refused=True)

        # Whoever lost the answer learns what became of the step, and not that there was none.
        again = [await server.stub.ExecuteStep(step, metadata=metadata) for step in steps]
        stream = server.stub.ExecuteSteps(metadata=metadata)
        for step in steps:
            step.generation = answered[0].generation
            await stream.write(pb.ExecuteStepsRequest(step=step))
            again.append((await stream.read()).response)
        assert all(one.replayed and one.status == pb.STEP_STATUS_SUCCESS for one in again)
        await stream.done_writing()
        assert await carried() == runs
        for request in (start, copy, update, rows):
            request.request_id += " again"
        for call_ in (
            graphs.StartRun(start, metadata=metadata),
            graphs.StreamRun(graph_pb.StreamRunRequest(start=start), metadata=metadata).read(),
            graphs.CopyThread(copy, metadata=metadata),
            graphs.UpdateState(update, metadata=metadata),
            pipelines.RunPipeline(iter([rows]), metadata=metadata).read(),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="bytes stored"):
                await call_
        fresh = pb.ExecuteStepRequest(
            transaction_id=tx.transaction_id, step_id=3, tool_name="quota.call", arguments_json="{}"
        )
        with pytest.raises(grpc.aio.AioRpcError, match="bytes stored"):
            await server.stub.ExecuteStep(fresh, metadata=metadata)
        group = pb.ExecuteStepGroupRequest(transaction_id=tx.transaction_id, step_id=3)
        for key in "cd":
            group.members.add(tool_name="kv.put", arguments_json=json.dumps({"key": key, "value": 1}))
        with pytest.raises(grpc.aio.AioRpcError, match="bytes stored"):
            await server.stub.ExecuteStepGroup(group, metadata=metadata)
        # What has happened outside can be told, and so be undone: that step was not begun by the server.
        report = pb.ReportStepRequest(
            transaction_id=tx.transaction_id,
            step_id=3,
            tool_name="mail.send",
            effect_class=pb.EFFECT_CLASS_COMPENSATABLE,
            output_json="1",
        )
        report.undo_actions.add(action="mail.recall", arguments_json="{}")
        await server.stub.ReportStep(report, metadata=metadata)
        rolled_back = await tx.rollback()
        assert [one.action for one in await tx.pending_undo()] == ["mail.recall"], rolled_back
        await tx.perform_undo({"mail.recall": lambda: None})
        assert undone == [tx.transaction_id]


async def test_servers_on_one_database_count_together_and_pass_the_limit_by_little(tmp_path: Path):
    rules = tmp_path / "tenants.toml"
    rules.write_text('[[tenant]]\nname = "acme"\nmax_stored_bytes = 300_000\n')
    with DATABASES["postgresql"](tmp_path) as url:
        given: dict[str, Any] = {"database_url": url, "tenants_file": rules, "anonymous": "never"}
        async with (
            running_server(**given, metrics_listen="127.0.0.1:0") as first,
            running_server(**given) as second,
        ):
            made = Tokens(url)
            clients = [
                agenttx.AsyncClient(server.address, token=made.make(name, tenant="acme"), retry=once())
                for server, name in ((first, "ann"), (second, "ben"))
            ]

            async def fill(client: agenttx.AsyncClient) -> Any:
                tx = client.transaction(agent_id="a")
                return await until(lambda: tx.step("kv.put", key="a", value=LONG), is_refused=True)

            refused = await asyncio.gather(*map(fill, clients))
            assert {one.metadata["of"] for one in refused} == {"stored bytes of a tenant"}
            other = agenttx.AsyncClient(first.address, token=made.make("ann"), retry=once())
            await begin(other)  # of the default tenant
            code, out = await asyncio.to_thread(usage, url, "--tenant", "acme")
            assert code == 0
            (told,) = json.loads(out)["tenants"]
            assert told["tenant"] == "acme"
            assert {one["principal"] for one in told["principals"]} == {"ann", "ben"}
            # Beyond the limit is what one server wrote before it heard of the other: where neither has heard, each goes
            # up to the limit, and passes it by one step, which writes 60 kB of its 20.
            assert 300_000 <= told["bytes"] < 2 * 360_000
            scraped = await scrape(first.server.metrics_address)
            assert scraped.labels_of("agenttx_stored_bytes", "tenant") == {"acme", "(others)"}
            assert scraped.value("agenttx_stored_bytes", tenant="acme") >= 300_000
            for client in (*clients, other):
                await client.close()


async def test_usage_is_told_by_tenant_and_principal_and_names_a_database_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    url = f"sqlite:///{tmp_path}/agenttx.db"
    assert await asyncio.to_thread(main, ["tenant", "usage", "--database-url", url]) == ExitCode.USAGE
    assert "there is no database" in capsys.readouterr().err
    async with open_store(url) as store:
        for name, principal, key in (("t-1", "ann", "kv/a"), ("t-2", "@acme/amy", "@acme/kv/a")):
            driver = await Driver(store, name, principal=principal).begin()
            await driver.step({key: '"x"'})
            await driver.commit()
        # Measured beside the server that has the database open.
        assert await asyncio.to_thread(main, ["tenant", "usage", "--database-url", url]) == ExitCode.OK
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["TENANT", "PRINCIPAL", "BYTES", "OF"]
    assert {line[0] for line in lines[1:]} == {"default", "acme", "ann", "amy", "(shared)"}
    assert ["(shared)", "7", "state", "7"] in lines
