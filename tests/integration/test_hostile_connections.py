"""Connections that mean no good: others are served beside them as ever.

A thousand that say nothing, clients that send their bytes one by one or never finish a call, streams that nobody reads, and
a message that says it is a gigabyte.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from benchmarks.bad_connections import CALL, PREFACE, SETTINGS, one_gibibyte
from tests.support.running_server import server_process

from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc


def opened(address: str, count: int, stack: ExitStack) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    return [stack.enter_context(socket.create_connection((host, int(port)), 30)) for _ in range(count)]


@asynccontextmanager
async def agent(address: str) -> AsyncIterator[transaction_pb2_grpc.AgentTxServiceAsyncStub]:
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield transaction_pb2_grpc.AgentTxServiceStub(channel)  # type: ignore[misc]


async def works(address: str) -> None:
    """A new client begins, takes steps and commits; every call is answered with a success within its time."""
    async with agent(address) as stub:
        begun = await stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="well-meaning"), timeout=30)
        for step in range(1, 6):
            answer = await stub.ExecuteStep(
                pb.ExecuteStepRequest(
                    transaction_id=begun.transaction_id,
                    step_id=step,
                    tool_name="kv.put",
                    arguments_json='{"key":"a","value":1}',
                    request_id=f"{begun.transaction_id}-{step}",
                ),
                timeout=30,
            )
            assert answer.status == pb.STEP_STATUS_SUCCESS
        await stub.CommitTransaction(
            pb.CommitTransactionRequest(transaction_id=begun.transaction_id, request_id="commit"), timeout=30
        )


@pytest.mark.slow
async def test_others_are_served_beside_every_kind_of_bad_connection(tmp_path: Path) -> None:
    with server_process(tmp_path, max_concurrent_streams=600) as server, ExitStack() as stack:
        silent = opened(server.address, 1000, stack)
        await works(server.address)
        # Half a preface, and a byte of the rest now and then: a slow loris.
        slow = opened(server.address, 200, stack)
        for one in slow:
            one.sendall(PREFACE[:10])
        # Calls that are opened and never sent.
        unfinished = opened(server.address, 200, stack)
        for one in unfinished:
            one.sendall(PREFACE + SETTINGS + CALL)
        for byte in PREFACE[10:14]:
            for one in slow:
                one.sendall(bytes([byte]))
        await works(server.address)
        # A message whose length is said to be a gigabyte, with as much of it as the server takes.
        (greedy,) = opened(server.address, 1, stack)
        one_gibibyte(greedy)
        assert await answered(greedy)  # refused at once, not collected
        await works(server.address)
        async with agent(server.address) as stub:
            begun = await stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="silent"), timeout=30)
            watched = pb.WatchTransactionRequest(transaction_id=begun.transaction_id)
            streams = [stub.WatchTransaction(watched) for _ in range(500)]
            await asyncio.gather(*(stream.initial_metadata() for stream in streams[:1]))
            await works(server.address)
            for stream in streams:
                stream.cancel()
        assert memory_mib(server.process.pid) < 600
        assert len(silent) == 1000
        await works(server.address)


async def answered(connection: socket.socket) -> bool:
    """Whether the server says something of stream 1: its headers with an error, a reset, or the end of the connection."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    seen = b""
    async with asyncio.timeout(30):
        while True:
            data = await loop.sock_recv(connection, 65536)
            if not data:
                return True
            seen += data
            at = 0
            while at + 9 <= len(seen):
                length = int.from_bytes(seen[at : at + 3])
                kind, stream = seen[at + 3], int.from_bytes(seen[at + 5 : at + 9])
                if stream == 1 and kind in (1, 3):  # HEADERS, RST_STREAM
                    return True
                at += 9 + length


def memory_mib(pid: int) -> float:
    with Path(f"/proc/{pid}/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024
