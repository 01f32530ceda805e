"""What stands open in a database is counted, and by indexes that hold nothing else."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, event
from tests.support.store_databases import publish, reopen, store  # noqa: F401
from tests.support.store_records import NOW, Driver, effect, undo

from agenttx_server.engine.records import (
    ApprovalRecord,
    ApprovalState,
    EffectClass,
    EffectState,
    MicrosecondsUtc,
    PendingRewind,
    RewindPurpose,
    TransactionStatus,
    UndoState,
)
from agenttx_server.store import commit_writer
from agenttx_server.store.standing import Standing, StandingCounts, count_standing
from agenttx_server.store.transaction_store import SqlTransactionStore


def question(sequence: int, state: ApprovalState = ApprovalState.PENDING) -> ApprovalRecord:
    return ApprovalRecord(
        sequence,
        1,
        1,
        "pay",
        EffectClass.IRREVERSIBLE,
        "{}",
        "it is a lot",
        MicrosecondsUtc(NOW + sequence),
        state,
    )


async def test_nothing_is_counted_where_nothing_stands_open(store: SqlTransactionStore) -> None:
    assert await store.count_standing() == StandingCounts()


async def test_what_is_open_held_waiting_and_dead_is_counted_with_the_oldest(
    store: SqlTransactionStore,
) -> None:
    for number in (1, 2):
        await Driver(store, f"active-{number}", updated_at=MicrosecondsUtc(NOW - number)).begin()
    doubtful = await Driver(store, "doubtful", updated_at=MicrosecondsUtc(NOW - 50)).begin()
    await doubtful.write({}, status=TransactionStatus.IN_DOUBT)
    held = await Driver(store, "held").begin()
    pending = PendingRewind(RewindPurpose.REWIND, 1, TransactionStatus.ACTIVE, NOW, held=True)
    states = (UndoState.FAILED, UndoState.FAILED, UndoState.PENDING, UndoState.AWAITING_AGENT)
    await held.write(
        {"undo": [undo(number, state=state) for number, state in enumerate(states, start=1)]},
        status=TransactionStatus.ROLLING_BACK,
        pending_rewind=pending,
        undo_sequence=len(states),
    )
    went_on = await Driver(store, "went-on").begin()
    late = [undo(1, state=UndoState.LATE, late=True), undo(2, state=UndoState.RESOLVED)]
    await went_on.write(
        {
            "undo": [*late, undo(3, state=UndoState.FAILED)],
            "approvals": [question(1, ApprovalState.APPROVED), question(2), question(3)],
        },
        undo_sequence=3,
        approval_sequence=3,
    )
    await store.note_unrecovered(went_on.id, "it does not parse")
    committed = await Driver(store, "committed").begin()
    staged = [effect(f"e-{number}", sequence=number) for number in (1, 2, 3)]
    await committed.write({"effects": staged}, effect_sequence=3)
    await committed.commit()
    dead = dataclasses.replace(staged[2], state=EffectState.DEAD)
    await committed.write({"effects": [dead]})

    counts = await store.count_standing()

    ended_at = committed.record.ended_at
    assert counts == StandingCounts(
        transactions={
            TransactionStatus.ACTIVE: Standing(3, MicrosecondsUtc(NOW - 2)),
            TransactionStatus.IN_DOUBT: Standing(1, MicrosecondsUtc(NOW - 49)),
            TransactionStatus.ROLLING_BACK: Standing(1, MicrosecondsUtc(NOW + 1)),
        },
        held=1,
        unrecovered=1,
        undo={UndoState.FAILED: 3, UndoState.AWAITING_AGENT: 1, UndoState.LATE: 1},
        effects={EffectState.READY: Standing(2, ended_at), EffectState.DEAD: Standing(1, ended_at)},
        approvals=Standing(2, MicrosecondsUtc(NOW + 2)),
    )


async def test_no_count_walks_a_table_that_grows(store: SqlTransactionStore) -> None:
    if store.is_shared:
        return  # what a planner chooses there depends on how much there is
    seen: list[tuple[str, Any]] = []
    plans: list[str] = []

    def explain(connection: Connection) -> None:
        def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
            seen.append((statement, parameters))

        event.listen(connection, "before_cursor_execute", note)
        count_standing(connection)
        event.remove(connection, "before_cursor_execute", note)
        for statement, parameters in seen:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(row[3] for row in plan)

    await store._pool.read(explain)

    assert len(seen) == 6
    few = (
        "ix_transactions_open",
        "ix_undo_actions_in_question",
        "ix_effects_waiting",
        "ix_approvals_pending",
    )
    walks = [line for line in plans if line.startswith("SCAN ") and "recovery_problems" not in line]
    assert walks
    assert [line for line in walks if not any(index in line for index in few)] == []


async def test_batches_are_counted_by_their_sets_and_time(store: SqlTransactionStore) -> None:
    driver = await Driver(store).begin()
    for _ in range(3):
        await driver.write()

    writing = store.statistics.writing

    assert (writing.batch_sets.sum, sum(writing.batch_sets.counts)) == (4.0, 4)
    assert sum(writing.batch_seconds.counts) == 4
    assert 0 < writing.batch_seconds.sum < 60
    assert (writing.sets_unavailable, writing.queued, store.statistics.reads_waiting) == (0, 0, 0)


async def test_a_batch_counts_the_time_from_its_beginning_until_it_is_durable(
    store: SqlTransactionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = await Driver(store).begin()
    before = store.statistics.writing.batch_seconds
    steps = iter(range(100))
    # Looked at twice a batch: each takes a quarter of a second.
    stepped = SimpleNamespace(
        perf_counter=lambda: next(steps) * 0.25, monotonic=time.monotonic, sleep=time.sleep
    )
    monkeypatch.setattr(commit_writer, "time", stepped)
    for _ in range(3):
        await driver.write()

    after = store.statistics.writing.batch_seconds
    counted = {
        bound: late - early
        for bound, early, late in zip(after.bounds, before.counts, after.counts, strict=False)
        if late > early
    }
    assert counted == {0.25: 3}
    assert after.sum - before.sum == pytest.approx(0.75)
