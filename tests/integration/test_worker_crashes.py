"""Workers that die, stall and come back, with a real server and real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_server import running_server, server_process
from tests.support.sample_tools import read_keys, read_log
from tests.support.worker_process import allow, until, worker_process

import agenttx
from agenttx.errors import StepFailed, StepInDoubt

SILENCE = 1.5


async def _begun(client: agenttx.AsyncClient, tool_name: str, log: Path) -> tuple[Any, asyncio.Task[Any]]:
    """Begin a step, and return when it is held in its worker."""
    await _until_offered(client, tool_name)
    tx = await client.transaction(agent_id="a").begin()
    step = asyncio.create_task(tx.step(tool_name, log=str(log), entry="x"))
    await until(lambda: read_log(log))
    return tx, step


async def _until_offered(client: agenttx.AsyncClient, tool_name: str) -> None:
    async with asyncio.timeout(30):
        while tool_name not in {tool.name async for tool in client.tools()}:  # noqa: ASYNC110 — a server is asked
            await asyncio.sleep(0.02)


async def test_a_read_whose_worker_dies_is_repeated_by_another(tmp_path):
    log = tmp_path / "log"
    async with running_server() as server, agenttx.AsyncClient(server.address) as client:
        with worker_process(server.address) as first:
            _, step = await _begun(client, "p.read", log)
            with worker_process(server.address):
                first.kill()
                await until(lambda: len(read_log(log)) == 2)
                allow(log)
                assert (await step).output == "x"


async def test_an_idempotent_step_whose_worker_dies_is_repeated_under_its_key(tmp_path):
    log = tmp_path / "log"
    async with running_server() as server, agenttx.AsyncClient(server.address) as client:
        with worker_process(server.address) as first:
            _, step = await _begun(client, "p.set", log)
            first.kill()
        allow(log)
        with worker_process(server.address):
            assert (await step).output == "x"

    assert read_log(log) == ["effect x", "effect x"]
    assert len(set(read_keys(log))) == 1


async def test_a_compensatable_step_whose_worker_dies_is_undone_by_the_next_one(tmp_path):
    log = tmp_path / "log"
    async with running_server() as server, agenttx.AsyncClient(server.address) as client:
        with worker_process(server.address) as first:
            _, step = await _begun(client, "p.book", log)
            first.kill()
        with worker_process(server.address), pytest.raises(StepFailed):
            await step

    assert read_log(log) == ["effect x", "undo x"]


async def test_undo_that_no_worker_came_for_is_held_and_runs_when_one_is_back(tmp_path):
    log = tmp_path / "log"
    async with (
        running_server(undo_timeout_seconds=1.0) as server,
        agenttx.AsyncClient(server.address) as client,
    ):
        with worker_process(server.address) as first:
            tx, step = await _begun(client, "p.book", log)
            first.kill()
        with pytest.raises(StepFailed):
            await step
        held = await client.get_transaction(tx.transaction_id)
        (failed,) = held.failed_compensations
        assert "no worker offers it now" in failed.hint
        assert read_log(log) == ["effect x"]
        with worker_process(server.address):
            await until(lambda: read_log(log) == ["effect x", "undo x"])
            async with asyncio.timeout(30):
                while (await client.get_transaction(tx.transaction_id)).status != "ACTIVE":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)


async def test_an_irreversible_step_whose_worker_dies_is_in_doubt_and_not_repeated(tmp_path):
    log = tmp_path / "log"
    async with running_server() as server, agenttx.AsyncClient(server.address) as client:
        with worker_process(server.address) as first:
            _, step = await _begun(client, "p.send", log)
            first.kill()
        allow(log)
        with worker_process(server.address), pytest.raises(StepInDoubt):
            await step

    assert read_log(log) == ["effect x"]


async def test_the_answer_of_a_worker_that_stalled_too_long_is_dropped(tmp_path):
    log = tmp_path / "log"
    async with (
        running_server(worker_silence_seconds=SILENCE) as server,
        agenttx.AsyncClient(server.address) as client,
    ):
        with worker_process(server.address) as stalled:
            tx, step = await _begun(client, "p.book", log)
            stalled.pause()
            allow(log)
            with worker_process(server.address):
                with pytest.raises(StepFailed) as failed:
                    await step
                assert read_log(log) == ["effect x", "undo x"]
                stalled.resume()
                again = await tx.step("p.book", log=str(log), entry="y")
            attempts = [attempt async for attempt in client.list_steps(tx.transaction_id)]

    assert failed.value.outcome.status == "ROLLBACK_TRIGGERED"
    assert again.output == "y"
    assert [attempt.state for attempt in attempts] == ["FAILED", "COMPLETED"]


async def test_a_tool_that_keeps_the_workers_loop_busy_does_not_make_it_silent():
    async with (
        running_server(worker_silence_seconds=SILENCE) as server,
        agenttx.AsyncClient(server.address) as client,
    ):
        with worker_process(server.address):
            await _until_offered(client, "p.hog")
            async with client.transaction(agent_id="a") as tx:
                assert (await tx.step("p.hog", seconds=2 * SILENCE)).output == "done"


async def test_two_workers_share_the_load_and_one_takes_it_all_when_the_other_dies():
    async with running_server() as server, agenttx.AsyncClient(server.address) as client:
        with worker_process(server.address) as one, worker_process(server.address) as two:
            await _until_offered(client, "p.who")
            seen: set[int] = set()

            async def ask() -> int:
                async with client.transaction(agent_id="a") as tx:
                    return (await tx.step("p.who")).output

            async with asyncio.timeout(60):
                while seen != {one.process.pid, two.process.pid}:
                    seen |= set(await asyncio.gather(*(ask() for _ in range(4))))
            one.kill()
            after = set(await asyncio.gather(*(ask() for _ in range(8))))
            assert after == {two.process.pid}
            # Not here: the server that has to answer it runs on this loop.
            assert await asyncio.to_thread(two.terminate) == 0


async def test_undo_is_run_by_a_worker_that_was_started_anew(tmp_path):
    log = tmp_path / "log"
    allow(log)
    async with running_server() as server, agenttx.AsyncClient(server.address) as client:
        with worker_process(server.address):
            await _until_offered(client, "p.book")
            tx = await client.transaction(agent_id="a").begin()
            await tx.step("p.book", log=str(log), entry="x")
        with worker_process(server.address):
            await tx.rollback()

    assert read_log(log) == ["effect x", "undo x"]
    assert len(set(read_keys(log))) == 1


async def test_a_server_that_starts_anew_waits_for_its_workers_before_it_gives_up_a_step(tmp_path):
    log = tmp_path / "log"
    allow(log)
    settings: dict[str, Any] = {"data_dir": tmp_path / "data"}
    async with running_server(**settings) as server, agenttx.AsyncClient(server.address) as client:
        with worker_process(server.address):
            await _until_offered(client, "p.set")
            tx = await client.transaction(agent_id="a").begin()
            await tx.step("p.set", log=str(log), entry="x")
    async with running_server(**settings) as server, agenttx.AsyncClient(server.address) as client:
        resumed = client.resume(tx.transaction_id)
        await resumed.refresh()
        step = asyncio.create_task(resumed.step("p.set", log=str(log), entry="y"))
        with worker_process(server.address):
            assert (await step).output == "y"


async def test_a_step_in_a_worker_survives_the_death_of_its_server(tmp_path):
    log = tmp_path / "log"
    with server_process(tmp_path / "data") as first:
        address = first.address
        with worker_process(address):
            async with agenttx.AsyncClient(address) as client:
                tx, step = await _begun(client, "p.set", log)
                first.kill()
                allow(log)
                # The worker comes back by itself, and the recorded intent, whose tool the new server has never
                # heard of, waits for it; the step that was cut off asks again and is told the result.
                with server_process(tmp_path / "data", listen=address):
                    assert (await step).output == "x"
                    attempts = [attempt async for attempt in client.list_steps(tx.transaction_id)]

    assert [attempt.state for attempt in attempts] == ["COMPLETED"]
    assert set(read_log(log)) == {"effect x"}
    assert len(set(read_keys(log))) == 1
