"""A deployment's reducers run in threads: one that is slow holds up its run alone, and one that never ends fails it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.support.graph_runs import Function, GraphRuns

from agenttx_server.graphs.definition import Channel
from agenttx_server.graphs.reducers import CustomReducer, ReducerRegistry
from agenttx_server.graphs.runs import folding
from agenttx_server.graphs.runs.records import RunStatus

SECONDS = 20.0


class Slow:
    """A reducer that stands until it is let go; the later value stays."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.called = threading.Event()

    def __call__(self, current: Any, update: Any) -> Any:
        self.called.set()
        assert self.let_go.wait(SECONDS)
        return update


def writes(value: Any) -> Function:
    async def node(call: Any) -> Any:
        return {"best": value}

    return node


def graph_of(slow: Slow, **functions: Function) -> GraphRuns:
    return GraphRuns(
        "START->a, a->b",
        {"a": writes(1), "b": writes(2)} | functions,
        channels=(Channel("best", reducer="slow"),),
        reducers=ReducerRegistry((CustomReducer("slow", "1", slow),)),
    )


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, SECONDS)


async def test_other_work_goes_on_while_a_reducer_stands_still() -> None:
    slow = Slow()
    runs = graph_of(slow)
    try:
        # On the loop itself this would not return: nobody could let the reducer go.
        work = asyncio.ensure_future(runs.start({"best": 0}))
        await until(slow.called)
        assert not work.done()
        assert await runs.engine.begin()
        assert (await runs.checkpoints())[-1].superstep == 0
    finally:
        slow.let_go.set()
    async with asyncio.timeout(SECONDS):
        outcome = await work
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"best": 2})


async def test_one_that_does_not_end_fails_the_run_which_can_be_gone_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(folding, "LONGEST_SECONDS", 0.05)
    slow = Slow()
    runs = graph_of(slow)
    try:
        async with asyncio.timeout(SECONDS):
            failed = await runs.start({"best": 0})
            assert failed.run.status is RunStatus.FAILED
            assert failed.run.error is not None
            assert (failed.run.error.reason, failed.state) == ("REDUCER_FAILED", {"best": 0})
            assert "the reducers of best took longer than 0.05 s" in failed.run.error.message
    finally:
        slow.let_go.set()
    monkeypatch.undo()
    async with asyncio.timeout(SECONDS):
        outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"best": 2})
    assert runs.calls == ["a", "b"]


async def test_x32_one_that_raises_fails_the_run_with_the_value_kept_and_a_way_on() -> None:
    given = iter((999, 5))

    async def node(call: Any) -> Any:
        return {"best": next(given)}

    def fragile(current: Any, update: Any) -> Any:
        if update == 999:
            raise ValueError("no 999")
        return current + update

    runs = GraphRuns(
        "START->a",
        {"a": node},
        channels=(Channel("best", reducer="fragile"),),
        reducers=ReducerRegistry((CustomReducer("fragile", "1", fragile),)),
    )
    failed = await runs.start({"best": 1})
    assert failed.run.status is RunStatus.FAILED
    assert failed.run.error is not None
    assert (failed.run.error.reason, failed.state) == ("REDUCER_FAILED", {"best": 1})
    assert (await runs.kinds(failed.run.run_id))[-1] == "run.failed"
    (task,) = await runs.store.load_tasks(failed.run.run_id, 1)
    outcome = await runs.retry(discard=[task.task_id])
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"best": 6})
