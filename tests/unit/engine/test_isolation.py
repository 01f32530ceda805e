"""What each isolation admits, and what a conflict does to the transaction that lost."""

from __future__ import annotations

import pytest
from tests.support.engine_harness import Engine, call, outcome_of
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.errors import CommitConflict
from agenttx_server.engine.records import (
    EventType,
    Isolation,
    OnConflict,
    TransactionId,
    TransactionStatus,
)
from agenttx_server.engine.requests import CommitAnswer, StepStatus

BOTH = pytest.mark.parametrize("isolation", list(Isolation))


async def _seeded(**values: object) -> Engine:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"put": {f"kv/{key}": value for key, value in values.items()}})
    await engine.commit()
    return engine


async def _pair(
    engine: Engine, isolation: Isolation, **fields: object
) -> tuple[TransactionId, TransactionId]:
    first = await engine.begin(isolation=isolation, **fields)
    return first, await engine.begin(isolation=isolation, **fields)


async def _commits(engine: Engine, *transactions: TransactionId) -> list[bool]:
    outcomes = [await outcome_of(engine.commit(transaction_id=one)) for one in transactions]
    assert all(isinstance(outcome, (CommitAnswer, CommitConflict)) for outcome in outcomes), outcomes
    return [isinstance(outcome, CommitAnswer) for outcome in outcomes]


@BOTH
@virtual_time
async def test_no_isolation_admits_a_lost_update(isolation: Isolation) -> None:
    engine = await _seeded(balance=100)
    one, two = await _pair(engine, isolation)
    for transaction, value in ((one, 110), (two, 120)):
        await engine.step(
            1, "note", {"get": ["kv/balance"], "put": {"kv/balance": value}}, transaction_id=transaction
        )
    assert await _commits(engine, one, two) == [True, False]
    assert await engine.committed("kv/balance") == 110


@BOTH
@virtual_time
async def test_no_isolation_admits_a_blind_lost_update(isolation: Isolation) -> None:
    engine = await _seeded(balance=100)
    one, two = await _pair(engine, isolation)
    await engine.step(1, "note", {"put": {"kv/balance": 1}}, transaction_id=one)
    await engine.step(1, "note", {"put": {"kv/balance": 2}}, transaction_id=two)
    assert await _commits(engine, two, one) == [True, False]
    assert await engine.committed("kv/balance") == 2


@BOTH
@virtual_time
async def test_only_serializable_refuses_write_skew(isolation: Isolation) -> None:
    # Two doctors, each of whom leaves because the other one is still on call.
    engine = await _seeded(alice="on call", bob="on call")
    one, two = await _pair(engine, isolation)
    for transaction, leaves, stays in ((one, "alice", "bob"), (two, "bob", "alice")):
        await engine.step(
            1, "note", {"get": [f"kv/{stays}"], "put": {f"kv/{leaves}": "off"}}, transaction_id=transaction
        )
    expected = [True, isolation is Isolation.READ_COMMITTED]
    assert await _commits(engine, one, two) == expected


@BOTH
@pytest.mark.parametrize("change", ["insert", "delete", "update"])
@virtual_time
async def test_only_serializable_refuses_a_phantom(isolation: Isolation, change: str) -> None:
    engine = await _seeded(**{"seat-1": "free", "seat-2": "free"})
    one, two = await _pair(engine, isolation)
    await engine.step(1, "note", {"scan": ["kv/seat-"], "put": {"kv/count": 2}}, transaction_id=one)
    other: dict[str, object] = {
        "insert": {"put": {"kv/seat-3": "free"}},
        "delete": {"delete": ["kv/seat-2"]},
        "update": {"put": {"kv/seat-1": "taken"}},
    }[change]
    await engine.step(1, "note", other, transaction_id=two)
    assert await _commits(engine, two, one) == [True, isolation is Isolation.READ_COMMITTED]


@virtual_time
async def test_a_key_read_as_absent_is_validated_too() -> None:
    engine = await _seeded()
    one, two = await _pair(engine, Isolation.SERIALIZABLE)
    await engine.step(1, "note", {"get": ["kv/lock"], "put": {"kv/mine": 1}}, transaction_id=one)
    await engine.step(1, "note", {"put": {"kv/lock": 1}}, transaction_id=two)
    assert await _commits(engine, two, one) == [True, False]


@virtual_time
async def test_reads_of_rewound_steps_are_not_validated() -> None:
    engine = await _seeded(a=1)
    one, two = await _pair(engine, Isolation.SERIALIZABLE)
    await engine.step(1, "note", {"get": ["kv/a"], "scan": ["kv/"]}, transaction_id=one)
    await engine.rewind(1, transaction_id=one)
    await engine.step(1, "note", {"put": {"kv/b": 1}}, transaction_id=one)
    await engine.step(1, "note", {"put": {"kv/a": 2}}, transaction_id=two)
    assert await _commits(engine, two, one) == [True, True]


@virtual_time
async def test_a_transaction_does_not_conflict_with_what_it_read_and_nobody_changed() -> None:
    engine = await _seeded(a=1, b=2)
    one, two = await _pair(engine, Isolation.SERIALIZABLE)
    await engine.step(
        1, "note", {"scan": ["kv/"], "put": {"kv/c": 3}, "delete": ["kv/b"]}, transaction_id=one
    )
    await engine.step(2, "note", {"scan": ["kv/"], "get": ["kv/c"]}, transaction_id=one)
    await engine.step(1, "note", {"put": {"other/a": 1}}, transaction_id=two)
    assert await _commits(engine, two, one) == [True, True]


