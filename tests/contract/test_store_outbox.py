"""The outbox in the store: who delivers a transaction's effects, and when they are due."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import asyncio
import dataclasses

from tests.support.store_databases import counts_leases_by_the_engines_clock, store_or_model  # noqa: F401
from tests.support.store_records import NOW, Driver, effect

from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import (
    EffectState,
    MicrosecondsUtc,
    ServerId,
    TransactionStatus,
)

A, B, DEAD = ServerId("server-a"), ServerId("server-b"), ServerId("server-dead")
LEASE = 10.0


def at(offset: int) -> MicrosecondsUtc:
    return MicrosecondsUtc(NOW + offset)


async def due(store: TransactionStore, name: str, offset: int | None, owner: str = "") -> Driver:
    """A committed transaction whose effects are due."""
    return await Driver(
        store,
        name,
        status=TransactionStatus.COMMITTED,
        outbox_due_at=None if offset is None else at(offset),
        outbox_owner=ServerId(owner),
    ).begin()


async def test_what_is_due_is_claimed_earliest_first(store_or_model: TransactionStore) -> None:
    await store_or_model.register_server(A, LEASE, NOW)
    for name, offset in (("c", 0), ("a", -2), ("d", 1), ("b", -2), ("none", None)):
        await due(store_or_model, name, offset)
    assert await store_or_model.claim_outbox(A, NOW, 2) == ["a", "b"]
    assert await store_or_model.claim_outbox(A, NOW, 10) == ["c"]
    assert await store_or_model.claim_outbox(A, at(1), 10) == ["d"]
    assert await store_or_model.claim_outbox(A, at(10**6), 10) == []


async def test_a_claim_changes_the_deliverer_alone(store_or_model: TransactionStore) -> None:
    await store_or_model.register_server(A, LEASE, NOW)
    driver = await due(store_or_model, "t-1", 0)
    await store_or_model.claim_outbox(A, NOW, 10)
    assert await store_or_model.load_record(driver.id) == dataclasses.replace(driver.record, outbox_owner=A)
    # The revision did not grow: whoever holds the transaction may go on writing.
    await driver.write(outbox_owner=A)


async def test_what_a_dead_server_delivers_is_claimed_and_what_a_living_one_does_is_not(
    store_or_model: TransactionStore,
) -> None:
    counts_leases_by_the_engines_clock(store_or_model)
    await store_or_model.register_server(A, LEASE, NOW)
    await due(store_or_model, "of-dead", 0, DEAD)
    await due(store_or_model, "of-a", 0, A)
    assert await store_or_model.claim_outbox(B, NOW, 10) == ["of-dead"]
    later = at(11 * 1_000_000)
    await store_or_model.register_server(B, LEASE, later)
    assert await store_or_model.claim_outbox(B, later, 10) == ["of-a"]


async def test_of_claimers_at_once_each_gets_others(store_or_model: TransactionStore) -> None:
    await store_or_model.register_server(A, LEASE, NOW)
    names = [(await due(store_or_model, f"t-{number:02}", 0)).id for number in range(20)]
    claimed = await asyncio.gather(*(store_or_model.claim_outbox(A, NOW, 3) for _ in range(8)))
    assert sorted(name for names in claimed for name in names) == names


async def test_the_next_time_is_that_of_what_nobody_delivers(store_or_model: TransactionStore) -> None:
    assert await store_or_model.next_outbox_due() is None
    await store_or_model.register_server(A, LEASE, NOW)
    await due(store_or_model, "none", None)
    assert await store_or_model.next_outbox_due() is None
    await due(store_or_model, "later", 30)
    await due(store_or_model, "soon", 20)
    await due(store_or_model, "now", 0)
    assert await store_or_model.next_outbox_due() == at(0)
    await store_or_model.claim_outbox(A, NOW, 10)
    assert await store_or_model.next_outbox_due() == at(20)


async def test_a_delivery_that_is_settled_is_due_no_more(store_or_model: TransactionStore) -> None:
    await store_or_model.register_server(A, LEASE, NOW)
    driver = await due(store_or_model, "t-1", 0)
    ready = effect("e", state=EffectState.READY)
    await driver.write({"effects": [ready]})
    await store_or_model.claim_outbox(A, NOW, 10)
    retried = dataclasses.replace(ready, attempts=1, last_error="refused", next_attempt_at=at(500))
    await driver.write({"effects": [retried]}, outbox_owner=ServerId(""), outbox_due_at=at(500))
    assert await store_or_model.list_effects(driver.id, frozenset()) == [retried]
    assert await store_or_model.claim_outbox(A, at(499), 10) == []
    assert await store_or_model.claim_outbox(A, at(500), 10) == [driver.id]
    delivered = dataclasses.replace(retried, state=EffectState.DELIVERED, attempts=2, settled_at=at(501))
    await driver.write({"effects": [delivered]}, outbox_owner=ServerId(""), outbox_due_at=None)
    assert await store_or_model.list_effects(driver.id, frozenset()) == [delivered]
    assert await store_or_model.next_outbox_due() is None
