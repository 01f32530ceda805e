"""The engine over the store on SQLite: what it relies on holds there too."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.engine_harness import call, sqlite_engine
from tests.support.memory_store import Gate
from tests.support.scripted_tools import hang, obey
from tests.support.virtual_time import idle, virtual_time

from agenttx_server.engine.errors import CommitConflict, PreconditionFailed
from agenttx_server.engine.records import TransactionId, TransactionStatus
from agenttx_server.engine.requests import BeginRequest, StepStatus


@virtual_time
async def test_many_transactions_side_by_side(tmp_path: Path) -> None:
    async with sqlite_engine(tmp_path) as engine:

        async def agent(number: int) -> None:
            begun = await engine.coordinator.begin(BeginRequest("agent", request_id=f"b{number}"))
            mine = begun.transaction_id
            own = f"kv/{number}"
            for step in range(1, 5):
                await engine.step(
                    step, "note", {"put": {own: step}, "stage": [["mail", number]]}, transaction_id=mine
                )
            await engine.group(
                5,
                call("book", {"effect": f"a{number}"}),
                call("note", {"get": [own], "output": {"n": number}}),
                transaction_id=mine,
            )
            failed = await engine.step(7, "note", {"fail": "no"}, transaction_id=mine)
            assert failed.next_step_id == 5
            await engine.rewind(3, transaction_id=mine)
            await engine.step(3, "book", {"effect": f"b{number}", "put": {own: "done"}}, transaction_id=mine)
            await engine.assert_memory_equals_store(mine)
            answer = await engine.commit(f"c{number}", transaction_id=mine)
            assert (answer.steps_committed, answer.effects_dispatched) == (3, 2)

        await asyncio.gather(*(agent(number) for number in range(24)))
        assert engine.tools.effects == sorted(f"b{number}" for number in range(24))
        assert [await engine.committed(f"kv/{number}") for number in range(24)] == ["done"] * 24


@virtual_time
async def test_of_many_that_write_one_key_over_one_base_one_commits(tmp_path: Path) -> None:
    async with sqlite_engine(tmp_path) as engine:
        transactions = [await engine.begin() for _ in range(8)]
        for mine in transactions:
            await engine.step(1, "note", {"get": ["kv/a"], "put": {"kv/a": mine}}, transaction_id=mine)
        results = await asyncio.gather(
            *(engine.commit("c", transaction_id=mine) for mine in transactions), return_exceptions=True
        )
        assert sum(isinstance(result, CommitConflict) for result in results) == 7
        winner = next(
            mine
            for mine, result in zip(transactions, results, strict=True)
            if not isinstance(result, CommitConflict)
        )
        assert await engine.committed("kv/a") == winner
        for mine, result in zip(transactions, results, strict=True):
            if isinstance(result, CommitConflict):
                assert (await engine.record(mine)).status is TransactionStatus.FAILED
                with pytest.raises(CommitConflict):
                    await engine.commit("c", transaction_id=mine)
            else:
                assert await engine.commit("c", transaction_id=mine) == result


@virtual_time
async def test_a_reopened_database_goes_on_with_everything(tmp_path: Path) -> None:
    # Given a held rewind, an open group, a step in doubt and a finished commit.
    async with sqlite_engine(tmp_path) as engine:
        held = await engine.begin()
        first = await engine.step(1, "book", {"effect": "a"}, "r1")
        await engine.step(2, "book", {"effect": "b"}, "r2")
        engine.tools.break_undo("a")
        assert (await engine.rewind(1, request_id="w")).rollback_incomplete

        grouped = await engine.begin()
        gate = Gate()
        engine.tools.next("lookup", hang(gate))
        calls = (call("book", {"effect": "g"}, "g1"), call("lookup", None, "g2"))
        running = asyncio.ensure_future(engine.group(1, *calls))
        await gate.reached()
        await idle()

        doubtful = await engine.begin()
        engine.tools.next("pay", hang(Gate(), first=obey))
        doubt = await engine.step(1, "pay", {"effect": "money"}, "p", timeout=0.5)
        assert doubt.status is StepStatus.IN_DOUBT

        done = await engine.begin()
        await engine.step(1, "note", {"put": {"kv/a": 1}, "stage": [["mail", 1]]}, "d1")
        committed = await engine.commit("c")
        await engine.crash()
        assert running.cancelled()
        world, last_id = dict(engine.tools.world), engine.ids

    # When the database is opened again by another server.
    async with sqlite_engine(tmp_path) as engine:
        engine.tools.world.update(world)
        engine.ids = last_id
        engine.restart()
        engine.transaction_id = TransactionId(held)
        # Then all of it goes on where it was.
        assert await engine.step(1, "book", {"effect": "a"}, "r1") == replace(first, replayed=True)
        assert (await engine.rewind(1, request_id="w")).rollback_incomplete
        assert not (await engine.rewind(1, request_id="w2")).rollback_incomplete
        assert not (await engine.rewind(1, request_id="w")).rollback_incomplete
        assert engine.tools.undo_order == ["a"]
        await engine.assert_memory_equals_store()

        engine.transaction_id = TransactionId(grouped)
        answers = await engine.group(1, *calls)
        assert [answer.status for answer in answers] == [StepStatus.SUCCESS] * 2
        assert engine.tools.count("book") == 0
        await engine.assert_memory_equals_store()

        engine.transaction_id = TransactionId(doubtful)
        again = await engine.step(1, "pay", {"effect": "money"}, "p", timeout=0.5)
        assert again == replace(doubt, replayed=True)
        with pytest.raises(PreconditionFailed) as refused:
            await engine.commit()
        assert refused.value.reason == "STEP_IN_DOUBT"
        await engine.assert_memory_equals_store()

        engine.transaction_id = TransactionId(done)
        assert await engine.commit("c") == committed
        assert await engine.committed("kv/a") == 1
        assert engine.sink.tried == []


@virtual_time
async def test_begins_in_flight_under_one_id_open_one_transaction(tmp_path: Path) -> None:
    async with sqlite_engine(tmp_path) as engine:
        answers = await asyncio.gather(
            *(engine.coordinator.begin(BeginRequest("agent", request_id="b")) for _ in range(6))
        )
        assert len({answer.transaction_id for answer in answers}) == 1


@virtual_time
async def test_a_large_transaction_is_rebuilt_as_it_was(tmp_path: Path) -> None:
    async with sqlite_engine(tmp_path) as engine:
        await engine.begin()
        step = 1
        while step < 150:
            arguments = {"user_id": f"${{steps.{step - 1}.id}}"} if step > 1 else {}
            answer = await engine.step(step, "note", {**arguments, "output": {"id": step, "x": step % 7}})
            step = answer.next_step_id
        await engine.rewind(120)
        await engine.group(120, *[call("book", {"effect": str(n), "x": n % 7}) for n in range(20)])
        await engine.assert_memory_equals_store()
        engine.restart()
        answer = await engine.step(140, "note", {"id": "${steps.119.id}", "x": 3})
        assert {edge.from_step for edge in answer.dependencies} == {119, 115}
        await engine.assert_memory_equals_store()


@virtual_time
async def test_what_members_touched_outside_outlives_the_server_until_the_group_is_settled(
    tmp_path: Path,
) -> None:
    gate = Gate()
    calls = (
        call("note", {"touch": [["file/d", False]]}, "g1"),
        call("lookup", {"touch": [["file/d/a", True]]}, "g2"),
    )
    async with sqlite_engine(tmp_path) as engine:
        transaction_id = await engine.begin()
        engine.tools.next("note", hang(gate))
        running = asyncio.ensure_future(engine.group(1, *calls))
        await gate.reached()
        await idle()
        await engine.crash()
        assert running.cancelled()

    async with sqlite_engine(tmp_path) as engine:
        engine.transaction_id = transaction_id
        stored = await engine.store.load(transaction_id)
        assert stored is not None
        assert [read.step_id for read in stored.group_reads] == [2]
        assert stored.group_writes == []
        lower, higher = await engine.group(1, *calls)
        assert engine.tools.count("lookup") == 0
        assert (lower.status, higher.status) == (StepStatus.SUCCESS, StepStatus.ROLLBACK_TRIGGERED)
        assert higher.hint is not None
        assert "'d/a'" in higher.hint.text
        again = await engine.group(1, call("lookup", {"touch": [["file/e", True]]}))
        assert again[0].status is StepStatus.SUCCESS
        await engine.commit()
        assert (await engine.record()).status is TransactionStatus.COMMITTED
        assert await engine.store.count_touched(transaction_id, 1) == (0, [], 0)
