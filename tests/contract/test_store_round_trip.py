"""Any record comes back equal from the database, whatever its texts and numbers."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.store_databases import DATABASES
from tests.support.store_records import head, json_text, records_of

from agenttx_server.engine import records
from agenttx_server.engine.ports import WriteSet
from agenttx_server.engine.records import (
    AttemptRecord,
    EffectRecord,
    EventRecord,
    RecordedResponse,
    StateRead,
    StateWrite,
    TransactionId,
    TransactionRecord,
    UndoRecord,
)
from agenttx_server.store import SqlTransactionStore, open_store, rows
from agenttx_server.store.record_codec import RecordCodec, canonical_json

CODECS: dict[type[Any], RecordCodec[Any]] = {
    TransactionRecord: rows.TRANSACTION,
    AttemptRecord: rows.ATTEMPT,
    StateWrite: rows.STATE_WRITE,
    StateRead: rows.STATE_READ,
    EffectRecord: rows.EFFECT,
    UndoRecord: rows.UNDO,
    EventRecord: rows.EVENT,
    RecordedResponse: rows.RESPONSE,
}
# What tools and callers say is in JSON columns, where U+0000 is an escape and a lone surrogate too.
any_text = json_text | st.sampled_from(["\0", "\ud83c", "a\udfffb\0", '"\\u0000"', ""])


@pytest.mark.parametrize("record_type", CODECS)
@given(data=st.data())
def test_a_row_is_its_record(record_type: type[Any], data: st.DataObject) -> None:
    codec = CODECS[record_type]
    record = data.draw(records_of(record_type))
    row = codec.row(record)
    assert {type(value) for value in row} <= {str, int, type(None)}
    assert not any("\0" in value for value in row if isinstance(value, str))
    assert codec.record(row) == record
    assert repr(codec.record(row)) == repr(record)


@given(text=any_text)
def test_free_texts_hold_anything(text: str) -> None:
    record = dataclasses.replace(
        AttemptRecord(
            1,
            1,
            1,
            1,
            1,
            1,
            "r",
            "f",
            "t",
            None,
            records.AttemptState.FAILED,
            text,
            records.MicrosecondsUtc(1),
        ),
        raw_context=text,
        raw_error=text,
        hint=records.Hint(text, records.HintCategory.UNKNOWN, None, (text,)),
    )
    row = rows.ATTEMPT.row(record)
    for value in row:
        if isinstance(value, str):
            assert "\0" not in value
            value.encode()  # a lone surrogate would fail
    assert rows.ATTEMPT.record(row) == record


def test_a_field_that_an_older_row_lacks_has_its_default() -> None:
    record = head()
    row = rows.TRANSACTION.row(record)
    assert row[-1] != "{}"
    row[-1] = row[-1].replace('"metadata":[],', "")
    with pytest.raises(TypeError, match="metadata"):  # it has no default
        rows.TRANSACTION.record(row)
    assert "abort_reason" not in row[-1]
    assert rows.TRANSACTION.record(rows.TRANSACTION.row(record)).abort_reason == ""


def test_a_field_of_a_newer_row_is_passed_over() -> None:
    row = rows.TRANSACTION.row(head())
    row[-1] = row[-1][:-1] + ',"zz_new":1}'
    assert rows.TRANSACTION.record(row) == head()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module", params=DATABASES)
def store(
    request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SqlTransactionStore]:
    """One database for all examples: each has a transaction of its own."""
    with DATABASES[request.param](tmp_path_factory.mktemp("store")) as address:
        opening = open_store(address)
        yield runner.run(opening.__aenter__())
        runner.run(opening.__aexit__(None, None, None))


def distinct(items: st.SearchStrategy[Any], key: Callable[[Any], Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=4, unique_by=key)


EXAMPLE_NUMBERS = itertools.count()


@settings(max_examples=50)
@given(
    record=records_of(TransactionRecord),
    attempts=st.lists(records_of(AttemptRecord), max_size=4),
    effects=distinct(records_of(EffectRecord), lambda item: item.effect_id),
    undo=distinct(records_of(UndoRecord), lambda item: item.sequence),
    events=distinct(
        # A payload is a JSON object; the audit trail reads some of it.
        records_of(EventRecord).map(
            lambda event: dataclasses.replace(event, payload=canonical_json({"text": event.payload}))
        ),
        lambda item: item.sequence,
    ),
    responses=distinct(records_of(RecordedResponse), lambda item: (item.scope, item.request_id)),
)
def test_whole_write_sets_come_back(
    runner: asyncio.Runner, store: SqlTransactionStore, record: TransactionRecord, **sets: list[Any]
) -> None:
    number = next(EXAMPLE_NUMBERS)
    record = dataclasses.replace(
        record, transaction_id=TransactionId(f"{record.transaction_id}{number}"), open_group=None
    )
    # Steps and attempts count from 1.
    sets["attempts"] = [
        dataclasses.replace(item, step_id=abs(item.step_id) // 2 + 1, attempt=number)
        for number, item in enumerate(sets["attempts"], start=1)
    ]
    sets["responses"] = [
        dataclasses.replace(item, scope=f"{number}{item.scope}") for item in sets["responses"]
    ]

    async def write_and_read() -> None:
        await store.write(WriteSet(record, 0, **sets))
        stored = await store.load(record.transaction_id)
        assert stored is not None
        assert repr(stored.transaction) == repr(record)
        assert stored.undo == sorted(sets["undo"], key=lambda item: item.sequence)
        page = await store.list_attempts(record.transaction_id, "", 100, 1 << 20)
        assert page.attempts == sorted(sets["attempts"], key=lambda item: (item.step_id, item.attempt))
        effects = sorted(sets["effects"], key=lambda item: (item.sequence, item.effect_id))
        assert await store.list_effects(record.transaction_id, frozenset()) == effects
        events = sorted(sets["events"], key=lambda item: item.sequence)
        assert await store.list_events(record.transaction_id, -(2**63), 100) == events
        for response in sets["responses"]:
            assert await store.find_response(response.scope, response.request_id) == response

    runner.run(write_and_read())
