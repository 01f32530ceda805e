"""A process killed with SIGKILL at every commit of a run: the next one completes it, and what finished is not run again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.crash_tools import LOG_VARIABLE
from tests.support.graph_run_process import COMMIT_VARIABLE, DURABILITY_VARIABLE
from tests.support.postgres_cluster import shared_cluster
from tests.support.store_processes import REPOSITORY

from agenttx_server.failpoints import VARIABLE

COMMITS = 12
INSIDE = (10, 12, 13, 15, 17)
"""Some of the commits of a run, 9 to 18, that are of the graph inside its node; all of them were tried."""


def life(
    folder: Path,
    failpoint: str = "",
    graph: str = "trip",
    durability: str = "SYNC",
    commit: str = "COMPLETION",
    url: str = "",
) -> subprocess.CompletedProcess[str]:
    """Let a server live, until it has done its work or the failpoint kills it."""
    environment = {
        **os.environ,
        VARIABLE: failpoint,
        LOG_VARIABLE: str(folder / "world.jsonl"),
        DURABILITY_VARIABLE: durability,
        COMMIT_VARIABLE: commit,
    }
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.support.graph_run_process",
            url or f"sqlite:///{folder / 'agenttx.db'}",
            graph,
        ],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def world(folder: Path) -> list[tuple[str, str]]:
    """What really happened, in order: (called, node), (effect, seat), (undo, seat)."""
    log = folder / "world.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(line["what"], line["entry"]) for line in map(json.loads, lines)]


def seats(happened: list[tuple[str, str]]) -> int:
    """How many seats are booked in the end; undo of a booking that was only announced undoes nothing."""
    booked = 0
    for what, entry in happened:
        if entry == "seat":
            booked = booked + 1 if what == "effect" else max(booked - 1, 0)
    return booked


def test_a_run_outlives_a_kill_at_every_commit(tmp_path: Path) -> None:
    killed = 0
    for number in range(2, COMMITS + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        first = life(folder, f"commit.after=kill@{number}")
        if first.returncode == 0:
            break
        assert first.returncode == -9, first.stderr
        killed += 1
        before = Counter(world(folder))
        second = life(folder)
        assert second.returncode == 0, second.stderr
        outcome: dict[str, Any] = json.loads(second.stdout)
        assert (outcome["status"], outcome["state"]) == ("COMPLETED", {"value": 3, "booked": "seat"}), number
        assert outcome["offsets"] == list(range(len(outcome["offsets"])))
        assert outcome["kinds"].count("run.completed") == 1
        assert seats(world(folder)) == 1, (number, world(folder))
        happened = Counter(world(folder))
        # A node behind another was called: that one had finished, and is never called again.
        for earlier, later in (("a", "b"), ("b", "c")):
            if before["called", later]:
                assert happened["called", earlier] == before["called", earlier], (number, earlier)
    assert killed >= 7


@pytest.mark.parametrize("number", [4, 6])
def test_c3_without_checkpoints_on_the_way_a_run_outlives_a_kill_all_the_same(
    tmp_path: Path, number: int
) -> None:
    first = life(tmp_path, f"commit.after=kill@{number}", durability="EXIT")
    assert first.returncode == -9, first.stdout + first.stderr
    before = Counter(world(tmp_path))
    second = life(tmp_path, durability="EXIT")
    assert second.returncode == 0, second.stderr
    outcome: dict[str, Any] = json.loads(second.stdout)
    assert (outcome["status"], outcome["state"]) == ("COMPLETED", {"value": 3, "booked": "seat"})
    assert outcome["kept"] == [3, 0], "the last boundary, and the input"
    assert outcome["offsets"] == list(range(len(outcome["offsets"])))
    assert seats(world(tmp_path)) == 1
    happened = Counter(world(tmp_path))
    for earlier, later in (("a", "b"), ("b", "c")):
        if before["called", later]:
            assert happened["called", earlier] == before["called", earlier], (number, earlier)


@pytest.mark.parametrize("number", [5, 6])
def test_c26_a_kill_before_a_boundary_is_stored_has_nothing_done_twice_outside(
    tmp_path: Path, number: int
) -> None:
    first = life(tmp_path, f"commit.before=kill@{number}", durability="ASYNC")
    assert first.returncode == -9, first.stdout + first.stderr
    second = life(tmp_path, durability="ASYNC")
    assert second.returncode == 0, second.stderr
    outcome: dict[str, Any] = json.loads(second.stdout)
    assert (outcome["status"], outcome["state"]) == ("COMPLETED", {"value": 3, "booked": "seat"})
    assert outcome["kept"] == [3, 2, 1, 0]
    assert outcome["offsets"] == list(range(len(outcome["offsets"])))
    assert outcome["kinds"].count("run.completed") == 1
    assert seats(world(tmp_path)) == 1


def test_a_graph_inside_another_outlives_a_kill_at_every_commit_of_its_own(tmp_path: Path) -> None:
    """From the commit that places it to the one that ends the node that embeds it."""
    for number in INSIDE:
        folder = tmp_path / str(number)
        folder.mkdir()
        first = life(folder, f"commit.after=kill@{number}", "nested")
        assert first.returncode == -9, (number, first.stdout, first.stderr)
        before = Counter(world(folder))
        second = life(folder, graph="nested")
        assert second.returncode == 0, second.stderr
        outcome: dict[str, Any] = json.loads(second.stdout)
        assert (outcome["status"], outcome["state"]) == ("COMPLETED", {"value": 3, "booked": "seat"}), number
        assert outcome["offsets"] == list(range(len(outcome["offsets"])))
        assert (outcome["children"], outcome["kept_inside"]) == (["COMPLETED"], [2, 1, 0]), (number, outcome)
        assert seats(world(folder)) == 1, (number, world(folder))
        happened = Counter(world(folder))
        # What is behind it was called: it had finished, and is never called again.
        for earlier, later in (("a", "b"), ("b", "c")):
            if before["called", later]:
                assert happened["called", earlier] == before["called", earlier], (number, earlier)
        if before["called", "c"]:
            assert happened["effect", "seat"] == before["effect", "seat"] == 1, number


@pytest.mark.parametrize("number", range(18, 23))
def test_a_run_that_goes_back_outlives_a_kill_at_every_commit_of_that(tmp_path: Path, number: int) -> None:
    first = life(tmp_path, f"commit.after=kill@{number}", "healing")
    assert first.returncode == -9, first.stdout + first.stderr
    second = life(tmp_path, graph="healing")
    assert second.returncode == 0, second.stderr
    outcome: dict[str, Any] = json.loads(second.stdout)
    assert (outcome["status"], outcome["state"]) == (
        "COMPLETED", {"value": 2, "booked": "seat", "customer": "anna"},
    ), outcome  # fmt: skip
    assert outcome["offsets"] == list(range(len(outcome["offsets"])))
    assert outcome["kinds"].count("rollback.decided") == 1
    assert outcome["kinds"].count("run.completed") == 1
    assert seats(world(tmp_path)) == 1
    assert Counter(world(tmp_path))["called", "a"] == 1, (
        "the run went back to the root cause, not to its start"
    )


@pytest.mark.parametrize("number", [10, 11, 12])
def test_a_run_that_commits_at_its_question_outlives_a_kill_about_that_commit(
    tmp_path: Path, number: int
) -> None:
    first = life(tmp_path, f"commit.after=kill@{number}", "approval", commit="INTERRUPT")
    assert first.returncode == -9, (first.stdout, first.stderr)
    second = life(tmp_path, graph="approval", commit="INTERRUPT")
    assert second.returncode == 0, second.stderr
    outcome: dict[str, Any] = json.loads(second.stdout)
    assert (outcome["status"], outcome["state"]) == ("COMPLETED", {"value": 3, "booked": "seat"}), number
    assert outcome["offsets"] == list(range(len(outcome["offsets"])))
    assert outcome["kinds"].count("run.interrupted") == outcome["kinds"].count("interrupt.emitted") == 1
    happened = Counter(world(tmp_path))
    assert (happened["effect", "seat"], happened["undo", "seat"], happened["called", "a"]) == (1, 0, 1)


@pytest.mark.parametrize("number", [11, 16, 19, 20, 23])
def test_questions_that_are_pending_beside_finished_nodes_outlive_a_kill(tmp_path: Path, number: int) -> None:
    """One in a node that has booked, one inside a graph, a join behind both: some of the 26 commits, all of which were tried."""
    first = life(tmp_path, f"commit.after=kill@{number}", "waiting")
    assert first.returncode == -9, (first.stdout, first.stderr)
    second = life(tmp_path, graph="waiting")
    assert second.returncode == 0, second.stderr
    outcome: dict[str, Any] = json.loads(second.stdout)
    assert (outcome["status"], outcome["state"]) == ("COMPLETED", {"value": 5, "booked": "seat"}), number
    assert outcome["offsets"] == list(range(len(outcome["offsets"])))
    asked = [outcome["kinds"].count(f"interrupt.{what}") for what in ("emitted", "resumed", "withdrawn")]
    assert (asked, outcome["kinds"].count("run.completed")) == ([2, 2, 0], 1)
    assert (outcome["children"], outcome["kept_inside"]) == (["COMPLETED"], [2, 1, 0])
    happened = Counter(world(tmp_path))
    assert [happened["called", node] for node in ("a", "c", "b")] == [1, 1, 1]
    assert seats(world(tmp_path)) == 1


@pytest.mark.parametrize(
    ("graph", "durability", "commit", "number"),
    [
        ("trip", "ASYNC", "COMPLETION", 7),
        ("approval", "ASYNC", "INTERRUPT", 13),
    ],
)
def test_another_server_goes_on_with_a_run_of_any_durability(
    tmp_path: Path, graph: str, durability: str, commit: str, number: int
) -> None:
    """Some of what ``python -m tests.crash.graph_sweep --database postgresql`` does with each mode at each commit."""
    with shared_cluster().database() as url:
        first = life(tmp_path, f"commit.before=kill@{number}", graph, durability, commit, url)
        assert first.returncode == -9, (first.stdout, first.stderr)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DELETE FROM servers")  # its lease has run out
        second = life(tmp_path, "", graph, durability, commit, url)
    assert second.returncode == 0, second.stderr
    outcome: dict[str, Any] = json.loads(second.stdout)
    assert (outcome["status"], outcome["state"]) == ("COMPLETED", {"value": 3, "booked": "seat"})
    assert outcome["offsets"] == list(range(len(outcome["offsets"])))
    assert outcome["kinds"].count("run.completed") == 1
    assert seats(world(tmp_path)) == 1
