"""The audit trail is written with the deed, in one commit, on every database."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.store_databases import DATABASES, gather
from tests.support.store_records import NOW, Driver

from agenttx_server.access.identity import Role
from agenttx_server.access.tokens import make_token
from agenttx_server.audit.actor import act_as
from agenttx_server.audit.chain import AuditEntry, ChainCheck
from agenttx_server.engine.ports import StaleRevision, WriteReceipt, WriteSet
from agenttx_server.engine.records import EventRecord, EventType, MicrosecondsUtc, TransactionStatus
from agenttx_server.graphs.ports import GraphRecord
from agenttx_server.store import open_audit, open_store, open_tokens
from agenttx_server.store.administration import administered
from agenttx_server.store.audit_deeds import _OF_EVENTS

# What is told in the journals alone: steps, and what the server does with effects and undo.
NO_DEEDS = {
    EventType.STEP_STARTED,
    EventType.STEP_COMPLETED,
    EventType.STEP_FAILED,
    EventType.STEP_IN_DOUBT,
    EventType.STEP_SUPERSEDED,
    EventType.STEP_AWAITING_APPROVAL,
    EventType.APPROVAL_WITHDRAWN,
    EventType.ROLLBACK_STARTED,
    EventType.UNDO_COMPLETED,
    EventType.UNDO_FAILED,
    EventType.LATE_EFFECT_REPORTED,
    EventType.EFFECT_DELIVERED,
    EventType.EFFECT_FAILED,
    EventType.EFFECT_DEAD,
}


@pytest.fixture(params=DATABASES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with DATABASES[request.param](tmp_path) as url:
        yield url


def trail(address: str) -> list[AuditEntry]:
    with open_audit(address) as found:
        return list(found)


def told(address: str) -> list[tuple[str, str, str]]:
    """Return (actor, action, subject) of all entries in order of time, once the chains were found whole."""
    entries = trail(address)
    check = ChainCheck()
    for entry in entries:
        check.take(entry)
    assert check.end() == []
    entries.sort(key=lambda entry: entry.deed.occurred_at)
    return [(entry.deed.actor, entry.deed.action, entry.deed.subject) for entry in entries]


def with_event(made: WriteSet, kind: EventType, payload: str = "{}", at: int = 0) -> WriteSet:
    event = EventRecord(
        max(made.transaction.event_sequence, 1), kind, 1, MicrosecondsUtc(NOW + at), payload=payload
    )
    return dataclasses.replace(made, events=[event])


def begun(driver: Driver) -> WriteSet:
    driver.record = dataclasses.replace(driver.record, event_sequence=1)
    return with_event(WriteSet(driver.record, 0), EventType.TRANSACTION_BEGUN)


def test_every_kind_of_event_is_a_deed_or_is_none_on_purpose():
    assert _OF_EVENTS.keys() | NO_DEEDS == set(EventType)
    assert not _OF_EVENTS.keys() & NO_DEEDS


async def test_who_did_what_is_written_with_it(address: str):
    async with open_store(address) as store:
        act_as("ann")
        driver = Driver(store, "t-1")
        await store.write(begun(driver))
        await driver.step({"kv/a": "1"})  # no deed
        act_as("olga")
        payload = '{"to_step":1,"strategy":"MANUAL","reason":"password=hunter2"}'
        await store.write(with_event(driver.rewind_set(1), EventType.TRANSACTION_REWOUND, payload, 1))
        act_as("ann")
        await store.write(with_event(driver.commit_set(), EventType.TRANSACTION_COMMITTED, at=2))
        await store.register_graph(GraphRecord("g", "v1", "", 1, 1, NOW, "{}"))
        await store.register_graph(GraphRecord("g", "v1", "", 1, 1, NOW, "{}"))  # it is there: no deed
    assert told(address) == [
        ("ann", "transaction.begin", "t-1"),
        ("olga", "transaction.rewind", "t-1"),
        ("ann", "transaction.commit", "t-1"),
        ("ann", "graph.register", "g"),
    ]
    rewind = next(entry.deed for entry in trail(address) if entry.deed.action == "transaction.rewind")
    assert (rewind.owner, rewind.detail) == ("alice", '{"generation":1,"strategy":"MANUAL","to_step":1}')


async def test_a_write_that_is_refused_leaves_no_entry_and_those_beside_it_leave_theirs(address: str):
    async with open_store(address) as store:
        late = Driver(store, "t-late")
        await store.write(begun(late))
        stale = with_event(late.next_set(), EventType.TRANSACTION_REWOUND)
        outcomes = await gather(
            store.write(begun(Driver(store, "t-1"))),
            store.write(dataclasses.replace(stale, expected_revision=99)),
            store.write(begun(Driver(store, "t-2"))),
        )
        assert isinstance(outcomes[1], StaleRevision)
        assert isinstance(outcomes[0], WriteReceipt)
        assert isinstance(outcomes[2], WriteReceipt)
    assert sorted(subject for _, _, subject in told(address)) == ["t-1", "t-2", "t-late"]


async def test_what_can_not_be_noted_is_not_done(address: str):
    async with open_store(address) as store:
        # Made before: it looks whether all tables are there.
        engine = await asyncio.to_thread(administered, address)

        def change(statement: str) -> None:
            with engine.begin() as connection:
                connection.execute(text(statement))

        await asyncio.to_thread(change, "ALTER TABLE audit_log RENAME TO audit_gone")
        driver = Driver(store, "t-1")
        (refused,) = await gather(store.write(begun(driver)))
        assert isinstance(refused, Exception)
        assert await store.load_record(driver.id) is None
        await asyncio.to_thread(change, "ALTER TABLE audit_gone RENAME TO audit_log")
        engine.dispose()
        await store.write(begun(driver))
        assert await store.load_record(driver.id) is not None
    assert [action for _, action, _ in told(address)] == ["transaction.begin"]


async def test_what_many_do_at_once_stands_in_whole_chains(address: str):
    async with open_store(address) as store:
        drivers = [Driver(store, f"t-{number:03}") for number in range(120)]
        outcomes = await gather(*(store.write(begun(driver)) for driver in drivers))
        assert all(isinstance(outcome, WriteReceipt) for outcome in outcomes)
        made = make_token("bob", frozenset({Role.AGENT}), now=1)

        def administer() -> None:
            with open_tokens(address, "local:root") as tokens:
                tokens.add(made.record)
                tokens.revoke(made.record.token_id, 2)
                tokens.revoke(made.record.token_id, 3)  # it is: no deed

        await asyncio.gather(
            asyncio.to_thread(administer),
            *(
                store.write(with_event(driver.next_set(), EventType.TRANSACTION_REWOUND, at=1))
                for driver in drivers
            ),
        )
    found = told(address)
    assert len(found) == 242
    assert [one[:2] for one in found[-2:]] == [("local:root", "token.create"), ("local:root", "token.revoke")]
    assert not any(made.record.secret_hash in entry.deed.detail for entry in trail(address))


async def test_a_purge_is_noted_for_each_that_is_gone(address: str):
    async with open_store(address) as store:
        for name in ("t-1", "t-2"):
            driver = await Driver(store, name).begin()
            ended: dict[str, Any] = {"status": TransactionStatus.COMMITTED, "ended_at": MicrosecondsUtc(NOW)}
            await driver.write(**ended)
        assert await store.purge_ended(MicrosecondsUtc(NOW + 1), 10) == 2
        assert await store.purge_ended(MicrosecondsUtc(NOW + 1), 10) == 0
    assert sorted(told(address)) == [
        ("server", "transaction.purge", "t-1"),
        ("server", "transaction.purge", "t-2"),
    ]
