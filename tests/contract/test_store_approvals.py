"""Approvals in the store: written with a set, found again, listed, and what they say of idleness."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from typing import Any

import pytest
from tests.support.store_databases import store_or_model  # noqa: F401
from tests.support.store_records import NOW, Driver

from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import (
    ApprovalRecord,
    ApprovalState,
    EffectClass,
    MicrosecondsUtc,
    TransactionId,
    TransactionStatus,
)

PENDING, APPROVED = ApprovalState.PENDING, ApprovalState.APPROVED
REJECTED, WITHDRAWN = ApprovalState.REJECTED, ApprovalState.WITHDRAWN
ALL = frozenset(ApprovalState)


def approval(sequence: int, step_id: int = 1, **fields: Any) -> ApprovalRecord:
    values: dict[str, Any] = {
        "attempt": 1,
        "tool_name": "pay",
        "effect_class": EffectClass.IRREVERSIBLE,
        "arguments": '{"a":"\\u0000 ü"}',
        "reason": "it is a lot",
        "requested_at": MicrosecondsUtc(NOW + sequence),
    }
    return ApprovalRecord(sequence, step_id, **{**values, **fields})


async def listed(store: TransactionStore, **fields: Any) -> list[tuple[str, int]]:
    asked: dict[str, Any] = {
        "principal": "alice",
        "transaction_id": None,
        "states": ALL,
        "cursor": "",
        "limit": 100,
        "byte_limit": 1 << 20,
    }
    page = await store.list_approvals(**{**asked, **fields})
    return [(record.transaction_id, found.sequence) for record, found in page.approvals]


async def test_what_was_written_is_found_as_it_last_stood(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model).begin()
    first = approval(1)
    await driver.write({"approvals": [first]}, approval_sequence=1)
    assert await store_or_model.load_approval(driver.id, 1) == first
    decided = approval(
        1,
        state=APPROVED,
        decided_by="ann",
        comment="nul \0 and ü",
        decided_at=NOW,
        used_attempt=2,
        used_at=NOW,
    )
    await driver.write({"approvals": [decided, approval(2)]}, approval_sequence=2)
    assert await store_or_model.load_approval(driver.id, 1) == decided
    assert await store_or_model.load_approval(driver.id, 3) is None
    assert await store_or_model.load_approval(TransactionId("t-none"), 1) is None


async def test_a_transaction_is_rebuilt_with_what_its_next_steps_may_use(
    store_or_model: TransactionStore,
) -> None:
    driver = await Driver(store_or_model).begin()
    await driver.step()
    rows = [
        approval(1, 1, state=APPROVED, used_attempt=1),
        approval(2, 2, state=REJECTED),
        approval(3, 2, state=WITHDRAWN),
        approval(4, 2, state=APPROVED),
        approval(5, 3),
    ]
    await driver.write({"approvals": rows}, approval_sequence=5)
    stored = await store_or_model.load(driver.id)
    assert stored is not None
    assert list(stored.approvals) == rows[3:]


async def test_the_listing_is_in_order_of_asking_and_page_by_page(store_or_model: TransactionStore) -> None:
    for number in (1, 2):
        driver = await Driver(store_or_model, f"t-{number}").begin()
        rows = [
            approval(1, requested_at=MicrosecondsUtc(NOW + number)),
            approval(2, state=APPROVED, requested_at=MicrosecondsUtc(NOW + 10 - number)),
        ]
        await driver.write({"approvals": rows}, approval_sequence=2)
    other = await Driver(store_or_model, "t-3", principal="bob").begin()
    await other.write({"approvals": [approval(1)]}, approval_sequence=1)

    everything = [("t-1", 1), ("t-2", 1), ("t-2", 2), ("t-1", 2)]
    assert await listed(store_or_model) == everything
    assert await listed(store_or_model, states=frozenset({PENDING})) == everything[:2]
    assert await listed(store_or_model, transaction_id=TransactionId("t-1")) == [("t-1", 1), ("t-1", 2)]
    assert await listed(store_or_model, principal="bob") == [("t-3", 1)]
    assert len(await listed(store_or_model, principal="")) == 5
    for limits in ({"limit": 1, "byte_limit": 1 << 20}, {"limit": 100, "byte_limit": 1}):
        cursor, found = "", []
        while True:
            page = await store_or_model.list_approvals("alice", None, ALL, cursor, **limits)
            found += [(record.transaction_id, item.sequence) for record, item in page.approvals]
            cursor = page.next_cursor
            if not cursor:
                break
        assert found == everything
    with pytest.raises(ValueError, match="cursor"):
        await listed(store_or_model, cursor="bm9uZQ")


async def test_a_question_is_not_idleness_but_an_answer_that_nobody_uses_is(
    store_or_model: TransactionStore,
) -> None:
    for name, state in (("t-asked", PENDING), ("t-answered", APPROVED)):
        driver = await Driver(store_or_model, name, idle_timeout_us=1).begin()
        rows = {"approvals": [approval(1, state=state)]}
        await driver.write(rows, approval_sequence=1, status=TransactionStatus.AWAITING_APPROVAL)
    later = MicrosecondsUtc(NOW + 1_000_000)
    assert await store_or_model.list_expired(later, NOW, 10) == ["t-answered"]


async def test_approvals_go_with_their_transaction(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model).begin()
    await driver.write({"approvals": [approval(1, state=WITHDRAWN)]}, approval_sequence=1)
    await driver.commit()
    assert await store_or_model.purge_ended(MicrosecondsUtc(NOW + 10_000_000), 10) == 1
    assert await listed(store_or_model) == []
