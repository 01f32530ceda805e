"""Sub-steps over real gRPC: tools in the server and in workers that call tools, servers and workers that are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_server import running_server, server_process
from tests.support.sample_tools import read_keys, read_log
from tests.support.worker_process import allow, until, worker_process

import agenttx
from agenttx.enumerations import AttemptState, StepResolution
from agenttx.errors import StepFailed

TOOLS = ("tests.support.node_tools:TOOLS",)


def calls_of(log: Path) -> list[Any]:
    """Two calls, a wait, and a third."""
    return [
        ["node.book", {"log": str(log), "entry": "room"}],
        ["node.pay", {"log": str(log), "entry": "money"}],
        ["node.note", {"key": "done", "value": True}],
    ]


async def history(
    client: agenttx.AsyncClient, transaction_id: str
) -> list[tuple[int, int, str, AttemptState]]:
    listed = client.list_steps(transaction_id)
    return [(item.step_id, item.sub_step, item.tool_name, item.state) async for item in listed]


async def until_made(client: agenttx.AsyncClient, transaction_id: str, count: int) -> None:
    """Wait until so many sub-steps are durable."""
    async with asyncio.timeout(30):
        while True:
            made = [
                item
                for item in await history(client, transaction_id)
                if item[1] and item[3] is AttemptState.COMPLETED
            ]
            if len(made) >= count:
                return
            await asyncio.sleep(0.02)


async def test_two_sub_steps_of_a_node_survive_a_sigkill(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        async with agenttx.AsyncClient(server.address) as client:
            tx = await client.transaction(agent_id="a").begin()
            step = asyncio.create_task(tx.step("node.run", log=str(log), calls=calls_of(log)))
            await until_made(client, tx.transaction_id, 2)
            server.kill()
            step.cancel()
            transaction_id = tx.transaction_id
    allow(log)
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        async with agenttx.AsyncClient(server.address) as client:
            tx = client.resume(transaction_id)
            async with asyncio.timeout(30):
                while (await client.get_transaction(transaction_id)).next_step_id != 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert read_log(log) == ["effect room", "effect money"]
            assert await history(client, transaction_id) == [
                (1, 0, "node.run", AttemptState.COMPLETED),
                (1, 1, "node.book", AttemptState.COMPLETED),
                (1, 2, "node.pay", AttemptState.COMPLETED),
                (1, 3, "node.note", AttemptState.COMPLETED),
            ]
            await tx.commit()
            assert (await client.get_state("done", namespace="kv")).value is True


async def test_a_call_of_a_node_that_a_sigkill_leaves_in_doubt_is_resolved_by_its_number(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    calls = [
        ["node.book", {"log": str(log), "entry": "room"}],
        ["node.pay", {"log": str(log), "entry": "money", "waits": True}],
    ]
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        async with agenttx.AsyncClient(server.address) as client:
            tx = await client.transaction(agent_id="a").begin()
            step = asyncio.create_task(tx.step("node.run", log=str(log), calls=calls))
            await until(lambda: len(read_log(log)) == 2)
            server.kill()
            step.cancel()
            transaction_id = tx.transaction_id
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        async with agenttx.AsyncClient(server.address) as client:
            found = await client.get_transaction(transaction_id)
            assert [(item.step_id, item.sub_step) for item in found.running_steps] == [(1, 0), (1, 2)]
            await client.resolve_step(
                transaction_id, 1, StepResolution.SUCCEEDED, sub_step=2, output={"paid": "by hand"}
            )
            found = await client.get_transaction(transaction_id)
            assert found.next_step_id == 2
            assert read_log(log) == ["effect room", "effect money"]


async def test_a_node_in_a_worker_that_is_killed_goes_on_in_another(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running_server(tools=TOOLS) as server, agenttx.AsyncClient(server.address) as client:
        with worker_process(server.address) as first:
            async with asyncio.timeout(30):
                while "p.node" not in {tool.name async for tool in client.tools()}:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            tx = await client.transaction(agent_id="a").begin()
            step = asyncio.create_task(tx.step("p.node", log=str(log), calls=calls_of(log)))
            await until(lambda: "waits node" in read_log(log))
            with worker_process(server.address):
                first.kill()
                allow(log)
                result = await step
    assert result.output == [{"booked": "room"}, {"paid": "money"}, {"noted": "done"}]
    assert read_log(log) == ["effect room", "effect money", "waits node", "waits node"]


async def test_a_node_in_a_worker_outlives_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        address = server.address
        with worker_process(address):
            async with agenttx.AsyncClient(address) as client:
                async with asyncio.timeout(30):
                    while "p.node" not in {tool.name async for tool in client.tools()}:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                tx = await client.transaction(agent_id="a").begin()
                step = asyncio.create_task(tx.step("p.node", log=str(log), calls=calls_of(log)))
                await until(lambda: "waits node" in read_log(log))
                server.kill()
                allow(log)
                with server_process(tmp_path / "data", tools=TOOLS, listen=address):
                    result = await step
    assert result.output[1:] == [{"paid": "money"}, {"noted": "done"}]
    assert [line for line in read_log(log) if line.startswith("effect")] == ["effect room", "effect money"]


async def test_a_failing_call_is_undone_and_raised_in_the_node(tmp_path: Path) -> None:
    log = tmp_path / "log"
    calls = [
        ["node.book", {"log": str(log), "entry": "a"}],
        ["node.book", {"log": str(log), "entry": "b", "fail": "no rooms left"}],
    ]
    async with running_server(tools=TOOLS) as server, agenttx.AsyncClient(server.address) as client:
        tx = await client.transaction(agent_id="a").begin()
        result = await tx.step("node.run", log=str(log), calls=calls, forgives=True)
        assert result.output[1].startswith("Hint: no rooms left")
        assert read_log(log) == ["effect a", "effect b", "undo b"]
        with pytest.raises(StepFailed) as failed:
            await tx.step("node.run", log=str(log), calls=calls)
        assert failed.value.hint.startswith("Hint: no rooms left")
    assert read_log(log)[3:] == ["effect a", "effect b", "undo b", "undo a", "undo a"]
    assert len(set(read_keys(log))) == 4


async def test_a_node_in_a_worker_hears_of_failures_and_lets_them_through(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running_server(tools=TOOLS) as server, agenttx.AsyncClient(server.address) as client:
        with worker_process(server.address):
            async with asyncio.timeout(30):
                while "p.node" not in {tool.name async for tool in client.tools()}:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            tx = await client.transaction(agent_id="a").begin()
            call = ["node.book", {"log": str(log), "entry": "a", "fail": "no rooms left"}]
            with pytest.raises(StepFailed) as failed:
                await tx.step("p.node", log=str(log), calls=[call])
            assert failed.value.hint.startswith("Hint: no rooms left")
            assert failed.value.decision is not None
            assert list(failed.value.decision.error_keys) == ["entry"]
    assert read_log(log) == ["effect a", "undo a"]


async def test_a_plain_function_makes_calls_too(tmp_path: Path) -> None:
    async with running_server(tools=TOOLS) as server, agenttx.AsyncClient(server.address) as client:
        tx = await client.transaction(agent_id="a").begin()
        result = await tx.step("node.run_in_thread", calls=[["node.note", {"key": "a", "value": 1}]])
        assert result.output == [{"noted": "a"}]
        assert [tool.restartable async for tool in client.tools() if tool.name == "node.run"] == [True]
