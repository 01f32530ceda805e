"""What RetryRun and ResumeRun change before the run goes on: update, goto, discarded results. On a real engine."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.graph_definitions import APP, OW, SUM
from tests.support.graph_runs import Call, GraphRuns, adds, logs
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.graphs.definition import Channel, GraphPolicy, ToolBinding
from agenttx_server.graphs.errors import GraphError
from agenttx_server.graphs.node_results import Target
from agenttx_server.graphs.runs.records import RunStatus
from agenttx_server.graphs.runs.requests import RunLimits, RunRefused

DONE, FAILED, INTERRUPTED = RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.INTERRUPTED
TEXT = (Channel("text", reducer="add"),)


def writes(channel: str, value: Any) -> Any:
    async def write(call: Call) -> Any:
        return {channel: value}

    return write


async def _asks_for_an_entry(call: Call) -> Any:
    return {"log": [call.interrupt("?")]}


def _asking() -> GraphRuns:
    return GraphRuns("START->a, b=>[END]", {"a": _asks_for_an_entry, "b": logs("b")}, channels=APP,
                     policy=GraphPolicy(allow_unreachable=True))  # fmt: skip


@virtual_time
async def test_r14_an_answer_is_applied_behind_the_update_and_beside_the_targets() -> None:
    runs = _asking()
    assert (await runs.start()).run.status is INTERRUPTED
    outcome = await runs.resume("t", "R", update={"log": ["U"]}, goto=[Target("b")])
    assert (outcome.run.status, outcome.state) == (DONE, {"log": ["U", "R", "b"]})
    assert outcome.run.total_supersteps == 1
    assert await runs.sources() == ["INPUT", "UPDATE", "LOOP"]
    kinds = await runs.kinds(outcome.run.run_id)
    resumed = kinds.index("interrupt.resumed")
    assert kinds[resumed - 3 : resumed] == ["run.started", "checkpoint.restored", "checkpoint.saved"]


@virtual_time
async def test_r14_after_a_crash_right_behind_the_answer_nothing_of_it_is_lost() -> None:
    runs = _asking()
    outcome = await runs.start()
    write = runs.store.write

    async def write_and_die(change: Any) -> None:
        await write(change)
        raise OSError("the machine is off")

    runs.store.write = write_and_die  # type: ignore[method-assign]
    with pytest.raises(OSError, match="is off"):
        await runs.resume("t", "R", update={"log": ["U"]}, goto=[Target("b", 1), Target("b", 2)])
    runs.store.write = write  # type: ignore[method-assign]
    await runs.crash()
    await runs.recover()
    assert (await runs.runs.outcome(outcome.run.run_id)).state == {"log": ["U", "R", "b", "b"]}


@virtual_time
async def test_r15_a_target_runs_beside_the_node_that_was_stopped_before() -> None:
    nodes = {"node1": writes("text", "|node-1"), "node2": writes("text", "|node-2")}
    policy = GraphPolicy(interrupt_before=("node1",))
    runs = GraphRuns("START->node1, node1->node2", nodes, channels=TEXT, policy=policy)
    await runs.start({"text": "abc"})
    outcome = await runs.retry(goto=[Target("node2")])
    assert outcome.state == {"text": "abc|node-1|node-2|node-2"}


@virtual_time
async def test_i10_an_update_beside_a_first_answer_is_kept_for_the_second() -> None:
    async def ask(call: Call) -> Any:
        return {"text": f"{call.interrupt('first')} {call.interrupt('second')}"}

    runs = GraphRuns("START->ask", {"ask": ask}, channels=TEXT)
    await runs.start({"text": "DE"})
    outcome = await runs.resume("t", "answer 1", update={"text": " foofoo "})
    assert (outcome.run.status, outcome.state) == (INTERRUPTED, {"text": "DE foofoo "})
    assert (await runs.resume("t", "answer 2")).state == {"text": "DE foofoo answer 1 answer 2"}


@virtual_time
async def test_i22_an_answer_to_a_stop_before_a_node_changes_nothing() -> None:
    nodes = {"node1": writes("text", "|node-1"), "node2": writes("text", "|node-2")}
    policy = GraphPolicy(interrupt_before=("node1",))
    runs = GraphRuns("START->node1, node1->node2", nodes, channels=TEXT, policy=policy)
    await runs.start({"text": "abc"})
    with pytest.raises(RunRefused) as refused:
        await runs.resume("t", 1, update={"text": "!"})
    assert refused.value.reason == "NOTHING_TO_RESUME"
    assert await runs.sources() == ["INPUT"]
    assert (await runs.retry()).state == {"text": "abc|node-1|node-2"}


@virtual_time
async def test_x29_of_two_results_that_dont_go_together_one_is_discarded() -> None:
    effect = ToolBinding("book", {"effect": "room", "output": {}}, {"value": "${result}"})
    runs = GraphRuns(
        "START->a, START->b, b->c",
        {"a": writes("value", 1), "c": adds(9)},
        channels=OW,
        nodes={"b": {"binding": effect}},
    )
    outcome = await runs.start({"value": 0})
    assert outcome.run.error is not None
    assert dict(outcome.run.error.metadata)["nodes"] == "a,b"
    assert runs.engine.tools.effects == ["room"]
    of_b = dict(outcome.run.error.metadata)["task_ids"].split(",")[1]
    outcome = await runs.retry(discard=[of_b])
    assert (outcome.run.status, outcome.state, runs.calls) == (DONE, {"value": 1}, ["a"])
    assert (list(outcome.visited), runs.engine.tools.effects) == (["a"], [])


@virtual_time
async def test_a_discarded_result_that_is_in_nobodys_way_is_made_again() -> None:
    given = [999, 1]

    async def a(call: Call) -> Any:
        return {"value": given.pop(0)}

    async def flaky(call: Call) -> Any:
        if given:
            raise ToolFailure("invalid_value", "not yet")
        return {"value": 10}

    runs = GraphRuns("START->a, START->flaky", {"a": a, "flaky": flaky}, channels=SUM)
    outcome = await runs.start({"value": 0})
    assert (outcome.run.status, outcome.state) == (FAILED, {"value": 999})
    task = (await runs.store.load_tasks(outcome.run.run_id, 1))[0].task_id
    outcome = await runs.retry(discard=[task], max_concurrency=1)
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 11})
    kinds = await runs.kinds(outcome.run.run_id)
    assert kinds.count("node.completed") == 3


@virtual_time
async def test_a_result_that_nothing_takes_back_is_not_discarded_and_stays() -> None:
    pay = ToolBinding("pay", {"effect": "money", "output": {}}, {"value": "${result.amount}"})
    runs = GraphRuns("START->pay", {}, channels=OW, nodes={"pay": {"binding": pay}})
    outcome = await runs.start({"value": 0})
    task = (await runs.store.load_tasks(outcome.run.run_id, 1))[0]
    assert (outcome.run.status, task.state.value) == (FAILED, "FINISHED")
    outcome = await runs.retry(discard=[task.task_id])
    assert outcome.run.error is not None
    assert (outcome.run.status, outcome.run.error.reason) == (FAILED, "IRREVERSIBLE_STEP")
    assert (await runs.store.load_tasks(outcome.run.run_id, 1))[0].state.value == "FINISHED"
    assert runs.engine.tools.effects == ["money"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"update": {"nope": 1}}, "UNKNOWN_CHANNEL"),
        ({"update": {"value": "text"}}, "TYPE_MISMATCH"),
        ({"goto": [Target("nowhere")]}, "UNKNOWN_TARGET"),
        ({"discard": ["t-none"]}, "INVALID_REQUEST"),
    ],
    ids=["channel", "type", "target", "task"],
)
def test_a_change_that_cant_be_made_is_refused_and_the_run_stays_as_it_is(
    changed: dict[str, Any], reason: str
) -> None:
    @virtual_time
    async def scenario() -> None:
        failing = [1]

        async def flaky(call: Call) -> Any:
            if failing:
                raise ToolFailure("invalid_value", "no")
            return {"value": 1}

        runs = GraphRuns("START->flaky", {"flaky": flaky}, channels=SUM)
        await runs.start({"value": 0})
        with pytest.raises(GraphError) as refused:
            await runs.retry(**changed)
        assert refused.value.reason == reason
        failing.clear()
        outcome = await runs.retry()
        assert (outcome.run.invocation, outcome.state) == (2, {"value": 1})

    scenario()


@virtual_time
async def test_new_limits_come_with_an_answer() -> None:
    runs = GraphRuns("START->a, a->b", {"a": _asks_for_an_entry, "b": logs("b")}, channels=APP)
    await runs.start()
    outcome = await runs.resume("t", "x", limits=RunLimits(recursion_limit=1))
    assert outcome.run.error is not None
    assert (outcome.run.error.reason, outcome.state) == ("RECURSION_LIMIT", {"log": ["x"]})
    assert (await runs.retry(recursion_limit=5)).state == {"log": ["x", "b"]}