# --- on_conflict = REWIND -----------------------------------------------------------------


async def _conflicting(engine: Engine, **fields: object) -> TransactionId:
    """A transaction whose second and fourth step use a key that somebody else then publishes."""
    mine = await engine.begin(on_conflict=OnConflict.REWIND, **fields)
    await engine.step(1, "book", {"effect": "room"}, transaction_id=mine)
    await engine.step(2, "note", {"get": ["kv/price"]}, transaction_id=mine)
    await engine.step(3, "book", {"effect": "table"}, transaction_id=mine)
    await engine.step(4, "note", {"put": {"kv/price": 9}}, transaction_id=mine)
    other = await engine.begin()
    await engine.step(1, "note", {"put": {"kv/price": 5}}, transaction_id=other)
    await engine.commit(transaction_id=other)
    return mine


@virtual_time
async def test_under_rewind_the_loser_goes_back_to_the_first_step_that_used_the_key() -> None:
    engine = await _seeded(price=1)
    mine = await _conflicting(engine)
    with pytest.raises(CommitConflict) as error:
        await engine.commit("c", transaction_id=mine)
    assert error.value.metadata == {
        "key": "kv/price",
        "status": "ACTIVE",
        "next_step_id": "2",
        "generation": "2",
    }
    record = await engine.record(mine)
    assert (record.status, record.next_step_id, record.generation) == (TransactionStatus.ACTIVE, 2, 2)
    assert (record.budget_spent, record.replayed_steps) == (3, 3)
    assert "price" in record.constraints[-1].text
    assert engine.tools.effects == ["room"]
    with pytest.raises(CommitConflict):  # the answer of a request never changes
        await engine.commit("c", transaction_id=mine)
    answer = await engine.step(2, "note", {"get": ["kv/price"]}, transaction_id=mine)
    assert answer.output == '{"ok":true,"read":{"kv/price":5}}'
    await engine.step(3, "note", {"put": {"kv/price": 9}}, transaction_id=mine)
    assert (await engine.commit("d", transaction_id=mine)).steps_committed == 3
    assert await engine.committed("kv/price") == 9
    assert (await engine.events(mine)).count(EventType.COMMIT_CONFLICT) == 1
    await engine.assert_memory_equals_store(mine)


@virtual_time
async def test_a_conflict_on_a_scanned_prefix_goes_back_to_the_scan() -> None:
    engine = await _seeded(**{"seat-1": "free"})
    mine = await engine.begin(isolation=Isolation.SERIALIZABLE, on_conflict=OnConflict.REWIND)
    await engine.step(1, "note", transaction_id=mine)
    await engine.group(
        2, call("lookup", {"scan": ["kv/seat-"]}), call("note", {"put": {"kv/x": 1}}), transaction_id=mine
    )
    other = await engine.begin()
    await engine.step(1, "note", {"put": {"kv/seat-2": "free"}}, transaction_id=other)
    await engine.commit(transaction_id=other)
    with pytest.raises(CommitConflict) as error:
        await engine.commit(transaction_id=mine)
    assert error.value.metadata["next_step_id"] == "2"


@virtual_time
async def test_going_back_is_not_done_beyond_the_replay_budget() -> None:
    engine = await _seeded(price=1)
    mine = await _conflicting(engine, replay_budget_factor=0.1)
    with pytest.raises(CommitConflict) as error:
        await engine.commit(transaction_id=mine)
    assert error.value.metadata["status"] == "FAILED"
    record = await engine.record(mine)
    assert record.status is TransactionStatus.FAILED
    assert "replay budget" in record.abort_reason
    assert engine.tools.effects == []


@virtual_time
async def test_going_back_past_an_irreversible_step_is_an_abort_that_names_it() -> None:
    engine = await _seeded(price=1)
    mine = await engine.begin(on_conflict=OnConflict.REWIND)
    await engine.step(1, "note", {"get": ["kv/price"], "put": {"kv/price": 2}}, transaction_id=mine)
    await engine.step(2, "pay", {"effect": "money"}, transaction_id=mine)
    other = await engine.begin()
    await engine.step(1, "note", {"put": {"kv/price": 5}}, transaction_id=other)
    await engine.commit(transaction_id=other)
    with pytest.raises(CommitConflict):
        await engine.commit(transaction_id=mine)
    record = await engine.record(mine)
    assert record.status is TransactionStatus.FAILED
    assert [kept.tool_name for kept in record.kept_effects] == ["pay"]
    assert "can't be undone" in record.abort_reason


@virtual_time
async def test_transactions_that_always_lose_end_within_the_budget() -> None:
    engine = await _seeded(price=1)
    mine = await engine.begin(on_conflict=OnConflict.REWIND)
    step, commits = 1, 0
    while True:
        answer = await engine.step(
            step, "note", {"get": ["kv/price"], "put": {"kv/price": step}}, transaction_id=mine
        )
        assert answer.status is StepStatus.SUCCESS
        other = await engine.begin()
        await engine.step(1, "note", {"put": {"kv/price": 100 + commits}}, transaction_id=other)
        await engine.commit(transaction_id=other)
        commits += 1
        with pytest.raises(CommitConflict) as error:
            await engine.commit(transaction_id=mine)
        if error.value.metadata["status"] == "FAILED":
            break
        step = int(error.value.metadata["next_step_id"])
    assert commits == 3  # a budget of two steps, for one step ever reached
