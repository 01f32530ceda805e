"""Several processes on one port and one PostgreSQL: `agenttx serve --workers N`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import ServerProcess, server_process, start_process

from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc

TOOLS = "tests.support.sample_tools"


def _children(server: ServerProcess) -> list[int]:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return [int(child) for child in children]


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _stub(address: str) -> transaction_pb2_grpc.AgentTxServiceStub:
    options = (("grpc.use_local_subchannel_pool", 1),)
    return transaction_pb2_grpc.AgentTxServiceStub(grpc.aio.insecure_channel(address, options=options))


def _put(transaction_id: str, step_id: int) -> pb.ExecuteStepRequest:
    arguments = f'{{"key": "k", "value": {step_id}}}'
    return pb.ExecuteStepRequest(
        transaction_id=transaction_id, step_id=step_id, tool_name="kv.put", arguments_json=arguments
    )


def _get(transaction_id: str) -> pb.GetTransactionRequest:
    return pb.GetTransactionRequest(transaction_id=transaction_id)


async def _until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - another process, which tells nobody
            await asyncio.sleep(0.05)


async def test_any_worker_serves_any_transaction_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    with (
        shared_cluster().database() as database,
        server_process(
            tmp_path, database_url=database, fs_adopt=True, workers=3, tools=[TOOLS], lease_seconds=2
        ) as server,
    ):
        for _ in range(2):
            server.wait_for_event("serving")
        workers = _children(server)
        assert len(workers) == 3
        stubs = [_stub(server.address) for _ in range(12)]  # each on a connection of its own
        begun = await stubs[0].BeginTransaction(pb.BeginTransactionRequest(agent_id="many"))
        for step, stub in enumerate(stubs[1:], start=1):
            answer = await stub.ExecuteStep(_put(begun.transaction_id, step))
            assert answer.next_step_id == step + 1
        read = [await stub.GetTransaction(_get(begun.transaction_id)) for stub in stubs]
        assert {answer.next_step_id for answer in read} == {12}
        os.kill(workers[0], signal.SIGKILL)
        server.wait_for_event("worker died")
        await _until(lambda: len(_children(server)) == 3 and workers[0] not in _children(server))
        survivor = _stub(server.address)
        commit = pb.CommitTransactionRequest(transaction_id=begun.transaction_id)
        assert (await survivor.CommitTransaction(commit, wait_for_ready=True)).steps_committed == 11
        server.terminate()
        assert server.wait() == 0
        assert all(_gone(worker) for worker in workers)


async def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    with (
        shared_cluster().database() as database,
        server_process(tmp_path, database_url=database, fs_adopt=True, workers=2) as server,
    ):
        server.wait_for_event("serving")
        workers = _children(server)
        server.kill()
        await _until(lambda: all(map(_gone, workers)))


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"workers": 2}, 1, "need a PostgreSQL database"),
        (
            {"workers": 2, "database_url": "postgresql://localhost/x", "listen": "unix:/tmp/agenttx.sock"},
            1,
            "can't share a Unix socket",
        ),
        ({"workers": 2, "database_url": "postgresql://nobody@/none?host=/nowhere"}, 78, "agenttx: "),
    ],
)
def test_what_can_t_be_started_is_refused(
    tmp_path: Path, settings: dict[str, Any], code: int, words: str
) -> None:
    # (A bad setting is 2 on the command line; these processes are started below it.)
    server = start_process(tmp_path, **settings)
    assert server.wait() == code
    log = "\n".join(server.log)
    assert words in log
    assert "Traceback" not in log
