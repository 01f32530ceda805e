"""Graphs inside nodes of others, from the SDK over a real server: functions, tools, questions, failures, both modes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import ServerProcess, running_server, server_process

import agenttx
from agenttx import START, GraphBuilder, RunStatus
from agenttx.errors import NotFound
from agenttx.graph import Subgraph

PAGE = Path(__file__).resolve().parents[2] / "docs" / "graphs" / "subgraphs.md"
COMPLETED, FAILED, INTERRUPTED = RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.INTERRUPTED


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("subgraphs")) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[agenttx.Client]:
    with agenttx.Client(server.address) as opened:
        yield opened


class Payment:
    """A payment that is noted, approved by a person, and made; making it fails as often as it is told to."""

    def __init__(self, name: str) -> None:
        self.ran: list[str] = []
        self.failures = 0
        self.builder = (
            GraphBuilder(name)
            .channel("amount")
            .channel("log", reducer="append")
            .node("note", self.note)
            .node("approve", self.approve)
            .node("pay", self.pay)
            .edge(START, "note")
            .edge("note", "approve")
            .edge("approve", "pay")
        )

    def note(self, state: Any, ctx: Any) -> dict[str, Any]:
        self.ran.append("note")
        ctx.step("kv.put", {"key": f"noted-{state['amount']}", "value": state["amount"]})
        return {"log": ["noted"]}

    def approve(self, state: Any, ctx: Any) -> dict[str, Any]:
        self.ran.append("approve")
        return {"log": [f"approved by {ctx.interrupt({'amount': state['amount']})}"]}

    def pay(self, state: Any) -> dict[str, Any]:
        self.ran.append("pay")
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the bank is closed")
        return {"log": ["paid"]}


def test_a_shared_child_asks_fails_and_ends_and_nothing_finished_runs_twice(client: agenttx.Client):
    payment = Payment("payment")
    order = (
        GraphBuilder("order-with-payment")
        .channel("amount")
        .channel("log", reducer="append")
        .node("draft", lambda state: {"log": ["drafted"]})
        .node("payment", Subgraph("payment"))
        .node("book", lambda state: {"log": ["booked"]})
        .edge(START, "draft")
        .edge("draft", "payment")
        .edge("payment", "book")
    )
    client.graphs.register(payment.builder)
    graph = client.graphs.register(order)

    waits = graph.run({"amount": 12}, thread="sub-1")

    assert waits.status is INTERRUPTED
    (asked,) = waits.interrupts
    assert (asked.node, asked.namespace, asked.payload) == ("approve", "payment#2.0", {"amount": 12})
    assert client.get_state("noted-12").value is None, "what an open run wrote is nobody else's yet"

    inside = graph.state("sub-1", namespace=asked.namespace)
    assert (inside.state, inside.next_nodes) == ({"amount": 12, "log": ["drafted", "noted"]}, ("approve",))

    payment.failures = 1
    failed = graph.resume(thread="sub-1", value="the boss")
    assert failed.status is FAILED
    assert failed.error is not None
    assert (failed.error.node, failed.error.namespace) == ("pay", "payment#2.0")

    done = graph.retry(thread="sub-1")
    assert done.status is COMPLETED
    assert done.state["log"] == ["drafted", "noted", "approved by the boss", "paid", "booked"]
    assert payment.ran == ["note", "approve", "approve", "pay", "pay"]
    assert client.get_state("noted-12").value == 12
    (child,) = graph.state("sub-1", checkpoint=_after_payment(graph)).children
    assert (child.node, child.namespace) == ("payment", "payment#2.0")
    history = [item.state["log"] for item in graph.history("sub-1", namespace=child.namespace, page_size=2)]
    assert [len(log) for log in history] == [4, 3, 2, 1]
    assert graph.state("sub-1", child.checkpoint_id, namespace=child.namespace).next == ()
    with pytest.raises(NotFound):
        graph.state("sub-1", namespace="payment#9.0")


def _after_payment(graph: Any) -> str:
    return next(item.checkpoint_id for item in graph.history("sub-1") if item.children)


def test_an_adapter_has_a_state_of_its_own(client: agenttx.Client):
    scoring = (
        GraphBuilder("scoring")
        .channel("points", reducer="add")
        .node("score", lambda state: {"points": 10})
        .edge(START, "score")
    )
    profile = (
        GraphBuilder("profile")
        .channel("name")
        .channel("score")
        .node("scoring", Subgraph("scoring", input={"points": "score"}, output={"score": "points"}))
        .edge(START, "scoring")
    )
    client.graphs.register(scoring)
    graph = client.graphs.register(profile)

    assert graph.run({"name": "alice", "score": 5}).state == {"name": "alice", "score": 15}


def test_the_page_does_what_it_says(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.setenv("AGENTTX_ADDRESS", server.address)

    exec(code, {})

    assert capsys.readouterr().out.splitlines() == re.findall(r"  # (.*)", code)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_siblings_inside_that_use_one_key_come_out_in_order_also_behind_an_answer(database: str):
    """They lose and are run again as nodes of the root are; gone on with, nobody is run once more."""
    ran: list[str] = []

    def counts(name: str) -> Any:
        def count(state: Any, ctx: Any) -> dict[str, Any]:
            ran.append(name)
            before = ctx.step("kv.get", {"key": "count", "default": 0})["value"]
            ctx.step("kv.put", {"key": "count", "value": before + 1})
            return {"log": [f"{name}{before + 1}"]}

        return count

    def last(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.interrupt("go on?")
        return {"log": [f"last saw {ctx.step('kv.get', {'key': 'count'})['value']}"]}

    inside = GraphBuilder("counting").channel("log", reducer="append")
    for name in "abc":
        inside.node(name, counts(name)).edge(START, name)
    inside.node("last", last).join(["a", "b", "c"], "last")
    around = GraphBuilder("around-counting").channel("log", reducer="append")
    around.node("inside", Subgraph("counting")).edge(START, "inside")
    with shared_cluster().database() if database == "postgresql" else nullcontext("") as url:
        settings = {"database_url": url} if url else {}
        async with running_server(**settings) as server, agenttx.AsyncClient(server.address) as client:
            await client.graphs.register(inside)
            graph = await client.graphs.register(around)
            async with asyncio.timeout(60):
                asked = await graph.run({"log": []}, thread="t")
                assert asked.status is INTERRUPTED, asked.error
                once = sorted(ran)
                done = await graph.resume("t", value="yes")
    assert (done.status, done.state) == (COMPLETED, {"log": ["a1", "b2", "c3", "last saw 3"]})
    assert (sorted(ran), once.count("a")) == (once, 1)
