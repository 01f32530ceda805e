"""Runs and threads of graphs over real gRPC, on both databases: whole lives of runs, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import running_server, server_process

import agenttx
from agenttx import START, GraphBuilder, ToolCall
from agenttx.v1 import graph_pb2 as pb
from agenttx.v1 import graph_pb2_grpc

COMPLETED, FAILED, INTERRUPTED = pb.RUN_STATUS_COMPLETED, pb.RUN_STATUS_FAILED, pb.RUN_STATUS_INTERRUPTED


def keeping() -> GraphBuilder:
    """Keep a value and read it back."""
    builder = GraphBuilder("keeping").channel("value").channel("wrote").channel("seen")
    builder.node(
        "put",
        ToolCall("kv.put", {"key": "kept", "value": "${state.value}"}, output={"wrote": "${result.key}"}),
    )
    builder.node("get", ToolCall("kv.get", {"key": "kept"}, output={"seen": "${result.value}"}))
    return builder.edge(START, "put").edge("put", "get")


def asking(ctx_answers: list[Any]) -> GraphBuilder:
    """Ask a person, and tell what they said."""

    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        answer = ctx.interrupt({"question": "how many?"})
        ctx_answers.append(answer)
        return {"value": answer}

    return GraphBuilder("asking").channel("value").node("ask", ask).edge(START, "ask")


@asynccontextmanager
async def serving(
    database: str,
) -> AsyncIterator[tuple[agenttx.AsyncClient, graph_pb2_grpc.GraphServiceStub]]:
    with shared_cluster().database() if database == "postgresql" else _sqlite() as url:
        settings = {"database_url": url} if url else {}
        async with (
            running_server(**settings) as server,
            agenttx.AsyncClient(server.address) as client,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            yield client, graph_pb2_grpc.GraphServiceStub(channel)


class _sqlite:
    def __enter__(self) -> str:
        return ""

    def __exit__(self, *exception: object) -> None:
        pass


async def reason_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    info = error_details_pb2.ErrorInfo()
    status = rpc_status.from_call(refused.value)
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
    return refused.value.code(), info.reason


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_run_is_started_read_and_edited_and_its_thread_forked_pruned_and_deleted(
    database: str,
) -> None:
    async with serving(database) as (client, stub):
        await client.graphs.register(keeping())
        asked = pb.StartRunRequest(
            graph="keeping", thread_id="t", input_json='{"value":5}', wait=True, request_id="r"
        )
        first = (await stub.StartRun(asked)).outcome
        assert (first.status, json.loads(first.state_json), first.visited_nodes) == (
            COMPLETED,
            {"seen": 5, "value": 5, "wrote": "kept"},
            ["put", "get"],
        )
        assert (await stub.StartRun(asked)).outcome == first, "the same request is answered the same"
        run = (await stub.GetRun(pb.GetRunRequest(run_id=first.run_id))).run
        assert (run.status, run.last_event, run.total_supersteps) == (COMPLETED, "run.completed", 2)
        assert [item.run_id for item in (await stub.ListRuns(pb.ListRunsRequest(thread_id="t"))).runs] == [
            first.run_id
        ]
        assert (await client.get_state("kept")).value == 5, "completing is committing"

        listed = await stub.ListCheckpoints(pb.ListCheckpointsRequest(thread_id="t", include_state=True))
        assert [item.superstep for item in listed.checkpoints] == [2, 1, 0]
        page = await stub.ListCheckpoints(pb.ListCheckpointsRequest(thread_id="t", page_size=2))
        rest = await stub.ListCheckpoints(
            pb.ListCheckpointsRequest(thread_id="t", page_size=2, page_token=page.next_page_token)
        )
        assert [c.checkpoint_id for c in (*page.checkpoints, *rest.checkpoints)] == [
            c.checkpoint_id for c in listed.checkpoints
        ]
        before_get = listed.checkpoints[1]
        again = await stub.StartRun(
            pb.StartRunRequest(
                graph="keeping", thread_id="t", checkpoint_id=before_get.checkpoint_id, wait=True
            )
        )
        assert again.outcome.visited_nodes == ["get"], "from a checkpoint only what comes behind it is run"

        update = pb.StateUpdate(as_node="put", update_json='{"value":7}')
        edited = await stub.UpdateState(
            pb.UpdateStateRequest(thread_id="t", supersteps=[pb.SuperstepUpdate(updates=[update])])
        )
        assert [task.node for task in edited.checkpoint.next] == ["get"]
        state = (await stub.GetGraphState(pb.GetGraphStateRequest(thread_id="t"))).checkpoint
        assert json.loads(state.state_json)["value"] == 7
        forked = await stub.ForkThread(pb.ForkThreadRequest(thread_id="t", new_thread_id="u"))
        assert (forked.checkpoint.thread_id, forked.checkpoint.parent_checkpoint_id) == ("u", "")
        forked_from = (forked.checkpoint.forked_from_thread_id, forked.checkpoint.forked_from_checkpoint_id)
        assert forked_from == ("t", state.checkpoint_id)
        copied = await stub.CopyThread(pb.CopyThreadRequest(thread_id="t", new_thread_id="v"))
        assert copied.checkpoints > 3
        copy = (await stub.GetGraphState(pb.GetGraphStateRequest(thread_id="v"))).checkpoint
        assert (copy.forked_from_thread_id, copy.forked_from_checkpoint_id) == ("t", state.checkpoint_id)
        assert await reason_of(stub.ForkThread(pb.ForkThreadRequest(thread_id="t", new_thread_id="u"))) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "THREAD_EXISTS",
        )
        known = await stub.GetThread(pb.GetThreadRequest(thread_id="t"))
        assert known.branches >= 2
        assert {timing.node for timing in known.timings} == {"put", "get"}
        threads = (await stub.ListThreads(pb.ListThreadsRequest())).threads
        assert {thread.thread_id for thread in threads} == {"t", "u", "v"}
        pruned = await stub.PruneThread(pb.PruneThreadRequest(thread_id="v", keep_last=1))
        assert pruned.deleted > 0
        assert (await stub.DeleteThread(pb.DeleteThreadRequest(thread_id="u"))).checkpoints == 1
        assert await reason_of(stub.GetGraphState(pb.GetGraphStateRequest(thread_id="u"))) == (
            grpc.StatusCode.NOT_FOUND,
            "THREAD_NOT_FOUND",
        )


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_question_is_answered_a_failure_retried_and_a_run_taken_back(database: str) -> None:
    answers: list[Any] = []
    async with serving(database) as (client, stub):
        await client.graphs.register(asking(answers))
        waits = (await stub.StartRun(pb.StartRunRequest(graph="asking", thread_id="a", wait=True))).outcome
        assert waits.status == INTERRUPTED
        assert [json.loads(item.payload_json) for item in waits.interrupts] == [{"question": "how many?"}]
        assert await reason_of(stub.RetryRun(pb.RetryRunRequest(thread_id="a"))) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "NOTHING_TO_RESUME",
        )
        assert await reason_of(
            stub.StartRun(pb.StartRunRequest(graph="asking", thread_id="a", input_json="{}"))
        ) == (grpc.StatusCode.FAILED_PRECONDITION, "INTERRUPT_PENDING")
        resume = pb.ResumeRunRequest(thread_id="a", value_json="3", wait=True, request_id="answer")
        done = (await stub.ResumeRun(resume)).outcome
        assert (done.status, json.loads(done.state_json)) == (COMPLETED, {"value": 3})
        assert (await stub.ResumeRun(resume)).outcome == done, "an answer that is sent again is no second one"
        assert answers == [3]

        waits = (await stub.StartRun(pb.StartRunRequest(graph="asking", thread_id="b", wait=True))).outcome
        head = (await stub.GetGraphState(pb.GetGraphStateRequest(thread_id="b"))).checkpoint
        back = await stub.RewindRun(
            pb.RewindRunRequest(thread_id="b", checkpoint_id=head.checkpoint_id, dry_run=True)
        )
        assert list(back.withdrawn_interrupt_ids) == [waits.interrupts[0].interrupt_id]
        cancelled = await stub.CancelRun(
            pb.CancelRunRequest(run_id=waits.run_id, rollback=True, reason="not needed")
        )
        assert cancelled.run.transaction_id == ""
        assert await reason_of(stub.ResumeRun(pb.ResumeRunRequest(thread_id="b", value_json="1"))) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "NOTHING_TO_RESUME",
        )


async def test_what_cannot_be_done_is_refused_with_its_reason() -> None:
    async with serving("sqlite") as (client, stub):
        await client.graphs.register(keeping())
        invalid, missing = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
        for call, expected in (
            (stub.StartRun(pb.StartRunRequest()), (invalid, "INVALID_REQUEST")),
            (stub.StartRun(pb.StartRunRequest(graph="nobody")), (missing, "GRAPH_NOT_FOUND")),
            (
                stub.StartRun(pb.StartRunRequest(graph="keeping", input_json="[1]")),
                (invalid, "INVALID_REQUEST"),
            ),
            (
                stub.StartRun(pb.StartRunRequest(graph="keeping", input_json="{")),
                (invalid, "INVALID_REQUEST"),
            ),
            (
                stub.StartRun(pb.StartRunRequest(graph="keeping", thread_id="x", input_json='{"nix":1}')),
                (grpc.StatusCode.FAILED_PRECONDITION, "UNKNOWN_CHANNEL"),
            ),
            (stub.GetRun(pb.GetRunRequest(run_id="nobody")), (missing, "RUN_NOT_FOUND")),
            (stub.GetRun(pb.GetRunRequest()), (invalid, "INVALID_REQUEST")),
            (stub.CancelRun(pb.CancelRunRequest(run_id="nobody")), (missing, "RUN_NOT_FOUND")),
            (stub.GetThread(pb.GetThreadRequest(thread_id="nobody")), (missing, "THREAD_NOT_FOUND")),
            (stub.UpdateState(pb.UpdateStateRequest(thread_id="x")), (invalid, "INVALID_REQUEST")),
            (stub.PruneThread(pb.PruneThreadRequest(thread_id="x")), (invalid, "INVALID_REQUEST")),
            (stub.ListRuns(pb.ListRunsRequest(page_token="?")), (invalid, "INVALID_REQUEST")),
        ):
            assert await reason_of(call) == expected


async def test_a_page_token_is_one_that_was_given_out() -> None:
    async with serving("sqlite") as (client, stub):
        await client.graphs.register(keeping())
        for thread in ("one", "two"):
            given = pb.StartRunRequest(graph="keeping", thread_id=thread, input_json='{"value":5}', wait=True)
            await stub.StartRun(given)
        invalid = (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
        first = await stub.ListCheckpoints(pb.ListCheckpointsRequest(thread_id="one", page_size=1))
        wide = pb.ListCheckpointsRequest(thread_id="one", page_size=1, all_branches=True)
        whole = await stub.ListCheckpoints(wide)
        runs = await stub.ListRuns(pb.ListRunsRequest(page_size=1))
        threads = await stub.ListThreads(pb.ListThreadsRequest(page_size=1))
        tokens = [page.next_page_token for page in (first, whole, runs, threads)]
        assert all(tokens)
        for number, ask in enumerate(
            (
                lambda token: stub.ListCheckpoints(
                    pb.ListCheckpointsRequest(thread_id="one", page_token=token)
                ),
                lambda token: stub.ListCheckpoints(
                    pb.ListCheckpointsRequest(thread_id="one", page_token=token, all_branches=True)
                ),
                lambda token: stub.ListRuns(pb.ListRunsRequest(page_token=token)),
                lambda token: stub.ListThreads(pb.ListThreadsRequest(page_token=token)),
            )
        ):
            await ask(tokens[number])
            others = [token for place, token in enumerate(tokens) if place != number]
            for token in ("0", "1", " 1", "1_0", "\u0661", "-1", tokens[number] + "=", *others):
                assert await reason_of(ask(token)) == invalid, (number, token)
        # One of another thread's.
        asked = pb.ListCheckpointsRequest(thread_id="two", page_token=tokens[0])
        assert await reason_of(stub.ListCheckpoints(asked)) == invalid


async def test_a_killed_server_goes_on_with_its_runs_before_it_serves(tmp_path: Any) -> None:
    with server_process(tmp_path) as server:
        async with agenttx.AsyncClient(server.address) as client:
            await client.graphs.register(keeping())
            async with grpc.aio.insecure_channel(server.address) as channel:
                stub = graph_pb2_grpc.GraphServiceStub(channel)
                started = await stub.StartRun(
                    pb.StartRunRequest(graph="keeping", thread_id="t", input_json='{"value":1}')
                )
                run_id = started.outcome.run_id
        server.process.kill()
        server.wait()
    with server_process(tmp_path) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = graph_pb2_grpc.GraphServiceStub(channel)
            async with asyncio.timeout(30):
                while True:
                    run = (await stub.GetRun(pb.GetRunRequest(run_id=run_id))).run
                    if run.status == COMPLETED:
                        break
                    await asyncio.sleep(0.05)
            state = (await stub.GetGraphState(pb.GetGraphStateRequest(thread_id="t"))).checkpoint
    assert json.loads(state.state_json) == {"seen": 1, "value": 1, "wrote": "kept"}


async def _rolled_back(client: agenttx.AsyncClient, run_id: str) -> agenttx.GraphRun:
    """Return a run that waits once it does no more."""
    for _ in range(600):
        run = await client.graphs.run(run_id)
        if run.status is not agenttx.RunStatus.INTERRUPTED:
            return run
        await asyncio.sleep(0.05)
    raise AssertionError("it still waits")


async def test_c5_the_state_of_a_thread_whose_only_run_was_rolled_back_is_that_of_a_new_one() -> None:
    def first(state: Any, ctx: Any) -> dict[str, Any]:
        return {"value": 1}

    def asks(state: Any, ctx: Any) -> dict[str, Any]:
        return {"value": ctx.interrupt("?")}

    builder = GraphBuilder("taken_back").channel("value", default=7).node("first", first).node("asks", asks)
    async with serving("sqlite") as (client, _):
        graph = await client.graphs.register(builder.edge(START, "first").edge("first", "asks"))
        asked = await graph.run({"value": 5}, thread="t")
        assert (await graph.state("t")).state == {"value": 1}
        await client.graphs.cancel(asked.run_id, rollback=True)
        found = await graph.state("t")
        assert (found.state, found.checkpoint_id, found.next_nodes, found.head) == (
            {"value": 7},
            "",
            (),
            True,
        )
        with pytest.raises(agenttx.NotFound, match="CHECKPOINT_NOT_FOUND"):
            await graph.state("t", asked.checkpoint_id + "0")
        with pytest.raises(agenttx.NotFound, match="thread"):
            await graph.state("nobody")
        # And there is a way on.
        again = await graph.retry("t")
        assert (again.status, again.state) == (agenttx.RunStatus.INTERRUPTED, {"value": 1})
        await client.graphs.cancel(again.run_id, rollback=True)
        assert (await graph.update_state("t", {"value": 3})).state == {"value": 3}


async def test_a_run_that_waits_longer_than_it_may_is_rolled_back_by_the_server() -> None:
    async with running_server(lease_seconds=1) as server, agenttx.AsyncClient(server.address) as client:
        asks = await client.graphs.register(asking([]))
        limits = agenttx.RunLimits(wait_timeout=0.001)
        asked = await asks.run({}, thread="t", limits=limits)
        assert asked.status is agenttx.RunStatus.INTERRUPTED
        run = await _rolled_back(client, asked.run_id)
        assert (run.status, run.interrupts) == (agenttx.RunStatus.CANCELLED, ())
        with pytest.raises(agenttx.InvalidArgument):
            await asks.run({}, thread="u", limits=agenttx.RunLimits(wait_timeout=-1))


async def test_of_several_servers_any_rolls_back_what_another_left_to_wait() -> None:
    with shared_cluster().database() as url:
        async with running_server(database_url=url, lease_seconds=1) as stays:
            async with (
                running_server(database_url=url, lease_seconds=1) as leaves,
                agenttx.AsyncClient(leaves.address) as client,
            ):
                asks = await client.graphs.register(asking([]))
                limits = agenttx.RunLimits(wait_timeout=1)
                asked = await asks.run({}, thread="t", limits=limits)
                assert asked.status is agenttx.RunStatus.INTERRUPTED
            async with agenttx.AsyncClient(stays.address) as client:
                run = await _rolled_back(client, asked.run_id)
                assert (run.status, run.interrupts) == (agenttx.RunStatus.CANCELLED, ())


async def test_versions_that_are_compared_tell_the_threads_that_the_second_would_break() -> None:
    async with running_server() as server, agenttx.AsyncClient(server.address) as client:
        asks = await client.graphs.register(asking([]))
        await asks.run({}, thread="t")
        without = GraphBuilder("asking").channel("value").node("other", agenttx.NOTHING).edge(START, "other")
        difference = await client.graphs.diff("asking", definition=without)
        (broken,) = difference.broken_threads
        assert (broken.thread_id, broken.pending_nodes) == ("t", ("ask",))
        assert "'ask' is pending and is gone" in broken.reason
        assert difference.next_threads_token == ""
        with pytest.raises(agenttx.InvalidArgument):
            await client.graphs.diff("asking", definition=without, threads_token="another's")
        await asks.resume("t", 1)
        assert (await client.graphs.diff("asking", definition=without)).broken_threads == ()
