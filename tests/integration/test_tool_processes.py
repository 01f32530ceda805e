"""Tools that start processes, by fork too, while other steps run: nothing hangs and no step is lost."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.running_server import server_process

import agenttx
from agenttx import HealthStatus, StepStatus

ROUNDS = 6


def write_all_the_time(client: agenttx.Client, name: str, stop: threading.Event) -> int:
    """Write one key after the other in one transaction; return how many."""
    written = 0
    with client.transaction(agent_id=name) as tx:
        while not stop.is_set():
            tx.step("kv.put", key=f"{name}-{written}", value=written)
            written += 1
    return written


def start_programs(client: agenttx.Client) -> None:
    with client.transaction(agent_id="programs") as tx:
        for number in range(ROUNDS):
            assert tx.step("sample.subprocess", text=f"{number}").output == {"printed": f"{number}"}


def spawn_processes(client: agenttx.Client) -> None:
    with client.transaction(agent_id="spawn") as tx:
        for number in range(ROUNDS):
            out = tx.step("sample.multiprocessing", number=number, method="spawn").output
            assert out == {"square": number * number}


def fork_processes(client: agenttx.Client) -> None:
    """A process forked from one with threads may crash or hang, whatever the server does; then its step fails."""
    for number in range(4 * ROUNDS):
        tx = client.transaction(agent_id="fork").begin()
        outcome = tx.try_step("sample.multiprocessing", number=number, method="fork")
        if outcome.status is StepStatus.SUCCESS:
            assert outcome.output == {"square": number * number}
        else:
            assert "the forked process ended with" in outcome.hint
        tx.rollback()


@pytest.mark.slow
def test_processes_started_by_tools_disturb_nobody(tmp_path: Path):
    stop = threading.Event()
    with (
        server_process(tmp_path, tools="tests.support.sample_tools") as server,
        agenttx.Client(server.address) as client,
        ThreadPoolExecutor() as threads,
    ):
        writers = [threads.submit(write_all_the_time, client, f"writer{number}", stop) for number in range(2)]
        starters = [
            threads.submit(start, client)
            for start in (start_programs, spawn_processes, fork_processes, fork_processes)
        ]
        try:
            for starter in starters:
                starter.result(300)
        finally:
            stop.set()
        for number, writer in enumerate(writers):
            written = writer.result(60)
            assert written > 0
            assert client.get_state(f"writer{number}-{written - 1}").value == written - 1
        assert client.health() is HealthStatus.SERVING
