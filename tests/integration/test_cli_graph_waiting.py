"""What `agenttx graph` says of runs that wait, of names that aren't there, and of what it can't do."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.support.cli_calls import CommandLine, start
from tests.support.running_server import ServerProcess, server_process

import agenttx
from agenttx import START, GraphBuilder
from agenttx.errors import InvalidArgument, PreconditionFailed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("waiting")) as running:
        yield running


@contextmanager
def command(server: ServerProcess, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command under way, which is killed after a minute at the latest: its lines can be waited for."""
    process = start(*arguments, "--address", server.address)
    limit = threading.Timer(60, process.kill)
    limit.start()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        limit.cancel()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().strip()


def asking(name: str) -> GraphBuilder:
    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.interrupt("why?")]}

    graph = GraphBuilder(name).channel("log", reducer="append").node("a", ask).node("b", ask)
    return graph.edge(START, "a").edge(START, "b")


def test_who_waits_for_a_worker_is_told_which(server: ServerProcess):
    def node(state: Any, ctx: Any) -> dict[str, Any]:
        return {"v": ctx.interrupt("v?") if state.get("v") is None else 2}

    graph = GraphBuilder("away").channel("v").node("n", node).edge(START, "n")
    with agenttx.Client(server.address) as client:
        asked = client.graphs.register(graph).run(thread="t")
    with command(server, "graph", "run", "away", "--input", '{"v": 1}') as process:
        assert line(process).startswith("run ")
        assert line(process) == "waiting for a worker hosting away/n"
        with command(server, "graph", "resume", "t", "5") as resuming:
            assert line(resuming) == f"run {asked.run_id}"
            assert line(resuming) == "waiting for a worker hosting away/n"
            with agenttx.Client(server.address) as client:
                client.graphs.register(graph)
                assert process.wait(50) == 0
                assert resuming.wait(50) == 0


def test_a_thread_or_graph_that_is_not_there_is_waited_for_and_said_so(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
):
    with command(server, "graph", "watch", "--thread", "nosuch", "--graph", "none") as process:
        assert line(process) == "There is no thread 'nosuch' yet; waiting for it."
        assert line(process) == "There is no graph 'none' yet; waiting for it."
    refused = CommandLine(server.address, capsys)("graph", "watch", "--mode", "messages")
    assert (refused.code, "nothing sends parts of texts" in refused.err) == (2, True)


def test_refusals_name_the_way_out(server: ServerProcess):
    with agenttx.Client(server.address) as client:
        asked = client.graphs.register(asking("two")).run(thread="both")
        with pytest.raises(PreconditionFailed) as ambiguous:
            client.graphs.get("two").resume("both", 1)
        for question in asked.interrupts:
            assert f"{question.interrupt_id} (of {question.node})" in ambiguous.value.message
        other = client.graphs.register(asking("other"))
        with pytest.raises(PreconditionFailed, match=r"is of graph 'two' .* name another thread"):
            other.run(thread="both")
        with pytest.raises(InvalidArgument) as broken:
            client.graphs.register(GraphBuilder("broken").node("a"))
        assert str(broken.value).count("MISSING_START") == 1


def test_how_a_run_is_kept_is_chosen_by_flags(server: ServerProcess, capsys: pytest.CaptureFixture[str]):
    agenttx_command = CommandLine(server.address, capsys)
    with agenttx.Client(server.address) as client:
        graph = client.graphs.register(asking("kept"))
        asked = agenttx_command(
            "graph", "run", "kept", "-t", "kept", "--durability", "exit", "--commit", "interrupt", "--json"
        )
        assert (asked.code, asked.json["status"]) == (0, "INTERRUPTED")
        assert [item.superstep for item in graph.history("kept")] == [1, 0], "ended early, to be committed"
        refused = agenttx_command("graph", "run", "kept", "--commit", "never")
        assert (refused.code, "COMPLETION, INTERRUPT" in refused.err) == (2, True), refused
