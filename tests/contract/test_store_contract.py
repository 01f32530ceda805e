"""What every TransactionStore does, whatever the database: the port's docstrings, one by one.

The fixture ``open_store`` opens, and opens again, one database; add a database by adding a
factory to ``DATABASES``.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.store_records import NOW, Driver, attempt, effect, head, undo

from agenttx_server.engine.ports import (
    CommitRefused,
    DuplicateRequestId,
    StaleRevision,
    StateView,
    StoreUnavailable,
    TransactionFilter,
    TransactionStore,
    WriteReceipt,
    WriteSet,
)
from agenttx_server.engine.records import (
    AttemptState,
    CommitCheck,
    CommitCheckKind,
    CommittedEntry,
    EffectState,
    EventRecord,
    EventType,
    Hint,
    HintCategory,
    Isolation,
    MicrosecondsUtc,
    RecordedResponse,
    StateRead,
    StateWrite,
    TransactionStatus,
    UndoState,
)
from agenttx_server.store import open_store as open_sql_store

Opener = Callable[[], Awaitable[TransactionStore]]


def sqlite_address(folder: Path) -> str:
    return f"sqlite:///{folder / 'agenttx.db'}"


DATABASES = {"sqlite": sqlite_address}


@pytest.fixture(params=DATABASES)
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens the database; again closes it first."""
    address = DATABASES[request.param](tmp_path)
    stack = AsyncExitStack()

    async def open_again() -> TransactionStore:
        await stack.aclose()
        return await stack.enter_async_context(open_sql_store(address))

    yield open_again
    await stack.aclose()


@pytest.fixture
async def store(reopen: Opener) -> TransactionStore:
    return await reopen()


async def gather(*writes: Awaitable[WriteReceipt]) -> list[Any]:
    return list(await asyncio.gather(*writes, return_exceptions=True))


# --- heads and guards ---------------------------------------------------------------------------


async def test_a_head_comes_back_as_it_was_written(store: TransactionStore) -> None:
    record = head(metadata=(("team", "a"), ("run", "7")), idle_timeout_us=5)
    assert await store.write(WriteSet(record, 0)) == WriteReceipt()
    assert await store.load_record(record.transaction_id) == record


async def test_an_unknown_transaction_is_none(store: TransactionStore) -> None:
    unknown = head("nobody").transaction_id
    assert await store.load_record(unknown) is None
    assert await store.load(unknown) is None
    assert await store.find_attempt(unknown, "r") is None
    assert await store.load_output(unknown, 1, 1) is None
    assert await store.list_events(unknown, 1, 10) == []
    assert await store.list_effects(unknown, frozenset()) == []
    assert await store.count_touched(unknown, 1) == (0, [], 0)
    assert await store.load_context(unknown, 10) == ([], False)
    assert (await store.list_attempts(unknown, "", 10, 1000)).attempts == []


