"""Sub-steps, removals of single steps, and rows of outer layers: the same on every database and in the model."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, MetaData, PrimaryKeyConstraint, Table, Text, text
from tests.support.memory_store import MemoryStore
from tests.support.postgres_cluster import shared_cluster
from tests.support.store_databases import gather, store_or_model  # noqa: F401
from tests.support.store_records import Driver, attempt, effect, undo

from agenttx_server.engine.ports import (
    CommitRefused,
    ExtraOperation,
    ExtraRows,
    ExtraRowsRefused,
    StepRemoval,
    TransactionStore,
    WriteSet,
)
from agenttx_server.engine.records import (
    AttemptState,
    CommitCheck,
    CommitCheckKind,
    EffectState,
    StateRead,
    StateWrite,
    UndoState,
)
from agenttx_server.engine.write_order import own_span, sub_step_of, sub_step_span
from agenttx_server.store import migrate, open_store


def made(step_id: int, sub_step: int, number: int = 1, **fields: Any) -> Any:
    """A completed sub-step."""
    return attempt(step_id, number, sub_step=sub_step, ordinal=sub_step, request_id="", **fields)


def written(step_id: int, sub_step: int, key: str, value: str = "1") -> StateWrite:
    return StateWrite(step_id, sub_step_span(sub_step)[0] + 1, key, value)


def test_a_sequence_tells_whose_a_write_is_and_keeps_their_order() -> None:
    order = [1, sub_step_span(1)[0] + 1, own_span(1) + 1, sub_step_span(2)[0] + 1, own_span(2) + 1]
    assert order == sorted(order)
    assert [sub_step_of(sequence) for sequence in order] == [0, 1, 0, 2, 0]
    assert sub_step_of(sub_step_span(3)[1]) == 3


async def test_sub_steps_come_back_with_their_step_and_behind_it(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model).begin()
    await driver.write({"attempts": [attempt(1)], "sub_steps": [made(1, 1), made(1, 2)]}, has_sub_steps=True)
    await driver.write({"attempts": [attempt(2)], "sub_steps": [made(1, 2, 2)]})
    listed = await store_or_model.list_attempts(driver.id, "", 3, 1 << 20, include_sub_steps=True)
    places = [(item.step_id, item.sub_step, item.attempt) for item in listed.attempts]
    assert places == [(1, 0, 1), (1, 1, 1), (1, 2, 1)]
    rest = await store_or_model.list_attempts(
        driver.id, listed.next_cursor, 10, 1 << 20, include_sub_steps=True
    )
    assert [(item.step_id, item.sub_step, item.attempt) for item in rest.attempts] == [(1, 2, 2), (2, 0, 1)]
    without = await store_or_model.list_attempts(driver.id, "", 10, 1 << 20)
    assert [item.step_id for item in without.attempts] == [1, 2]
    stored = await store_or_model.load(driver.id)
    assert stored is not None
    assert [(item.sub_step, item.attempt) for item in stored.sub_steps] == [(1, 1), (2, 2)]
    assert stored.sub_step_counts == {(1, 1): 1, (1, 2): 2}
    attempts = await store_or_model.list_sub_step_attempts(driver.id, 1, 2)
    assert [item.attempt for item in attempts] == [1, 2]
    assert attempts[0] == made(1, 2)


@pytest.mark.parametrize(
    ("byte_limit", "most"), [(8000, 4), (10, 1)], ids=["several", "each alone is too large"]
)
async def test_pages_of_one_step_and_cut_by_bytes_leave_nothing_out(
    store_or_model: TransactionStore, byte_limit: int, most: int
) -> None:
    driver = await Driver(store_or_model).begin()
    sub_steps = [made(1, number, output=f'"{"x" * 3000}"') for number in range(1, 8)]
    await driver.write({"attempts": [attempt(1)], "sub_steps": sub_steps}, has_sub_steps=True)
    await driver.write({"attempts": [attempt(2)], "sub_steps": [made(2, 1)]})
    cursor, found = "", []
    while True:
        page = await store_or_model.list_attempts(driver.id, cursor, 100, byte_limit, include_sub_steps=True)
        assert 0 < len(page.attempts) <= most
        found += [(item.step_id, item.sub_step) for item in page.attempts]
        cursor = page.next_cursor
        if not cursor:
            break
    assert found == [(1, 0), *((1, number) for number in range(1, 8)), (2, 0), (2, 1)]
    of_one = await store_or_model.list_attempts(
        driver.id, "", 100, 1 << 20, step_id=2, include_sub_steps=True
    )
    assert [(item.step_id, item.sub_step) for item in of_one.attempts] == [(2, 0), (2, 1)]


async def test_a_rewind_covers_the_sub_steps_of_its_steps(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model).begin()
    await driver.write({"sub_steps": [made(1, 1), made(2, 1)]}, has_sub_steps=True)
    await driver.rewind(2)
    stored = await store_or_model.load(driver.id)
    assert stored is not None
    assert [(item.step_id, item.sub_step) for item in stored.sub_steps] == [(1, 1)]
    assert stored.sub_step_counts == {(1, 1): 1, (2, 1): 1}
    assert (await store_or_model.load_journal(driver.id, 2)).sub_steps == ()
    page = await store_or_model.list_attempts(driver.id, "", 10, 1 << 20, include_sub_steps=True)
    assert list(page.rewound) == [False, True]
    live = await store_or_model.list_attempts(
        driver.id, "", 10, 1 << 20, include_rewound=False, include_sub_steps=True
    )
    assert [item.step_id for item in live.attempts] == [1]


async def test_a_journal_holds_what_counts_and_what_it_wrote(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model).begin()
    await driver.write(
        {
            "sub_steps": [made(1, 1), made(1, 2, state=AttemptState.SUPERSEDED), made(1, 3)],
            "state_writes": [written(1, 1, "kv/a"), written(1, 3, "kv/b"), StateWrite(2, 1, "kv/c", "1")],
        },
        has_sub_steps=True,
    )
    journal = await store_or_model.load_journal(driver.id, 1)
    assert [item.sub_step for item in journal.sub_steps] == [1, 3]
    assert [(sub_step_of(item.sequence), item.key, item.value) for item in journal.writes] == [
        (1, "kv/a", "1"),
        (3, "kv/b", "1"),
    ]
    reads, writes = await store_or_model.load_touched(driver.id, 1, 2)
    assert list(reads) == []
    assert [(item.step_id, item.key, item.value) for item in writes] == [
        (1, "kv/a", None),
        (1, "kv/b", None),
        (2, "kv/c", None),
    ]


def everything(sub_step: int, number: int) -> dict[str, Any]:
    """A row of each kind of one sub-step of step 1, or of the step itself."""
    first = sub_step_span(sub_step)[0] if sub_step else 0
    key = f"kv/{sub_step}"
    return {
        "state_writes": [StateWrite(1, first + 1, key, "1")],
        "state_reads": [StateRead(1, key, 0, sub_step=sub_step)],
        "checks": [CommitCheck(1, first + 1, CommitCheckKind.EXISTS, key, "gone")],
        "effects": [
            effect(f"staged-{sub_step}", 1, number, sub_step=sub_step),
            effect(f"ready-{sub_step}", 1, number + 10, sub_step=sub_step, state=EffectState.READY),
        ],
        "undo": [
            undo(number, 1, sub_step=sub_step),
            undo(number + 10, 1, sub_step=sub_step, state=UndoState.FAILED),
            undo(number + 20, 1, sub_step=sub_step, state=UndoState.LATE, late=True),
        ],
    }


@pytest.mark.parametrize(("removal", "left"), [(StepRemoval(1, 2), [0, 1]), (StepRemoval(1), [])])
async def test_a_removal_takes_what_a_rewind_would_of_one_sub_step_or_one_step(
    store_or_model: TransactionStore, removal: StepRemoval, left: list[int]
) -> None:
    driver = await Driver(store_or_model).begin()
    for number, sub_step in enumerate((0, 1, 2), start=1):
        await driver.write(everything(sub_step, number))
    await driver.write({"state_writes": [StateWrite(2, 1, "kv/other", "1")]})
    await driver.write({"removals": [removal]})
    reads, writes = await store_or_model.load_touched(driver.id, 1, 2)
    assert [read.key for read in reads] == [f"kv/{sub_step}" for sub_step in left]
    assert [write.key for write in writes] == [*(f"kv/{sub_step}" for sub_step in left), "kv/other"]
    stored = await store_or_model.load(driver.id)
    assert stored is not None
    pending = [item.sub_step for item in stored.undo if item.state is UndoState.PENDING]
    others = [item.sub_step for item in stored.undo if item.state is not UndoState.PENDING]
    assert (pending, sorted(others)) == (left, [0, 0, 1, 1, 2, 2])
    staged = await store_or_model.list_effects(driver.id, frozenset({EffectState.STAGED}))
    assert [item.sub_step for item in staged] == left
    assert len(await store_or_model.list_effects(driver.id, frozenset({EffectState.READY}))) == 3


async def test_what_a_set_removes_the_same_set_may_write_anew(store_or_model: TransactionStore) -> None:
    driver = await Driver(store_or_model).begin()
    first = driver.next_set({"state_writes": [written(1, 1, "kv/a", "1")]})
    second = driver.next_set({"removals": [StepRemoval(1, 1)], "state_writes": [written(1, 1, "kv/b", "2")]})
    await gather(store_or_model.write(first), store_or_model.write(second))
    _, writes = await store_or_model.load_touched(driver.id, 1, 1)
    assert [write.key for write in writes] == ["kv/b"]


# --- rows of outer layers -----------------------------------------------------------------------

_OUTER = MetaData()
RUNS = Table(
    "test_runs",
    _OUTER,
    Column("thread", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("status", Text, nullable=True),
    PrimaryKeyConstraint("thread", "number"),
)
CREATE = "CREATE TABLE test_runs (thread TEXT NOT NULL, number BIGINT NOT NULL, status TEXT, PRIMARY KEY (thread, number))"


class Outer:
    """A store that knows a table of an outer layer, and what stands in it."""

    def __init__(self, store: Any, rows: Any) -> None:
        self.store = store
        self.rows = rows


@pytest.fixture(params=["sqlite", "postgresql", "memory"])
async def outer(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Outer]:
    if request.param == "memory":
        model = MemoryStore(extra_tables={"test_runs": (0, 1)})

        async def rows_of_model() -> list[Any]:
            return sorted(model.database.extra.get("test_runs", {}).values())

        yield Outer(model, rows_of_model)
        return
    if request.param == "sqlite":
        address = f"sqlite:///{tmp_path / 'agenttx.db'}"
        async for item in _opened(address):
            yield item
        return
    with shared_cluster().database() as address:
        async for item in _opened(address):
            yield item


async def _opened(address: str) -> AsyncIterator[Outer]:
    migrate(address)
    async with open_store(address, extra_tables=[RUNS]) as store:
        await store._writer.run(lambda calls: calls.execute("DROP TABLE IF EXISTS test_runs"))  # type: ignore[attr-defined]
        await store._writer.run(lambda calls: calls.execute(CREATE))  # type: ignore[attr-defined]

        async def rows_of_database() -> list[Any]:
            def read(connection: Any) -> list[Any]:
                found = connection.execute(text("SELECT thread, number, status FROM test_runs ORDER BY 1, 2"))
                return [tuple(row) for row in found]

            return await store._pool.read(read)

        yield Outer(store, rows_of_database)


def extra(operation: ExtraOperation, *rows: tuple[str | int | None, ...]) -> ExtraRows:
    return ExtraRows("test_runs", operation, rows)


INSERT, UPSERT, DELETE = ExtraOperation.INSERT, ExtraOperation.UPSERT, ExtraOperation.DELETE
REQUIRE = ExtraOperation.REQUIRE


async def test_rows_of_an_outer_layer_are_written_with_the_set(outer: Outer) -> None:
    driver = await Driver(outer.store).begin()
    await driver.write({"extra": [extra(INSERT, ("t", 1, "running"), ("t", 2, None))]})
    assert await outer.rows() == [("t", 1, "running"), ("t", 2, None)]
    await driver.write(
        {"extra": [extra(UPSERT, ("t", 1, "done"), ("u", 7, 'say "x\\y"')), extra(DELETE, ("t", 2))]}
    )
    assert await outer.rows() == [("t", 1, "done"), ("u", 7, 'say "x\\y"')]
    # Of one set what goes, goes first.
    await driver.write({"extra": [extra(INSERT, ("t", 1, "new")), extra(DELETE, ("t", 1))]})
    assert (await outer.rows())[0] == ("t", 1, "new")


async def test_a_row_that_exists_refuses_the_whole_set_and_no_other(outer: Outer) -> None:
    first, second = await Driver(outer.store, "t-1").begin(), await Driver(outer.store, "t-2").begin()
    await first.write({"extra": [extra(INSERT, ("t", 1, "mine"))]})
    before = second.record
    lost = second.step_set({"kv/a": "1"})
    lost = WriteSet(**{**_fields(lost), "extra": [extra(INSERT, ("t", 1, "theirs"))]})
    outcomes = await gather(outer.store.write(lost), outer.store.write(first.step_set({"kv/b": "1"})))
    assert isinstance(outcomes[0], ExtraRowsRefused)
    assert not isinstance(outcomes[1], BaseException)
    assert await outer.rows() == [("t", 1, "mine")]
    assert await outer.store.load_record(second.id) == before
    assert (await outer.store.load_touched(second.id, 1, 1))[1] == []


async def test_a_row_that_must_be_there_refuses_the_whole_set_where_it_is_not(outer: Outer) -> None:
    driver = await Driver(outer.store).begin()
    await driver.write({"extra": [extra(INSERT, ("t", 1, "a"))]})
    # What it requires is looked for before it deletes that.
    await driver.write(
        {"extra": [extra(DELETE, ("t", 1)), extra(REQUIRE, ("t", 1)), extra(INSERT, ("u", 1, "b"))]}
    )
    before = driver.record
    lost = WriteSet(**{**_fields(driver.step_set({})), "extra": [extra(REQUIRE, ("u", 1), ("t", 1))]})
    assert isinstance((await gather(outer.store.write(lost)))[0], ExtraRowsRefused)
    assert await outer.rows() == [("u", 1, "b")]
    assert await outer.store.load_record(driver.id) == before


async def test_a_stale_set_writes_no_rows_of_an_outer_layer(outer: Outer) -> None:
    driver = await Driver(outer.store).begin()
    await driver.step()
    stale = WriteSet(driver.record, 1, extra=[extra(INSERT, ("t", 1, "x"))])
    assert isinstance((await gather(outer.store.write(stale)))[0], Exception)
    assert await outer.rows() == []


async def test_a_commit_that_is_refused_writes_no_rows_of_an_outer_layer(outer: Outer) -> None:
    driver = await Driver(outer.store, "t-1").begin()
    await driver.step({"kv/a": "1"})
    other = await Driver(outer.store, "t-2").begin()
    await other.step({"kv/a": "2"})
    await other.commit()
    refused = WriteSet(**{**_fields(driver.commit_set()), "extra": [extra(INSERT, ("t", 1, "done"))]})
    with pytest.raises(CommitRefused):
        await outer.store.write(refused)
    assert await outer.rows() == []


async def test_rows_of_several_sets_of_one_transaction_keep_their_order(outer: Outer) -> None:
    driver = await Driver(outer.store).begin()
    sets = [
        driver.next_set({"extra": [extra(operation, *rows)]})
        for operation, rows in (
            (INSERT, [("t", 1, "a")]),
            (DELETE, [("t", 1)]),
            (INSERT, [("t", 1, "b")]),
            (UPSERT, [("t", 1, "c"), ("t", 2, "c")]),
        )
    ]
    await gather(*(outer.store.write(item) for item in sets))
    assert await outer.rows() == [("t", 1, "c"), ("t", 2, "c")]


def _fields(write_set: WriteSet) -> dict[str, Any]:
    return {name: getattr(write_set, name) for name in WriteSet.__slots__}  # type: ignore[attr-defined]
