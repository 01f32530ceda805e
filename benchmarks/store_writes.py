"""What a durable write set costs: rows to SQLite three ways, then the whole store.

Prints one JSON object:

- ``statements``: the rows of 64 steps (heads, attempts, reads, writes, events) inside one transaction
  that is rolled back, as one VALUES list a table (what the store does), as one JSON text a table, and
  by executemany; milliseconds a batch, alone and beside a thread that never lets the interpreter go by
  itself, for several switch intervals.
- ``one_step``: the rows of one step as VALUES, by the driver and through SQLAlchemy.
- ``pages``: database pages (of 4 KiB) that the COMMIT of 64 steps writes to the log.
- ``store``: clients that each write step after step and wait for the answer, ``synchronous = FULL``:
  steps a second, milliseconds to the answer, sets a COMMIT. ``loop_us`` is processor time that the
  event loop spends on each step besides, as a server would.

Processor time is this thread's, so that it holds on a busy machine too; the rest is wall time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import orjson
import uvloop
from sqlalchemy import Connection

from agenttx_server.engine.ports import WriteSet
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    CrashPolicy,
    EffectClass,
    EventRecord,
    EventType,
    Isolation,
    MicrosecondsUtc,
    Policy,
    StateRead,
    StateWrite,
    TransactionId,
    TransactionRecord,
)
from agenttx_server.store import SqlTransactionStore, StoreSettings, WriterSettings, migrate, open_store
from agenttx_server.store import sqlite_statements as sql
from agenttx_server.store.batch import apply_batch
from agenttx_server.store.database import writer_engine
from agenttx_server.store.sqlite_connection import WriteConnection
from agenttx_server.store.write_set_encoding import EncodedWriteSet, encode_write_set
from benchmarks.measuring import parser, report, summary

GROUP = 64
SWITCH_INTERVALS = (0.005, 0.001, 0.0005)
NOW = MicrosecondsUtc(1_700_000_000_000_000)


# --- the work -----------------------------------------------------------------------------------


def new_head(number: int) -> TransactionRecord:
    return TransactionRecord(
        TransactionId(f"0193{number:04d}-aaaa-7bbb-8ccc-1234567890ab"),
        "alice",
        "agent-1",
        (("team", "a"),),
        Policy(),
        Isolation.READ_COMMITTED,
        CrashPolicy.RESUME,
        NOW,
        NOW,
    )


def step_of(head: TransactionRecord) -> tuple[TransactionRecord, WriteSet]:
    """A small step as a kv tool leaves it: an attempt, a read, a write, an event."""
    step, name = head.next_step_id, head.transaction_id
    after = dataclasses.replace(
        head, revision=head.revision + 1, next_step_id=step + 1, event_sequence=head.event_sequence + 1
    )
    attempt = AttemptRecord(
        step,
        1,
        step,
        1,
        1,
        1,
        f"{name}-r{step}",
        "f" * 64,
        "kv.put",
        EffectClass.TRANSACTIONAL,
        AttemptState.COMPLETED,
        f'{{"key":"k{step}","value":{{"a":1,"b":"some text of the agent"}}}}',
        NOW,
        output=f'{{"ok":true,"id":"u-{step}"}}',
        response=f'{{"status":"SUCCESS","next_step_id":{step + 1}}}',
        tries=1,
        ended_at=NOW,
    )
    key = f"kv/{name[:12]}/{step}"
    event = EventRecord(after.event_sequence, EventType.STEP_COMPLETED, 1, NOW, step, 1, '{"tool":"kv.put"}')
    return after, WriteSet(
        after,
        head.revision,
        attempts=[attempt],
        state_reads=[StateRead(step, key, 0)],
        state_writes=[StateWrite(step, 1, key, '{"a":1,"b":"some text of the agent"}')],
        events=[event],
    )


# --- rows three ways ----------------------------------------------------------------------------


def values_rows(driver: sqlite3.Connection, batch: Sequence[EncodedWriteSet]) -> None:
    apply_batch(_Borrowed(driver), batch)


class _Borrowed(WriteConnection):
    """The store's own way on a connection that the benchmark opened."""

    def __init__(self, driver: sqlite3.Connection) -> None:
        self._driver = driver


def tables_of(batch: Sequence[EncodedWriteSet]) -> Iterator[tuple[str, sql.RowStatement, list[list[Any]]]]:
    heads = [[*item.head, item.expected_revision] for item in batch]
    yield "transactions", sql.GUARDED_UPDATE, heads
    by_table: dict[str, list[list[Any]]] = {}
    for item in batch:
        for table, values in item.tables:
            width = sql.INSERT_ROWS[table].width
            by_table.setdefault(table, []).extend(
                [list(values[start : start + width]) for start in range(0, len(values), width)]
            )
    for table, statement in sql.INSERT_ROWS.items():
        if table in by_table:
            yield table, statement, by_table[table]


def rewritten(statement: sql.RowStatement, rows: str) -> str:
    return statement._template.replace("{rows}", rows)


