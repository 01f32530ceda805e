"""What the store remembers of the tools that workers offered."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from tests.support.store_databases import reopen, store  # noqa: F401
from tests.support.store_records import NOW

from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.store.transaction_store import SqlTransactionStore

EVER = MicrosecondsUtc(0)


def after(microseconds: int) -> MicrosecondsUtc:
    return MicrosecondsUtc(NOW + microseconds)


async def test_a_tool_is_remembered_a_tenant_with_the_time_of_its_last_offer(
    store: SqlTransactionStore,
) -> None:
    assert await store.when_tool_was_offered("acme", "a.b") is None
    await store.note_offered_tools("acme", ["a.b", "a.c", "a.b"], NOW, EVER)
    await store.note_offered_tools("acme", ["a.b"], after(5), EVER)
    assert await store.when_tool_was_offered("acme", "a.b") == after(5)
    assert await store.when_tool_was_offered("acme", "a.c") == NOW
    assert await store.when_tool_was_offered("other", "a.b") is None
    assert await store.when_tool_was_offered("acme", "A.B") is None


async def test_what_was_offered_before_a_time_is_forgotten(store: SqlTransactionStore) -> None:
    await store.note_offered_tools("acme", ["old"], NOW, EVER)
    await store.note_offered_tools("acme", ["new"], after(10), after(1))
    assert await store.when_tool_was_offered("acme", "old") is None
    await store.note_offered_tools("acme", [], after(20), after(10))
    assert await store.when_tool_was_offered("acme", "new") == after(10)
