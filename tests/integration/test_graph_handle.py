"""Graphs run from the SDK: functions of this process, questions, failures, threads, in either client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_server import ServerProcess, running_server, server_process

import agenttx
from agenttx import START, Command, GraphBuilder, RunLimits, RunStatus
from agenttx.errors import Aborted, NotFound, PreconditionFailed

COMPLETED, FAILED, INTERRUPTED = RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.INTERRUPTED


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("graphs")) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[agenttx.Client]:
    with agenttx.Client(server.address) as opened:
        yield opened


class Order:
    """An order that is drafted, approved by a person, and booked; booking fails as often as it is told to."""

    def __init__(self, name: str) -> None:
        self.ran: list[str] = []
        self.failures = 0
        self.builder = (
            GraphBuilder(name)
            .channel("amount")
            .channel("log", reducer="append")
            .node("draft", self.draft)
            .node("approve", self.approve)
            .node("book", self.book)
            .edge(START, "draft")
            .edge("draft", "approve")
            .edge("approve", "book")
        )

    def draft(self, state: Any, ctx: Any) -> dict[str, Any]:
        self.ran.append("draft")
        kept = ctx.step("kv.put", {"key": "draft", "value": state["amount"]})
        return {"log": [f"drafted {kept['key']}"]}

    def approve(self, state: Any, ctx: Any) -> dict[str, Any]:
        self.ran.append("approve")
        answer = ctx.interrupt({"amount": state["amount"]})
        return {"log": [f"approved by {answer}"]}

    def book(self, state: Any) -> dict[str, Any]:
        self.ran.append("book")
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the ledger is closed")
        return {"log": ["booked"]}


def test_a_run_asks_is_answered_fails_and_is_retried_and_nothing_finished_runs_twice(client: agenttx.Client):
    order = Order("order")
    graph = client.graphs.register(order.builder)
    waits = graph.run({"amount": 12}, thread="o-1", metadata={"customer": "7"})
    assert (waits.status, waits.visited_nodes, waits.next_nodes) == (INTERRUPTED, ("draft",), ("approve",))
    assert [(asked.node, asked.payload) for asked in waits.interrupts] == [("approve", {"amount": 12})]
    assert client.get_state("draft").value is None, "what an open run wrote is nobody else's yet"
    with pytest.raises(PreconditionFailed) as pending:
        graph.run({"amount": 13}, thread="o-1")
    assert pending.value.reason == "INTERRUPT_PENDING"

    order.failures = 1
    failed = graph.resume("o-1", "Ada")
    assert (failed.status, failed.next_nodes) == (FAILED, ("book",))
    assert failed.error is not None
    assert (failed.error.reason, failed.error.node) == ("NODE_FAILED", "book")
    assert "ledger is closed" in failed.error.hint
    done = graph.retry("o-1")
    assert (done.status, done.state["log"]) == (COMPLETED, ["drafted draft", "approved by Ada", "booked"])
    assert order.ran == ["draft", "approve", "approve", "book", "book"]
    assert client.get_state("draft").value == 12

    record = client.graphs.run(done.run_id)
    assert (record.status, record.total_supersteps, record.metadata) == (COMPLETED, 3, {"customer": "7"})
    assert [run.run_id for run in client.graphs.runs(thread="o-1", metadata={"customer": "7"})] == [
        done.run_id
    ]
    assert client.graphs.thread("o-1").thread.status is COMPLETED
    assert "o-1" in {thread.thread_id for thread in client.graphs.threads(graph="order")}
    history = list(graph.history("o-1", page_size=1))
    assert [checkpoint.superstep for checkpoint in history] == [3, 2, 1, 0]
    assert history[2].next_nodes == ("approve",)

    again = graph.run(thread="o-1", checkpoint=history[2].checkpoint_id)
    assert again.status is INTERRUPTED, "a question that was answered is asked again on a branch"
    assert graph.resume("o-1", values={again.interrupts[0].interrupt_id: "Grace"}).state["log"][1:] == [
        "approved by Grace",
        "booked",
    ]
    assert {checkpoint.branch for checkpoint in graph.history("o-1", all_branches=True)} != {"main"}


def test_threads_are_edited_forked_copied_pruned_taken_back_and_deleted(client: agenttx.Client):
    order = Order("edited")
    graph = client.graphs.register(order.builder)
    graph.run({"amount": 1}, thread="e-1")
    edited = graph.update_state("e-1", {"log": ["approved by letter"]}, as_node="approve")
    assert edited.next_nodes == ("book",)
    first = next(checkpoint for checkpoint in graph.history("e-1") if checkpoint.superstep == 1)
    undone = graph.rewind("e-1", first.checkpoint_id)
    assert (undone.checkpoint_id, undone.rollback_incomplete) == (first.checkpoint_id, False)
    assert graph.state("e-1").next_nodes == ("approve",)
    assert graph.fork("e-1", new_thread="e-2").thread_id == "e-2"
    assert graph.copy("e-1", new_thread="e-3") == "e-3"
    with pytest.raises(PreconditionFailed):
        graph.fork("e-1", new_thread="e-2")
    assert graph.prune("e-3", keep_last=1) >= 1
    assert graph.delete_thread("e-3") is True
    with pytest.raises(NotFound):
        graph.state("e-3")
    run = client.graphs.thread("e-1").run
    assert client.graphs.cancel(run.run_id, "enough", rollback=True).transaction_id == ""


def test_limits_goto_and_what_is_refused(client: agenttx.Client):
    def spin(state: Any) -> Command:
        return Command(update={"n": 1}, goto="spin")

    builder = GraphBuilder("spinning").channel("n", reducer="add").node("spin", spin, destinations=["spin"])
    graph = client.graphs.register(builder.edge(START, "spin"))
    assert client.graphs.get("spinning").version == graph.version
    ended = graph.run({"n": 0}, thread="s", limits=RunLimits(recursion_limit=3))
    assert (ended.status, ended.state) == (FAILED, {"n": 3})
    assert ended.error is not None
    assert ended.error.reason == "RECURSION_LIMIT"
    started = graph.start(
        {"n": 0}, thread="s2", limits=RunLimits(recursion_limit=100_000, max_total_steps=100_000)
    )
    with pytest.raises(Aborted):
        graph.run({"n": 0}, thread="s2")
    client.graphs.cancel(started.run_id, "it spins")
    for _ in range(600):
        if client.graphs.run(started.run_id).status is RunStatus.CANCELLED:
            break
        time.sleep(0.05)
    else:
        pytest.fail("it spins on")
    with pytest.raises(NotFound):
        client.graphs.run("nobody")


async def test_the_asynchronous_client_does_the_same(tmp_path: Path):
    order = Order("order")
    async with running_server() as server, agenttx.AsyncClient(server.address) as client:
        graph = await client.graphs.register(order.builder)
        assert (await graph.run({"amount": 5}, thread="a")).status is INTERRUPTED
        assert (await graph.resume("a", None)).status is COMPLETED
        assert [run.status async for run in client.graphs.runs()] == [COMPLETED]
        assert len([checkpoint async for checkpoint in graph.history("a")]) == 4
        assert (await graph.state("a")).state["log"][1] == "approved by None"