JSON_TEXTS = {
    statement: rewritten(
        statement,
        "(SELECT "
        + ", ".join(f"value ->> {index} AS column{index + 1}" for index in range(statement.width))
        + " FROM json_each(?))",
    )
    for statement in (sql.GUARDED_UPDATE, *sql.INSERT_ROWS.values())
}
MANY_TEXTS = {
    statement: rewritten(
        statement, "(SELECT " + ", ".join(f"?{n} AS column{n}" for n in range(1, statement.width + 1)) + ")"
    )
    for statement in (sql.GUARDED_UPDATE, *sql.INSERT_ROWS.values())
}


def json_rows(driver: sqlite3.Connection, batch: Sequence[EncodedWriteSet]) -> None:
    for _, statement, rows in tables_of(batch):
        driver.execute(JSON_TEXTS[statement], (orjson.dumps(rows).decode(),))


def executemany_rows(driver: sqlite3.Connection, batch: Sequence[EncodedWriteSet]) -> None:
    for _, statement, rows in tables_of(batch):
        driver.executemany(MANY_TEXTS[statement], rows)


WAYS: dict[str, Callable[[sqlite3.Connection, Sequence[EncodedWriteSet]], None]] = {
    "values": values_rows,
    "json": json_rows,
    "executemany": executemany_rows,
}


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread that computes and never waits, as an event loop with work for every moment."""
    ended = threading.Event()

    def compute() -> None:
        total = 0
        while not ended.is_set():
            for number in range(1000):
                total += number * number

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def switch_interval(seconds: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def time_batches(
    write: Callable[[Sequence[EncodedWriteSet]], None],
    begin: Callable[[], None],
    end: Callable[[], None],
    batch: Sequence[EncodedWriteSet],
    count: int,
) -> dict[str, float]:
    wall, processor = [], []
    for number in range(count + 2):
        begin()
        wall_before, processor_before = time.perf_counter(), time.thread_time()
        write(batch)
        if number > 1:  # the first two prepare the statements
            wall.append(1000 * (time.perf_counter() - wall_before))
            processor.append(1000 * (time.thread_time() - processor_before))
        end()
    wall.sort()
    return {
        "median_ms": round(statistics.median(wall), 3),
        "p90_ms": round(wall[len(wall) * 9 // 10], 3),
        "greatest_ms": round(wall[-1], 3),
        "processor_ms": round(statistics.median(processor), 3),
    }


def measure_statements(folder: Path, repetitions: int, batches: int) -> dict[str, Any]:
    path = folder / "statements.db"
    migrate(f"sqlite:///{path}")
    heads = [new_head(number) for number in range(GROUP)]
    begun = [encode_write_set(WriteSet(head, 0)) for head in heads]
    batch = [encode_write_set(step_of(head)[1]) for head in heads]
    results: dict[str, Any] = {}
    with closing(sqlite3.connect(path, isolation_level=None, cached_statements=256)) as driver:
        driver.execute("BEGIN IMMEDIATE")
        values_rows(driver, begun)
        driver.execute("COMMIT")

        def one(name: str) -> dict[str, float]:
            return time_batches(
                lambda rows: WAYS[name](driver, rows),
                lambda: driver.execute("BEGIN IMMEDIATE") and None,
                driver.rollback,
                batch,
                batches,
            )

        for name in WAYS:
            results[name] = {"alone": best(one(name) for _ in range(repetitions))}
        for interval in SWITCH_INTERVALS:
            with switch_interval(interval), busy_thread():
                for name in WAYS:
                    runs = [one(name) for _ in range(repetitions)]
                    results[name][f"beside a busy thread, switch interval {interval * 1000:g} ms"] = {
                        "median_ms": summary([run["median_ms"] for run in runs]),
                        "greatest_ms": max(run["greatest_ms"] for run in runs),
                    }
    return results


def measure_one_step(folder: Path, repetitions: int, batches: int) -> dict[str, Any]:
    path = folder / "one_step.db"
    migrate(f"sqlite:///{path}")
    head = new_head(0)
    batch = [encode_write_set(step_of(head)[1])]
    with closing(WriteConnection(path, StoreSettings())) as connection:
        connection.begin()
        apply_batch(connection, [encode_write_set(WriteSet(head, 0))])
        connection.commit()
        direct = best(
            time_batches(
                lambda rows: apply_batch(connection, rows) and None,
                connection.begin,
                connection.rollback,
                batch,
                batches,
            )
            for _ in range(repetitions)
        )
    return {
        "driver": direct,
        "through SQLAlchemy": best(time_sqlalchemy(path, batch, batches) for _ in range(repetitions)),
    }


def measure_pages(folder: Path) -> dict[str, float]:
    path = folder / "pages.db"
    migrate(f"sqlite:///{path}")
    log = path.with_name(path.name + "-wal")
    heads = [new_head(number) for number in range(GROUP)]
    results = {}
    with closing(WriteConnection(path, StoreSettings(checkpoint_pages=0))) as connection:
        connection.begin()
        apply_batch(connection, [encode_write_set(WriteSet(head, 0)) for head in heads])
        connection.commit()
        for until in (20, 60, 200):
            before, first = log.stat().st_size, heads[0].next_step_id
            while heads[0].next_step_id <= until:
                made = [step_of(head) for head in heads]
                heads = [head for head, _ in made]
                connection.begin()
                apply_batch(connection, [encode_write_set(step) for _, step in made])
                connection.commit()
            pages = (log.stat().st_size - before) / (4096 + 24)
            results[f"steps {first} to {until}"] = round(pages / (until - first + 1), 1)
    return results


def best(runs: Iterator[dict[str, float]]) -> dict[str, float]:
    return min(runs, key=lambda run: run["processor_ms"])


def time_sqlalchemy(path: Path, batch: Sequence[EncodedWriteSet], count: int) -> dict[str, float]:
    engine = writer_engine(path, StoreSettings())
    with engine.connect() as connection:
        wrapped = _ThroughSqlalchemy(connection)
        timed = time_batches(
            lambda rows: apply_batch(wrapped, rows) and None,
            lambda: connection.begin() and None,
            connection.rollback,
            batch,
            count,
        )
    engine.dispose()
    return timed


class _ThroughSqlalchemy(WriteConnection):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        return self._connection.exec_driver_sql(statement, tuple(parameters)).rowcount

    def first(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        return self._connection.exec_driver_sql(statement, tuple(parameters)).first()


# --- the whole store ----------------------------------------------------------------------------


def spin(microseconds: float) -> None:
    end = time.thread_time() + microseconds / 1e6
    while time.thread_time() < end:
        pass


async def write_steps(
    store: SqlTransactionStore, number: int, steps: int, loop_us: float, waits: list[float]
) -> None:
    head = new_head(number)
    await store.write(WriteSet(head, 0))
    for _ in range(steps):
        if loop_us:
            spin(loop_us)
        head, step = step_of(head)
        before = time.perf_counter()
        await store.write(step)
        waits.append(1000 * (time.perf_counter() - before))


async def measure_store(
    folder: Path, clients: int, steps: int, loop_us: float, linger_seconds: float
) -> dict[str, float]:
    settings = StoreSettings(writer=WriterSettings(linger_seconds=linger_seconds))
    with tempfile.TemporaryDirectory(dir=folder) as own:
        async with open_store(f"sqlite:///{Path(own) / 'agenttx.db'}", settings) as store:
            waits: list[float] = []
            before, processor_before = time.perf_counter(), time.process_time()
            await asyncio.gather(
                *(write_steps(store, number, steps, loop_us, waits) for number in range(clients))
            )
            seconds = time.perf_counter() - before
            processor = time.process_time() - processor_before
            sets, commits = store.written
    waits.sort()
    return {
        "steps_per_second": round(clients * steps / seconds, 1),
        "processor_us_per_step": round(1e6 * processor / (clients * steps), 1),
        "sets_per_commit": round(sets / commits, 1),
        "p50_ms": round(waits[len(waits) // 2], 3),
        "p99_ms": round(waits[len(waits) * 99 // 100], 3),
    }


def store_cases(quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    scale = 10 if quick else 1
    for clients, steps in ((1, 1000), (8, 500), (64, 200), (256, 60)):
        yield f"{clients} clients", {"clients": clients, "steps": steps // scale, "loop_us": 0.0}
    for interval in SWITCH_INTERVALS:
        for linger in (0.0, WriterSettings().linger_seconds):
            name = f"64 clients, loop busy 200 us a step, switch interval {interval * 1000:g} ms, linger {linger * 1000:g} ms"
            yield (
                name,
                {
                    "clients": 64,
                    "steps": 60 // scale,
                    "loop_us": 200.0,
                    "linger_seconds": linger,
                    "interval": interval,
                },
            )


def measure_stores(folder: Path, repetitions: int, quick: bool) -> dict[str, Any]:
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(repetitions):
        for name, case in store_cases(quick):
            arguments = {"linger_seconds": WriterSettings().linger_seconds, **case}
            with switch_interval(arguments.pop("interval", sys.getswitchinterval())):
                runs.setdefault(name, []).append(uvloop.run(measure_store(folder, **arguments)))
    return {
        name: {figure: summary([run[figure] for run in measured]) for figure in measured[0]}
        for name, measured in runs.items()
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--folder", type=Path, help="where to keep the databases (default: a temporary one)"
    )
    arguments.add_argument("--only", choices=("statements", "store"), help="one part alone")
    given = arguments.parse_args()
    repetitions = 1 if given.quick else given.repetitions
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        if given.only != "store":
            batches = 10 if given.quick else 60
            results["statements"] = measure_statements(Path(folder), repetitions, batches)
            results["one_step"] = measure_one_step(Path(folder), repetitions, 10 * batches)
            results["pages"] = measure_pages(Path(folder))
        if given.only != "statements":
            results["store"] = measure_stores(Path(folder), repetitions, given.quick)
    report("store_writes", results)


if __name__ == "__main__":
    main()
