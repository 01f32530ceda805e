"""The pages about running graphs and about time travel do what they say; what a thread refuses has a class; records fit the test helpers."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_server import ServerProcess, server_process

from agenttx import START, Client, GraphBuilder, InterruptPending, NothingToResume, RunStatus, ThreadBusy
from agenttx.testing.graphs import assert_history, assert_visited, snapshot

PAGES = Path(__file__).resolve().parents[2] / "docs" / "graphs"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("data")) as process:
        yield process


def test_the_page_does_what_it_says(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (code,) = re.findall(r"```python\n(.*?)```", (PAGES / "running.md").read_text(), re.DOTALL)
    monkeypatch.setenv("AGENTTX_ADDRESS", server.address)

    exec(code, {})

    told = capsys.readouterr().out.splitlines()
    assert told[0] == "{'question': 'how many seats?'}"
    assert told[1] == "COMPLETED {'booked': 2, 'seats': 2} ('ask', 'book')"
    assert [line[0] for line in told[2:]] == ["2", "1", "0"]


def test_the_page_about_time_travel_does_what_it_says(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (code,) = re.findall(r"```python\n(.*?)```", (PAGES / "time-travel.md").read_text(), re.DOTALL)
    monkeypatch.setenv("AGENTTX_ADDRESS", server.address)

    exec(code, {})

    said = re.findall(r"print\(.*\)  # (.*)", code)
    assert len(said) == 5
    assert capsys.readouterr().out.splitlines() == said


def test_what_a_thread_refuses_has_a_class_and_records_fit_the_test_helpers(server: ServerProcess):
    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        return {"count": ctx.interrupt("how many?")}

    builder = GraphBuilder("asking").channel("count").node("ask", ask)
    builder.node("double", lambda state: {"count": state["count"] * 2})
    with Client(server.address) as client:
        graph = client.graphs.register(builder.edge(START, "ask").edge("ask", "double"))
        asked = graph.run(thread="a")
        assert '"payload": "how many?"' in snapshot(asked)
        with pytest.raises(InterruptPending):
            graph.run({}, thread="a")
        with pytest.raises(NothingToResume):
            graph.retry("a")
        done = graph.resume("a", 4)
        assert_visited(done, ["ask", "double"])
        assert_history(list(graph.history("a")), [{"count": 8}, {"count": 4}, {"count": None}])
        with pytest.raises(NothingToResume):
            graph.resume("a", None)


def test_a_thread_at_work_is_busy_until_its_run_is_cancelled(server: ServerProcess):
    entered, leave = threading.Event(), threading.Event()

    def wait() -> dict[str, Any]:
        entered.set()
        leave.wait(60)
        return {"v": 1}

    with Client(server.address) as client:
        graph = client.graphs.register(
            GraphBuilder("waiting").channel("v").node("wait", wait).edge(START, "wait")
        )
        started = graph.start(thread="w")
        try:
            assert entered.wait(30)
            with pytest.raises(ThreadBusy):
                graph.run(thread="w")
            client.graphs.cancel(started.run_id, "not needed")
            ends_at = time.monotonic() + 60
            while client.graphs.run(started.run_id).status is not RunStatus.CANCELLED:
                assert time.monotonic() < ends_at, "not cancelled"
                time.sleep(0.05)
        finally:
            leave.set()
