"""The store on SQL against the store in memory: any history of write sets has one outcome.

Batches of sets are queued at once, so that they are written by group commit, merged and in
rounds; the model applies them one by one.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.memory_store import MemoryStore
from tests.support.postgres_cluster import shared_cluster
from tests.support.store_records import Driver, effect, undo

from agenttx_server.engine.ports import CommitRefused, TransactionStore, WriteSet
from agenttx_server.engine.records import (
    CommitCheck,
    CommitCheckKind,
    EffectState,
    Isolation,
    RecordedResponse,
    TransactionId,
    UndoState,
)
from agenttx_server.store import PostgresSettings, SqlTransactionStore, StoreSettings, open_store

NAMES = ("a", "b", "c")
KEYS = ("k/1", "k/2", "k/2x", "l/1")
PREFIXES = ("k/", "k/2", "m/", "")


@dataclass(frozen=True)
class Step:
    """A completed step; each field chooses what it does."""

    writes: tuple[tuple[str, str | None], ...]
    reads: tuple[str, ...]
    prefixes: tuple[str, ...]
    check: tuple[CommitCheckKind, str] | None
    effects: int
    undo: tuple[tuple[UndoState, bool], ...]
    duplicate_response: bool


@dataclass(frozen=True)
class Rewind:
    """A rewind so many steps back."""

    steps: int


@dataclass(frozen=True)
class Commit:
    """A publication; the transaction goes on, which the store does not mind."""


@dataclass(frozen=True)
class Stale:
    """A step made on a revision that is not the transaction's."""


Action = Step | Rewind | Commit | Stale

steps = st.builds(
    Step,
    writes=st.lists(
        st.tuples(st.sampled_from(KEYS), st.none() | st.sampled_from(["1", '"x"'])), max_size=3
    ).map(tuple),
    reads=st.lists(st.sampled_from(KEYS), max_size=2, unique=True).map(tuple),
    prefixes=st.lists(st.sampled_from(PREFIXES), max_size=1).map(tuple),
    check=st.none()
    | st.tuples(st.just(CommitCheckKind.EXISTS), st.sampled_from(KEYS))
    | st.tuples(st.just(CommitCheckKind.NONE_WITH_PREFIX), st.sampled_from(PREFIXES)),
    effects=st.sampled_from([0, 0, 1, 2]),
    undo=st.lists(st.tuples(st.sampled_from(UndoState), st.booleans()), max_size=2).map(tuple),
    duplicate_response=st.sampled_from([False] * 9 + [True]),
)
actions = st.one_of(
    steps, steps, steps, st.builds(Rewind, st.integers(0, 4)), st.just(Commit()), st.just(Stale())
)
# Sets of one transaction, in order; or one set each of several, none of them a publication, whose
# order must not matter; or publications, which are made in order of transaction id.
batches = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.lists(actions, min_size=1, max_size=5)).map(
        lambda batch: [(batch[0], action) for action in batch[1]]
    ),
    st.dictionaries(
        st.sampled_from(NAMES), actions.filter(lambda item: not isinstance(item, Commit)), min_size=2
    ).map(lambda batch: sorted(batch.items(), key=lambda item: item[0])),
    st.sets(st.sampled_from(NAMES), min_size=2).map(
        lambda names: [(name, Commit()) for name in sorted(names)]
    ),
)


class Histories:
    """Applies one history to two stores through a driver a transaction."""

    def __init__(self, model: MemoryStore, store: SqlTransactionStore, example: int) -> None:
        self.model = model
        self.store = store
        self.drivers = {
            name: Driver(
                model,
                f"{example:06}-{name}",
                isolation=Isolation.SERIALIZABLE if name == "c" else Isolation.READ_COMMITTED,
                metadata=(("name", name),),
            )
            for name in NAMES
        }
        self.example = example
        self.effects = itertools.count()
        self.requests = itertools.count()

    def key(self, key: str) -> str:
        """Committed state is one for all examples, so each has keys of its own."""
        return f"{self.example:06}/{key}"

    def make(self, name: str, action: Action) -> WriteSet:
        driver = self.drivers[name]
        if isinstance(action, Rewind):
            return driver.rewind_set(max(driver.record.next_step_id - action.steps, 1))
        if isinstance(action, Commit):
            return replace(driver.next_set(), publish=True)
        if isinstance(action, Stale):
            return replace(driver.step_set(), expected_revision=driver.record.revision + 7)
        return self._step(driver, action)

    def _step(self, driver: Driver, action: Step) -> WriteSet:
        step = driver.record.next_step_id
        sequence = driver.record.undo_sequence
        checks = []
        if action.check is not None:
            kind, key = action.check
            checks.append(CommitCheck(step, 1, kind, self.key(key), f"{key} broke"))
        effects = [
            effect(f"{driver.id}-{number}", step, number)
            for number in itertools.islice(self.effects, action.effects)
        ]
        undos = [
            undo(sequence + number, step, state=state, late=late)
            for number, (state, late) in enumerate(action.undo, start=1)
        ]
        request = 0 if action.duplicate_response else next(self.requests)
        responses = [RecordedResponse(driver.id, f"q{request}", "Rewind", "f", "{}")]
        made = driver.step_set(
            [(self.key(key), value) for key, value in action.writes],
            reads={self.key(key): self.model.database.version(self.key(key)) for key in action.reads},
            prefixes=[self.key(prefix) for prefix in action.prefixes],
            checks=checks,
            effects=effects,
            undo=undos,
            responses=responses,
        )
        driver.record = replace(driver.record, undo_sequence=sequence + len(undos))
        return replace(made, transaction=driver.record)

    async def write(self, batch: Sequence[tuple[str, Action]], hold: Callable[[], Any]) -> None:
        """Write a batch to both and compare the outcomes."""
        sets = [self.make(name, action) for name, action in batch]
        expected = [await outcome_of(self.model, item) for item in sets]
        with hold():
            tasks = [asyncio.ensure_future(outcome_of(self.store, item)) for item in sets]
            await asyncio.sleep(0)  # they are queued
        assert [comparable(item) for item in await asyncio.gather(*tasks)] == [
            comparable(item) for item in expected
        ]
        for driver in self.drivers.values():
            # What was refused is forgotten, as the engine does.
            record = await self.model.load_record(driver.id)
            assert record is not None
            driver.record = record

    async def compare(self) -> None:
        """Compare everything that can be read."""
        assert await seen(self.store, self) == await seen(self.model, self)


