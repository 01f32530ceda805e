"""Tools start processes all the while, by fork too; the server is killed, and the next one takes its place.

What the tools left running holds neither the port nor the database's lock, and no step of anybody is lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.running_server import ServerProcess, start_process

import agenttx
from agenttx import StepStatus

SECONDS = 8
AGENTS = 10
STEPS_A_SECOND = 5
TOOLS = ("tests.support.sample_tools", "tests.support.crash_tools")


async def work_steadily(client: agenttx.AsyncClient, name: str, loads: asyncio.Event) -> int:
    """Write a key at a time, evenly; return how many."""
    written = 0
    async with client.transaction(agent_id=name) as tx:
        while not loads.is_set():
            await tx.step("kv.put", key=f"{name}-{written}", value=written)
            written += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(1 / STEPS_A_SECOND):
                    await loads.wait()
    return written


async def start_processes(client: agenttx.AsyncClient, method: str, over: asyncio.Event) -> None:
    number = 0
    while not over.is_set():
        tx = await client.transaction(agent_id=method).begin()
        if method == "program":
            outcome = await tx.try_step("sample.subprocess", text=str(number))
            assert outcome.output == {"printed": str(number)}
        else:
            outcome = await tx.try_step("sample.multiprocessing", number=number, method=method)
            # A process forked from one with threads may crash or hang, whatever the server does; then its step fails.
            assert outcome.status is StepStatus.SUCCESS or method == "fork"
        await tx.rollback()
        number += 1


async def serve(data_dir: Path, listen: str) -> ServerProcess:
    process = start_process(data_dir, listen=listen, tools=TOOLS)
    serving = await asyncio.to_thread(process.wait_for_event, "serving")
    process.address = str(serving["address"])
    return process


@pytest.mark.slow
async def test_processes_that_tools_left_hold_up_no_next_server_and_no_step_is_lost(tmp_path: Path):
    server = await serve(tmp_path, "127.0.0.1:0")
    over = asyncio.Event()
    children = []
    try:
        async with agenttx.AsyncClient(server.address) as client, asyncio.TaskGroup() as group:
            names = [f"agent-{number}" for number in range(AGENTS)]
            workers = [group.create_task(work_steadily(client, name, over)) for name in names]
            for method in ("program", "spawn", "fork"):
                group.create_task(start_processes(client, method, over))
            await asyncio.sleep(SECONDS / 2)
            async with client.transaction(agent_id="parent") as tx:
                for method in ("fork", "program"):
                    left = await tx.step("crash.leave_child", entry=method, method=method, seconds=60)
                    children.append(left["pid"])
            server.kill()
            server = await serve(tmp_path, server.address)
            for child in children:
                os.kill(child, 0)  # they live
            await asyncio.sleep(SECONDS / 2)
            over.set()
            for name, worker in zip(names, workers, strict=True):
                written = await worker
                assert written > SECONDS / 2
                entries = [entry async for entry in client.scan_state(f"{name}-", page_size=1000)]
                assert sorted(entry.value for entry in entries) == list(range(written))
    finally:
        over.set()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        if server.process.poll() is None:
            server.process.kill()
        server.wait()
