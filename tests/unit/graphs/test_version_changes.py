"""Threads under another version of their graph: only if that is allowed, and nothing pending breaks."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.graph_definitions import APP
from tests.support.graph_runs import Call, GraphRuns, embedding, inner, logs
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.errors import InvalidRequest
from agenttx_server.graphs.definition import Channel
from agenttx_server.graphs.runs import broken_threads
from agenttx_server.graphs.runs.broken_threads import BrokenThread, BrokenThreadPage, BrokenThreads
from agenttx_server.graphs.runs.records import RunStatus
from agenttx_server.graphs.runs.requests import ResumeRequest, RunRefused, StartRequest


async def _asks(call: Call) -> Any:
    return {"log": [call.interrupt("?")]}


async def _interrupted() -> GraphRuns:
    runs = GraphRuns("START->ask, ask->b", {"ask": _asks, "b": logs("b")}, channels=APP)
    assert (await runs.start({"log": []})).run.status is RunStatus.INTERRUPTED
    return runs


async def _refused(work: Any) -> str:
    with pytest.raises(RunRefused) as refused:
        await work
    assert refused.value.reason == "GRAPH_CHANGED"
    return refused.value.message


@virtual_time
async def test_a_run_goes_on_under_its_own_version_unless_another_is_asked_for() -> None:
    runs = await _interrupted()
    old = runs.graph.version
    runs.register("START->ask, ask->c", {"ask": _asks, "c": logs("c")}, channels=APP)
    outcome = await runs.resume("t", "x")
    assert (outcome.run.graph_version, outcome.state) == (old, {"log": ["x", "b"]})


@virtual_time
async def test_a_run_goes_on_under_another_version_where_that_is_allowed() -> None:
    runs = await _interrupted()
    runs.register("START->ask, ask->c", {"ask": _asks, "c": logs("c")}, channels=APP)
    new = runs.graph.version
    assert "allow_graph_change" in await _refused(
        runs.runs.resume(ResumeRequest("t", "x", True, version=new))
    )
    request = ResumeRequest("t", "x", True, version=new, allows_graph_change=True)
    outcome = await runs.runs.resume(request)
    assert (outcome.run.graph_version, outcome.state) == (new, {"log": ["x", "c"]})
    thread = await runs.store.load_thread("t")
    assert thread is not None
    assert thread.graph_version == new


@virtual_time
async def test_what_is_pending_must_be_there_in_the_other_version() -> None:
    runs = await _interrupted()
    runs.register("START->c", {"c": logs("c")}, channels=APP)
    request = ResumeRequest("t", "x", True, version=runs.graph.version, allows_graph_change=True)
    assert "'ask'" in await _refused(runs.runs.resume(request))
    assert len(await runs.pending()) == 1


@virtual_time
async def test_new_input_under_another_version_keeps_the_state_alone() -> None:
    runs = GraphRuns("START->a", {"a": logs("a")}, channels=APP)
    await runs.start({"log": []})
    runs.register("START->c", {"c": logs("c")}, channels=(*APP, Channel("more")))
    await _refused(runs.start({"log": ["x"]}))
    given = {"log": ["x"]}
    outcome = await runs.runs.start(StartRequest("g", "", "t", given, allows_graph_change=True))
    assert outcome.state == {"log": ["a", "x", "c"]}
    runs.register("START->c", {"c": logs("c")}, channels=(Channel("other"),))
    request = StartRequest("g", "", "t", {"other": 1}, allows_graph_change=True)
    assert "'log'" in await _refused(runs.runs.start(request))


async def _broken(runs: GraphRuns, cursor: str = "", principal: str = "") -> BrokenThreadPage:
    return await BrokenThreads(runs.store, runs).find(principal, runs.graph, cursor)


@virtual_time
async def test_threads_that_a_version_would_break_are_those_whose_change_would_be_refused() -> None:
    runs = await _interrupted()
    runs.register("START->ask, ask->c", {"ask": _asks, "c": logs("c")}, channels=APP)
    assert (await _broken(runs)).threads == []
    runs.register("START->c", {"c": logs("c")}, channels=APP)
    await runs.start({"log": []}, "done")
    page = await _broken(runs)
    request = ResumeRequest("t", "x", True, version=runs.graph.version, allows_graph_change=True)
    why = await _refused(runs.runs.resume(request))
    assert page == BrokenThreadPage([BrokenThread("t", ("ask",), why)], "")
    assert (await _broken(runs, principal="anonymous")).threads == page.threads
    assert (await _broken(runs, principal="somebody else")).threads == []
    # Not a node, but a value: the thread stands where the new version has no channel for what it holds.
    runs.register("START->ask", {"ask": _asks}, channels=(Channel("other"),))
    (held,) = (await _broken(runs)).threads
    assert (held.pending_nodes, "'log'" in held.reason) == ((), True)
    # One that was rolled back, or that has gone on to its end, is broken by nothing.
    await runs.resume("t", "x")
    assert (await _broken(runs)).threads == []


@virtual_time
async def test_threads_are_looked_at_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broken_threads, "_LOOKED_AT_ONCE", 2)
    runs = await _interrupted()
    for number in range(4):
        await runs.start({"log": []}, f"t{number}")
    runs.register("START->c", {"c": logs("c")}, channels=APP)
    found, cursor, pages = [], "", 0
    while pages == 0 or cursor:
        page = await _broken(runs, cursor)
        found += [item.thread_id for item in page.threads]
        cursor, pages = page.next_cursor, pages + 1
    assert (sorted(found), pages) == (["t", "t0", "t1", "t2", "t3"], 3)
    with pytest.raises(InvalidRequest):
        await _broken(runs, "no cursor")


@virtual_time
async def test_an_embedded_graph_under_way_must_be_the_same_in_the_other_version() -> None:
    child = inner("child", "START->ask", {"ask": _asks}, channels=APP)
    runs = GraphRuns("START->in", {}, channels=APP, nodes={"in": embedding("child")}, embeds=[child])
    assert (await runs.start({"log": []})).run.status is RunStatus.INTERRUPTED
    runs.register("START->in", {"in": logs("in")}, channels=APP)
    request = ResumeRequest("t", "x", True, version=runs.graph.version, allows_graph_change=True)
    assert "embedded graph under way" in await _refused(runs.runs.resume(request))
    assert [item.thread_id for item in (await _broken(runs)).threads] == ["t"]
    assert (await runs.resume("t", "x")).state == {"log": ["x"]}
