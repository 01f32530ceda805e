"""A run of each graph, in each mode of durability, killed at each of its commits, on each database.

    python -m tests.crash.graph_sweep --database postgresql
    python -m tests.crash.graph_sweep --graphs trip,waiting --durability ASYNC --commits 12

The process dies by SIGKILL before or after the COMMIT of some number; another one goes on and has to come to what an
undisturbed one came to: status, state, checkpoints, one seat booked, the journal without gaps. tests/crash/test_graph_runs.py has
some of the same in every run of the tests, and asks more of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, pairwise, product
from pathlib import Path
from typing import Any

import psycopg
from tests.support import graph_run_process
from tests.support.crash_tools import LOG_VARIABLE
from tests.support.graph_run_process import COMMIT_VARIABLE, DURABILITY_VARIABLE, GRAPHS
from tests.support.store_databases import DATABASES

from agenttx_server.failpoints import VARIABLE

_LIFE_SECONDS = 60
_MODES = ("SYNC", "ASYNC", "EXIT")
_POLICIES = ("COMPLETION", "INTERRUPT")
# Those that ask somebody; the others never begin to wait, and INTERRUPT is to them what COMPLETION is.
_ASKING = ("approval", "waiting")
_COMPARED = ("status", "state", "children", "kept", "kept_inside")
# Nodes in their order: once the later one was called, the earlier one had finished.
_CHAINS = {"trip": ("a", "b", "c"), "nested": ("a", "b", "c"), "healing": ("a", "choose")}


@dataclass(frozen=True)
class Mode:
    """What is run and how: names of a graph, a durability and a commit policy."""

    graph: str
    durability: str
    policy: str

    @property
    def is_of_use(self) -> bool:
        """Whether there is such a mode, and it is not the same as another one. Rollbacks need each boundary's checkpoint."""
        asks = self.policy == "COMPLETION" or self.graph in _ASKING
        return asks and not (self.graph == "healing" and self.durability == "EXIT")

    def __str__(self) -> str:
        return f"{self.graph} {self.durability} {self.policy}"


