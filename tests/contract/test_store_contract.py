"""What every TransactionStore does, whatever the database: guards, order, history, rebuilding."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from tests.support.store_databases import Opener, gather, reopen, store  # noqa: F401
from tests.support.store_records import Driver, attempt, effect, head, undo

from agenttx_server.engine.ports import (
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
    MicrosecondsUtc,
    RecordedResponse,
    StateRead,
    StateWrite,
)

# --- heads and guards ----------------------------------------------------------------------------------


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


# --- attempts ------------------------------------------------------------------------------------------


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
    stored = await store.load(driver.id)
    assert stored is not None
    assert [(item.step_id, item.attempt) for item in stored.attempts] == [(1, 2), (2, 1)]
    assert await store.find_attempt(driver.id, "other") is None
    assert await store.find_attempt(driver.id, "") is None


async def test_requests_belong_to_their_transaction(store: TransactionStore) -> None:
    first, second = await Driver(store, "t-1").begin(), await Driver(store, "t-2").begin()
    await first.step(request_id="r")
    assert await store.find_attempt(second.id, "r") is None


# --- recorded responses --------------------------------------------------------------------------------


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


# --- rebuilding ----------------------------------------------------------------------------------------


async def test_everything_is_there_after_reopening(reopen: Opener) -> None:
    store = await reopen()
    driver = await Driver(store).begin()
    await driver.step({"kv/a": "1"}, undo=[undo(1)], effects=[effect("e")], responses=[response("q1")])
    await driver.step({"kv/b": "2"}, reads={"kv/c": 0})
    await driver.step(request_id="")
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
            "state_reads": [
                StateRead(2, "kv/r", 0),
                StateRead(3, "kv/", 0, is_prefix=True),
                StateRead(4, "kv/r", 0),
            ],
            "state_writes": [
                StateWrite(2, 1, "kv/w", "1"),
                StateWrite(3, 1, "kv/x", None),
                StateWrite(4, 1, "kv/w", "2"),
            ],
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
