"""A worker of several servers that share one PostgreSQL, and calls that come to one before the worker does."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import running_server, server_process
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


async def _hint_of(address: str, tool_name: str) -> tuple[str, str]:
    """What a first step of a new transaction fails with, within half a second, and its category."""
    async with agenttx.AsyncClient(address) as client, client.transaction(agent_id="a") as transaction:
        with pytest.raises(agenttx.StepFailed) as failed:
            await transaction.step(tool_name, value=1, step_timeout=0.5)
        await transaction.rollback()
    return failed.value.category, failed.value.hint


async def test_a_call_waits_at_a_server_that_its_worker_has_not_met() -> None:
    with shared_cluster().database() as database:
        async with (
            running_server(database_url=database) as first,
            running_server(database_url=database) as second,
        ):
            assert (await _hint_of(second.address, "m.echo"))[
                0
            ] == "unknown_tool"  # nobody has offered it yet
            # It dials the first one only, and each listens at an address of its own.
            async with running_worker(first.address, tools=[echo]):
                category, hint = await _hint_of(second.address, "m.echo")
                assert (category, "No worker offers 'm.echo' now" in hint) == ("connection", True)
                assert (await _hint_of(second.address, "m.ecco"))[0] == "unknown_tool"
                async with (
                    agenttx.AsyncClient(second.address) as client,
                    client.transaction(agent_id="a") as transaction,
                ):
                    step = asyncio.create_task(transaction.step("m.echo", value=7))
                    async with running_worker(second.address, tools=[echo]):
                        assert (await step).output == 7


async def test_a_call_waits_at_a_server_that_has_just_started_again(tmp_path: Path) -> None:
    async with running_server(data_dir=tmp_path) as server, running_worker(server.address, tools=[echo]):
        pass
    async with running_server(data_dir=tmp_path) as server:
        assert (await _hint_of(server.address, "m.echo"))[0] == "connection"
        assert (await _hint_of(server.address, "m.other"))[0] == "unknown_tool"
