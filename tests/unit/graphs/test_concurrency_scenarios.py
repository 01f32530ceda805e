"""Scenarios of tasks side by side, and of a cancellation that meets a run at a certain moment. On a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.support.graph_definitions import APP, SUM, send
from tests.support.graph_runs import Call, GraphRuns, adds, embedding, goto, inner
from tests.support.virtual_time import virtual_time

from agenttx_server.graphs.definition import Channel
from agenttx_server.graphs.runs.records import RunStatus

DONE, CANCELLED = RunStatus.COMPLETED, RunStatus.CANCELLED
RUN = "run-000001"


def _dispatching(worker: Any, args: Sequence[int], channel: Channel) -> GraphRuns:
    """A node that sends a worker each of these arguments."""

    async def dispatch(call: Call) -> Any:
        return goto(*(send("worker", arg) for arg in args))

    functions = {"dispatch": dispatch, "worker": worker}
    return GraphRuns("START->dispatch, dispatch=>[worker]", functions, channels=(channel,))


@virtual_time
async def test_x27_a_task_that_ends_makes_room_for_the_next_at_once() -> None:
    spans: list[tuple[int, float, float]] = []

    async def worker(call: Call) -> Any:
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(call.arg / 1000)
        spans.append((call.arg, begun, asyncio.get_running_loop().time()))
        return {"value": 1}

    runs = _dispatching(worker, (100, 5, 5, 5), SUM[0])
    outcome = await runs.start({"value": 0}, max_concurrency=2)
    assert (outcome.run.status, outcome.state, runs.most_in_flight) == (DONE, {"value": 4}, 2)
    (long,) = [span for span in spans if span[0] == 100]
    short = [span for span in spans if span[0] == 5]
    # Were the window a batch, one alone would run beside the long one.
    assert [span[1] >= long[1] and span[2] <= long[2] for span in short] == [True] * 3


@virtual_time
async def test_x37_what_a_node_does_to_its_input_is_its_own() -> None:
    seen: list[Any] = []

    async def spoils(call: Call) -> Any:
        call.state["log"].append("spoilt")
        call.state["log"][0]["name"] = "spoilt"
        return None

    async def reads(call: Call) -> Any:
        await asyncio.sleep(0.01)
        seen.append(call.state["log"])

    runs = GraphRuns(
        "START->spoils, START->reads, spoils->after", {"spoils": spoils, "reads": reads, "after": reads},
        channels=APP,
    )  # fmt: skip
    outcome = await runs.start({"log": [{"name": "first"}]})
    assert seen == [[{"name": "first"}]] * 2
    assert outcome.state == {"log": [{"name": "first"}]}


@virtual_time
async def test_f21_sends_fold_in_their_order_whoever_is_first() -> None:
    ended: list[int] = []

    async def worker(call: Call) -> Any:
        await asyncio.sleep(call.arg * 0.01)
        ended.append(call.arg)
        return {"log": [call.arg * 10]}

    outcome = await _dispatching(worker, (3, 1, 2), APP[0]).start({"log": []})
    assert (outcome.state, ended) == ({"log": [30, 10, 20]}, [1, 2, 3])


@virtual_time
async def test_f25_a_run_cancelled_before_its_first_superstep_runs_no_node() -> None:
    runs = GraphRuns("START->a", {"a": adds(1)}, channels=SUM)
    beginning = runs.engine.memory.hold_next_write()
    under_way = asyncio.ensure_future(runs.start({"value": 0}))
    await beginning.reached()
    assert await runs.runs.cancel(RUN, "not wanted any more")
    beginning.open()
    outcome = await under_way
    assert (outcome.run.status, outcome.state, runs.calls) == (CANCELLED, {"value": 0}, [])
    assert list(outcome.next_nodes) == ["a"]
    assert (await runs.kinds(RUN))[-1] == "run.cancelled"
    assert (await runs.retry()).state == {"value": 1}


@virtual_time
async def test_f29_a_checkpoint_that_is_being_written_is_written_though_its_run_is_cancelled() -> None:
    def chain() -> GraphRuns:
        return GraphRuns("START->a, a->b", {"a": adds(1), "b": adds(2)}, channels=SUM)

    probe = chain()
    await probe.start({"value": 0})
    with_checkpoints = [
        number
        for number, write_set in enumerate(probe.engine.memory.written, 1)
        if any(rows.table == "graph_checkpoints" for rows in write_set.extra)
    ]
    runs = chain()
    boundary = runs.engine.memory.hold_write(with_checkpoints[1])
    under_way = asyncio.ensure_future(runs.start({"value": 0}))
    await boundary.reached()
    assert (await runs.sources(), runs.calls) == (["INPUT"], ["a"])
    assert await runs.runs.cancel(RUN, "enough")
    await asyncio.sleep(1)
    assert not under_way.done()
    boundary.open()
    outcome = await under_way
    assert (outcome.run.status, outcome.state, runs.calls) == (CANCELLED, {"value": 1}, ["a"])
    assert (await runs.sources(), list(outcome.next_nodes)) == (["INPUT", "LOOP"], ["b"])
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state, runs.calls) == (DONE, {"value": 3}, ["a", "b"])


@virtual_time
async def test_i25_a_question_inside_a_graph_waits_beside_a_sibling_that_has_finished() -> None:
    def says(text: str) -> Any:
        async def say(call: Call) -> Any:
            return {"text": text}

        return say

    async def asks(call: Call) -> Any:
        call.interrupt("go on?")
        return {"text": " and there"}

    text = (Channel("text", reducer="add"),)
    child = inner(
        "child", "START->first, first->second", {"first": says("got here"), "second": asks}, channels=text
    )
    runs = GraphRuns(
        "START->inner, START->outer_1, [inner, outer_1]|>outer_2",
        {"outer_1": says(" and parallel"), "outer_2": says(" and back again")},
        channels=text,
        nodes={"inner": embedding("child")},
        embeds=[child],
    )
    asked = await runs.start({"text": ""})
    assert (asked.run.status, asked.state) == (RunStatus.INTERRUPTED, {"text": " and parallel"})
    done = await runs.resume("t", "yes")
    assert (done.run.status, done.state) == (
        DONE, {"text": "got here and there and parallel and back again"},
    )  # fmt: skip
    assert (runs.calls.count("outer_1"), runs.calls.count("child.first")) == (1, 1)
