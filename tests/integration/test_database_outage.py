"""PostgreSQL stops under load and comes back (case C44): what health says, and that nothing is done twice."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2
from tests.support.held_steps import Held, until, watched
from tests.support.postgres_cluster import PostgresCluster
from tests.support.running_server import server_process
from tests.support.sample_tools import read_log

import agenttx
from agenttx import RetryPolicy, StepStatus

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
TOOLS = ("tests.support.sample_tools", "tests.support.life_tools")
PATIENT = RetryPolicy(overall_timeout_seconds=180, initial_backoff_seconds=0.02, max_backoff_seconds=0.5)
AGENTS = 4
OUTAGE_SECONDS = 5.0
LEASE_SECONDS = 2.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster(durable=True) as cluster:
        yield cluster


class Load:
    """Agents that run one transaction after the other, and what came of those."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.log = str(folder / "load.log")
        self.committed: list[str] = []
        self.doubtful: list[str] = []
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(AGENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(240)
            assert not thread.is_alive()

    def _run(self, agent: int) -> None:
        with agenttx.Client(self.address, retry=PATIENT, connect_timeout=60) as client:
            round_number = 0
            while not self._stop.is_set():
                round_number += 1
                try:
                    self._once(client, f"{agent}.{round_number}")
                except agenttx.AgentTxError as error:
                    self.errors.append(f"{agent}.{round_number}: {type(error).__name__}: {error}")

    def _once(self, client: agenttx.Client, name: str) -> None:
        tx = client.transaction(agent_id="load").begin()
        try:
            tx.step("kv.put", key=f"load/{name}", value=name)
            tx.step("sample.book", log=self.log, entry=f"book-{name}")
            tx.step("sample.set", log=self.log, entry=f"set-{name}")
            tx.step("sample.send", log=self.log, entry=f"send-{name}")
        except agenttx.StepInDoubt:
            self.doubtful.append(name)
            return
        tx.commit()
        self.committed.append(name)


def test_an_outage_of_the_database_flips_readiness_alone_and_nothing_runs_twice(
    cluster: PostgresCluster, tmp_path: Path
) -> None:
    with (
        cluster.database() as database,
        server_process(
            tmp_path / "data", database_url=database, tools=TOOLS, lease_seconds=LEASE_SECONDS
        ) as server,
        watched(server.address, "readiness") as readiness,
        watched(server.address, "liveness") as liveness,
    ):
        held = {}
        for effects in ("transactional", "idempotent", "compensatable", "irreversible"):
            (tmp_path / effects).mkdir()
            held[effects] = Held(server.address, tmp_path / effects, effects)
        load = Load(server.address, tmp_path)
        until(lambda: len(load.committed) >= AGENTS)

        cluster.stop("immediate")
        until(lambda: readiness[-1] == NOT_SERVING)
        for one in held.values():
            one.gate.touch()  # the tools end while nothing can be written
        answers = {effects: one.joined() for effects, one in held.items()}
        threading.Event().wait(OUTAGE_SECONDS)  # longer than the lease, which is the point
        assert liveness == [SERVING]
        assert readiness[-1] == NOT_SERVING
        cluster.start()
        until(lambda: readiness[-1] == SERVING)

        before = len(load.committed)
        until(lambda: len(load.committed) >= before + AGENTS)
        load.stop()
        assert {type(answer) for answer in answers.values()} == {agenttx.Unavailable}
        assert (readiness[0], liveness, server.process.poll()) == (SERVING, [SERVING], None)
        with agenttx.Client(server.address, retry=PATIENT) as client:
            _check_load(client, load)
            _check_held(client, held)


def _check_load(client: agenttx.Client, load: Load) -> None:
    assert load.errors == []
    counts = collections.Counter(read_log(load.log))
    for name in load.committed:
        assert client.get_state(f"load/{name}").value == name
        assert counts[f"effect book-{name}"] - counts[f"undo book-{name}"] == 1, name
        assert counts[f"effect set-{name}"] >= 1
    for name in [*load.committed, *load.doubtful]:
        assert counts[f"effect send-{name}"] <= 1, name
    assert all(counts[f"effect send-{name}"] == 1 for name in load.committed)
    # At most the one step of each agent that was under way.
    assert len(load.doubtful) <= AGENTS


def _check_held(client: agenttx.Client, held: dict[str, Held]) -> None:
    for effects in ("transactional", "idempotent", "compensatable"):
        assert held[effects].again(client).status is StepStatus.SUCCESS
    with pytest.raises(agenttx.StepInDoubt):
        held["irreversible"].again(client)
    lines = {effects: read_log(one.log) for effects, one in held.items()}
    assert lines["irreversible"] == ["effect room"]
    assert set(lines["idempotent"]) == {"effect room"}
    assert lines["compensatable"] == ["effect room", "undo room", "effect room"]
