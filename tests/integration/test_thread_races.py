"""What happens at once to one thread, here or on two servers of one database: it stays whole, or is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import running_server

import agenttx
from agenttx import START, GraphBuilder, ToolCall
from agenttx.v1 import graph_pb2 as pb
from agenttx.v1 import graph_pb2_grpc

LENGTH = 12
WAITS = 120.0
"""Seconds: for a loaded machine; nothing here takes long."""


def chain() -> GraphBuilder:
    """Write each node's name to the store, and append it to ``log``."""
    builder = GraphBuilder("chain").channel("log", reducer="append", scalars=True)
    names = [f"n{number}" for number in range(LENGTH)]
    for name in names:
        builder.node(
            name, ToolCall("kv.put", {"key": "last", "value": name}, output={"log": "${result.key}"})
        )
    for before, after in zip([START, *names], names, strict=False):
        builder.edge(before, after)
    return builder


@asynccontextmanager
async def serving(database: str) -> AsyncIterator[list[graph_pb2_grpc.GraphServiceStub]]:
    """One server over SQLite, or two over one PostgreSQL; their stubs, two in either case."""
    async with AsyncExitStack() as stack:
        addresses = []
        if database == "postgresql":
            url = stack.enter_context(shared_cluster().database())
            for _ in range(2):
                server = await stack.enter_async_context(running_server(database_url=url))
                addresses.append(server.address)
        else:
            addresses = [(await stack.enter_async_context(running_server())).address] * 2
        client = await stack.enter_async_context(agenttx.AsyncClient(addresses[0]))
        await client.graphs.register(chain())
        stubs = []
        for address in addresses:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
            stubs.append(graph_pb2_grpc.GraphServiceStub(channel))
        async with asyncio.timeout(WAITS):
            yield stubs


def start(thread: str, *, wait: bool = True, **fields: Any) -> pb.StartRunRequest:
    return pb.StartRunRequest(
        graph="chain", thread_id=thread, input_json='{"log":["0"]}', wait=wait, **fields
    )


async def state_of(stub: Any, thread: str) -> Any:
    found = await stub.GetGraphState(pb.GetGraphStateRequest(thread_id=thread))
    return json.loads(found.checkpoint.state_json)


async def prune(stub: Any) -> int:
    """Prune, unless the thread isn't there yet or never stands still; return how many checkpoints went."""
    try:
        return int((await stub.PruneThread(pb.PruneThreadRequest(thread_id="t", keep_last=1))).deleted)
    except grpc.aio.AioRpcError as error:
        if error.code() not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED):
            raise
        return 0


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_thread_is_pruned_beside_its_runs_and_keeps_its_head(database: str) -> None:
    async with serving(database) as (one, other):
        runs = [
            asyncio.ensure_future(one.StartRun(start("t", on_busy=pb.BUSY_THREAD_POLICY_QUEUE)))
            for _ in range(2)
        ]
        pruned = 0
        while not all(run.done() for run in runs):
            pruned += await prune(other)
            await asyncio.sleep(0.01)
        assert [run.result().outcome.status for run in runs] == [pb.RUN_STATUS_COMPLETED] * 2
        assert len((await state_of(other, "t"))["log"]) == 2 * (LENGTH + 1)
        listed = await other.ListCheckpoints(
            pb.ListCheckpointsRequest(thread_id="t", include_state=True, all_branches=True)
        )
        for checkpoint in listed.checkpoints:
            assert json.loads(checkpoint.state_json)["log"][0] == "0"
        assert pruned + await prune(other) == 2 * (LENGTH + 1) - 1


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_thread_that_is_deleted_beside_a_start_is_whole_or_gone(database: str) -> None:
    async with serving(database) as (one, other):
        for number in range(6):
            thread = f"t-{number}"
            await one.StartRun(start(thread))
            calls = (
                one.StartRun(start(thread)),
                other.DeleteThread(pb.DeleteThreadRequest(thread_id=thread, request_id=thread)),
                one.DeleteThread(pb.DeleteThreadRequest(thread_id=thread)),
            )
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            codes = [item.code() for item in outcomes if isinstance(item, grpc.aio.AioRpcError)]
            assert len(codes) == sum(isinstance(item, BaseException) for item in outcomes)
            assert set(codes) <= {grpc.StatusCode.ABORTED, grpc.StatusCode.NOT_FOUND}, codes
            kept = await other.ListRuns(pb.ListRunsRequest(thread_id=thread))
            if not kept.runs:
                with pytest.raises(grpc.aio.AioRpcError):
                    await other.GetThread(pb.GetThreadRequest(thread_id=thread))
                continue
            log = (await state_of(other, thread))["log"]
            assert len(log) == len(kept.runs) * (LENGTH + 1)
            known = await other.GetThread(pb.GetThreadRequest(thread_id=thread))
            assert known.checkpoints == len(log)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_the_same_request_sent_at_once_is_done_once(database: str) -> None:
    async with serving(database) as (one, other):
        queued = start("t", on_busy=pb.BUSY_THREAD_POLICY_QUEUE, request_id="start")
        first, again, third = await asyncio.gather(
            one.StartRun(queued), other.StartRun(queued), one.StartRun(queued)
        )
        assert first.outcome.run_id == again.outcome.run_id == third.outcome.run_id
        update = pb.StateUpdate(update_json='{"log":["e"]}')
        edit = pb.UpdateStateRequest(
            thread_id="t", request_id="edit", supersteps=[pb.SuperstepUpdate(updates=[update])]
        )
        edits = await asyncio.gather(one.UpdateState(edit), other.UpdateState(edit), one.UpdateState(edit))
        assert len({item.checkpoint.checkpoint_id for item in edits}) == 1
        fork = pb.ForkThreadRequest(thread_id="t", new_thread_id="f", request_id="fork")
        forks = await asyncio.gather(one.ForkThread(fork), other.ForkThread(fork), one.ForkThread(fork))
        assert len({item.checkpoint.checkpoint_id for item in forks}) == 1
        copy = pb.CopyThreadRequest(thread_id="t", new_thread_id="c", request_id="copy")
        copies = await asyncio.gather(one.CopyThread(copy), other.CopyThread(copy), one.CopyThread(copy))
        assert {item.checkpoints for item in copies} == {LENGTH + 2}
        delete = pb.DeleteThreadRequest(thread_id="t", request_id="delete")
        deleted = [
            await one.DeleteThread(delete),
            *(await asyncio.gather(other.DeleteThread(delete), one.DeleteThread(delete))),
        ]
        assert [item.checkpoints for item in deleted] == [LENGTH + 2] * 3
        assert len((await one.ListRuns(pb.ListRunsRequest())).runs) == 2, "of the fork and of the copy"


