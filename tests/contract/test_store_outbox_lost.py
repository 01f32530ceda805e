"""What a server has to deliver, or is at work on, and may have lost sight of."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from tests.support.store_databases import reopen, store, store_or_model  # noqa: F401
from tests.support.store_records import NOW, Driver

from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import MicrosecondsUtc, ServerId, TransactionStatus


async def test_what_is_due_and_a_server_s_own_is_listed_earliest_first(
    store_or_model: TransactionStore,
) -> None:
    mine, other = ServerId("mine"), ServerId("other")
    for name, owner, due in (
        ("later", mine, 7),
        ("first", mine, 3),
        ("not yet", mine, 11),
        ("another's", other, 1),
        ("nobody's", ServerId(""), 1),
    ):
        await Driver(
            store_or_model, name, outbox_owner=owner, outbox_due_at=MicrosecondsUtc(NOW + due)
        ).begin()
    await Driver(store_or_model, "none", outbox_owner=mine).begin()
    due_by = MicrosecondsUtc(NOW + 10)
    assert list(await store_or_model.list_outbox_of(mine, due_by, 10)) == ["first", "later"]
    assert list(await store_or_model.list_outbox_of(mine, due_by, 1)) == ["first"]


async def test_what_a_server_is_at_work_on_is_listed_by_its_last_write(
    store_or_model: TransactionStore,
) -> None:
    mine = ServerId("mine")
    for name, owner, status, written in (
        ("executing", mine, TransactionStatus.EXECUTING, 5),
        ("rolling back", mine, TransactionStatus.ROLLING_BACK, 3),
        ("ended", mine, TransactionStatus.COMMITTED, 4),
        ("watched", mine, TransactionStatus.ACTIVE, 1),
        ("young", mine, TransactionStatus.EXECUTING, 11),
        ("another's", ServerId("other"), TransactionStatus.EXECUTING, 1),
    ):
        at = MicrosecondsUtc(NOW + written)
        await Driver(store_or_model, name, owner=owner, status=status, updated_at=at).begin()
    before = MicrosecondsUtc(NOW + 10)
    found = list(await store_or_model.list_unsettled_of(mine, before, 10))
    assert found == ["rolling back", "ended", "executing"]
    assert list(await store_or_model.list_unsettled_of(mine, before, 1)) == ["rolling back"]
