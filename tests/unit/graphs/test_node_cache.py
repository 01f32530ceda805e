"""Answers of nodes that other runs take in place of calling the node: what is kept, for whom, and for how long."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.graph_definitions import APP, OW
from tests.support.graph_runs import Call, GraphRuns, embedding, inner
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.graphs.definition import (
    CachePolicy,
    Channel,
    FailurePolicy,
    FunctionBinding,
    GraphPolicy,
    ToolBinding,
)
from agenttx_server.graphs.node_results import Target
from agenttx_server.graphs.runs.records import RunStatus, checkpoint_id
from agenttx_server.graphs.runs.requests import RunRefused, StartRequest
from agenttx_server.graphs.runs.run_rewinder import RewindRunRequest

DONE, INTERRUPTED = RunStatus.COMPLETED, RunStatus.INTERRUPTED
MINUTE = 60_000_000
CHANNELS = (Channel("city"), Channel("day"), Channel("weather"), Channel("asked"))


async def _forecast(call: Call) -> Any:
    return {"weather": f"sun in {call.state['city']}"}


def forecasting(forecast: Any = _forecast, ttl_us: int | None = MINUTE, **options: Any) -> GraphRuns:
    """Forecast by city, which is kept."""
    nodes = {"forecast": {"cache": CachePolicy(("city",), ttl_us)}}
    return GraphRuns("START->forecast", {"forecast": forecast}, channels=CHANNELS, nodes=nodes, **options)


async def _completions(runs: GraphRuns, run_id: str, node: str = "forecast") -> list[bool]:
    """Whether each completion of a node was taken from what is kept."""
    events = [item for item in await runs.events(run_id) if item.kind == "node.completed"]
    return [json.loads(item.payload).get("cached", False) for item in events if item.node == node]


@virtual_time
async def test_what_one_run_was_answered_another_takes_and_says_so() -> None:
    runs = forecasting()
    first = await runs.start({"city": "Rome", "day": 1}, "a")
    second = await runs.start({"city": "Rome", "day": 2}, "b")
    assert (second.run.status, second.state["weather"]) == (DONE, "sun in Rome")
    assert (runs.calls, list(second.visited)) == (["forecast"], ["forecast"])
    assert await _completions(runs, first.run.run_id) == [False]
    assert await _completions(runs, second.run.run_id) == [True]
    # Another value of a key channel asks anew.
    assert (await runs.start({"city": "Oslo"}, "c")).state["weather"] == "sun in Oslo"
    assert len(runs.calls) == 2


@virtual_time
async def test_an_answer_is_used_for_as_long_as_its_policy_says() -> None:
    runs = forecasting()
    await runs.start({"city": "Rome"}, "a")
    await asyncio.sleep(59.9)
    await runs.start({"city": "Rome"}, "b")
    assert len(runs.calls) == 1
    await asyncio.sleep(0.1)
    await runs.start({"city": "Rome"}, "c")
    assert len(runs.calls) == 2, "one that was taken does not begin the time anew"
    for_ever = forecasting(ttl_us=None)
    await for_ever.start({"city": "Rome"}, "a")
    await asyncio.sleep(10_000_000)
    await for_ever.start({"city": "Rome"}, "b")
    assert len(for_ever.calls) == 1


@virtual_time
async def test_others_versions_and_arguments_are_told_apart() -> None:
    runs = forecasting()
    await runs.start({"city": "Rome"}, "a")
    mine = StartRequest(runs.graph.name, "", "b", {"city": "Rome"}, principal="somebody else")
    await runs.runs.start(mine)
    assert len(runs.calls) == 2, "what one is told another may not know"
    await runs.runs.start(StartRequest(runs.graph.name, "", "c", {"city": "Rome"}, principal="somebody else"))
    assert len(runs.calls) == 2
    runs.register(
        "START->forecast, forecast->more", {"forecast": _forecast, "more": _forecast}, channels=CHANNELS
    )
    await runs.start({"city": "Rome"}, "d")
    assert runs.calls.count("forecast") == 3

    async def worker(call: Call) -> Any:
        return {"log": [call.arg]}

    sends = GraphRuns(
        "START->worker", {"worker": worker}, channels=APP,
        nodes={"worker": {"cache": CachePolicy((), None)}},
    )  # fmt: skip
    for args, called in (((1, 2), 2), ((2, 3), 3)):
        outcome = await sends.start({"log": []}, f"t{args}", goto=[Target("worker", arg) for arg in args])
        assert (outcome.state["log"], len(sends.calls)) == (list(args), called)


@virtual_time
async def test_an_answer_is_there_once_its_run_has_committed_and_not_if_it_is_rolled_back() -> None:
    async def ask(call: Call) -> Any:
        return {"asked": call.interrupt("?")}

    nodes = {"forecast": {"cache": CachePolicy(("city",), MINUTE)}}
    runs = GraphRuns(
        "START->forecast, forecast->ask", {"forecast": _forecast, "ask": ask}, channels=CHANNELS, nodes=nodes
    )
    first = await runs.start({"city": "Rome"}, "a")
    second = await runs.start({"city": "Rome"}, "b")
    assert runs.calls.count("forecast") == 2
    await runs.runs.rewinds.roll_back(first.run.run_id, "")
    await runs.start({"city": "Rome"}, "c")
    assert runs.calls.count("forecast") == 3
    # What a rewind undid is not kept: of this run the second answer alone.
    await runs.runs.rewinds.rewind(RewindRunRequest("b", checkpoint_id("b", 0)))
    await runs.retry("b")
    assert runs.calls.count("forecast") == 4
    await runs.crash()
    assert (await runs.resume("b", "yes")).run.status is DONE
    assert len(await runs.store.list_cacheable(second.run.run_id)) == 1
    await runs.start({"city": "Rome"}, "d")
    assert runs.calls.count("forecast") == 4
    # Nor what was undone with a whole transaction, though the same run begins again.
    runs.functions["forecast"] = _asking
    await runs.retry("a")
    assert (await runs.store.list_cacheable(first.run.run_id)) == []


def _stepping(tool: str, arguments: str = "{}") -> Any:
    async def steps(call: Call) -> Any:
        assert call.context is not None
        await call.context.step(tool, arguments)
        return {"weather": "sun"}

    return steps


async def _writing(call: Call) -> Any:
    assert call.context is not None
    await call.context.put("kv/weather", "1")
    return {"weather": "sun"}


async def _asking(call: Call) -> Any:
    return {"weather": call.interrupt("what is it like?")}


@pytest.mark.parametrize(
    ("forecast", "kept"),
    [
        (_stepping("lookup"), True),
        (_stepping("note", '{"put":{"kv/a":1}}'), False),
        (_stepping("book", '{"effect":"seat"}'), False),
        (_writing, False),
        (_asking, False),
    ],
    ids=["reads", "writes", "acts", "puts", "asks"],
)
def test_only_what_changed_nothing_and_asked_nobody_is_kept(forecast: Any, kept: bool) -> None:
    @virtual_time
    async def scenario() -> None:
        runs = forecasting(forecast)
        for thread in ("a", "b"):
            outcome = await runs.start({"city": "Rome"}, thread)
            if outcome.run.status is INTERRUPTED:
                outcome = await runs.resume(thread, "sun")
            assert (outcome.run.status, outcome.state["weather"]) == (DONE, "sun")
        assert await _completions(runs, outcome.run.run_id) == [kept]

    scenario()


@pytest.mark.parametrize(("tool", "called"), [("lookup", 1), ("note", 2)])
def test_a_tools_answer_is_kept_if_the_tool_reads_only(tool: str, called: int) -> None:
    @virtual_time
    async def scenario() -> None:
        binding = ToolBinding(tool, {"gives": 1, "output": {"value": 5}})
        runs = GraphRuns(
            "START->look", {}, channels=OW,
            nodes={"look": {"binding": binding, "cache": CachePolicy((), None)}},
        )  # fmt: skip
        states = [(await runs.start({"value": 0}, thread)).state for thread in ("a", "b")]
        assert states[0] == states[1]
        assert runs.engine.tools.count(tool) == called

    scenario()


@virtual_time
async def test_a_run_that_was_healed_asks_anew() -> None:
    """The answer that was wrong is kept from an earlier run: the constraint is part of what finds an answer."""

    async def choose(call: Call) -> Any:
        return {"city": "Rome" if any("city" in line for line in call.constraints or ()) else "Atlantis"}

    async def check(call: Call) -> Any:
        if call.state["day"] and call.state["city"] == "Atlantis":
            raise ToolFailure("foreign_key_violation", "city 'Atlantis' is not in cities", ("city",))

    runs = GraphRuns(
        "START->choose, choose->check",
        {"choose": choose, "check": check},
        channels=CHANNELS,
        policy=GraphPolicy(on_failure=FailurePolicy.ROLLBACK),
        nodes={
            "choose": {"binding": FunctionBinding("choose"), "cache": CachePolicy((), None)},
            "check": {"binding": FunctionBinding("check"), "reads": ("city", "day")},
        },
    )
    assert (await runs.start({"day": 0}, "a")).state["city"] == "Atlantis"
    outcome = await runs.start({"day": 1}, "b")
    assert (outcome.run.status, outcome.state["city"]) == (DONE, "Rome")
    assert runs.calls.count("choose") == 2
    assert await _completions(runs, outcome.run.run_id, "choose") == [True, False]


@virtual_time
async def test_an_answer_that_is_no_result_is_not_kept() -> None:
    async def wrong(call: Call) -> Any:
        return {"city": "x", "unknown": 1}

    runs = forecasting(wrong)
    assert (await runs.start({"city": "Rome"}, "a")).run.status is RunStatus.FAILED
    runs.functions["forecast"] = _forecast
    task = (await runs.store.load_tasks("run-000001", 1))[0]
    outcome = await runs.retry("a", discard=[task.task_id])
    assert (outcome.run.status, outcome.state["weather"]) == (DONE, "sun in Rome")


@virtual_time
async def test_a_crash_between_what_was_found_and_what_was_written_loses_nothing() -> None:
    for number in range(1, 5):
        runs = forecasting(ttl_us=None)
        await runs.start({"city": "Rome"}, "a")
        runs.engine.memory.hold_write(runs.engine.memory.write_count + number)
        work = asyncio.ensure_future(runs.start({"city": "Rome"}, "b"))
        await asyncio.wait({work}, timeout=1000)
        await runs.crash()
        work.cancel()
        await runs.recover()
        thread = await runs.store.load_thread("b")
        if thread is None:
            continue
        run = await runs.store.load_run(thread.run_id)
        assert run is not None
        assert (run.status, runs.calls) == (DONE, ["forecast"])


@virtual_time
async def test_caches_of_embedded_graphs_are_refused_by_name() -> None:
    cached = {"n": {"cache": CachePolicy((), None)}}
    child = inner("child", "START->n", {"n": _forecast}, nodes=cached, channels=CHANNELS)
    runs = GraphRuns("START->in", {}, channels=CHANNELS, nodes={"in": embedding("child")}, embeds=[child])
    with pytest.raises(RunRefused) as refused:
        await runs.start({"city": "Rome"})
    assert (refused.value.reason, "cache" in refused.value.message) == ("NOT_SUPPORTED_YET", True)


@virtual_time
async def test_an_answer_goes_with_the_thread_of_the_run_that_was_given_it() -> None:
    runs = forecasting()
    await runs.start({"city": "Rome"}, "a")
    await runs.start({"city": "Rome"}, "b")
    await runs.runs.removal.delete("b")
    await runs.start({"city": "Rome"}, "c")
    assert len(runs.calls) == 1, "the second took it, and was not given it"
    await runs.runs.removal.delete("a")
    await runs.start({"city": "Rome"}, "d")
    assert len(runs.calls) == 2