def asking() -> GraphBuilder:
    """Write to the store, stop for an answer, write again."""
    builder = GraphBuilder("asking").channel("log", reducer="append", scalars=True)
    for name in ("first", "last"):
        call = ToolCall("kv.put", {"key": name, "value": 1}, output={"log": "${result.key}"})
        builder.node(name, call)

    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.interrupt("?")]}

    builder.node("ask", ask).edge(START, "first").edge("first", "ask").edge("ask", "last")
    return builder


async def test_an_answer_that_is_sent_to_two_servers_is_given_once() -> None:
    """At once, and again when it is over: every server answers with the same run, which went on once."""
    async with AsyncExitStack() as stack:
        url = stack.enter_context(shared_cluster().database())
        clients, stubs = [], []
        for _ in range(2):
            server = await stack.enter_async_context(running_server(database_url=url))
            clients.append(await stack.enter_async_context(agenttx.AsyncClient(server.address)))
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.address))
            stubs.append(graph_pb2_grpc.GraphServiceStub(channel))
            await clients[-1].graphs.register(asking())
        one, other = stubs
        await stack.enter_async_context(asyncio.timeout(WAITS))
        threads = [f"t-{number}" for number in range(4)]
        for thread in threads:
            start = pb.StartRunRequest(graph="asking", thread_id=thread, input_json="{}", wait=True)
            await one.StartRun(start)
            for _ in range(2):
                request = pb.ResumeRunRequest(
                    thread_id=thread, request_id=f"resume-{thread}", value_json='"yes"', wait=True
                )
                answers = await asyncio.gather(
                    one.ResumeRun(request), other.ResumeRun(request), one.ResumeRun(request)
                )
                assert len({answer.outcome.run_id for answer in answers}) == 1
                for answer in answers:
                    assert answer.outcome.status == pb.RUN_STATUS_COMPLETED
                    assert json.loads(answer.outcome.state_json)["log"] == ["first", "yes", "last"]
                run_id = answers[0].outcome.run_id
                events = [event async for event in clients[0].graphs.events(run=run_id)]
                kinds = [str(event.kind) for event in events]
                assert kinds.count("run.started") == 2
                assert kinds.count("interrupt.resumed") == kinds.count("run.completed") == 1
        other_value = pb.ResumeRunRequest(
            thread_id=threads[0], request_id=f"resume-{threads[0]}", value_json='"no"', wait=True
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await other.ResumeRun(other_value)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
