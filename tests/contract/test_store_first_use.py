"""Which step used a key first: where a transaction that lost over it goes back to."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import pytest
from tests.support.store_databases import Opener, reopen, store  # noqa: F401
from tests.support.store_records import Driver

from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import CommitCheck, CommitCheckKind


@pytest.mark.parametrize("key", ["kv/a", "kv/ä", "kv/\U0001f4a9"])
async def test_the_first_step_that_wrote_read_scanned_or_checked_a_key(
    store: TransactionStore, key: str
) -> None:
    for number, step in enumerate(
        (
            {"writes": {key: "1"}},
            {"reads": {key: 0}},
            {"prefixes": ["kv/"]},
            {"checks": [CommitCheck(2, 1, CommitCheckKind.EXISTS, key, "gone")]},
            {"checks": [CommitCheck(2, 1, CommitCheckKind.NONE_WITH_PREFIX, key[:3], "there")]},
        )
    ):
        driver = await Driver(store, f"t-{number}").begin()
        await driver.step({"other/a": "1"}, reads={"kv": 0}, prefixes=["kv/b", "kx/"])
        await driver.step(**step)
        await driver.step({key: "2"})
        assert await store.first_use(driver.id, key) == 2
        await driver.rewind(2)
        assert await store.first_use(driver.id, key) is None
