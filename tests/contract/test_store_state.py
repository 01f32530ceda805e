"""State as a step sees it, by key and by prefix."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import pytest
from tests.support.store_databases import reopen, store, store_or_model  # noqa: F401
from tests.support.store_records import Driver, effect

from agenttx_server.engine.ports import (
    StateView,
    TransactionStore,
)
from agenttx_server.engine.records import (
    CommittedEntry,
    TransactionId,
)


async def test_a_step_sees_own_writes_before_it_then_committed_state(store: TransactionStore) -> None:
    other = await Driver(store, "other").begin()
    await other.step({"kv/a": '"committed"', "kv/b": '"b"'})
    await other.commit()
    driver = await Driver(store).begin()
    await driver.step({"kv/a": '"one"'})
    await driver.step([("kv/a", '"two"'), ("kv/a", '"three"'), ("kv/b", None)])
    assert await store.read_state(driver.id, "kv/a", 1) == StateView('"committed"', False, 1)
    assert await store.read_state(driver.id, "kv/a", 2) == StateView('"one"', True, 1)
    assert await store.read_state(driver.id, "kv/a", 3) == StateView('"three"', True, 1)
    assert await store.read_state(driver.id, "kv/b", 3) == StateView(None, True, 1)
    assert await store.read_state(other.id, "kv/c", 3) == StateView(None, False, 0)


async def test_writes_are_invisible_to_others_until_commit(store: TransactionStore) -> None:
    first, second = await Driver(store, "t-1").begin(), await Driver(store, "t-2").begin()
    await first.step({"kv/a": "1"})
    assert await store.read_state(second.id, "kv/a", 9) == StateView(None, False, 0)
    assert await store.read_committed("kv/a") == CommittedEntry("kv/a", None, 0)
    await first.commit()
    assert await store.read_state(second.id, "kv/a", 9) == StateView("1", False, 1)


async def test_a_scan_merges_own_writes_and_committed_state_in_key_order(store: TransactionStore) -> None:
    other = await Driver(store, "other").begin()
    await other.step({"kv/a": "1", "kv/b": "1", "kv/d": "1", "kw/z": "1", "kv0": "1"})
    await other.commit()
    driver = await Driver(store).begin()
    await driver.step([("kv/b", None), ("kv/c", "2"), ("kv/d", "2"), ("kv/e", "2"), ("kv/e", None)])
    await driver.step({"kv/f": "3"})
    seen = await store.scan_state(driver.id, "kv/", 2, "", 10)
    assert seen == [
        ("kv/a", StateView("1", False, 1)),
        ("kv/c", StateView("2", True, 0)),
        ("kv/d", StateView("2", True, 1)),
    ]
    assert await store.scan_state(driver.id, "kv/", 2, "kv/a", 1) == seen[1:2]
    assert await store.scan_state(driver.id, "kv/", 2, "kv/d", 10) == []
    assert [key for key, _ in await store.scan_state(driver.id, "kv/", 3, "", 10)] == [
        "kv/a",
        "kv/c",
        "kv/d",
        "kv/f",
    ]
    assert [key for key, _ in await store.scan_state(driver.id, "", 1, "", 10)] == [
        "kv/a",
        "kv/b",
        "kv/d",
        "kv0",
        "kw/z",
    ]


@pytest.mark.parametrize("prefix", ["kv/%", "kv/_", "kv/[", "kv/\\", "kv/é", "kv/\U0010ffff", "kv/🎉"])
async def test_a_prefix_is_no_pattern(store: TransactionStore, prefix: str) -> None:
    driver = await Driver(store).begin()
    keys = [f"{prefix}1", f"{prefix}2"]
    await driver.step(dict.fromkeys([*keys, "kv/x", "kv/1", "kv/xx1"], "1"))
    assert [key for key, _ in await store.scan_state(driver.id, prefix, 9, "", 10)] == keys
    await driver.commit()
    page = await store.scan_committed(prefix, "", 10, 10_000)
    assert [entry.key for entry in page.entries] == keys


async def test_keys_come_in_code_point_order(store: TransactionStore) -> None:
    keys = ["kv/Z", "kv/a", "kv/é", "kv/\uffff", "kv/🎉", "kv/a/b", "kv/a b", "kv/10", "kv/9"]
    driver = await Driver(store).begin()
    await driver.step(dict.fromkeys(keys, "1"))
    assert [key for key, _ in await store.scan_state(driver.id, "kv/", 9, "", 100)] == sorted(keys)
    await driver.commit()
    entries = (await store.scan_committed("", "", 100, 10_000)).entries
    assert [entry.key for entry in entries] == sorted(keys)


async def test_state_rows_are_counted_by_step(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model).begin()
    await driver.step({"kv/a": "1"}, reads={"kv/a": 0, "kv/b": 0})
    await driver.step({})
    await driver.step([("kv/c", "1"), ("kv/b", "1"), ("kv/c", "2")])
    await driver.step({}, reads={"kv/a": 0})
    assert await store_or_model.rows_by_step(driver.id, 1) == [(1, 3), (3, 3), (4, 1)]
    assert await store_or_model.rows_by_step(driver.id, 2) == [(3, 3), (4, 1)]
    assert await store_or_model.rows_by_step(driver.id, 5) == []
    assert await store_or_model.rows_by_step(TransactionId("nobody's"), 1) == []


async def test_what_a_rewind_would_drop_is_counted(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step({"kv/a": "1"}, effects=[effect("e1", 1, 1)])
    await driver.step([("kv/c", "1"), ("kv/b", "1"), ("kv/c", "2")], effects=[effect("e2", 2, 2)])
    assert await store.count_touched(driver.id, 2) == (3, ["kv/b", "kv/c"], 1)
    assert await store.count_touched(driver.id, 1) == (4, ["kv/a", "kv/b", "kv/c"], 2)
    assert await store.count_touched(driver.id, 3) == (0, [], 0)
    await driver.step({f"many/{number:04}": "1" for number in range(1200)})
    rows, keys, _ = await store.count_touched(driver.id, 3)
    assert (rows, keys) == (1200, [f"many/{number:04}" for number in range(1000)])
