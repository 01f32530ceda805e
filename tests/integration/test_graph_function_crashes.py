"""A node's worker is killed, or its server's run is taken over: it starts again, and what it did is not done again."""

import asyncio
from pathlib import Path

import pytest
from tests.support.graph_server import graph_server
from tests.support.graph_worker_process import TRIP, WAITING, graph_worker
from tests.support.sample_tools import read_log
from tests.support.store_databases import DATABASES
from tests.support.worker_process import allow, until

from agenttx_server.graphs.runs.records import RunStatus


@pytest.mark.parametrize("database", DATABASES)
async def test_another_worker_goes_on_with_a_node_whose_worker_was_killed(database: str, tmp_path: Path):
    log = tmp_path / "log"
    log.touch()

    def lines(kind: str) -> list[str]:
        told = (line.split(" ") for line in read_log(log))
        return [entry for event, entry in told if event == kind]

    with DATABASES[database](tmp_path) as address:
        async with graph_server(address, launch_wait=60.0) as server:
            server.add(TRIP)
            with graph_worker(server.address) as first:
                running = asyncio.create_task(server.start("trip", {"log": str(log)}))
                await until(lambda: lines(WAITING) == ["agent"])
                first.kill()
                first.wait()
                with graph_worker(server.address):
                    await until(lambda: lines(WAITING) == ["agent", "agent"])
                    allow(log)
                    done = await running

    assert done.run.status is RunStatus.COMPLETED
    assert done.state["booked"] == ["bag", "last"]
    assert lines("effect") == ["seat", "meal", "bag"]
    assert lines("undo") == []
    assert lines("begun") == ["agent", "agent", "last"]
