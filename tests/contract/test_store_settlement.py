"""Listings of what waits for somebody: undo actions and effects over all transactions; late undo."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import itertools

import pytest
from tests.support.store_databases import reopen, store, store_or_model  # noqa: F401
from tests.support.store_records import NOW, Driver, effect, undo

from agenttx_server.engine.ports import TransactionFilter, TransactionStore
from agenttx_server.engine.records import (
    EffectState,
    MicrosecondsUtc,
    TransactionId,
    TransactionStatus,
    UndoResolution,
    UndoState,
)

FAILED = frozenset({UndoState.FAILED})
OWED = frozenset({UndoState.FAILED, UndoState.LATE})
EVERY_UNDO = frozenset(UndoState)
MEBIBYTE = 1 << 20


# --- undo actions --------------------------------------------------------------------------------------


async def undone(store: TransactionStore) -> dict[str, Driver]:
    """Three transactions, begun in the order b, a, c, with undo in all states in each."""
    drivers = {}
    for name, principal, age in (("a", "alice", 1), ("b", "bob", 2), ("c", "alice", 0)):
        driver = Driver(store, name, principal=principal, created_at=MicrosecondsUtc(NOW - age))
        await driver.begin()
        rows = [undo(number, state=state) for number, state in enumerate(UndoState, start=1)]
        await driver.write({"undo": rows}, undo_sequence=len(rows))
        drivers[name] = driver
    return drivers


async def pages_of_undo(
    store: TransactionStore,
    principal: str,
    transaction_id: str | None,
    states: frozenset[UndoState],
    limit: int,
) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    cursor = ""
    while True:
        page = await store.list_compensations(
            principal, TransactionId(transaction_id) if transaction_id else None, states, cursor, limit
        )
        assert len(page.undo) <= limit
        found += [(record.transaction_id, item.sequence) for record, item in page.undo]
        cursor = page.next_cursor
        if not cursor:
            return found
        assert len(page.undo) == limit


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize("states", [FAILED, OWED, EVERY_UNDO, frozenset({UndoState.PENDING, UndoState.LATE})])
async def test_undo_is_listed_oldest_transaction_first_and_newest_undo_first(
    store_or_model: TransactionStore, states: frozenset[UndoState], limit: int
) -> None:
    await undone(store_or_model)
    numbers = [number for number, state in enumerate(UndoState, start=1) if state in states][::-1]
    for principal, names in (("", "bac"), ("alice", "ac"), ("bob", "b"), ("nobody", "")):
        expected = list(itertools.product(names, numbers))
        assert await pages_of_undo(store_or_model, principal, None, states, limit) == expected
    assert await pages_of_undo(store_or_model, "", "a", states, limit) == [
        ("a", number) for number in numbers
    ]
    assert await pages_of_undo(store_or_model, "bob", "a", states, limit) == []
    assert await pages_of_undo(store_or_model, "", "unknown", states, limit) == []


async def test_undo_comes_with_the_head_of_its_transaction(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model).begin()
    late = undo(
        2,
        state=UndoState.RESOLVED,
        late=True,
        raw_error="refused\0",
        resolution=UndoResolution.KEPT,
        note="it may stay",
    )
    await driver.write({"undo": [undo(1), late]}, undo_sequence=2)
    page = await store_or_model.list_compensations("", None, frozenset({UndoState.RESOLVED}), "", 10)
    assert page.undo == [(driver.record, late)]
    assert page.next_cursor == ""


async def test_no_states_are_no_undo(store_or_model: TransactionStore) -> None:
    await undone(store_or_model)
    assert (await store_or_model.list_compensations("", None, frozenset(), "", 10)).undo == []


async def test_undo_that_failed_is_listed_with_its_transaction_whether_or_not_it_holds_a_rewind(
    store_or_model: TransactionStore,
) -> None:
    plain = await Driver(store_or_model, "plain").begin()
    ended = await Driver(store_or_model, "ended", status=TransactionStatus.ROLLED_BACK, ended_at=NOW).begin()
    late = [undo(number, state=UndoState.FAILED, late=True) for number in (1, 3)]
    await ended.write({"undo": [*late, undo(2, state=UndoState.LATE)]}, undo_sequence=3)
    await plain.write({"undo": [undo(1), undo(2, state=UndoState.DONE)]}, undo_sequence=2)
    page = await store_or_model.list_transactions(TransactionFilter(), "", 10)
    assert page.undo_failed == {ended.id: late[::-1]}


async def test_a_rewind_removes_undo_that_is_done_or_pending_and_not_late(
    store_or_model: TransactionStore,
) -> None:
    driver = await Driver(store_or_model).begin()
    number = itertools.count(1)
    rows = [
        undo(next(number), step, state=state, late=late)
        for step in (1, 2)
        for late in (False, True)
        for state in UndoState
    ]
    await driver.step()
    await driver.step()
    await driver.write({"undo": rows}, undo_sequence=len(rows))
    await driver.rewind(2)
    stored = await store_or_model.load(driver.id)
    assert stored is not None
    assert stored.undo == [
        row
        for row in rows
        if row.step_id == 1 or row.late or row.state not in (UndoState.DONE, UndoState.PENDING)
    ]


# --- effects -------------------------------------------------------------------------------------------


async def staged(store: TransactionStore) -> None:
    """Three transactions, begun in the order b, a, c, with effects in all states and two channels in each."""
    for name, principal, age in (("a", "alice", 1), ("b", "bob", 2), ("c", "alice", 0)):
        driver = Driver(store, name, principal=principal, created_at=MicrosecondsUtc(NOW - age))
        await driver.begin()
        rows = [
            effect(f"{name}-{9 - number}", 1, number, state=state, channel="mail" if number % 2 else "hook")
            for number, state in enumerate(EffectState, start=1)
        ]
        await driver.write({"effects": rows}, effect_sequence=len(rows))


Which = tuple[str, TransactionId | None, frozenset[EffectState], str]
ALL: Which = ("", None, frozenset(), "")


async def pages_of_effects(
    store: TransactionStore, which: Which, limit: int, byte_limit: int = MEBIBYTE
) -> list[str]:
    found: list[str] = []
    cursor = ""
    while True:
        page = await store.list_effects_page(*which, cursor, limit, byte_limit)
        assert 0 <= len(page.effects) <= limit
        assert all(item.effect_id.startswith(record.transaction_id) for record, item in page.effects)
        found += [item.effect_id for _, item in page.effects]
        cursor = page.next_cursor
        if not cursor:
            return found
        assert page.effects


@pytest.mark.parametrize("limit", [1, 2, 4, 100])
@pytest.mark.parametrize(
    "states",
    [
        frozenset(),
        frozenset({EffectState.DEAD}),
        frozenset({EffectState.READY, EffectState.DEAD}),
        frozenset({EffectState.STAGED, EffectState.DELIVERED, EffectState.DEAD}),
    ],
)
async def test_effects_are_listed_oldest_transaction_first_in_staging_order(
    store_or_model: TransactionStore, states: frozenset[EffectState], limit: int
) -> None:
    await staged(store_or_model)
    wanted = states or frozenset(EffectState)
    for channel, odd in (("", (0, 1)), ("mail", (1,)), ("hook", (0,)), ("none", ())):
        numbers = [
            number
            for number, state in enumerate(EffectState, start=1)
            if state in wanted and number % 2 in odd
        ]
        for principal, names in (("", "bac"), ("alice", "ac"), ("nobody", "")):
            expected = [f"{name}-{9 - number}" for name in names for number in numbers]
            which: Which = (principal, None, states, channel)
            assert await pages_of_effects(store_or_model, which, limit) == expected
        which = ("alice", TransactionId("a"), states, channel)
        expected = [f"a-{9 - number}" for number in numbers]
        assert await pages_of_effects(store_or_model, which, limit) == expected
    assert await pages_of_effects(store_or_model, ("bob", TransactionId("a"), states, ""), limit) == []


async def test_effects_come_with_the_head_of_their_transaction(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model).begin()
    ready = effect("e", state=EffectState.READY, attempts=3, last_error="refused", next_attempt_at=NOW)
    await driver.write({"effects": [ready, effect("f", 1, 2)]}, effect_sequence=2)
    page = await store_or_model.list_effects_page(
        "", None, frozenset({EffectState.READY}), "", "", 10, MEBIBYTE
    )
    assert page.effects == [(driver.record, ready)]


async def test_pages_of_effects_are_cut_by_bytes_too(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model).begin()
    rows = [effect(f"t-1-{number}", 1, number, payload=f'"{"x" * 10_000}"') for number in range(1, 8)]
    await driver.write({"effects": rows}, effect_sequence=7)
    page = await store_or_model.list_effects_page("", None, frozenset(), "", "", 100, 25_000)
    assert [item.effect_id for _, item in page.effects] == ["t-1-1", "t-1-2"]
    # One that is larger than the limit comes alone.
    page = await store_or_model.list_effects_page("", None, frozenset(), "", page.next_cursor, 100, 10)
    assert [item.effect_id for _, item in page.effects] == ["t-1-3"]
    listed = await pages_of_effects(store_or_model, ALL, 100, byte_limit=10)
    assert listed == [row.effect_id for row in rows]


# --- cursors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", ["x", "===", "bnVsbA", "é", "[]", "A" * 500])
async def test_a_foreign_cursor_is_a_value_error(store: TransactionStore, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        await store.list_compensations("", None, FAILED, cursor, 10)
    with pytest.raises(ValueError, match="cursor"):
        await store.list_effects_page("", None, frozenset(), "", cursor, 10, MEBIBYTE)


async def test_a_cursor_is_good_for_its_own_listing_only(store_or_model: TransactionStore) -> None:
    await undone(store_or_model)
    await staged_in_one(store_or_model)
    undo_page = await store_or_model.list_compensations("", None, FAILED, "", 1)
    effect_page = await store_or_model.list_effects_page("", None, frozenset(), "", "", 1, MEBIBYTE)
    assert undo_page.next_cursor
    assert effect_page.next_cursor
    with pytest.raises(ValueError, match="cursor"):
        await store_or_model.list_compensations("", None, FAILED, effect_page.next_cursor, 1)
    with pytest.raises(ValueError, match="cursor"):
        await store_or_model.list_effects_page("", None, frozenset(), "", undo_page.next_cursor, 1, MEBIBYTE)


async def staged_in_one(store: TransactionStore) -> None:
    driver = await Driver(store, "with-effects").begin()
    await driver.write({"effects": [effect("e", 1, 1), effect("f", 1, 2)]}, effect_sequence=2)
