"""The SDK where several servers share a database: what one of them leaves unanswered another one answers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.client_kinds import Connect, connect
from tests.support.held_steps import Held
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import ServerProcess, server_process
from tests.support.sample_tools import read_keys, read_log

import agenttx
from agenttx import CommitConflict, OnConflict, Policy, RetryPolicy

__all__ = ["connect"]

PATIENT = RetryPolicy(overall_timeout_seconds=120, initial_backoff_seconds=0.02, max_backoff_seconds=0.5)
TOOLS = ("tests.support.life_tools", "tests.support.sample_tools")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two processes on one port."""
    with (
        shared_cluster().database() as database,
        server_process(
            tmp_path_factory.mktemp("data"),
            database_url=database,
            workers=2,
            tools=TOOLS,
            lease_seconds=2,
            drain_timeout_seconds=1,
        ) as server,
    ):
        server.wait_for_event("serving")
        yield server
        server.terminate()  # killed, it would leave its workers to find that out
        server.wait()


@pytest.mark.parametrize(
    ("effects", "lines"),
    [
        ("read_only", ["effect", "effect"]),
        ("idempotent", ["effect", "effect"]),
        ("compensatable", ["effect", "undo", "effect"]),
    ],
)
def test_a_call_whose_server_dies_is_answered_by_another_one_by_the_sdks_own_retry(
    servers: ServerProcess, tmp_path: Path, effects: str, lines: list[str]
) -> None:
    held = Held(servers.address, tmp_path, effects, PATIENT)
    died = held.process_id
    os.kill(died, signal.SIGKILL)
    held.gate.touch()
    assert held.joined().output == {"entry": "room"}
    assert held.process_id != died
    assert read_log(held.log) == [f"{line} room" for line in lines]
    if effects != "read_only":  # one has no key
        first, *_, last = read_keys(held.log)
        assert (first == last) is (effects == "idempotent")


def test_a_step_that_can_not_be_repeated_is_in_doubt_at_the_next_server(
    servers: ServerProcess, tmp_path: Path
) -> None:
    held = Held(servers.address, tmp_path, "irreversible", PATIENT)
    os.kill(held.process_id, signal.SIGKILL)
    doubt = held.joined()
    assert isinstance(doubt, agenttx.StepInDoubt)
    with agenttx.Client(servers.address, retry=PATIENT) as client:
        resumed = client.resume(held.transaction_id)
        resumed.resolve_step(doubt.step_id, "SUCCEEDED", output="sent")
        assert resumed.next_step_id == 2
        resumed.commit()
    assert read_log(held.log) == ["effect room"]


def test_a_step_is_stopped_through_whichever_server_the_call_comes_to(
    servers: ServerProcess, tmp_path: Path
) -> None:
    held = Held(servers.address, tmp_path, "compensatable", PATIENT)
    with agenttx.Client(servers.address, retry=PATIENT) as client:
        assert client.cancel_step(held.transaction_id, 1, reason="enough").state == "FAILED"
        assert isinstance(held.joined(), agenttx.StepRolledBack)
        client.resume(held.transaction_id).rollback()
    assert read_log(held.log) == ["effect room", "undo room"]


def test_a_conflict_between_servers_goes_back_and_on(
    servers: ServerProcess, connect: Connect, tmp_path: Path
) -> None:
    client = connect(servers.address, retry=PATIENT)
    losing = client.transaction(agent_id="a", policy=Policy(on_conflict=OnConflict.REWIND)).begin()
    key = f"shared/{losing.transaction_id}"
    losing.step("sample.inc", key=key)
    for _ in range(4):
        with (
            agenttx.Client(servers.address, retry=PATIENT) as rival,
            rival.transaction(agent_id="b") as other,
        ):
            other.step("sample.inc", key=key, by=10)
    with pytest.raises(CommitConflict) as conflict:
        losing.commit()
    assert (conflict.value.next_step_id, losing.next_step_id) == (1, 1)
    assert losing.step("sample.inc", key=key)["number"] == 41
    losing.commit()
