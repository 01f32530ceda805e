"""A report on a database: what stands still is found on both, nothing is changed, and what is well is not named."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.previous_release import make_database, revision_of
from tests.support.store_databases import DATABASES
from tests.support.store_records import NOW, Driver, attempt, effect, undo

from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import (
    ApprovalRecord,
    EffectClass,
    EffectState,
    MicrosecondsUtc,
    ServerId,
    TransactionId,
    TransactionStatus,
    UndoState,
)
from agenttx_server.store import DatabaseRefused, DatabaseReport, open_store, report_on
from agenttx_server.store.schema import HEAD_REVISION

HOUR_US = 3_600_000_000


def look(address: str) -> DatabaseReport:
    return report_on(address, overdue_us=HOUR_US, unanswered_us=HOUR_US, abandoned_us=HOUR_US)


@pytest.fixture(params=DATABASES)
async def served(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[str, TransactionStore]]:
    with DATABASES[request.param](tmp_path) as address:
        async with open_store(address) as store:
            yield address, store


def look_now() -> int:
    return time.time_ns() // 1000


def approval() -> ApprovalRecord:
    return ApprovalRecord(1, 1, 1, "pay", EffectClass.IRREVERSIBLE, "{}", "it costs money", NOW)


def ids(report: DatabaseReport) -> dict[str, list[str]]:
    return {kind: list(late.examples) for kind, late in report.transactions.items() if late.count}


async def test_what_is_well_is_not_named(served: tuple[str, TransactionStore]) -> None:
    address, store = served
    timed = await Driver(store, "timed", idle_timeout_us=7_000_000).begin()
    await timed.step({"kv/a": "1"})
    done = await Driver(store, "done").begin()
    await done.write({"effects": [effect("sent", state=EffectState.DELIVERED)], "undo": [undo(1)]})
    await done.commit()
    report = look(address)
    assert report.revision == report.head_revision == HEAD_REVISION
    assert report.open_transactions == 1
    assert report.newest_us >= NOW
    assert abs(report.time_ahead_us) < 60_000_000  # one machine's clock, looked at twice
    assert ids(report) == {}


async def test_each_kind_of_what_stands_still_is_found(served: tuple[str, TransactionStore]) -> None:
    address, store = served
    await store.register_server(ServerId("alive"), 3600, MicrosecondsUtc(look_now()))
    in_doubt = await Driver(store, "in-doubt").begin()
    await in_doubt.write(status=TransactionStatus.IN_DOUBT)
    held = await Driver(store, "held").begin()
    await held.write(
        {"undo": [undo(number, state=UndoState.FAILED) for number in (1, 2)]},
        status=TransactionStatus.ROLLING_BACK,
    )
    late = await Driver(store, "late", idle_timeout_us=1).begin()
    await late.write({"undo": [undo(1, state=UndoState.FAILED, late=True)]})
    lost = await Driver(store, "lost", idle_timeout_us=1, owner=ServerId("gone")).begin()
    await lost.write(status=TransactionStatus.EXECUTING)
    kept = await Driver(store, "kept", idle_timeout_us=1, owner=ServerId("alive")).begin()
    await kept.write(status=TransactionStatus.EXECUTING)
    await store.note_unrecovered(TransactionId("lost"), "its tool is offered no more")
    mail = await Driver(store, "mail").begin()
    await mail.write(
        {
            "effects": [
                effect("dead", state=EffectState.DEAD),
                effect("due", sequence=2, state=EffectState.READY),
            ]
        },
        outbox_due_at=NOW,
    )
    await mail.commit()
    asked = await Driver(store, "asked", idle_timeout_us=1).begin()
    await asked.write({"attempts": [attempt(1)], "approvals": [approval()]})
    await Driver(store, "left").begin()

    report = look(address)

    assert ids(report) == {
        "in_doubt": ["in-doubt"],
        "held": ["held"],
        "late_undo": ["late"],
        "unrecovered": ["lost"],
        "dead_effects": ["mail"],
        "overdue_effects": ["mail"],
        "approvals": ["asked"],
        "orphans": ["lost"],
        "abandoned": ["left"],
    }
    assert report.transactions["held"].count == 1
    assert report.transactions["abandoned"].since == NOW
    assert report.live_servers == 1


async def test_many_are_counted_and_the_oldest_named(served: tuple[str, TransactionStore]) -> None:
    address, store = served
    for number in range(7):
        await Driver(store, f"t-{number}", updated_at=MicrosecondsUtc(NOW - number)).begin()
    abandoned = look(address).transactions["abandoned"]
    assert (abandoned.count, list(abandoned.examples)) == (7, ["t-6", "t-5", "t-4", "t-3", "t-2"])
    assert abandoned.since == NOW - 6


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert look(f"sqlite:///{tmp_path}/no/agenttx.db").revision is None
    assert look(f"sqlite:///{tmp_path}/agenttx.db").revision is None
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_before_is_not_migrated(tmp_path: Path) -> None:
    path = tmp_path / "agenttx.db"
    make_database(path)
    report = look(f"sqlite:///{path}")
    assert (report.revision, report.transactions) == ("0001", {})
    assert revision_of(path) == "0001"


def test_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agenttx.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(DatabaseRefused, match="can't be read as a database"):
        look(f"sqlite:///{path}")
    with pytest.raises(DatabaseRefused, match="can't connect"):
        look(f"postgresql://agenttx@/none?host={tmp_path}")
