"""Servers' leases, takeover of what a dead server left, words to the owner of a transaction."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from tests.support.store_databases import (  # noqa: F401
    counts_leases_by_the_engines_clock,
    reopen,
    store,
    store_or_model,
)
from tests.support.store_records import NOW, Driver

from agenttx_server.engine.ports import StaleRevision, TransactionFilter, TransactionStore
from agenttx_server.engine.records import (
    MicrosecondsUtc,
    ServerId,
    StopKind,
    StopRequest,
    TransactionId,
    TransactionStatus,
)

A, B, DEAD = ServerId("server-a"), ServerId("server-b"), ServerId("server-dead")
LEASE = 10.0


def after(seconds: float) -> MicrosecondsUtc:
    return MicrosecondsUtc(NOW + int(seconds * 1_000_000))


async def owned(store: TransactionStore, name: str, owner: ServerId, **fields: Any) -> Driver:
    """A transaction with work of a server in it."""
    return await Driver(store, name, owner=owner, **fields).begin()


async def owner_of(store: TransactionStore, driver: Driver) -> ServerId:
    record = await store.load_record(driver.id)
    assert record is not None
    return record.owner


# --- leases --------------------------------------------------------------------------------------------


async def test_a_lease_holds_until_its_end(store_or_model: TransactionStore) -> None:
    counts_leases_by_the_engines_clock(store_or_model)
    await store_or_model.register_server(A, LEASE, NOW)
    assert await store_or_model.is_alive(A, after(9.9))
    assert not await store_or_model.is_alive(A, after(10))
    assert not await store_or_model.is_alive(B, NOW)


async def test_the_servers_that_hold_a_lease_are_listed(store_or_model: TransactionStore) -> None:
    counts_leases_by_the_engines_clock(store_or_model)
    assert await store_or_model.list_servers(NOW) == []
    await store_or_model.register_server(B, LEASE, NOW)
    if store_or_model.is_shared:
        await store_or_model.register_server(A, LEASE, after(5))
        assert await store_or_model.list_servers(after(5)) == sorted([A, B])
        assert await store_or_model.list_servers(after(12)) == [A]
        await store_or_model.retire_server(A)
        assert await store_or_model.list_servers(after(6)) == [B]
    else:
        assert await store_or_model.list_servers(NOW) == [B]
    assert await store_or_model.list_servers(after(20)) == []


async def test_a_renewed_lease_holds_from_then_on(store_or_model: TransactionStore) -> None:
    counts_leases_by_the_engines_clock(store_or_model)
    await store_or_model.register_server(A, LEASE, NOW)
    assert await store_or_model.renew_lease(A, LEASE, after(8))
    assert await store_or_model.is_alive(A, after(17.9))
    assert not await store_or_model.is_alive(A, after(18))


async def test_a_lease_that_ended_is_not_renewed(store_or_model: TransactionStore) -> None:
    counts_leases_by_the_engines_clock(store_or_model)
    await store_or_model.register_server(A, LEASE, NOW)
    assert not await store_or_model.renew_lease(A, LEASE, after(10))
    assert not await store_or_model.renew_lease(B, LEASE, NOW)
    assert not await store_or_model.is_alive(A, after(10))
    assert not await store_or_model.is_alive(B, NOW)


async def test_on_a_database_of_one_server_the_one_that_registers_is_the_only_one(
    store_or_model: TransactionStore,
) -> None:
    if store_or_model.is_shared:
        pytest.skip("other servers may serve this database too")
    await store_or_model.register_server(A, LEASE, NOW)
    await store_or_model.register_server(B, LEASE, NOW)
    assert not await store_or_model.is_alive(A, NOW)
    assert await store_or_model.is_alive(B, NOW)


async def test_a_server_that_registers_again_has_a_new_lease(store_or_model: TransactionStore) -> None:
    await store_or_model.register_server(A, LEASE, NOW)
    await store_or_model.register_server(A, LEASE, after(20))
    assert await store_or_model.is_alive(A, after(29))


async def test_a_server_that_retires_leaves_what_is_idle_and_keeps_what_is_not(
    store_or_model: TransactionStore,
) -> None:
    await store_or_model.register_server(A, LEASE, NOW)
    idle = await owned(store_or_model, "idle", A)
    running = await owned(store_or_model, "running", A, status=TransactionStatus.EXECUTING)
    of_another = await owned(store_or_model, "other", B)
    delivering = await owned(
        store_or_model,
        "out",
        ServerId(""),
        outbox_owner=A,
        outbox_due_at=NOW,
        status=TransactionStatus.COMMITTED,
    )
    before = await store_or_model.load_revision(idle.id)

    await store_or_model.retire_server(A)

    assert not await store_or_model.is_alive(A, NOW)
    assert await owner_of(store_or_model, idle) == ""
    assert await owner_of(store_or_model, running) == A
    assert await owner_of(store_or_model, of_another) == B
    record = await store_or_model.load_record(delivering.id)
    assert record is not None
    assert (record.outbox_owner, record.outbox_due_at) == ("", NOW)
    assert await store_or_model.load_revision(idle.id) == before
    assert set(await store_or_model.claim_orphans(B, NOW, 10)) == {running.id, of_another.id}


# --- takeover ------------------------------------------------------------------------------------------


async def test_a_takeover_fences_whoever_still_holds_the_transaction(
    store_or_model: TransactionStore,
) -> None:
    await store_or_model.register_server(B, LEASE, NOW)
    driver = await owned(store_or_model, "t-1", DEAD)
    await driver.step({"kv/a": "1"})
    assert await store_or_model.load_revision(driver.id) == 2

    assert await store_or_model.claim_orphans(B, NOW, 10) == [driver.id]

    taken = await store_or_model.load_record(driver.id)
    assert taken == dataclasses.replace(driver.record, owner=B, revision=3)
    with pytest.raises(StaleRevision):
        await driver.step({"kv/b": "1"})  # the server that was taken for dead
    assert await store_or_model.load_revision(driver.id) == 3
    new_owner = Driver(store_or_model)
    new_owner.record = taken
    await new_owner.step({"kv/b": "1"})


async def test_a_write_already_queued_is_made_or_stale_but_never_lost(
    store: TransactionStore,
) -> None:
    await store.register_server(B, LEASE, NOW)
    driver = await owned(store, "t-1", DEAD)
    sets = [driver.step_set({"kv/a": str(number)}) for number in range(20)]
    writes = [asyncio.ensure_future(store.write(item)) for item in sets[:10]]
    claim = asyncio.ensure_future(store.claim_orphans(B, NOW, 10))
    writes += [asyncio.ensure_future(store.write(item)) for item in sets[10:]]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    if not await claim:  # PostgreSQL passes over what is being written at the moment
        assert await store.claim_orphans(B, NOW, 10) == [driver.id]
    made = [not isinstance(item, BaseException) for item in outcomes]
    assert made == sorted(made, reverse=True)
    assert all(isinstance(item, StaleRevision) for item in outcomes[sum(made) :])
    assert await store.load_revision(driver.id) == 1 + sum(made) + 1
    assert len(await store.list_events(driver.id, 1, 100)) == sum(made)


async def test_only_what_has_an_owner_without_a_lease_is_an_orphan(store_or_model: TransactionStore) -> None:
    counts_leases_by_the_engines_clock(store_or_model)
    await store_or_model.register_server(A, LEASE, NOW)
    await owned(store_or_model, "nobody's", ServerId(""))
    await owned(store_or_model, "mine", A)
    orphan = await owned(store_or_model, "orphan", DEAD)
    assert await store_or_model.claim_orphans(A, NOW, 10) == [orphan.id]
    assert await store_or_model.claim_orphans(A, NOW, 10) == []
    # My lease is over: what I held is anybody's.
    assert set(await store_or_model.claim_orphans(B, after(11), 10)) == {"mine", "orphan"}


async def test_orphans_come_oldest_first_and_no_more_than_asked_for(store_or_model: TransactionStore) -> None:
    await store_or_model.register_server(A, LEASE, NOW)
    for name, age in (("c", 1), ("a", 3), ("d", 0), ("b", 3)):
        await owned(store_or_model, name, DEAD, created_at=MicrosecondsUtc(NOW - age))
    assert await store_or_model.claim_orphans(A, NOW, 3) == ["a", "b", "c"]
    assert await store_or_model.claim_orphans(A, NOW, 3) == ["d"]


async def test_of_claimers_at_once_each_gets_others(store_or_model: TransactionStore) -> None:
    await store_or_model.register_server(A, LEASE, NOW)
    names = [(await owned(store_or_model, f"t-{number:02}", DEAD)).id for number in range(30)]
    claimed = await asyncio.gather(*(store_or_model.claim_orphans(A, NOW, 4) for _ in range(10)))
    assert sorted(name for names in claimed for name in names) == names


async def test_why_a_transaction_is_not_recovered_is_listed_until_it_is(
    store_or_model: TransactionStore,
) -> None:
    driver, other = await Driver(store_or_model, "t-1").begin(), await Driver(store_or_model, "t-2").begin()
    await store_or_model.note_unrecovered(driver.id, "the row can't be read")
    await store_or_model.note_unrecovered(driver.id, "its tool is gone")
    page = await store_or_model.list_transactions(TransactionFilter(), "", 10)
    assert page.unrecovered == {driver.id: "its tool is gone"}
    await store_or_model.note_unrecovered(driver.id, "")
    await store_or_model.note_unrecovered(other.id, "")
    page = await store_or_model.list_transactions(TransactionFilter(), "", 10)
    assert page.unrecovered == {}
    assert await store_or_model.load_record(driver.id) == driver.record


# --- words to the owner --------------------------------------------------------------------------------


async def test_a_word_is_taken_once_by_the_owner(store_or_model: TransactionStore) -> None:
    mine, other = await owned(store_or_model, "mine", A), await owned(store_or_model, "other", B)
    word = StopRequest(mine.id, StopKind.CANCEL_STEP, 3, "a person said so")
    await store_or_model.request_stop(word)
    await store_or_model.request_stop(StopRequest(other.id, StopKind.REWIND))
    assert await store_or_model.take_stop_requests(A) == [word]
    assert await store_or_model.take_stop_requests(A) == []
    assert await store_or_model.take_stop_requests(B) == [StopRequest(other.id, StopKind.REWIND)]


async def test_a_later_word_takes_the_place_of_an_earlier_one(store_or_model: TransactionStore) -> None:
    driver = await owned(store_or_model, "t-1", A)
    await store_or_model.request_stop(StopRequest(driver.id, StopKind.CANCEL_STEP, 3, "first"))
    last = StopRequest(driver.id, StopKind.REWIND, 0, "to step 1")
    await store_or_model.request_stop(last)
    assert await store_or_model.take_stop_requests(A) == [last]


async def test_a_word_waits_for_the_next_owner(store_or_model: TransactionStore) -> None:
    await store_or_model.register_server(B, LEASE, NOW)
    driver = await owned(store_or_model, "t-1", DEAD)
    word = StopRequest(driver.id, StopKind.REWIND, 0, "asked before the server died")
    await store_or_model.request_stop(word)
    assert await store_or_model.take_stop_requests(B) == []
    await store_or_model.claim_orphans(B, NOW, 10)
    assert await store_or_model.take_stop_requests(B) == [word]


async def test_of_servers_without_an_id_nobody_takes_a_word(store_or_model: TransactionStore) -> None:
    driver = await owned(store_or_model, "t-1", ServerId(""))
    await store_or_model.request_stop(StopRequest(driver.id, StopKind.REWIND))
    assert await store_or_model.take_stop_requests(A) == []


# --- revisions -----------------------------------------------------------------------------------------


async def test_a_revision_is_read_alone(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model).begin()
    await driver.step()
    assert await store_or_model.load_revision(driver.id) == 2
    assert await store_or_model.load_revision(TransactionId("nobody")) == 0


async def test_the_version_of_the_newest_publication(store_or_model: TransactionStore) -> None:
    assert await store_or_model.commit_version() == 0
    for name in ("t-1", "t-2"):
        driver = await Driver(store_or_model, name).begin()
        await driver.step({f"kv/{name}": "1"})
        await driver.commit()
    assert await store_or_model.commit_version() == 2
