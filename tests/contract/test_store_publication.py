"""Validation at commit and publication: conflicts, checks, versions, several at once."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from tests.support.store_databases import Opener, gather, publish, reopen, store  # noqa: F401
from tests.support.store_records import Driver, effect

from agenttx_server.engine.ports import (
    CommitRefused,
    TransactionStore,
    WriteReceipt,
)
from agenttx_server.engine.records import (
    CommitCheck,
    CommitCheckKind,
    CommittedEntry,
    EffectState,
    Isolation,
    StateRead,
    TransactionStatus,
)


async def test_a_commit_publishes_the_newest_value_of_each_key(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step([("kv/a", "1"), ("kv/a", "2")], effects=[effect("e1"), effect("e2", sequence=2)])
    await driver.step({"kv/a": "3", "kv/b": None})
    assert await driver.commit() == WriteReceipt(commit_version=1, keys_published=2, effects_ready=2)
    assert await store.read_committed("kv/a") == CommittedEntry("kv/a", "3", 1)
    assert await store.read_committed("kv/b") == CommittedEntry("kv/b", None, 1)
    assert {item.state for item in await store.list_effects(driver.id, frozenset())} == {EffectState.READY}
    assert await store.load_record(driver.id) == dataclasses.replace(driver.record, commit_version=1)


@pytest.mark.parametrize("together", [1, 3])
async def test_a_commit_makes_staged_effects_ready_and_no_others(
    store: TransactionStore, together: int
) -> None:
    drivers = [await Driver(store, f"t-{number}").begin() for number in range(together)]
    for driver in drivers:
        rows = [
            effect(f"{driver.id}-{state}", 1, number, state=state) for number, state in enumerate(EffectState)
        ]
        await driver.step(effects=rows)
    assert [receipt.effects_ready for receipt in await gather(*(item.commit() for item in drivers))] == [
        1
    ] * together
    for driver in drivers:
        states = [item.state for item in await store.list_effects(driver.id, frozenset())]
        assert states == [
            EffectState.READY if state is EffectState.STAGED else state for state in EffectState
        ]


async def test_commit_versions_grow_one_by_one_over_reopening(reopen: Opener) -> None:
    store = await reopen()
    assert (await publish(store, "t-1", {"kv/a": "1"})).commit_version == 1
    assert (await publish(store, "t-2", {})).commit_version == 2
    store = await reopen()
    assert (await publish(store, "t-3", {"kv/a": "3"})).commit_version == 3
    assert await store.read_committed("kv/a") == CommittedEntry("kv/a", "3", 3)


async def test_a_moved_base_refuses_the_commit_and_writes_nothing(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step({"kv/b": "1", "kv/a": "1"}, effects=[effect("e")])
    await publish(store, "other", {"kv/a": "2"})
    with pytest.raises(CommitRefused) as refused:
        await driver.commit()
    assert refused.value.key == "kv/a"
    assert "kv/a" in refused.value.description
    assert "\n" not in refused.value.description
    record = await store.load_record(driver.id)
    assert record is not None
    assert (record.revision, record.status) == (2, TransactionStatus.ACTIVE)
    assert await store.read_committed("kv/b") == CommittedEntry("kv/b", None, 0)
    assert [item.state for item in await store.list_effects(driver.id, frozenset())] == [EffectState.STAGED]
    # The refused version was not used up.
    assert (await publish(store, "next", {})).commit_version == 2


async def test_a_key_deleted_and_written_again_is_not_the_same(store: TransactionStore) -> None:
    await publish(store, "t-1", {"kv/a": "1"})
    driver = await Driver(store, "reader").begin()
    await driver.step({"kv/a": "2"})
    await publish(store, "t-2", {"kv/a": None})
    await publish(store, "t-3", {"kv/a": "1"})
    with pytest.raises(CommitRefused):
        await driver.commit()


async def test_a_key_that_was_absent_may_have_come_and_gone(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step({"kv/a": "1"})
    await publish(store, "t-2", {"kv/a": "2"})
    await publish(store, "t-3", {"kv/a": None})
    with pytest.raises(CommitRefused):
        await driver.commit()


async def test_a_write_rests_on_the_version_last_read(store: TransactionStore) -> None:
    await publish(store, "t-1", {"kv/a": "1"})
    driver = await Driver(store, "reader").begin()
    await driver.step(reads={"kv/a": 1})
    await publish(store, "t-2", {"kv/a": "2"})
    await driver.step({"kv/a": "3"})
    with pytest.raises(CommitRefused):
        await driver.commit()


async def test_a_key_read_as_absent_rests_on_its_absence(store: TransactionStore) -> None:
    driver = await Driver(store, "reader").begin()
    await driver.step(reads={"kv/a": 0})
    await publish(store, "t-2", {"kv/a": "2"})
    await driver.step({"kv/a": "3"})
    with pytest.raises(CommitRefused):
        await driver.commit()


async def test_reads_of_the_same_set_count_as_base(store: TransactionStore) -> None:
    await publish(store, "t-1", {"kv/a": "1"})
    await publish(store, "t-2", {"kv/a": "2"})
    driver = await Driver(store, "reader").begin()
    await driver.step({"kv/a": "3"}, reads={"kv/a": 1})
    with pytest.raises(CommitRefused):
        await driver.commit()


async def test_a_blind_write_rests_on_the_version_current_at_the_write(store: TransactionStore) -> None:
    driver = await Driver(store, "writer").begin()
    await publish(store, "t-1", {"kv/a": "1"})
    await driver.step({"kv/a": "2"})
    assert (await driver.commit()).commit_version == 2


async def test_a_later_read_renews_the_base(store: TransactionStore) -> None:
    await publish(store, "t-1", {"kv/a": "1"})
    driver = await Driver(store, "reader").begin()
    await driver.step(reads={"kv/a": 1})
    await publish(store, "t-2", {"kv/a": "2"})
    await driver.step(reads={"kv/a": 2})
    await driver.step({"kv/a": "3"})
    assert (await driver.commit()).commit_version == 3


async def test_a_rewound_read_is_no_base(store: TransactionStore) -> None:
    await publish(store, "t-1", {"kv/a": "1"})
    driver = await Driver(store, "reader").begin()
    await driver.step()
    await driver.step(reads={"kv/a": 1})
    await publish(store, "t-2", {"kv/a": "2"})
    await driver.rewind(2)
    await driver.step({"kv/a": "3"})
    assert (await driver.commit()).commit_version == 3


async def test_any_write_of_a_key_with_a_moved_base_refuses(store: TransactionStore) -> None:
    driver = await Driver(store, "writer").begin()
    await driver.step({"kv/a": "1"})
    await publish(store, "t-1", {"kv/a": "9"})
    await driver.step({"kv/a": "2"})  # blind: its own base is current
    with pytest.raises(CommitRefused):
        await driver.commit()


async def test_a_prefix_scan_is_no_base(store: TransactionStore) -> None:
    await publish(store, "t-1", {"kv/": "1"})
    driver = await Driver(store, "scanner").begin()
    await driver.step({"kv/": "2"}, prefixes=["kv/"])
    assert (await driver.commit()).commit_version == 2


@pytest.mark.parametrize("isolation", Isolation)
async def test_changed_reads_refuse_serializable_commits_only(
    store: TransactionStore, isolation: Isolation
) -> None:
    await publish(store, "t-1", {"kv/a": "1"})
    driver = await Driver(store, "reader", isolation=isolation).begin()
    await driver.step({"kv/b": "1"}, reads={"kv/a": 1})
    await publish(store, "t-2", {"kv/a": "2"})
    if isolation is Isolation.SERIALIZABLE:
        with pytest.raises(CommitRefused) as refused:
            await driver.commit()
        assert refused.value.key == "kv/a"
    else:
        assert (await driver.commit()).keys_published == 1


@pytest.mark.parametrize("seen", ["both", "newest"])
async def test_a_serializable_transaction_that_saw_two_versions_is_refused(
    store: TransactionStore, seen: str
) -> None:
    await publish(store, "t-1", {"kv/a": "1"})
    await publish(store, "t-2", {"kv/a": "2"})
    driver = await Driver(store, "reader", isolation=Isolation.SERIALIZABLE).begin()
    if seen == "both":
        await driver.step(reads={"kv/a": 1})
    await driver.step(reads={"kv/a": 2})
    if seen == "both":
        with pytest.raises(CommitRefused):
            await driver.commit()
    else:
        await driver.commit()


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"kv/new": "1"}, True),
        ({"kv/": "1"}, True),
        ({"kv/b": None}, True),
        ({"kx": "1"}, False),
        ({"kv/gone": None}, False),
    ],
)
async def test_a_serializable_scan_sees_keys_that_came_or_went(
    store: TransactionStore, change: dict[str, str | None], refused: bool
) -> None:
    await publish(store, "t-1", {"kv/a": "1", "kv/b": "1", "kv/mine": "1"})
    driver = await Driver(store, "scanner", isolation=Isolation.SERIALIZABLE).begin()
    await driver.step({"kv/mine": "2"})
    await driver.step(reads={"kv/a": 1, "kv/b": 1}, prefixes=["kv/"])
    await publish(store, "t-2", change)
    if refused:
        with pytest.raises(CommitRefused) as error:
            await driver.commit()
        assert error.value.key == next(iter(change))
    else:
        await driver.commit()


async def test_a_scan_that_tells_its_commit_version_needs_no_list_of_keys(store: TransactionStore) -> None:
    await publish(store, "t-1", {"kv/a": "1", "kv/b": "1"})
    drivers = [
        await Driver(store, f"scanner-{number}", isolation=Isolation.SERIALIZABLE).begin()
        for number in (1, 2)
    ]
    for driver in drivers:
        await driver.write({"state_reads": [StateRead(1, "kv/", 1, is_prefix=True)]})
    await drivers[0].commit()
    await publish(store, "t-2", {"kv/b": None})
    with pytest.raises(CommitRefused):
        await drivers[1].commit()


def exists(key: str, number: int = 1) -> CommitCheck:
    return CommitCheck(1, number, CommitCheckKind.EXISTS, key, f"{key} does not\0exist")


def none_with(prefix: str, number: int = 1) -> CommitCheck:
    return CommitCheck(1, number, CommitCheckKind.NONE_WITH_PREFIX, prefix, f"{prefix} is taken")


@pytest.mark.parametrize(
    ("checks", "writes", "broken"),
    [
        ([exists("kv/a")], {}, None),
        ([exists("kv/gone")], {}, "kv/gone"),
        ([exists("kv/none")], {}, "kv/none"),
        ([exists("kv/new")], {"kv/new": "1"}, None),
        ([exists("kv/a")], {"kv/a": None}, "kv/a"),
        ([none_with("kx/")], {}, None),
        ([none_with("kv/")], {}, "kv/"),
        ([none_with("kv/gone")], {}, None),
        ([none_with("kv/a")], {"kv/a": None}, None),
        ([none_with("kx/")], {"kx/1": "1"}, "kx/"),
        ([none_with("kv/%")], {}, None),
        ([none_with("")], {}, ""),
        ([none_with("\U0010ffff")], {}, None),
        ([none_with("\U0010ffff")], {"\U0010ffff\U0010ffffz": "1"}, "\U0010ffff"),
        ([exists("kv/a"), none_with("kx/", 2), exists("kv/none", 3)], {}, "kv/none"),
        ([exists("kv/none", 2), none_with("kv/", 1)], {}, "kv/"),
    ],
)
async def test_checks_are_on_state_as_it_will_be(
    store: TransactionStore, checks: list[CommitCheck], writes: dict[str, str | None], broken: str | None
) -> None:
    await publish(store, "t-1", {"kv/a": "1", "kv/gone": "1"})
    await publish(store, "t-2", {"kv/gone": None})
    driver = await Driver(store, "checked").begin()
    await driver.step(writes, checks=checks)
    if broken is None:
        await driver.commit()
    else:
        with pytest.raises(CommitRefused) as refused:
            await driver.commit()
        assert refused.value.key == broken
        assert refused.value.description == next(item.error for item in checks if item.key == broken)


async def test_of_two_commits_over_one_base_in_one_batch_one_is_refused(store: TransactionStore) -> None:
    drivers = [await Driver(store, f"t-{number}").begin() for number in range(10)]
    for number, driver in enumerate(drivers):
        await driver.step({"kv/shared": str(number)} if number in (2, 5) else {f"kv/{number}": "1"})
    outcomes = await gather(*(driver.commit() for driver in drivers))
    refused = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, CommitRefused)]
    assert len(refused) == 1
    assert refused[0] in (2, 5)
    versions = sorted(outcome.commit_version for outcome in outcomes if isinstance(outcome, WriteReceipt))
    assert versions == list(range(1, 10))


async def test_one_moved_base_among_many_commits_refuses_that_one_only(store: TransactionStore) -> None:
    drivers = [await Driver(store, f"t-{number}").begin() for number in range(10)]
    for number, driver in enumerate(drivers):
        await driver.step({f"kv/{number}": "1"}, effects=[effect(f"e{number}")])
    await publish(store, "other", {"kv/4": "2"})
    outcomes = await gather(*(driver.commit() for driver in drivers))
    assert [number for number, item in enumerate(outcomes) if isinstance(item, CommitRefused)] == [4]
    page = await store.scan_committed("kv/", "", 100, 10_000)
    assert [entry.value for entry in page.entries] == ["2" if number == 4 else "1" for number in range(10)]
    for number, driver in enumerate(drivers):
        (staged,) = await store.list_effects(driver.id, frozenset())
        assert staged.state is (EffectState.STAGED if number == 4 else EffectState.READY)


async def test_commits_of_one_batch_see_those_before_them(store: TransactionStore) -> None:
    # The second's check holds only after the first, whatever the batch: each order is right,
    # but then its outcome must agree with the versions.
    first, second = await Driver(store, "t-1").begin(), await Driver(store, "t-2").begin()
    await first.step({"kv/a": "1"})
    await second.step({"kv/b": "1"}, checks=[exists("kv/a")])
    outcomes = await gather(first.commit(), second.commit())
    assert isinstance(outcomes[0], WriteReceipt)
    if isinstance(outcomes[1], WriteReceipt):
        assert outcomes[1].commit_version > outcomes[0].commit_version


async def test_many_commits_at_once_each_get_their_own_receipt(store: TransactionStore) -> None:
    drivers = [await Driver(store, f"t-{number:02}").begin() for number in range(30)]
    for number, driver in enumerate(drivers):
        await driver.step(
            {f"kv/{number}/{index}": "1" for index in range(number % 4)},
            effects=[effect(f"e{number}-{index}", 1, index) for index in range(number % 3)],
        )
    receipts = await asyncio.gather(*(driver.commit() for driver in drivers))
    assert sorted(receipt.commit_version for receipt in receipts) == list(range(1, 31))
    for number, (driver, receipt) in enumerate(zip(drivers, receipts, strict=True)):
        assert (receipt.keys_published, receipt.effects_ready) == (number % 4, number % 3)
        record = await store.load_record(driver.id)
        assert record is not None
        assert record.commit_version == receipt.commit_version
        page = await store.scan_committed(f"kv/{number}/", "", 10, 10_000)
        assert {entry.version for entry in page.entries} <= {receipt.commit_version}
        assert len(page.entries) == number % 4


async def test_a_commit_of_many_keys(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step({f"kv/{number:06}": str(number) for number in range(50_000)})
    assert await driver.commit() == WriteReceipt(1, 50_000, 0)
    page = await store.scan_committed("kv/04999", "", 100, 10_000)
    assert [entry.value for entry in page.entries] == [str(49_990 + number) for number in range(10)]
