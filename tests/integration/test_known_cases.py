"""Storage that grows with what changes, retention, and two writers of one transaction, on real servers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import RunningServer, running_server

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.engine.records import MicrosecondsUtc

KIB = 1024


async def _begin(server: RunningServer) -> str:
    request = pb.BeginTransactionRequest(agent_id="a", request_id=uuid.uuid4().hex)
    begun = await server.stub.BeginTransaction(request)
    return str(begun.transaction_id)


async def _step(server: RunningServer, transaction_id: str, step_id: int, tool: str, **arguments: Any) -> Any:
    answer = await server.stub.ExecuteStep(
        pb.ExecuteStepRequest(
            transaction_id=transaction_id,
            step_id=step_id,
            tool_name=tool,
            arguments_json=json.dumps(arguments),
        )
    )
    assert answer.status == pb.STEP_STATUS_SUCCESS, answer
    return json.loads(answer.output_json)


def _size(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages, page = database.execute("PRAGMA page_count"), database.execute("PRAGMA page_size")
        return int(pages.fetchone()[0]) * int(page.fetchone()[0])


# --- storage ------------------------------------------------------------------------------


async def test_a_database_grows_with_what_changes_and_not_with_what_there_is(tmp_path: Path) -> None:
    async with running_server(data_dir=tmp_path) as server:
        transaction_id = await _begin(server)
        await _step(server, transaction_id, 1, "kv.put", key="constant", value="c" * 200 * KIB)
        before = _size(tmp_path / "agenttx.db")
        for number in range(1, 501):
            item = f"{number:04d}" + "x" * (KIB - 4)
            await _step(server, transaction_id, number + 1, "kv.put", key=f"list/{number:04d}", value=item)
        assert _size(tmp_path / "agenttx.db") - before < 5 * KIB * KIB
        await server.stub.Rewind(pb.RewindRequest(transaction_id=transaction_id, to_step=252))
        last = await _step(server, transaction_id, 252, "kv.get", key="list/0250")
        assert last["value"] == "0250" + "x" * (KIB - 4)
        behind = await _step(server, transaction_id, 253, "kv.get", key="list/0251", default=None)
        assert not behind["found"]
        constant = await _step(server, transaction_id, 254, "kv.get", key="constant")
        assert constant["value"] == "c" * 200 * KIB


# --- retention ----------------------------------------------------------------------------


async def _finished(server: RunningServer, count: int) -> None:
    gate = asyncio.Semaphore(32)

    async def one(number: int) -> None:
        async with gate:
            transaction_id = await _begin(server)
            await _step(server, transaction_id, 1, "kv.put", key=f"k/{number}", value="v" * 400)
            await _step(server, transaction_id, 2, "effect.stage", channel="mail", payload={"n": number})
            await server.stub.CommitTransaction(
                pb.CommitTransactionRequest(transaction_id=transaction_id, request_id="c")
            )

    await asyncio.gather(*(one(number) for number in range(count)))


async def test_what_ended_is_purged_whole_and_what_is_open_goes_on(tmp_path: Path) -> None:
    async with running_server(data_dir=tmp_path) as server:
        store = server.server.coordinator._services.store
        now = server.server.coordinator._services.clock.now
        still_open = [await _begin(server) for _ in range(10)]
        for transaction_id in still_open:
            await _step(server, transaction_id, 1, "kv.put", key=f"open/{transaction_id}", value=1)
            await _step(server, transaction_id, 2, "kv.put", key="other", value=2)
        await _finished(server, 1_000)
        full = _size(tmp_path / "agenttx.db")
        purged = 0
        while count := await store.purge_ended(MicrosecondsUtc(now() + 1), 50):
            purged += count
            # Between two batches everybody gets a turn.
            assert (await server.stub.GetState(pb.GetStateRequest(key="k/7"))).entry.version
        assert purged == 1_000
        with closing(sqlite3.connect(tmp_path / "agenttx.db")) as database:
            rows = dict(
                database.execute(
                    "SELECT 'transactions', count(*) FROM transactions UNION ALL "
                    "SELECT 'attempts', count(*) FROM attempts UNION ALL "
                    "SELECT 'effects', count(*) FROM effects UNION ALL "
                    "SELECT 'state_writes', count(*) FROM state_writes UNION ALL "
                    "SELECT 'events', count(*) FROM events UNION ALL "
                    "SELECT 'recorded_responses', count(*) FROM recorded_responses UNION ALL "
                    "SELECT 'committed_state', count(*) FROM committed_state"
                )
            )
        assert rows == {
            "transactions": 10,
            "attempts": 20,
            "effects": 0,
            "state_writes": 20,
            "events": 30,
            "recorded_responses": 10,
            "committed_state": 1_000,
        }
        for transaction_id in still_open:
            answer = await server.stub.Rewind(pb.RewindRequest(transaction_id=transaction_id, to_step=2))
            assert answer.next_step_id == 2
        await _finished(server, 1_000)  # into the pages that are free now
        # The audit trail stays, which has three entries more of each: begun, committed, purged.
        trail = 3 * 1_000 * 320
        assert _size(tmp_path / "agenttx.db") < full * 1.1 + trail


# --- two writers of one transaction ---------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_two_clients_that_run_one_transaction_make_one_chain(kind: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        if kind == "sqlite":
            one = two = await stack.enter_async_context(running_server(data_dir=tmp_path))
        else:
            database = stack.enter_context(shared_cluster().database())
            one, two = [
                await stack.enter_async_context(running_server(database_url=database, fs_adopt=True))
                for _ in range(2)
            ]
        transaction_id = await _begin(one)

        async def client(server: RunningServer, name: str) -> None:
            made, step = 0, 1
            while made < 100:
                try:
                    await _step(server, transaction_id, step, "kv.put", key=f"{name}/{made}", value=step)
                except grpc.aio.AioRpcError as refused:
                    code = refused.code()
                    if code is not grpc.StatusCode.FAILED_PRECONDITION:
                        raise
                    read = pb.GetTransactionRequest(transaction_id=transaction_id)
                    step = (await server.stub.GetTransaction(read)).next_step_id
                else:
                    made, step = made + 1, step + 1

        await asyncio.gather(client(one, "one"), client(two, "two"))
        listed = await one.stub.ListSteps(pb.ListStepsRequest(transaction_id=transaction_id, page_size=1000))
        assert [attempt.step_id for attempt in listed.attempts] == list(range(1, 201))
        committed = await two.stub.CommitTransaction(
            pb.CommitTransactionRequest(transaction_id=transaction_id)
        )
        assert (committed.steps_committed, committed.keys_published) == (200, 200)
