"""Several stores on one PostgreSQL database: guards, publication, groups, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from tests.support.postgres_cluster import shared_cluster
from tests.support.store_databases import gather
from tests.support.store_records import NOW, Driver, effect

from agenttx_server.engine.ports import (
    CommitRefused,
    DuplicateRequestId,
    StaleRevision,
    TransactionFilter,
    TransactionStore,
    WriteReceipt,
    WriteSet,
)
from agenttx_server.engine.records import (
    CommitCheck,
    CommitCheckKind,
    Isolation,
    MicrosecondsUtc,
    RecordedResponse,
    ServerId,
    TransactionStatus,
)
from agenttx_server.store import open_store

A, B = ServerId("server-a"), ServerId("server-b")
HOUR = 3600.0


@pytest.fixture
def address() -> Iterator[str]:
    with shared_cluster().database() as address:
        yield address


@pytest.fixture
async def stores(address: str) -> AsyncIterator[tuple[TransactionStore, TransactionStore]]:
    async with open_store(address) as first, open_store(address) as second:
        yield first, second


def beside(driver: Driver, store: TransactionStore) -> Driver:
    """The same transaction as another server holds it."""
    other = Driver(store, driver.id)
    other.record = driver.record
    return other


Stores = tuple[TransactionStore, TransactionStore]


# --- one transaction, two servers -----------------------------------------------------------------------


async def test_of_two_servers_that_write_one_transaction_one_is_stale(stores: Stores) -> None:
    first = await Driver(stores[0]).begin()
    for number in range(20):
        second = beside(first, stores[1])
        outcomes = await gather(first.step({"kv/a": str(number)}), second.step({"kv/a": "other"}))
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["StaleRevision", "WriteReceipt"]
        if isinstance(outcomes[0], StaleRevision):
            first.record = second.record
    stored = await stores[0].load(first.id)
    assert stored is not None
    assert [attempt.step_id for attempt in stored.attempts] == list(range(1, 21))
    assert len(await stores[0].list_events(first.id, 1, 100)) == 20


async def test_of_two_servers_that_begin_one_transaction_one_is_stale(stores: Stores) -> None:
    for number in range(20):
        drivers = [Driver(store, f"t-{number}", agent_id=f"of-{index}") for index, store in enumerate(stores)]
        outcomes = await gather(
            *(store.write(WriteSet(driver.record, 0)) for store, driver in zip(stores, drivers, strict=True))
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["StaleRevision", "WriteReceipt"]
        winner = next(i for i, outcome in enumerate(outcomes) if isinstance(outcome, WriteReceipt))
        found = await stores[0].load_record(drivers[0].id)
        assert found is not None
        assert found.agent_id == f"of-{winner}"


async def test_an_answer_is_recorded_once_over_all_servers(stores: Stores) -> None:
    drivers = [await Driver(store, f"t-{index}").begin() for index, store in enumerate(stores)]
    answer = RecordedResponse("principal:alice", "r-1", "Begin", "f", "{}")
    outcomes = await gather(*(driver.step(responses=[answer]) for driver in drivers))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["DuplicateRequestId", "WriteReceipt"]
    assert any(isinstance(outcome, DuplicateRequestId) for outcome in outcomes)


# --- contention -----------------------------------------------------------------------------------------


async def test_many_transactions_of_two_servers_go_side_by_side(stores: Stores) -> None:
    """Every server writes to its own transactions and publishes keys that all of them publish."""

    async def run(store: TransactionStore, name: str) -> int:
        published = 0
        for round_number in range(3):
            driver = await Driver(store, f"{name}-{round_number}").begin()
            for step in range(1, 6):
                await driver.step(
                    {"kv/shared": str(step), f"kv/{name}": "1"}, effects=[effect(f"e{step}", step, step)]
                )
            await driver.rewind(4)
            await driver.step({f"kv/{name}/last": "1"})
            (outcome,) = await gather(driver.commit())
            if isinstance(outcome, CommitRefused):
                assert outcome.key == "kv/shared"
            else:
                assert outcome.commit_version > 0
                published += 1
        return published

    counts = await asyncio.gather(
        *(run(store, f"{index}-{number:02}") for index, store in enumerate(stores) for number in range(20))
    )
    # Versions have no gaps, and each publication has one of its own.
    assert await stores[0].commit_version() == sum(counts) > 0
    page = await stores[1].list_transactions(TransactionFilter(), "", 1000)
    versions = [record.commit_version for record in page.transactions if record.commit_version]
    assert sorted(versions) == list(range(1, sum(counts) + 1))


async def test_batches_of_two_servers_in_opposite_orders_do_not_block_each_other(stores: Stores) -> None:
    drivers = [await Driver(stores[0], f"t-{number:02}").begin() for number in range(32)]
    for _ in range(10):
        others = [beside(driver, stores[1]) for driver in drivers]
        outcomes = await gather(
            *(driver.step() for driver in drivers), *(driver.step() for driver in reversed(others))
        )
        assert sorted({type(outcome).__name__ for outcome in outcomes}) == ["StaleRevision", "WriteReceipt"]
        for driver in drivers:
            record = await stores[0].load_record(driver.id)
            assert record is not None
            driver.record = record


async def test_steps_queued_together_are_written_in_few_commits(address: str) -> None:
    async with open_store(address) as store:
        drivers = [await Driver(store, f"t-{number}").begin() for number in range(64)]
        sets, commits = store.written
        with psycopg.connect(address) as connection:
            # Each writer waits with what it took first, so that what is queued meanwhile is one batch.
            connection.execute("LOCK TABLE transactions IN EXCLUSIVE MODE")
            tasks = [asyncio.ensure_future(driver.step()) for driver in drivers]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert store.written[0] - sets == 64
        assert store.written[1] - commits <= 8


# --- publication beside another server's ----------------------------------------------------------------


async def published(store: TransactionStore, name: str, **writes: str | None) -> WriteReceipt:
    driver = await Driver(store, name).begin()
    await driver.step({f"kv/{key}": value for key, value in writes.items()})
    return await driver.commit()


async def test_of_two_writers_of_one_key_one_commits(stores: Stores) -> None:
    for number in range(10):
        drivers = [await Driver(store, f"{index}-{number}").begin() for index, store in enumerate(stores)]
        await asyncio.gather(*(driver.step({"kv/a": str(number)}) for driver in drivers))
        outcomes = await gather(*(driver.commit() for driver in drivers))
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["CommitRefused", "WriteReceipt"]


async def test_write_skew_is_refused_to_serializable_transactions(stores: Stores) -> None:
    """Each reads what the other writes; a serial order would have one of them see the other."""
    for number in range(10):
        keys = [f"kv/x{number}", f"kv/y{number}"]
        drivers = [
            await Driver(store, f"{index}-{number}", isolation=Isolation.SERIALIZABLE).begin()
            for index, store in enumerate(stores)
        ]
        await asyncio.gather(
            drivers[0].step({keys[0]: "1"}, reads={keys[1]: 0}),
            drivers[1].step({keys[1]: "1"}, reads={keys[0]: 0}),
        )
        outcomes = await gather(*(driver.commit() for driver in drivers))
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["CommitRefused", "WriteReceipt"]


async def test_a_key_inserted_into_a_scanned_prefix_meanwhile_is_seen(stores: Stores) -> None:
    for number in range(10):
        drivers = [
            await Driver(store, f"{index}-{number}", isolation=Isolation.SERIALIZABLE).begin()
            for index, store in enumerate(stores)
        ]
        # Both count what is under a prefix and insert beneath it.
        await asyncio.gather(
            *(
                driver.step({f"kv/p{number}/{index}": "1"}, prefixes=[f"kv/p{number}/"])
                for index, driver in enumerate(drivers)
            )
        )
        outcomes = await gather(*(driver.commit() for driver in drivers))
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["CommitRefused", "WriteReceipt"]


async def test_checks_hold_beside_another_servers_publication(stores: Stores) -> None:
    """One deletes a parent that has no children, the other inserts a child of it: one of them is refused."""
    for number in range(10):
        parent, children = f"kv/parent{number}", f"kv/child{number}/"
        await published(stores[0], f"setup-{number}", **{f"parent{number}": "1"})
        deleting = await Driver(stores[0], f"deleting-{number}").begin()
        inserting = await Driver(stores[1], f"inserting-{number}").begin()
        await deleting.step(
            {parent: None},
            checks=[CommitCheck(1, 1, CommitCheckKind.NONE_WITH_PREFIX, children, "it has children")],
        )
        await inserting.step(
            {f"{children}1": "1"},
            checks=[CommitCheck(1, 1, CommitCheckKind.EXISTS, parent, "no such parent")],
        )
        outcomes = await gather(deleting.commit(), inserting.commit())
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["CommitRefused", "WriteReceipt"]


async def test_nobody_sees_a_version_before_those_below_it(stores: Stores) -> None:
    """While publications go on, whoever reads version n finds every transaction published up to n."""
    done = asyncio.Event()

    async def watch() -> int:
        looks = 0
        while not done.is_set() or not looks:
            version = await stores[1].commit_version()
            page = await stores[1].list_transactions(TransactionFilter(), "", 1000)
            seen = {record.commit_version for record in page.transactions if record.commit_version}
            assert set(range(1, version + 1)) <= seen
            looks += 1
        return looks

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(
        *(
            published(store, f"{index}-{number}", **{f"{index}-{number}": "1"})
            for index, store in enumerate(stores)
            for number in range(40)
        )
    )
    done.set()
    assert await watching > 0
    assert await stores[0].commit_version() == 80


# --- leases, by the database's clock --------------------------------------------------------------------


def later(address: str, seconds: float) -> None:
    """Let time go by for the leases there are."""
    with psycopg.connect(address) as connection:
        connection.execute("UPDATE servers SET lease_until = lease_until - %s", (int(seconds * 1_000_000),))


async def test_leases_are_counted_by_the_databases_clock(stores: Stores, address: str) -> None:
    long_ago = MicrosecondsUtc(0)  # the clock of one server is wrong by fifty years
    await stores[0].register_server(A, HOUR, long_ago)
    await stores[1].register_server(B, HOUR, NOW)
    assert await stores[1].is_alive(A, NOW)
    assert await stores[0].is_alive(B, long_ago)
    later(address, HOUR / 2)
    assert await stores[0].renew_lease(A, HOUR, long_ago)
    later(address, HOUR / 2)
    assert await stores[1].is_alive(A, NOW)
    assert not await stores[1].is_alive(B, NOW)
    assert not await stores[1].renew_lease(B, HOUR, NOW)


async def test_a_dead_servers_transactions_are_taken_over_and_it_writes_no_more(
    stores: Stores, address: str
) -> None:
    await stores[0].register_server(A, HOUR, NOW)
    await stores[1].register_server(B, HOUR, NOW)
    running = {"owner": A, "status": TransactionStatus.EXECUTING}
    drivers = [await Driver(stores[0], f"t-{number}", **running).begin() for number in range(10)]
    assert await stores[1].claim_orphans(B, NOW, 100) == []
    later(address, 2 * HOUR)
    await stores[1].register_server(B, HOUR, NOW)
    assert set(await stores[1].claim_orphans(B, NOW, 100)) == {driver.id for driver in drivers}
    outcomes = await gather(*(driver.step() for driver in drivers))
    assert all(isinstance(outcome, StaleRevision) for outcome in outcomes)


async def test_two_servers_never_claim_the_same(stores: Stores) -> None:
    await stores[0].register_server(A, HOUR, NOW)
    await stores[1].register_server(B, HOUR, NOW)
    dead = ServerId("dead")
    for number in range(30):
        await Driver(stores[0], f"o-{number}", owner=dead, status=TransactionStatus.EXECUTING).begin()
        await Driver(
            stores[0], f"d-{number}", status=TransactionStatus.COMMITTED, outbox_due_at=NOW, outbox_owner=dead
        ).begin()
    for claim in ("claim_orphans", "claim_outbox"):
        claimed = await asyncio.gather(
            *(
                getattr(store, claim)(server, NOW, 4)
                for store, server in zip(stores, (A, B), strict=True)
                for _ in range(6)
            )
        )
        names = [name for part in claimed for name in part]
        assert len(names) == len(set(names))
        while more := await getattr(stores[0], claim)(A, NOW, 100):
            names += more
        assert len(names) == len(set(names)) == 30
