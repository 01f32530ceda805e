"""Commits of many clients over one and two servers, checked for a serial order from what they saw."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import RunningServer, running_server
from tests.support.serial_order import Committed, find_anomalies

from agenttx.v1 import transaction_pb2 as pb

KEYS = [f"list-{number}" for number in range(4)]
CLIENTS = 6
TRANSACTIONS = 25


@pytest.fixture(params=["sqlite", "postgresql"])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[RunningServer]]:
    """One server on SQLite, two on PostgreSQL."""
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            yield [await stack.enter_async_context(running_server())]
            return
        database = stack.enter_context(shared_cluster().database())
        yield [
            await stack.enter_async_context(running_server(database_url=database, fs_adopt=True))
            for _ in range(2)
        ]


class _Agent:
    """One transaction that reads lists and appends to some of them."""

    def __init__(self, server: RunningServer, name: str, isolation: pb.Isolation.ValueType) -> None:
        self._stub = server.stub
        self._isolation = isolation
        self._next = 1
        self._lists: dict[str, list[int]] = {}
        self.seen = Committed(name)

    async def run(self, chance: random.Random, elements: itertools.count[int]) -> bool:
        """Run and commit; return whether it was committed."""
        begun = await self._stub.BeginTransaction(
            pb.BeginTransactionRequest(agent_id="agent", isolation=self._isolation)
        )
        self._id = begun.transaction_id
        for key in chance.sample(KEYS, chance.randint(1, 3)):
            await self._read(key)
            if chance.random() < 0.5:
                self._lists[key].append(next(elements))
                self.seen.appends.setdefault(key, []).append(self._lists[key][-1])
                await self._step("kv.put", key=key, value=self._lists[key])
            await asyncio.sleep(chance.random() * 0.005)
        try:
            await self._stub.CommitTransaction(pb.CommitTransactionRequest(transaction_id=self._id))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.ABORTED:
                raise
            return False
        return True

    async def _read(self, key: str) -> None:
        value = (await self._step("kv.get", key=key, default=[])).get("value") or []
        self.seen.reads[key] = list(value)
        self._lists[key] = list(value)

    async def _step(self, tool_name: str, **arguments: object) -> dict[str, list[int] | None]:
        answer = await self._stub.ExecuteStep(
            pb.ExecuteStepRequest(
                transaction_id=self._id,
                step_id=self._next,
                tool_name=tool_name,
                arguments_json=json.dumps(arguments),
            )
        )
        assert answer.status == pb.STEP_STATUS_SUCCESS, answer
        self._next += 1
        return dict(json.loads(answer.output_json))


async def _history(
    servers: list[RunningServer], isolation: pb.Isolation.ValueType, seed: int
) -> tuple[list[Committed], dict[str, list[int]]]:
    elements = itertools.count(1)
    committed: list[Committed] = []

    async def client(number: int) -> None:
        chance = random.Random(seed * 1000 + number)
        for turn in range(TRANSACTIONS):
            agent = _Agent(servers[number % len(servers)], f"{number}.{turn}", isolation)
            if await agent.run(chance, elements):
                committed.append(agent.seen)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    final = {}
    for key in KEYS:
        entry = (await servers[0].stub.GetState(pb.GetStateRequest(key=key))).entry
        final[key] = json.loads(entry.value_json) if entry.version else []
    return committed, final


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("isolation", [pb.ISOLATION_READ_COMMITTED, pb.ISOLATION_SERIALIZABLE])
async def test_commits_have_the_serial_order_that_their_isolation_promises(
    servers: list[RunningServer], isolation: pb.Isolation.ValueType, seed: int
) -> None:
    committed, final = await _history(servers, isolation, seed)
    assert len(committed) > CLIENTS, "hardly anything was committed"
    serializable = isolation == pb.ISOLATION_SERIALIZABLE
    assert find_anomalies(committed, final, serializable=serializable) == []