async def outcome_of(store: TransactionStore, write_set: WriteSet) -> Any:
    try:
        return await store.write(write_set)
    except Exception as error:
        return error


def comparable(outcome: Any) -> Any:
    if isinstance(outcome, CommitRefused):
        return (CommitRefused, outcome.key, outcome.description.split(" after ")[0])
    return type(outcome) if isinstance(outcome, Exception) else outcome


async def seen(store: TransactionStore, histories: Histories) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, driver in histories.drivers.items():
        transaction_id: TransactionId = driver.id
        stored = await store.load(transaction_id)
        assert stored is not None
        result[f"{name} load"] = (
            stored.transaction,
            stored.attempts,
            stored.undo,
            stored.attempt_counts,
            sorted(stored.request_ids),
        )
        page = await store.list_attempts(transaction_id, "", 1000, 1 << 20)
        result[f"{name} history"] = list(zip(page.attempts, page.rewound, strict=True))
        live = await store.list_attempts(transaction_id, "", 1000, 1 << 20, include_rewound=False)
        result[f"{name} live"] = live.attempts
        result[f"{name} events"] = await store.list_events(transaction_id, 1, 1000)
        result[f"{name} effects"] = await store.list_effects(transaction_id, frozenset())
        result[f"{name} revision"] = await store.load_revision(transaction_id)
        for states in (frozenset(UndoState), frozenset({UndoState.FAILED, UndoState.LATE})):
            compensations = await store.list_compensations("", transaction_id, states, "", 1000)
            result[f"{name} compensations {len(states)}"] = compensations.undo
        for effect_states in (frozenset[EffectState](), frozenset({EffectState.READY})):
            outbox = await store.list_effects_page(
                "alice", transaction_id, effect_states, "mail", "", 1000, 1 << 20
            )
            result[f"{name} outbox {len(effect_states)}"] = outbox.effects
        for step in (1, 2, 4, 99):
            result[f"{name} touched {step}"] = await store.count_touched(transaction_id, step)
            for key in KEYS:
                view = await store.read_state(transaction_id, histories.key(key), step)
                result[f"{name} state {key} {step}"] = view
            for prefix in ("", "k/"):
                scan = await store.scan_state(transaction_id, histories.key(prefix), step, "", 3)
                result[f"{name} scan {prefix} {step}"] = scan
        for request in ("r-1-1", "r-2-1", "r-2-2"):
            result[f"{name} find {request}"] = await store.find_attempt(transaction_id, request)
    committed = await store.scan_committed(histories.key(""), "", 100, 1 << 20)
    result["committed"] = committed.entries
    for key in KEYS:
        result[f"committed {key}"] = await store.read_committed(histories.key(key))
    return result


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


Lock = Callable[[], AbstractContextManager[None]]


@contextmanager
def sqlite(folder: Path) -> Iterator[tuple[str, Lock]]:
    with closing(sqlite3.connect(folder / "agenttx.db", isolation_level=None)) as connection:

        @contextmanager
        def lock() -> Iterator[None]:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")

        yield f"sqlite:///{folder / 'agenttx.db'}", lock


@contextmanager
def postgresql(folder: Path) -> Iterator[tuple[str, Lock]]:
    with shared_cluster().database() as address, closing(psycopg.connect(address)) as connection:

        @contextmanager
        def lock() -> Iterator[None]:
            connection.execute("LOCK TABLE transactions IN EXCLUSIVE MODE")
            yield
            connection.rollback()

        yield address, lock


@pytest.fixture(scope="module", params=[sqlite, postgresql], ids=lambda kind: str(kind.__name__))
def stores(
    request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MemoryStore, SqlTransactionStore, Lock]]:
    """The model, the store, and the database's write lock: what is queued while it is held is written together."""
    # One writer: the model publishes in the order of the calls.
    one_writer = StoreSettings(postgres=PostgresSettings(writers=1))
    with request.param(tmp_path_factory.mktemp("store")) as (address, lock):
        opening = open_store(address, one_writer)
        yield MemoryStore(), runner.run(opening.__aenter__()), lock
        runner.run(opening.__aexit__(None, None, None))


EXAMPLE_NUMBERS = itertools.count()


@settings(max_examples=60)
@given(history=st.lists(batches, min_size=1, max_size=10))
def test_any_history_has_the_outcome_of_the_model(
    runner: asyncio.Runner,
    stores: tuple[MemoryStore, SqlTransactionStore, Lock],
    history: list[list[tuple[str, Action]]],
) -> None:
    model, store, lock = stores

    async def run() -> None:
        histories = Histories(model, store, next(EXAMPLE_NUMBERS))
        for driver in histories.drivers.values():
            first = WriteSet(driver.record, 0)
            await model.write(first)
            await store.write(first)
        for batch in history:
            await histories.write(batch, lock)
        await histories.compare()

    runner.run(run())
