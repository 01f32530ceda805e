"""Error handler nodes stand in for nodes whose attempts are used up. On a real engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.graph_definitions import APP, SUM, send
from tests.support.graph_runs import Call, GraphRuns, adds, goto, logs
from tests.support.scripted_tools import ToolRun
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import TransactionId
from agenttx_server.graphs.definition import (
    Channel,
    GraphPolicy,
    NodeRetryPolicy,
    ToolBinding,
)
from agenttx_server.graphs.runs.records import RunStatus
from agenttx_server.graphs.runs.requests import RunRefused, StateUpdate

UNREACHABLE = GraphPolicy(allow_unreachable=True)


def fails(times: int = 1_000, then: Any = None) -> Any:
    left = [times]

    async def flaky(call: Call) -> Any:
        if left[0]:
            left[0] -= 1
            raise ToolFailure("invalid_value", "not yet", ("value",))
        return then

    return flaky


@virtual_time
async def test_f14_a_handler_sees_the_error_and_says_where_to_go() -> None:
    told: list[Any] = []

    async def handler(call: Call) -> Any:
        told.append(call.arg)
        return goto("after", update={"value": 5})

    runs = GraphRuns(
        "START->bad, bad->never, handler=>[after], after->END",
        {"bad": fails(), "never": adds(100), "handler": handler, "after": adds(1)},
        channels=SUM,
        policy=UNREACHABLE,
        nodes={"bad": {"error_handler": "handler", "retry": NodeRetryPolicy(2)}},
    )
    outcome = await runs.start({"value": 0})
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 6})
    assert runs.calls == ["bad", "bad", "handler", "after"]
    assert [(item["node"], item["attempts"], item["category"]) for item in told] == [
        ("bad", 2, "invalid_value")
    ]
    assert "not yet" in told[0]["hint"]
    kinds = await runs.kinds(outcome.run.run_id)
    assert kinds.count("node.failed") == 1


@virtual_time
async def test_a_handler_without_a_goto_stands_in_for_its_node_and_what_that_did_is_undone() -> None:
    book = ToolBinding("book", {"effect": "seat", "fail": "no seat", "output": {}})
    runs = GraphRuns(
        "START->book, START->side, book->after, side->after",
        {"handler": adds(5), "side": adds(10), "after": adds(1)},
        channels=SUM,
        policy=UNREACHABLE,
        nodes={"book": {"binding": book, "error_handler": "handler"}},
    )
    outcome = await runs.start({"value": 0})
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 16})
    assert runs.engine.tools.effects == []
    assert runs.calls == ["side", "handler", "after"]
    assert outcome.run.total_supersteps == 2


@virtual_time
async def test_f15_of_a_handler_that_fails_the_run_has_the_error_and_it_alone_is_run_again() -> None:
    runs = GraphRuns(
        "START->bad, bad->after",
        {"bad": fails(), "handler": fails(1, {"log": ["recovered"]}), "after": logs("after")},
        channels=APP,
        policy=UNREACHABLE,
        nodes={"bad": {"error_handler": "handler"}},
    )
    outcome = await runs.start({})
    assert outcome.run.error is not None
    assert (outcome.run.status, outcome.run.error.node) == (RunStatus.FAILED, "handler")
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"log": ["recovered", "after"]})
    assert runs.calls == ["bad", "handler", "handler", "after"]


@virtual_time
async def test_f16_a_question_beside_a_handled_error_stands() -> None:
    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("?")}

    runs = GraphRuns(
        "START->bad, START->ask",
        {"bad": fails(), "ask": ask, "handler": adds(1)},
        channels=SUM,
        policy=UNREACHABLE,
        nodes={"bad": {"error_handler": "handler"}},
    )
    outcome = await runs.start({"value": 0})
    assert outcome.run.status is RunStatus.INTERRUPTED
    assert [item.node for item in outcome.interrupts] == ["ask"]
    assert (outcome.state, list(outcome.next_nodes)) == ({"value": 1}, ["ask"])
    outcome = await runs.resume("t", 10)
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 11})
    assert runs.calls == ["bad", "ask", "handler", "ask"]


@virtual_time
async def test_f24_what_a_handler_gives_is_folded_where_its_send_is() -> None:
    async def plan(call: Call) -> Any:
        return goto(*(send("worker", number) for number in (1, 2, 3)))

    async def worker(call: Call) -> Any:
        if call.arg == 2:
            await asyncio.sleep(1000)
        return {"log": [call.arg]}

    async def handler(call: Call) -> Any:
        return {"log": [f"failed {call.arg['arg']}: {call.arg['reason']}"]}

    runs = GraphRuns(
        "START->plan, plan=>[worker]",
        {"plan": plan, "worker": worker, "handler": handler},
        channels=(Channel("log", reducer="append"),),
        policy=GraphPolicy(allow_unreachable=True, max_concurrency=1),
        nodes={"worker": {"error_handler": "handler", "run_timeout_us": 50_000}},
    )
    outcome = await runs.start({})
    assert (outcome.run.status, outcome.state) == (
        RunStatus.COMPLETED, {"log": [1, "failed 2: NODE_TIMEOUT", 3]},
    )  # fmt: skip


@virtual_time
async def test_undo_that_fails_holds_the_run_before_a_handler_stands_in() -> None:
    book = ToolBinding("book", {"effect": "seat", "fail": "no seat", "output": {}})
    runs = GraphRuns(
        "START->book",
        {"handler": adds(5)},
        channels=SUM,
        policy=UNREACHABLE,
        nodes={"book": {"binding": book, "error_handler": "handler"}},
    )
    runs.engine.tools.break_undo("seat", 100)
    outcome = await runs.start({"value": 0})
    assert outcome.run.error is not None
    assert (outcome.run.status, outcome.run.error.reason) == (RunStatus.FAILED, "ROLLBACK_INCOMPLETE")
    assert runs.calls == []
    runs.engine.tools.break_undo("seat", 0)
    await runs.engine.resolve_undo(1, transaction_id=TransactionId(outcome.run.transaction_id))
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 5})


def test_a_handled_error_outlives_its_server() -> None:
    @virtual_time
    async def scenario(number: int) -> bool:
        runs = GraphRuns(
            "START->bad, START->side, bad->after, side->after",
            {"bad": fails(), "handler": adds(5), "side": adds(10), "after": adds(1)},
            channels=SUM,
            policy=UNREACHABLE,
            nodes={"bad": {"error_handler": "handler"}},
        )
        runs.engine.memory.hold_write(number)
        work = asyncio.ensure_future(runs.start({"value": 0}))
        await asyncio.wait({work}, timeout=1000)
        stuck = not work.done()
        await runs.crash()
        work.cancel()
        await runs.recover()
        run = await runs.store.load_run("run-000001")
        if run is None:
            await runs.start({"value": 0})
            run = await runs.store.load_run("run-000002")
        assert run is not None
        assert run.status is RunStatus.COMPLETED, run.error
        assert (await runs.runs.stored_outcome(run)).state == {"value": 16}
        return stuck

    number = 1
    while scenario(number):
        number += 1
    assert number > 7


async def _half_booked(run: ToolRun) -> Any:
    await run.register_undo("half")
    run.cause("half")
    raise RuntimeError("the line went dead")


def _booking(**node: Any) -> GraphRuns:
    tool = ToolBinding("book", {"effect": "whole", "output": {"value": 1}})
    return GraphRuns("START->book", {}, channels=SUM, nodes={"book": {"binding": tool, **node}})


@virtual_time
async def test_what_a_node_of_a_tool_did_before_it_failed_is_undone_before_it_is_run_again() -> None:
    runs = _booking(retry=NodeRetryPolicy(2))
    tools = runs.engine.tools
    tools.next("book", _half_booked, _half_booked)
    outcome = await runs.start({"value": 0})
    assert (outcome.run.status, tools.effects) == (RunStatus.FAILED, ["half"])
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 1})
    assert tools.effects == ["whole"]


@virtual_time
async def test_a_node_whose_undo_fails_is_not_repeated_by_its_policy() -> None:
    runs = _booking(retry=NodeRetryPolicy(5))
    tools = runs.engine.tools
    tools.next("book", _half_booked)
    tools.break_undo("half")
    outcome = await runs.start({"value": 0})
    assert outcome.run.error is not None
    assert (outcome.run.status, outcome.run.error.reason) == (RunStatus.FAILED, "ROLLBACK_INCOMPLETE")
    assert (outcome.run.error.node, tools.count("book")) == ("book", 1)
    # An edit that ends the superstep would leave it behind: refused as well.
    with pytest.raises(RunRefused) as refused:
        await runs.update(StateUpdate(update={"value": 5}))
    assert refused.value.reason == "ROLLBACK_INCOMPLETE"
    tools.break_undo("half", 0)
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 1})
    assert (tools.effects, tools.count("book")) == (["whole"], 2)


@virtual_time
async def test_an_edit_beside_what_was_handled_goes_on_where_the_failed_node_leads() -> None:
    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("?")}

    runs = GraphRuns(
        "START->bad, START->ask, bad->after",
        {"bad": fails(), "ask": ask, "handler": adds(5), "after": adds(1)},
        channels=SUM,
        policy=UNREACHABLE,
        nodes={"bad": {"error_handler": "handler"}},
    )
    assert (await runs.start({"value": 0})).run.status is RunStatus.INTERRUPTED
    assert sorted(runs.next_of(await runs.update(StateUpdate(update={"value": 10})))) == ["after", "ask"]
    done = await runs.resume("t", 100)
    assert (done.run.status, done.state) == (RunStatus.COMPLETED, {"value": 116})
