"""A server killed at every write of a run: another goes on at the last boundary, and nothing finished runs twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.support.graph_definitions import SUM
from tests.support.graph_runs import Call, GraphRuns, adds
from tests.support.virtual_time import virtual_time

from agenttx_server.graphs.definition import ToolBinding
from agenttx_server.graphs.runs.records import RunStatus, TaskState

WRITES = 12
"""At least as many as the run makes: those beyond are runs without a crash."""


def booking() -> GraphRuns:
    tool = ToolBinding("book", {"effect": "seat", "output": {"value": 10}})
    return GraphRuns(
        "START->a, START->book, a->b, book->b, b->c",
        {"a": adds(1), "b": adds(2), "c": adds(4)},
        channels=SUM,
        nodes={"book": {"binding": tool}},
    )


async def _until_stuck(runs: GraphRuns, work: asyncio.Task[Any]) -> bool:
    """Let it run; whether it is stuck at the write that the test holds."""
    await asyncio.wait({work}, timeout=1000)
    return not work.done()


async def _finished_nodes(runs: GraphRuns) -> list[str]:
    tasks = [task for number in range(1, 5) for task in await runs.store.load_tasks("run-000001", number)]
    return [task.node for task in tasks if task.state in (TaskState.FINISHED, TaskState.FOLDED)]


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("number", range(1, WRITES + 1))
def test_a_run_goes_on_wherever_its_server_was_killed(number: int, behind: bool) -> None:
    @virtual_time
    async def scenario() -> None:
        runs = booking()
        if behind:

            def kill(made: int, write_set: Any) -> None:
                if made == number:
                    runs.engine.memory.kill()

            runs.engine.memory._on_write = kill
        else:
            runs.engine.memory.hold_write(number)
        work = asyncio.ensure_future(runs.start({"value": 0}))
        stuck = await _until_stuck(runs, work)
        finished = await _finished_nodes(runs)
        called = Counter(runs.calls)
        await runs.crash()
        work.cancel()
        await runs.recover()

        run = await runs.store.load_run("run-000001")
        if run is None:
            assert (number, behind) == (1, False), "only a start that was never durable is lost"
            await runs.start({"value": 0})
            run = await runs.store.load_run("run-000002")
        assert run is not None
        assert run.status is RunStatus.COMPLETED, run.error
        outcome = await runs.runs.stored_outcome(run)
        assert outcome.state == {"value": 17}
        assert runs.engine.tools.effects == ["seat"]
        again = Counter(runs.calls) - called
        assert [node for node in finished if again[node]] == [], "finished work was run again"
        events = await runs.events(run.run_id)
        assert [event.offset for event in events] == list(range(len(events)))
        assert [event.kind for event in events].count("run.completed") == 1
        assert [event.kind for event in events].count("superstep.completed") == 3
        if not stuck:
            assert number > 6, "the run makes more writes than that"

    scenario()


@virtual_time
async def test_a_run_without_a_thread_is_rolled_back_with_its_server() -> None:
    async def hangs(call: Call) -> Any:
        await asyncio.sleep(20)

    tool = ToolBinding("book", {"effect": "seat", "output": {}})
    runs = GraphRuns("START->book, book->b", {"b": hangs}, nodes={"book": {"binding": tool}})
    work = asyncio.ensure_future(runs.start(thread=""))
    await asyncio.sleep(1)
    assert runs.engine.tools.effects == ["seat"]
    await runs.crash()
    work.cancel()
    await runs.recover()
    run = await runs.store.load_run("run-000001")
    assert run is not None
    assert (run.status, run.transaction_id) == (RunStatus.FAILED, "")
    assert runs.engine.tools.effects == []


@virtual_time
async def test_answers_that_were_given_outlive_the_server() -> None:
    async def ask(call: Call) -> Any:
        answer = call.interrupt("?")
        await asyncio.sleep(10)
        return {"value": answer}

    runs = GraphRuns("START->ask", {"ask": ask}, channels=SUM)
    await runs.start({"value": 1})
    work = asyncio.ensure_future(runs.resume("t", 5))
    await asyncio.sleep(1)
    await runs.crash()
    work.cancel()
    await runs.recover()
    run = await runs.store.load_run("run-000001")
    assert run is not None
    assert run.status is RunStatus.COMPLETED
    assert (await runs.runs.stored_outcome(run)).state == {"value": 6}


@virtual_time
async def test_who_waits_over_a_crash_is_told_all_nodes_of_the_invocation() -> None:
    async def slow(call: Call) -> Any:
        await asyncio.sleep(10)
        return {"value": 2}

    runs = GraphRuns("START->a, a->slow", {"a": adds(1), "slow": slow}, channels=SUM)
    work = asyncio.ensure_future(runs.start({"value": 0}))
    await asyncio.sleep(5)
    await runs.crash()
    work.cancel()
    await runs.engine.coordinator.start()
    await runs.runs.recover(runs.engine.clock.now())
    async with asyncio.timeout(100):
        outcome = await runs.runs.wait_for("run-000001")
    assert list(outcome.visited) == ["a", "slow"]
