"""A server killed with SIGKILL again and again while it runs a pipeline: the next one goes on, to what an undisturbed one makes.

Where it dies is drawn by a seed: before or after the COMMIT of some batch, from the receiving of rows to the run's end, in
rows, in a rollback to a root cause, and behind a barrier. On PostgreSQL two servers live at once, and the other one takes over.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from tests.crash.databases import DATABASES
from tests.support.crash_tools import LOG_VARIABLE
from tests.support.running_server import ServerProcess, start_process

from agenttx import AgentTxError, Client, PipelineRun, RetryPolicy
from agenttx_server.failpoints import VARIABLE

PIPELINE = """
pipeline: killed
max_concurrency: 2
actions:
  - {name: check, tool: kill.keep, args: {n: "${source.n}"}}
  - {name: choose, tool: kill.choose, dependencies: [check], args: {n: "${check.n}"}}
  - {name: chunk, tool: kill.chunk, dependencies: [choose], args: {n: "${check.n}"}}
  - {name: level, tool: kill.keep, dependencies: [choose], args: {n: "${check.n}"},
     guard: {condition: "check.n != 0", on_false: skip}}
  - {name: seat, tool: kill.book, dependencies: [chunk], args: {n: "${chunk.n}"}}
  - {name: bill, tool: kill.bill, dependencies: [seat, level], on_failure: rollback,
     args: {customer: "${choose.customer}", n: "${chunk.n}"}}
  - {name: total, tool: kill.total, dependencies: [bill], reduce: {by: root}}
  - {name: sheet, tool: kill.first, dependencies: [total], granularity: FILE}
"""
ROWS = [{"n": number} for number in range(3)]
ACTIONS = ("source", "check", "choose", "chunk", "level", "seat", "bill", "total", "sheet")
SEEDS = (101, 102)
KILLS = 3
FIRST, LATER = (4, 16), (4, 48)
"""Which commit of the first life is its last, and which of a later one may be, the server's own start among them.

What is committed together differs from run to run, so that a later life may well end the run before.
"""
FIRST_OF_TWO, SECOND_OF_TWO = (12, 36), (20, 60)
"""The same on PostgreSQL, where nothing is committed together with what another one does."""

Attempt = tuple[str, int, int]


@dataclass
class World:
    """A directory with a server's data and the log of what really happened; ``url`` is of a database that servers share."""

    folder: Path
    deaths: int = 0
    url: str = ""
    servers: list[ServerProcess] = field(default_factory=list)

    def start(self, failpoint: str) -> ServerProcess:
        """Start a server that the failpoint kills, if there is one."""
        environment = {VARIABLE: failpoint, LOG_VARIABLE: str(self.folder / "world.jsonl")}
        settings: dict[str, Any] = {
            "tools": ("tests.support.pipeline_crash_tools",),
            "environment": environment,
        }
        if self.url:
            settings |= {"database_url": self.url, "lease_seconds": 2, "recovery_wait_seconds": 1}
        server = start_process(self.folder / "data", **settings)
        self.servers.append(server)
        return server

    def end(self) -> None:
        """Kill what is left."""
        for server in self.servers:
            if server.process.poll() is None:
                server.kill()
            server.wait()

    def life(self, failpoint: str = "") -> tuple[PipelineRun, dict[str, Any]] | None:
        """Let a server live until the run has ended, or the failpoint kills it: then None."""
        server = self.start(failpoint)
        try:
            if (address := _address(server)) is not None:
                once = RetryPolicy(max_attempts=1, overall_timeout_seconds=60.0)
                with Client(address, retry=once) as client:
                    try:
                        run = client.pipelines.run(PIPELINE, ROWS, request_id="once")
                    except AgentTxError:
                        pass
                    else:
                        return run, self._read(client, run)
            assert failpoint, server.log[-5:]
            assert server.wait(60) == -9, server.log[-5:]
            self.deaths += 1
            return None
        finally:
            self.end()

    def ask(self, server: ServerProcess) -> tuple[PipelineRun, dict[str, Any]] | None:
        """Have a server of several carry or follow the run to its end; None where it died meanwhile."""
        if (address := _address(server)) is None:
            return None
        deadline = time.monotonic() + 120
        with Client(address, retry=RetryPolicy(max_attempts=1, overall_timeout_seconds=60.0)) as client:
            while server.process.poll() is None:
                assert time.monotonic() < deadline, server.log[-5:]
                try:
                    # Before the lease of a dead server is over it may be refused: its rows are being received.
                    run = client.pipelines.run(PIPELINE, ROWS, request_id="once")
                    if run.status != "RUNNING":
                        return run, self._read(client, run)
                except AgentTxError:
                    time.sleep(0.1)
        return None

    def _read(self, client: Client, run: PipelineRun) -> dict[str, Any]:
        verified = client.lineage.verify(run.run_id)
        assert verified.is_sound, verified.breaches
        assert verified.rows == len(ROWS)
        records = {action: list(client.lineage.records(run.run_id, action)) for action in ACTIONS}
        return {
            action: Counter(
                json.dumps([one.content, one.unprocessed, one.is_root], sort_keys=True) for one in of
            )
            for action, of in records.items()
        }

    def lines(self) -> list[dict[str, Any]]:
        log = self.folder / "world.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def completed(self) -> set[Attempt]:
        """What has been completed and not undone, by what is durable: transaction, step, attempt."""
        url = self.url.replace("postgresql://", "postgresql+psycopg://")
        engine = create_engine(url or f"sqlite:///{self.folder / 'data' / 'agenttx.db'}")
        with engine.connect() as database:
            found = {
                (str(transaction_id), int(step_id), int(attempt))
                for transaction_id, step_id, attempt in database.exec_driver_sql(
                    "SELECT t.transaction_id, a.step_id, a.attempt FROM attempts a"
                    " JOIN transactions t ON t.number = a.transaction_number"
                    " WHERE a.state = 'COMPLETED' AND NOT EXISTS (SELECT 1 FROM rewinds r"
                    "  WHERE r.transaction_number = a.transaction_number AND r.generation = a.generation"
                    "  AND r.to_step <= a.step_id)"
                )
            }
        engine.dispose()
        return found

    def standing(self) -> Counter[str]:
        """The seats that are booked in the end; undo of one that was only announced undoes nothing."""
        seats: Counter[str] = Counter()
        for line in self.lines():
            if line["what"] in ("effect", "undo"):
                seats[line["entry"]] = max(seats[line["entry"]] + (1 if line["what"] == "effect" else -1), 0)
        return +seats