async def test_a_second_begin_of_one_transaction_is_stale(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    with pytest.raises(StaleRevision):
        await store.write(WriteSet(head(agent_id="intruder"), 0))
    assert await store.load_record(driver.id) == driver.record


async def test_a_begin_of_an_existing_transaction_leaves_no_metadata(store: TransactionStore) -> None:
    await Driver(store).begin()
    with pytest.raises(StaleRevision):
        await store.write(WriteSet(head(metadata=(("k", "v"),)), 0))
    page = await store.list_transactions(TransactionFilter(metadata=(("k", "v"),)), "", 10)
    assert page.transactions == []


@pytest.mark.parametrize("expected", [1, 3, 99])
async def test_a_write_over_another_revision_is_stale_and_writes_nothing(
    store: TransactionStore, expected: int
) -> None:
    driver = await Driver(store).begin()
    await driver.step()
    late = dataclasses.replace(
        driver.step_set({"kv/a": "1"}, effects=[effect("e")], undo=[undo(1)]), expected_revision=expected
    )
    with pytest.raises(StaleRevision):
        await store.write(late)
    stored = await store.load(driver.id)
    assert stored is not None
    assert stored.transaction.revision == 2
    assert [item.step_id for item in stored.attempts] == [1]
    assert stored.undo == []
    assert await store.list_effects(driver.id, frozenset()) == []
    assert await store.read_state(driver.id, "kv/a", 99) == StateView(None, False, 0)


async def test_a_write_to_an_unknown_transaction_is_stale(store: TransactionStore) -> None:
    with pytest.raises(StaleRevision):
        await store.write(WriteSet(head(revision=2), 1))


async def test_a_stale_set_does_not_hold_back_the_others(store: TransactionStore) -> None:
    drivers = [await Driver(store, f"t-{number}").begin() for number in range(20)]
    sets = [driver.step_set({f"kv/{driver.id}": "1"}) for driver in drivers]
    for number in (3, 11):
        sets[number] = dataclasses.replace(sets[number], expected_revision=7)
    outcomes = await gather(*(store.write(item) for item in sets))
    assert [number for number, item in enumerate(outcomes) if isinstance(item, StaleRevision)] == [3, 11]
    for number, driver in enumerate(drivers):
        record = await store.load_record(driver.id)
        assert record is not None
        assert record.revision == (1 if number in (3, 11) else 2)


async def test_sets_of_one_transaction_apply_in_the_order_of_the_calls(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    sets = [driver.step_set({"kv/a": str(number)}) for number in range(50)]
    assert await gather(*(store.write(item) for item in sets)) == [WriteReceipt()] * 50
    assert await store.load_record(driver.id) == driver.record
    view = await store.read_state(driver.id, "kv/a", 51)
    assert view == StateView("49", True, 0)
    events = await store.list_events(driver.id, 1, 1000)
    assert [event.sequence for event in events] == list(range(1, 51))


async def test_a_begin_and_the_steps_behind_it_may_be_queued_together(store: TransactionStore) -> None:
    driver = Driver(store, metadata=(("k", "v"),))
    first = WriteSet(driver.record, 0)
    sets = [first, driver.step_set({"kv/a": "1"}), driver.step_set({"kv/b": "2"}), driver.commit_set()]
    outcomes = await gather(*(store.write(item) for item in sets))
    assert outcomes == [WriteReceipt()] * 3 + [WriteReceipt(1, 2, 0)]
    assert await store.load_record(driver.id) == dataclasses.replace(driver.record, commit_version=1)


async def test_sets_queued_behind_a_stale_one_are_stale(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    stale = dataclasses.replace(driver.step_set({"kv/a": "1"}), expected_revision=5)
    behind = [driver.step_set(), driver.step_set()]
    outcomes = await gather(store.write(stale), *(store.write(item) for item in behind))
    assert [type(outcome) for outcome in outcomes] == [StaleRevision] * 3
    record = await store.load_record(driver.id)
    assert record is not None
    assert record.revision == 1


async def test_a_set_behind_a_failed_one_is_not_applied_though_its_revision_fits(
    store: TransactionStore,
) -> None:
    # As if another server had written the revision that the second set was made on.
    driver = await Driver(store).begin()
    first = dataclasses.replace(driver.step_set({"kv/a": "1"}), expected_revision=5)
    second = dataclasses.replace(driver.step_set({"kv/b": "1"}), expected_revision=1)
    outcomes = await gather(store.write(first), store.write(second))
    assert [type(outcome) for outcome in outcomes] == [StaleRevision, StaleRevision]


async def test_the_head_keeps_who_began_it(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    before = driver.record
    await driver.write(principal="mallory", agent_id="other", created_at=MicrosecondsUtc(1))
    record = await store.load_record(driver.id)
    assert record is not None
    assert (record.principal, record.agent_id, record.created_at) == ("alice", "agent-1", before.created_at)


# --- attempts -----------------------------------------------------------------------------------


async def test_an_attempt_is_written_over_in_place(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    running = attempt(1, state=AttemptState.EXECUTING, output=None)
    await driver.write({"attempts": [running]})
    done = dataclasses.replace(running, state=AttemptState.COMPLETED, output='{"a":1}', response="{}")
    await driver.write({"attempts": [done]})
    page = await store.list_attempts(driver.id, "", 10, 10_000)
    assert page.attempts == [done]
    assert await store.load_output(driver.id, 1, 1) == '{"a":1}'
    assert await store.load_output(driver.id, 1, 2) is None


async def test_the_newest_attempt_of_a_request_is_found(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    older, newer = attempt(1, 1, request_id="same"), attempt(1, 2, request_id="same")
    await driver.write({"attempts": [older]})
    await driver.write({"attempts": [newer, attempt(2, request_id="")]})
    assert await store.find_attempt(driver.id, "same") == (newer, False)
    assert await store.find_attempt(driver.id, "other") is None
    assert await store.find_attempt(driver.id, "") is None


async def test_requests_belong_to_their_transaction(store: TransactionStore) -> None:
    first, second = await Driver(store, "t-1").begin(), await Driver(store, "t-2").begin()
    await first.step(request_id="r")
    assert await store.find_attempt(second.id, "r") is None


# --- rewinds ------------------------------------------------------------------------------------


async def test_a_rewind_drops_what_later_steps_left_and_keeps_the_rest(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    for step in (1, 2, 3):
        await driver.step(
            {"kv/a": str(step), f"kv/{step}": str(step)},
            reads={"kv/seen": 0},
            effects=[effect(f"e{step}", step, step)],
            undo=[undo(step, step)],
            checks=[CommitCheck(step, 1, CommitCheckKind.EXISTS, f"kv/{step}", "gone")],
        )
    await driver.rewind(2)
    stored = await store.load(driver.id)
    assert stored is not None
    assert [item.step_id for item in stored.attempts] == [1]
    assert stored.attempt_counts == {1: 1, 2: 1, 3: 1}
    assert [item.sequence for item in stored.undo] == [1]
    assert [item.effect_id for item in await store.list_effects(driver.id, frozenset())] == ["e1"]
    assert await store.read_state(driver.id, "kv/a", 99) == StateView("1", True, 0)
    assert await store.read_state(driver.id, "kv/2", 99) == StateView(None, False, 0)
    page = await store.list_attempts(driver.id, "", 10, 10_000)
    assert list(page.rewound) == [False, True, True]
    live = await store.list_attempts(driver.id, "", 10, 10_000, include_rewound=False)
    assert [item.step_id for item in live.attempts] == [1]
    assert await store.find_attempt(driver.id, "r-2-1") == (page.attempts[1], True)
    # The dropped checks would refuse this: their keys are gone.
    assert await driver.commit() == WriteReceipt(1, 2, 1)


async def test_the_failed_attempt_written_with_the_rewind_is_rewound_too(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step()
    failed = attempt(2, state=AttemptState.FAILED, output=None, generation=1)
    await driver.rewind(1, attempts=[failed])
    assert await store.find_attempt(driver.id, "r-2-1") == (failed, True)


async def test_attempts_after_a_rewind_are_live(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step()
    await driver.step()
    await driver.rewind(2)
    await driver.step()
    page = await store.list_attempts(driver.id, "", 10, 10_000)
    shown = [
        (item.step_id, item.attempt, rewound)
        for item, rewound in zip(page.attempts, page.rewound, strict=True)
    ]
    assert shown == [(1, 1, False), (2, 1, True), (2, 2, False)]
    stored = await store.load(driver.id)
    assert stored is not None
    assert [(item.step_id, item.attempt) for item in stored.attempts] == [(1, 1), (2, 2)]
    assert stored.attempt_counts == {1: 1, 2: 2}


async def test_an_abort_without_a_new_generation_rewinds_all(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step({"kv/a": "1"})
    ending = dataclasses.replace(driver.next_set(status=TransactionStatus.ROLLED_BACK), rewind_from=1)
    await store.write(ending)
    page = await store.list_attempts(driver.id, "", 10, 10_000)
    assert list(page.rewound) == [True]


async def test_a_rewind_leaves_failed_undo_actions_and_takes_upserts_after(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    hint = Hint("Hint: the refund failed", HintCategory.TIMEOUT, "timeout", ("order_id",))
    rows = [
        undo(1, 2, state=UndoState.DONE),
        undo(2, 2, state=UndoState.FAILED, hint=hint, attempts=3),
        undo(3, 2),
        undo(4, 1),
    ]
    await driver.write({"undo": rows})
    await driver.rewind(2, undo=[dataclasses.replace(rows[2], state=UndoState.FAILED)])
    stored = await store.load(driver.id)
    assert stored is not None
    assert stored.undo == [rows[1], dataclasses.replace(rows[2], state=UndoState.FAILED), rows[3]]


async def test_a_rewind_drops_staged_effects_only(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    rows = [effect(f"e{number}", 1, number, state=state) for number, state in enumerate(EffectState)]
    await driver.write({"effects": rows})
    await driver.rewind(1)
    assert await store.list_effects(driver.id, frozenset()) == [
        row for row in rows if row.state is not EffectState.STAGED
    ]


async def test_a_rewind_touches_its_own_transaction_only(store: TransactionStore) -> None:
    first, second = await Driver(store, "t-1").begin(), await Driver(store, "t-2").begin()
    await second.step({"kv/a": "2"}, effects=[effect("e", 1)], undo=[undo(1)])
    await first.step({"kv/a": "1"})
    await first.rewind(1)
    assert await store.read_state(second.id, "kv/a", 9) == StateView("2", True, 0)
    assert await store.count_touched(second.id, 1) == (1, ["kv/a"], 1)
    stored = await store.load(second.id)
    assert stored is not None
    assert (len(stored.attempts), len(stored.undo)) == (1, 1)


# --- state --------------------------------------------------------------------------------------


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


# --- publication --------------------------------------------------------------------------------


async def publish(store: TransactionStore, name: str, writes: dict[str, str | None]) -> WriteReceipt:
    driver = await Driver(store, name).begin()
    await driver.step(writes)
    return await driver.commit()


async def test_a_commit_publishes_the_newest_value_of_each_key(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step([("kv/a", "1"), ("kv/a", "2")], effects=[effect("e1"), effect("e2", sequence=2)])
    await driver.step({"kv/a": "3", "kv/b": None})
    assert await driver.commit() == WriteReceipt(commit_version=1, keys_published=2, effects_ready=2)
    assert await store.read_committed("kv/a") == CommittedEntry("kv/a", "3", 1)
    assert await store.read_committed("kv/b") == CommittedEntry("kv/b", None, 1)
    assert {item.state for item in await store.list_effects(driver.id, frozenset())} == {EffectState.READY}
    assert await store.load_record(driver.id) == dataclasses.replace(driver.record, commit_version=1)


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
    [({"kv/new": "1"}, True), ({"kv/b": None}, True), ({"kx": "1"}, False), ({"kv/gone": None}, False)],
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


# --- recorded responses -------------------------------------------------------------------------


def response(request_id: str = "q", scope: str = "t-1", **fields: Any) -> RecordedResponse:
    return RecordedResponse(
        scope, request_id, fields.get("method", "Commit"), "f", fields.get("response", "{}")
    )


async def test_a_recorded_response_is_found_by_scope_and_request(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    mine, outer = response(), response(scope="principal:alice", response='{"a":1}')
    await driver.write({"responses": [mine, outer]})
    assert await store.find_response("t-1", "q") == mine
    assert await store.find_response("principal:alice", "q") == outer
    assert await store.find_response("t-1", "other") is None


async def test_a_second_response_of_one_request_is_refused_and_writes_nothing(
    store: TransactionStore,
) -> None:
    driver = await Driver(store).begin()
    await driver.write({"responses": [response()]})
    with pytest.raises(DuplicateRequestId):
        await driver.write({"responses": [response(response='{"b":2}')], "attempts": [attempt(1)]})
    record = await store.load_record(driver.id)
    assert record is not None
    assert record.revision == 2
    assert await store.find_response("t-1", "q") == response()
    assert (await store.list_attempts(driver.id, "", 10, 1000)).attempts == []


async def test_a_duplicate_response_does_not_hold_back_the_others(store: TransactionStore) -> None:
    drivers = [await Driver(store, f"t-{number}").begin() for number in range(10)]
    await drivers[0].write({"responses": [response("q", "principal:alice")]})
    sets = [
        driver.next_set({"responses": [response("q" if number == 4 else f"q{number}", "principal:alice")]})
        for number, driver in enumerate(drivers)
    ]
    outcomes = await gather(*(store.write(item) for item in sets))
    assert [number for number, item in enumerate(outcomes) if isinstance(item, Exception)] == [4]
    assert isinstance(outcomes[4], DuplicateRequestId)


# --- listings -----------------------------------------------------------------------------------


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
    await driver.step(raw_context="second try")
    contexts = [(1, "kv.put", "first\0"), (3, "kv.put", "größte"), (4, "kv.put", "second try")]
    assert await store.load_context(driver.id, 1000) == (contexts, False)
    assert await store.load_context(driver.id, 10 + 8) == (contexts[1:], True)
    assert await store.load_context(driver.id, 10 + 7) == (contexts[2:], True)
    assert await store.load_context(driver.id, 3) == ([], True)


# --- rebuilding ---------------------------------------------------------------------------------


async def test_everything_is_there_after_reopening(reopen: Opener) -> None:
    store = await reopen()
    driver = await Driver(store).begin()
    await driver.step({"kv/a": "1"}, undo=[undo(1)], effects=[effect("e")], responses=[response("q1")])
    await driver.step({"kv/b": "2"}, reads={"kv/c": 0})
    before = await store.load(driver.id)
    store = await reopen()
    assert await store.load(driver.id) == before
    assert before is not None
    assert before.transaction == driver.record
    assert sorted(before.request_ids) == ["q1", "r-1-1", "r-2-1"]
    driver.store = store
    assert await driver.commit() == WriteReceipt(1, 2, 1)


async def test_the_open_group_is_loaded_with_what_it_touched(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    await driver.step({"kv/before": "1"}, reads={"kv/before": 0})
    await driver.write(
        {
            "attempts": [attempt(2), attempt(3)],
            "state_reads": [StateRead(2, "kv/r", 0), StateRead(3, "kv/", 0, is_prefix=True)],
            "state_writes": [StateWrite(2, 1, "kv/w", "1"), StateWrite(3, 1, "kv/x", None)],
        },
        open_group=(2, 2),
    )
    stored = await store.load(driver.id)
    assert stored is not None
    assert set(stored.group_reads) == {StateRead(2, "kv/r", 0), StateRead(3, "kv/", 0, is_prefix=True)}
    assert stored.group_writes == [StateWrite(2, 1, "kv/w", "1"), StateWrite(3, 1, "kv/x", None)]
    await driver.write(open_group=None)
    settled = await store.load(driver.id)
    assert settled is not None
    assert (list(settled.group_reads), list(settled.group_writes)) == ([], [])


async def test_a_write_is_seen_by_every_later_read(store: TransactionStore) -> None:
    async def one(number: int) -> None:
        driver = await Driver(store, f"t-{number}").begin()
        for step in range(1, 20):
            await driver.step({"kv/a": str(step)})
            view = await store.read_state(driver.id, "kv/a", step + 1)
            assert view.value == str(step)

    await asyncio.gather(*(one(number) for number in range(8)))


async def test_a_caller_that_goes_away_does_not_undo_its_write(store: TransactionStore) -> None:
    driver = await Driver(store).begin()
    task = asyncio.ensure_future(store.write(driver.step_set({"kv/a": "1"})))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await driver.step({"kv/b": "1"})
    assert await store.load_record(driver.id) == driver.record


async def test_a_text_that_is_no_unicode_fails_its_own_set_only(store: TransactionStore) -> None:
    drivers = [await Driver(store, f"t-{number}").begin() for number in range(5)]
    sets = [
        driver.step_set({"kv/a": '"\ud83c"' if number == 2 else "1"}) for number, driver in enumerate(drivers)
    ]
    outcomes = await gather(*(store.write(item) for item in sets))
    assert [isinstance(item, WriteReceipt) for item in outcomes] == [True, True, False, True, True]
    assert isinstance(outcomes[2], UnicodeEncodeError)


async def test_a_closed_store_is_unavailable(reopen: Opener) -> None:
    store = await reopen()
    driver = await Driver(store).begin()
    await reopen()
    with pytest.raises(StoreUnavailable):
        await driver.step()
    with pytest.raises(StoreUnavailable):
        await store.check()


async def test_the_database_answers(store: TransactionStore) -> None:
    await store.check()
