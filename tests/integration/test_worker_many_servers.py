"""A worker of several servers that share one PostgreSQL and one port."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import server_process
from tests.support.running_worker import running_worker

import agenttx
from agenttx.worker import tool


@tool("m.echo", effects="read_only")
async def echo(value: int) -> int:
    """Return the value."""
    return value


async def test_every_server_of_one_port_gets_a_connection_also_one_that_is_replaced(tmp_path: Path) -> None:
    with (
        shared_cluster().database() as database,
        server_process(tmp_path, database_url=database, fs_adopt=True, workers=2, lease_seconds=2) as server,
    ):
        server.wait_for_event("serving")
        parent = server.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()  # noqa: ASYNC240
        async with running_worker(server.address, servers=2, tools=[echo]) as worker:
            before = set(worker.server_ids)
            for number in range(6):  # each from a connection of its own, to whichever server takes it
                async with (
                    agenttx.AsyncClient(server.address) as client,
                    client.transaction(agent_id="a") as transaction,
                ):
                    assert (await transaction.step("m.echo", value=number)).output == number
            os.kill(int(children[0]), signal.SIGKILL)
            async with asyncio.timeout(60):
                while len(set(worker.server_ids) - before) != 1 or len(worker.server_ids) != 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