def _address(server: ServerProcess) -> str | None:
    """Where it serves; None if it was killed before, as it can be while it recovers."""
    try:
        return str(server.wait_for_event("serving")["address"])
    except AssertionError:
        return None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The records of a run that nobody disturbed."""
    world = World(tmp_path_factory.mktemp("undisturbed"))
    ended = world.life()
    assert ended is not None
    assert ended[0].status == "COMPLETED"
    return ended[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_goes_on_wherever_its_server_is_killed(
    tmp_path: Path, seed: int, undisturbed: dict[str, Any]
) -> None:
    drawn = random.Random(seed)
    world = World(tmp_path)
    ended = None
    finished: list[tuple[set[Attempt], int]] = []
    for number in range(KILLS):
        commit = drawn.randint(*(LATER if number else FIRST))
        ended = world.life(f"commit.{drawn.choice(('before', 'after'))}=kill@{commit}")
        if ended is not None:
            break
        finished.append((world.completed(), len(world.lines())))
    run, records = ended or world.life() or (None, None)
    assert run is not None
    assert world.deaths >= 1
    check(world, run, records, undisturbed, finished)


def check(
    world: World,
    run: PipelineRun,
    records: dict[str, Any],
    undisturbed: dict[str, Any],
    finished: list[tuple[set[Attempt], int]],
) -> None:
    """What must hold of a run whose servers died: ``finished`` is what was through by then, and how long the log was."""
    assert (run.status, run.rows_committed) == ("COMPLETED", len(ROWS))
    # Nothing is lost, nothing is there twice.
    assert records == undisturbed
    assert world.standing() == {f"seat {10 * n + index}": 1 for n in range(3) for index in range(3)}
    completed, lines = world.completed(), world.lines()
    assert set(Counter((transaction_id, step) for transaction_id, step, _ in completed).values()) == {1}
    # What had been completed when a server died, and was not undone since, was not called again.
    for before, length in finished:
        called = {(line["transaction"], line["step"]) for line in lines[length:] if line["what"] != "undo"}
        assert not {(transaction_id, step) for transaction_id, step, _ in before & completed} & called


@pytest.mark.parametrize("seed", SEEDS)
def test_another_server_goes_on_wherever_the_carrier_is_killed(
    tmp_path: Path, seed: int, undisturbed: dict[str, Any]
) -> None:
    """Two servers on one database are killed, the second perhaps at what it took over; a third one ends the run."""
    drawn = random.Random(seed)
    with DATABASES["postgresql"]() as database:
        world = World(tmp_path, url=database.address)
        finished: list[tuple[set[Attempt], int]] = []
        try:
            # Commits of the second one are its lease's too, until it takes over.
            servers = [
                world.start(f"commit.{drawn.choice(('before', 'after'))}=kill@{drawn.randint(*commits)}")
                for commits in (FIRST_OF_TWO, SECOND_OF_TWO)
            ]
            ended = None
            for server in servers:
                ended = ended or world.ask(server)
                if server.process.poll() is not None:
                    assert server.wait(60) == -9, server.log[-5:]
                    world.deaths += 1
                    finished.append((world.completed(), len(world.lines())))
            last = ended or world.ask(world.start(""))
            assert last is not None
            assert world.deaths >= 1
            check(world, *last, undisturbed, finished)
        finally:
            world.end()
