"""Listings: order, filters, pages by number and bytes, cursors."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.support.store_databases import publish, reopen, store  # noqa: F401
from tests.support.store_records import NOW, Driver, attempt, effect, head, undo

from agenttx_server.engine.ports import (
    TransactionFilter,
    TransactionStore,
    WriteSet,
)
from agenttx_server.engine.records import (
    EffectState,
    EventRecord,
    EventType,
    MicrosecondsUtc,
    PendingRewind,
    RewindPurpose,
    TransactionStatus,
    UndoState,
)


async def test_transactions_are_listed_newest_first_in_pages(store: TransactionStore) -> None:
    for number in range(25):
        # Several begun in the same microsecond: the id decides.
        await Driver(store, f"t-{number:02}", created_at=MicrosecondsUtc(NOW + number // 3)).begin()
    listed: list[str] = []
    cursor, pages = "", 0
    while True:
        page = await store.list_transactions(TransactionFilter(), cursor, 7)
        assert len(page.transactions) <= 7
        listed += [record.transaction_id for record in page.transactions]
        cursor, pages = page.next_cursor, pages + 1
        if not cursor:
            break
    assert listed == [f"t-{number:02}" for number in reversed(range(25))]
    assert pages == 4


async def test_a_listing_counts_effects_and_names_the_undo_that_holds_a_rewind(
    store: TransactionStore,
) -> None:
    plain = await Driver(store, "plain").begin()
    held = await Driver(store, "held").begin()
    staged = [effect(f"e-{number}", sequence=number) for number in (1, 2)]
    delivered = effect("e-3", sequence=3, state=EffectState.DELIVERED)
    failed = [undo(number, state=UndoState.FAILED) for number in (1, 3)]
    pending = PendingRewind(RewindPurpose.REWIND, 1, TransactionStatus.ACTIVE, NOW)
    await held.write(
        {"effects": [*staged, delivered], "undo": [*failed, undo(2)]},
        effect_sequence=3,
        pending_rewind=pending,
    )

    page = await store.list_transactions(TransactionFilter(), "", 10)

    assert {record.transaction_id for record in page.transactions} == {plain.id, held.id}
    assert page.effects == {held.id: {EffectState.STAGED: 2, EffectState.DELIVERED: 1}}
    assert page.undo_failed == {held.id: failed[::-1]}


async def test_a_full_last_page_has_no_cursor(store: TransactionStore) -> None:
    for number in range(4):
        await Driver(store, f"t-{number}").begin()
    page = await store.list_transactions(TransactionFilter(), "", 4)
    assert (len(page.transactions), page.next_cursor) == (4, "")


async def test_a_listing_goes_on_where_it_was_when_newer_ones_begin(store: TransactionStore) -> None:
    for number in range(4):
        await Driver(store, f"t-{number}", created_at=MicrosecondsUtc(NOW + number)).begin()
    page = await store.list_transactions(TransactionFilter(), "", 2)
    await Driver(store, "newer", created_at=MicrosecondsUtc(NOW + 10)).begin()
    rest = await store.list_transactions(TransactionFilter(), page.next_cursor, 10)
    assert [record.transaction_id for record in rest.transactions] == ["t-1", "t-0"]


@pytest.mark.parametrize(
    ("which", "found"),
    [
        (TransactionFilter(), ["d", "c", "b", "a"]),
        (TransactionFilter(principal="alice"), ["b", "a"]),
        (TransactionFilter(agent_id="x"), ["c", "a"]),
        (TransactionFilter(statuses=frozenset({TransactionStatus.ACTIVE})), ["d", "b"]),
        (TransactionFilter(statuses=frozenset({TransactionStatus.COMMITTED})), ["a"]),
        (
            TransactionFilter(statuses=frozenset({TransactionStatus.ACTIVE, TransactionStatus.FAILED})),
            ["d", "c", "b"],
        ),
        (TransactionFilter(metadata=(("team", "red"),)), ["d", "a"]),
        (TransactionFilter(metadata=(("team", "red"), ("run", "1"))), ["a"]),
        (TransactionFilter(metadata=(("run", "red"),)), []),
        (
            TransactionFilter(created_from=MicrosecondsUtc(NOW + 1), created_to=MicrosecondsUtc(NOW + 3)),
            ["c", "b"],
        ),
        (TransactionFilter(principal="bob", agent_id="x", metadata=(("team", "blue"),)), ["c"]),
        (TransactionFilter(principal="nobody"), []),
    ],
)
async def test_filters_restrict_together(
    store: TransactionStore, which: TransactionFilter, found: list[str]
) -> None:
    facts: list[tuple[str, str, str, TransactionStatus, tuple[tuple[str, str], ...]]] = [
        ("a", "alice", "x", TransactionStatus.COMMITTED, (("team", "red"), ("run", "1"))),
        ("b", "alice", "y", TransactionStatus.ACTIVE, ()),
        ("c", "bob", "x", TransactionStatus.FAILED, (("team", "blue"),)),
        ("d", "bob", "y", TransactionStatus.ACTIVE, (("team", "red"), ("run", "2"))),
    ]
    for number, (name, principal, agent, status, metadata) in enumerate(facts):
        driver = Driver(
            store,
            name,
            principal=principal,
            agent_id=agent,
            metadata=metadata,
            created_at=MicrosecondsUtc(NOW + number),
        )
        await driver.begin()
        await driver.write(status=status)
    page = await store.list_transactions(which, "", 10)
    assert [record.transaction_id for record in page.transactions] == found


async def test_open_transactions_are_counted(store: TransactionStore) -> None:
    for number, status in enumerate(TransactionStatus):
        driver = await Driver(store, f"t-{number}", principal="alice" if number % 2 else "bob").begin()
        await driver.write(status=status)
    assert await store.count_open("") == 6
    assert await store.count_open("alice") == 3
    assert await store.count_open("nobody") == 0


async def test_the_history_is_paged_by_number(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    rows = [attempt(step, number) for step in range(1, 8) for number in (1, 2)]
    await driver.write({"attempts": rows})
    listed: list[Any] = []
    cursor = ""
    while True:
        page = await store.list_attempts(driver.id, cursor, 3, 1_000_000)
        assert len(page.attempts) == len(page.rewound) <= 3
        listed += page.attempts
        cursor = page.next_cursor
        if not cursor:
            break
    assert listed == rows
    one = await store.list_attempts(driver.id, "", 10, 1_000_000, step_id=3)
    assert one.attempts == rows[4:6]


async def test_the_history_is_paged_by_bytes_too(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    rows = [attempt(step, output=f'"{"x" * 10_000}"') for step in range(1, 8)]
    await driver.write({"attempts": rows})
    page = await store.list_attempts(driver.id, "", 100, 25_000)
    assert 1 <= len(page.attempts) <= 2
    assert page.next_cursor
    # One that is larger than the limit comes alone.
    page = await store.list_attempts(driver.id, page.next_cursor, 100, 10)
    assert len(page.attempts) == 1
    assert page.next_cursor


async def test_committed_state_is_paged_by_number_and_bytes(store: TransactionStore) -> None:
    keys = [f"kv/{number:02}" for number in range(20)]
    await publish(store, "t-1", dict.fromkeys(keys, f'"{"x" * 1000}"') | {"kv/05x": None})
    listed: list[str] = []
    cursor = ""
    while True:
        page = await store.scan_committed("kv/", cursor, 7, 5_000)
        assert 1 <= len(page.entries) <= 5
        listed += [entry.key for entry in page.entries]
        cursor = page.next_cursor
        if not cursor:
            break
    assert listed == keys


@pytest.mark.parametrize(
    "cursor", ["x", "===", "e30", "bnVsbA", "WzEsMl0", "é", "[]", "WyJzdGF0ZSJd", "A" * 500]
)
async def test_a_foreign_cursor_is_a_value_error(store: TransactionStore, cursor: str) -> None:
    driver = await Driver(store).begin()
    for listing in (
        store.list_transactions(TransactionFilter(), cursor, 10),
        store.list_attempts(driver.id, cursor, 10, 1000),
        store.scan_committed("", cursor, 10, 1000),
    ):
        with pytest.raises(ValueError, match="cursor"):
            await listing


async def test_a_cursor_is_good_for_its_own_listing_only(store: TransactionStore) -> None:
    for name in ("t-1", "t-2"):
        await Driver(store, name).begin()
    page = await store.list_transactions(TransactionFilter(), "", 1)
    assert page.next_cursor
    with pytest.raises(ValueError, match="cursor"):
        await store.list_attempts(head().transaction_id, page.next_cursor, 1, 1000)


async def test_events_come_in_order_from_a_sequence_on(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    events = [
        EventRecord(number, EventType.STEP_STARTED, 1, NOW, number, 1, '{"a":"\\u0000"}')
        for number in range(1, 41)
    ]
    await store.write(
        WriteSet(dataclasses.replace(driver.record, revision=2, event_sequence=40), 1, events=events)
    )
    assert await store.list_events(driver.id, 1, 1000) == events
    assert await store.list_events(driver.id, 31, 5) == events[30:35]
    assert await store.list_events(driver.id, 41, 5) == []


async def test_events_are_cut_at_about_a_mebibyte(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    events = [
        EventRecord(number, EventType.STEP_STARTED, 1, NOW, payload=f'"{"x" * 300_000}"')
        for number in range(1, 11)
    ]
    await store.write(
        WriteSet(dataclasses.replace(driver.record, revision=2, event_sequence=10), 1, events=events)
    )
    assert 1 <= len(await store.list_events(driver.id, 1, 1000)) <= 4


async def test_effects_come_in_staging_order_and_by_state(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    rows = [effect("z", 1, 1), effect("a", 1, 2, state=EffectState.DEAD), effect("m", 2, 3)]
    await driver.write({"effects": rows[::-1]})
    assert await store.list_effects(driver.id, frozenset()) == rows
    assert await store.list_effects(driver.id, frozenset({"DEAD"})) == [rows[1]]
    delivered = dataclasses.replace(rows[0], state=EffectState.DELIVERED, delivered_at=NOW, attempts=1)
    await driver.write({"effects": [delivered]})
    assert await store.list_effects(driver.id, frozenset()) == [delivered, *rows[1:]]


async def test_the_newest_contexts_of_live_attempts(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step(raw_context="first\0")
    await driver.step()
    await driver.step(raw_context="größte")
    await driver.step(raw_context="dropped")
    await driver.rewind(4)
    assert [step for step, _, _ in (await store.load_context(driver.id, 1000))[0]] == [1, 3]
    await driver.step(raw_context="second try")
    contexts = [(1, "kv.put", "first\0"), (3, "kv.put", "größte"), (4, "kv.put", "second try")]
    assert await store.load_context(driver.id, 1000) == (contexts, False)
    assert await store.load_context(driver.id, 10 + 8) == (contexts[1:], True)
    assert await store.load_context(driver.id, 10 + 7) == (contexts[2:], True)
    assert await store.load_context(driver.id, 3) == ([], True)