class World:
    """One database and the log of what really happened."""

    def __init__(self, mode: Mode, folder: Path, url: str) -> None:
        self._mode = mode
        self._folder = folder
        self._url = url
        self._errors = folder / "errors"

    def live(self, failpoint: str = "") -> tuple[int, Any]:
        """Let a process live; return its exit status (negative: the signal) and what it printed."""
        output = self._folder / "output"
        pid = os.fork()
        if pid == 0:
            self._be_server(output, failpoint)
        status = _awaited(pid)
        if status != 0:
            return status, self._errors.read_text()
        return status, json.loads(output.read_text())

    def _be_server(self, output: Path, failpoint: str) -> None:
        status = 1
        try:
            for number, path in ((1, output), (2, self._errors)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
            os.environ |= {
                VARIABLE: failpoint,
                LOG_VARIABLE: str(self._folder / "world.jsonl"),
                DURABILITY_VARIABLE: self._mode.durability,
                COMMIT_VARIABLE: self._mode.policy,
            }
            asyncio.run(graph_run_process.live(self._url, GRAPHS[self._mode.graph]()))
            sys.stdout.flush()
            status = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(status)

    def end_leases(self) -> None:
        """Where servers share the database: have the lease of the dead one run out."""
        if not self._url.startswith("sqlite"):
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute("DELETE FROM servers")

    @property
    def happened(self) -> list[tuple[str, str]]:
        """(called, node), (effect, seat), (undo, seat), in order."""
        log = self._folder / "world.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [(line["what"], line["entry"]) for line in map(json.loads, lines)]

    @property
    def seats(self) -> int:
        """How many seats are booked; undo of a booking that was only announced undoes nothing."""
        booked = 0
        for what, entry in self.happened:
            if entry == "seat":
                booked = booked + 1 if what == "effect" else max(booked - 1, 0)
        return booked


def _awaited(pid: int) -> int:
    deadline = time.monotonic() + _LIFE_SECONDS
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return 1
        time.sleep(0.005)


@contextmanager
def _world(mode: Mode, database: str) -> Iterator[World]:
    with (
        tempfile.TemporaryDirectory(prefix="agenttx-sweep-") as folder,
        DATABASES[database](Path(folder)) as url,
    ):
        yield World(mode, Path(folder), url)


def sweep(mode: Mode, database: str, most: int, say: Callable[[str], None]) -> tuple[int, int]:
    """Kill a run before and after each commit, up to ``most``; return how many died, and how many went on wrongly."""
    with _world(mode, database) as world:
        status, reference = world.live()
        if status != 0:
            say(f"{mode}: an undisturbed run ended with {status}: {reference}")
            return 0, 1
        called = Counter(world.happened)
    killed = wrong = 0
    for number in count(1):
        died = False
        for when in ("before", "after"):
            with _world(mode, database) as world:
                status, told = world.live(f"commit.{when}=kill@{number}")
                if status == 0:
                    continue
                died = True
                killed += 1
                before = Counter(world.happened)
                world.end_leases()
                again, outcome = world.live()
                found = _difference(mode, world, reference, called, before, again, outcome)
                if status != -signal.SIGKILL:
                    found.append(f"the first ended with {status}: {told}")
                if found:
                    wrong += 1
                    say(f"{mode}, killed {when} commit {number}: {'; '.join(found)}")
        if not died or number == most:
            return killed, wrong
    raise AssertionError


def _difference(
    mode: Mode,
    world: World,
    reference: Any,
    called: Counter[tuple[str, str]],
    before: Counter[tuple[str, str]],
    status: int,
    outcome: Any,
) -> list[str]:
    if status != 0:
        return [f"the next one ended with {status}: {outcome[-500:]}"]
    if "refused" in outcome:
        return [f"the next one was refused: {outcome}"]
    found = [
        f"{name} is {outcome[name]}, not {reference[name]}"
        for name in _COMPARED
        if outcome[name] != reference[name]
    ]
    if outcome["offsets"] != list(range(len(outcome["offsets"]))):
        found.append(f"the journal has the offsets {outcome['offsets']}")
    # Of what a run ends with there is one, or, where its last question is left open, none.
    if outcome["kinds"].count("run.completed") != reference["kinds"].count("run.completed"):
        found.append(f"the journal is {outcome['kinds']}")
    if world.seats != 1:
        found.append(f"{world.seats} seats are booked: {world.happened}")
    after = Counter(world.happened)
    chain = _CHAINS.get(mode.graph, ())
    # Of boundaries that are not durable nothing is known: what stands behind them is run again (decision 0030).
    for earlier, later in pairwise(chain) if mode.durability != "ASYNC" else ():
        if before["called", later] and after["called", earlier] != before["called", earlier]:
            found.append(f"{earlier} had finished and was called again")
    for (what, name), times in called.items():
        if what == "called" and not times <= after[what, name] <= times + 1:
            found.append(f"{name} was called {after[what, name]} times, not {times}")
    return found


def main() -> int:
    """Sweep as the command line says; 1 where a run went on wrongly."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.graph_sweep", description=__doc__)
    parser.add_argument("--database", choices=tuple(DATABASES), default="sqlite")
    parser.add_argument("--graphs", default=",".join(GRAPHS))
    parser.add_argument("--durability", default=",".join(_MODES))
    parser.add_argument("--policies", default=",".join(_POLICIES))
    parser.add_argument(
        "--commits", type=int, default=0, help="the last commit that is killed; 0: all of them"
    )
    chosen = parser.parse_args()
    began, killed, wrong = time.monotonic(), 0, 0
    names = (chosen.graphs.split(","), chosen.durability.split(","), chosen.policies.split(","))
    for mode in filter(lambda mode: mode.is_of_use, (Mode(*name) for name in product(*names))):
        died, failed = sweep(mode, chosen.database, chosen.commits, lambda text: print(text, flush=True))
        print(f"{mode!s:40} {died:4} kills, {failed} wrong", flush=True)
        killed, wrong = killed + died, wrong + failed
    print(f"{killed} kills, {wrong} wrong, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
