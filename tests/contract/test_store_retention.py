"""What time does to transactions: deadlines, idleness, and the removal of those that ended."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from typing import Any

import pytest
from tests.support.store_databases import reopen, store, store_or_model  # noqa: F401
from tests.support.store_records import NOW, Driver, effect, undo

from agenttx_server.engine.ports import TransactionFilter, TransactionStore, WriteSet
from agenttx_server.engine.records import (
    CommitCheck,
    CommitCheckKind,
    EffectState,
    MicrosecondsUtc,
    RecordedResponse,
    StopKind,
    StopRequest,
    TransactionId,
    TransactionStatus,
    UndoState,
)
from agenttx_server.graphs.runs.ports import RunChange
from agenttx_server.graphs.runs.records import RunRecord, RunStatus


def at(offset: int) -> MicrosecondsUtc:
    return MicrosecondsUtc(NOW + offset)


# --- deadlines and idleness ----------------------------------------------------------------------------


async def expired(
    store: TransactionStore, offset: int, serving_since: int = -1000, limit: int = 100
) -> set[str]:
    found = await store.list_expired(at(offset), at(serving_since), limit)
    assert len(found) <= limit
    assert len(set(found)) == len(found)
    return set(found)


@pytest.mark.parametrize("status", list(TransactionStatus))
async def test_a_deadline_ends_what_is_open_whatever_it_does(
    store_or_model: TransactionStore, status: TransactionStatus
) -> None:
    await Driver(store_or_model, "t-1", status=status, deadline_at=at(5), open_group=(1, 2)).begin()
    assert await expired(store_or_model, 4) == set()
    assert await expired(store_or_model, 5) == (set() if status.is_terminal else {"t-1"})


async def test_idle_is_what_nothing_was_written_to_for_so_long(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model, "t-1", idle_timeout_us=10).begin()
    await Driver(store_or_model, "never", idle_timeout_us=0).begin()
    await Driver(store_or_model, "not-set").begin()
    assert await expired(store_or_model, 9) == set()
    assert await expired(store_or_model, 10) == {"t-1"}
    await driver.step()  # at NOW + 1
    assert await expired(store_or_model, 10) == set()
    assert await expired(store_or_model, 11) == {"t-1"}


async def test_time_in_which_nobody_served_does_not_count(store_or_model: TransactionStore) -> None:
    await Driver(store_or_model, "t-1", idle_timeout_us=10).begin()
    assert await expired(store_or_model, 50, serving_since=41) == set()
    assert await expired(store_or_model, 50, serving_since=40) == {"t-1"}


@pytest.mark.parametrize("status", list(TransactionStatus))
async def test_what_is_at_work_or_awaits_somebody_is_not_idle(
    store_or_model: TransactionStore, status: TransactionStatus
) -> None:
    await Driver(store_or_model, "t-1", status=status, idle_timeout_us=10).begin()
    # A step whose question is answered awaits nobody but its sender; test_store_approvals.py has the open question.
    may_be_idle = status in (TransactionStatus.ACTIVE, TransactionStatus.AWAITING_APPROVAL)
    assert await expired(store_or_model, 50) == ({"t-1"} if may_be_idle else set())


async def test_a_group_that_its_sender_left_open_is_idle_too(store_or_model: TransactionStore) -> None:
    await Driver(store_or_model, "t-1", idle_timeout_us=10, open_group=(1, 2)).begin()
    assert await expired(store_or_model, 50) == {"t-1"}


async def test_no_more_are_listed_than_asked_for(store_or_model: TransactionStore) -> None:
    for number in range(6):
        await Driver(store_or_model, f"t-{number}", idle_timeout_us=10).begin()
    assert len(await expired(store_or_model, 50, limit=2)) == 2


async def test_deadline_and_idle_timeout_stay_as_they_were_at_begin(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model, "t-1", idle_timeout_us=10, deadline_at=at(100)).begin()
    await driver.write(idle_timeout_us=5, deadline_at=None)
    record = await store_or_model.load_record(driver.id)
    assert record is not None
    assert (record.idle_timeout_us, record.deadline_at) == (10, at(100))


# --- retention -----------------------------------------------------------------------------------------


async def ended(store: TransactionStore, name: str, offset: int = 0, **rows: Any) -> Driver:
    """A committed transaction of one step."""
    driver = await Driver(store, name, metadata=(("team", "red"),)).begin()
    await driver.step({f"kv/{name}": "1"}, reads={"kv/other": 0}, prefixes=["kv/none"])
    await driver.write(rows, status=TransactionStatus.COMMITTED, ended_at=at(offset))
    return driver


async def names(store: TransactionStore) -> list[str]:
    page = await store.list_transactions(TransactionFilter(), "", 1000)
    return sorted(record.transaction_id for record in page.transactions)


async def test_what_ended_before_goes_and_the_rest_stays(store_or_model: TransactionStore) -> None:
    await Driver(store_or_model, "open").begin()
    for name, offset in (("old", -2), ("older", -3), ("just", -1), ("now", 0), ("new", 1)):
        await ended(store_or_model, name, offset)
    assert await store_or_model.purge_ended(at(0), 100) == 3
    assert await names(store_or_model) == ["new", "now", "open"]
    assert await store_or_model.purge_ended(at(0), 100) == 0


async def test_no_more_go_than_asked_for(store_or_model: TransactionStore) -> None:
    for number in range(7):
        await ended(store_or_model, f"t-{number}", -1 - number)
    assert [await store_or_model.purge_ended(at(0), 3) for _ in range(4)] == [3, 3, 1, 0]
    assert await names(store_or_model) == []


async def test_those_with_many_steps_go_too(store_or_model: TransactionStore) -> None:
    for number in range(5):
        driver = await Driver(store_or_model, f"t-{number}").begin()
        await driver.write(next_step_id=1500, status=TransactionStatus.FAILED, ended_at=at(-1))
    assert await store_or_model.purge_ended(at(0), 100) == 5
    assert await names(store_or_model) == []


@pytest.mark.parametrize("state", list(EffectState))
async def test_effects_that_somebody_must_see_to_keep_their_transaction(
    store_or_model: TransactionStore, state: EffectState
) -> None:
    await ended(store_or_model, "t-1", -1, effects=[effect("e"), effect("f", 1, 2, state=state)])
    stays = state in (EffectState.READY, EffectState.DEAD)
    assert await store_or_model.purge_ended(at(0), 100) == (0 if stays else 1)
    assert await names(store_or_model) == (["t-1"] if stays else [])


@pytest.mark.parametrize("state", list(UndoState))
async def test_undo_that_somebody_must_see_to_keeps_its_transaction(
    store_or_model: TransactionStore, state: UndoState
) -> None:
    await ended(store_or_model, "t-1", -1, undo=[undo(1), undo(2, state=state)])
    stays = state in (UndoState.FAILED, UndoState.LATE, UndoState.AWAITING_AGENT)
    assert await store_or_model.purge_ended(at(0), 100) == (0 if stays else 1)
    assert await names(store_or_model) == (["t-1"] if stays else [])


async def test_those_that_must_stay_do_not_keep_later_ones(store_or_model: TransactionStore) -> None:
    for number in range(5):
        await ended(store_or_model, f"dead-{number}", -9, effects=[effect("e", state=EffectState.DEAD)])
    await ended(store_or_model, "t-1", -1)
    assert await store_or_model.purge_ended(at(0), 2) == 1
    assert await names(store_or_model) == [f"dead-{number}" for number in range(5)]


async def test_nothing_is_left_of_what_went_but_committed_state(store_or_model: TransactionStore) -> None:
    store = store_or_model
    other = await Driver(store, "other").begin()
    answers = [
        RecordedResponse(scope, f"q-{number}", "Rewind", "f", "{}")
        for number, scope in enumerate(("t-1", "commit:t-1", "other", "commit:other", "principal:alice"))
    ]
    await other.write({"responses": answers})
    driver = await Driver(store, "t-1", metadata=(("team", "red"),), idle_timeout_us=1).begin()
    await driver.step(
        {"kv/a": "1"},
        reads={"kv/b": 0},
        prefixes=["kv/none"],
        checks=[CommitCheck(1, 1, CommitCheckKind.EXISTS, "kv/a", "gone")],
        effects=[effect("e", state=EffectState.DELIVERED)],
        undo=[undo(1)],
    )
    await driver.step()
    await driver.rewind(2)
    await store.request_stop(StopRequest(driver.id, StopKind.REWIND))
    await store.note_unrecovered(driver.id, "once")
    await driver.commit()
    assert await store.purge_ended(at(10**6), 10) == 1

    assert await store.load(driver.id) is None
    assert await store.load_revision(driver.id) == 0
    assert (await store.read_committed("kv/a")).value == "1"
    assert await store.commit_version() == 1
    found = [await store.find_response(item.scope, item.request_id) for item in answers]
    assert found == [None, None, *answers[2:]]
    # One of the same name, which SQLite gives the number that became free, has nothing of it.
    again = await Driver(store, "t-1").begin()
    stored = await store.load(TransactionId("t-1"))
    assert stored is not None
    assert (stored.transaction, list(stored.attempts), list(stored.undo)) == (again.record, [], [])
    assert stored.attempt_counts == {}
    assert list(stored.request_ids) == []
    assert await store.list_events(again.id, 1, 10) == []
    assert await store.list_effects(again.id, frozenset()) == []
    assert (
        await store.list_transactions(TransactionFilter(metadata=(("team", "red"),)), "", 9)
    ).transactions == []
    assert (await store.list_transactions(TransactionFilter(), "", 9)).unrecovered == {}
    assert (await again.commit()).commit_version == 2


async def test_the_answer_to_the_call_that_began_it_goes_with_a_transaction(
    store_or_model: TransactionStore,
) -> None:
    kept = RecordedResponse("principal:p", "other", "BeginTransaction", "f", "{}")
    driver = Driver(store_or_model, "t-1", principal="p", begin_request_id="begun")
    begun = RecordedResponse("principal:p", "begun", "BeginTransaction", "f", "{}")
    await store_or_model.write(WriteSet(driver.record, 0, responses=[begun, kept]))
    await driver.write(status=TransactionStatus.COMMITTED, ended_at=at(1))
    assert await store_or_model.purge_ended(at(2), 10) == 1
    assert await store_or_model.find_response("principal:p", "begun") is None
    assert await store_or_model.find_response("principal:p", "other") == kept


@pytest.mark.parametrize("status", list(RunStatus))
async def test_what_a_run_committed_that_may_go_on_stays_until_the_run_has_completed(
    store: Any, status: RunStatus
) -> None:
    run = RunRecord("r-1", "t", "g", "v", status, NOW, NOW)
    await store.runs.write(RunChange(runs=(run,)))
    for name, of_run in (("t-1", "r-1"), ("t-2", "r-2"), ("t-3", "")):
        driver = await Driver(store, name, run_id=of_run).begin()
        await driver.write(status=TransactionStatus.COMMITTED, ended_at=at(-1))
    rolled_back = await Driver(store, "t-4", run_id="r-1").begin()
    await rolled_back.write(status=TransactionStatus.ROLLED_BACK, ended_at=at(-1))
    stays = [] if status is RunStatus.COMPLETED else ["t-1"]
    assert await store.purge_ended(at(0), 100) == 4 - len(stays)
    assert await names(store) == stays
