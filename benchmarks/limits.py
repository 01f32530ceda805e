"""What nothing here can be faster than: calls that do nothing, rows that mean nothing, and the disk.

- the echo: a unary call and a message on a stream through the same server, options and interceptors, whose handler answers at once;
- raw commits: rows of as many bytes as a step leaves, inserted by the driver alone and committed in groups, on SQLite
  (``synchronous = FULL``) and PostgreSQL (``fsync = on``), one thread that does nothing else;
- fsync: a page appended to a file and ``fdatasync``.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.agents import RPC, SHAPES, crew, run
from benchmarks.databases import LEFT_OUT, new_database, postgresql_server
from benchmarks.measuring import (
    Budget,
    Findings,
    Plot,
    Series,
    Summary,
    Table,
    percentile,
    ratios,
    run_topic,
    summary,
)
from benchmarks.servers import scratch_directory, server

CONCURRENCIES = (1, 16, 64, 256)
PAGE = b"x" * 4096

Insert = Callable[[int], None]
"""Inserts a group of so many rows and commits."""


def bytes_of_a_step() -> int:
    """Return how many bytes the values of a small step's rows have, as they are written to the database."""
    from agenttx_server.store.write_set_encoding import encode_write_set
    from benchmarks.store_writes import new_head, step_of

    encoded = encode_write_set(step_of(new_head(1))[1])
    values = [*encoded.head, *(value for _, row in encoded.tables for value in row)]
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in values if value is not None)


@contextlib.contextmanager
def sqlite_inserts(directory: Path, row_bytes: int | None = None) -> Iterator[Insert]:
    """Yield inserts into a file of SQLite, of rows of so many bytes; None: of as many as a small step's."""
    row = "x" * (bytes_of_a_step() if row_bytes is None else row_bytes)
    connection = sqlite3.connect(directory / "raw.db", isolation_level=None)
    connection.executescript(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE raw (id INTEGER PRIMARY KEY, body TEXT)"
    )

    def insert(count: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO raw (body) VALUES (?)", [(row,)] * count)
        connection.execute("COMMIT")

    with contextlib.closing(connection):
        yield insert


@contextlib.contextmanager
def postgresql_inserts(address: str) -> Iterator[Insert]:
    """Yield inserts into a database of PostgreSQL: a statement and a COMMIT a group, sent together."""
    import psycopg

    body = "x" * bytes_of_a_step()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE TABLE raw (id BIGSERIAL PRIMARY KEY, body TEXT)")

        def insert(count: int) -> None:
            connection.execute(
                "INSERT INTO raw (body) SELECT unnest(%s::text[])", ([body] * count,), prepare=True
            )

        yield insert


def seconds_a_commit(insert: Insert, group: int, seconds: float) -> list[float]:
    """Insert groups for a time; return the seconds of each."""
    found = []
    until = time.perf_counter() + seconds
    while not found or time.perf_counter() < until:
        before = time.perf_counter()
        insert(group)
        found.append(time.perf_counter() - before)
    return found


def seconds_of_fsync(directory: Path, seconds: float) -> list[float]:
    """Append pages and have each on disk before the next, for a time; return the seconds of each."""
    found = []
    descriptor = os.open(directory / "pages", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        until = time.perf_counter() + seconds
        while not found or time.perf_counter() < until:
            before = time.perf_counter()
            os.write(descriptor, PAGE)
            os.fdatasync(descriptor)
            found.append(time.perf_counter() - before)
    finally:
        os.close(descriptor)
    return found


async def _measure(directory: Path, echo: str, inserts: dict[str, Insert], budget: Budget) -> Findings:
    concurrencies = budget.pick(CONCURRENCIES, (1, 64), (1, 2))
    calls: dict[tuple[str, int], list[dict[str, float]]] = {}
    commits: dict[tuple[str, int], list[list[float]]] = {}
    fsyncs: list[list[float]] = []
    async with crew(echo, max(concurrencies), echo=True) as echoes:
        for round_ in range(budget.repetitions + 1):
            for shape in SHAPES:
                for concurrency in concurrencies:
                    one = await echoes.window(concurrency, budget.seconds, shape)
                    if round_:  # the first one warms up
                        calls.setdefault((shape, concurrency), []).append(
                            {
                                "per_second": one.per_second,
                                "p50": one.milliseconds(0.5),
                                "p99": one.milliseconds(0.99),
                            }
                        )
            for name, insert in inserts.items():
                for group in concurrencies:
                    taken = seconds_a_commit(insert, group, budget.seconds / 2)
                    if round_:
                        commits.setdefault((name, group), []).append(taken)
            if round_:
                fsyncs.append(seconds_of_fsync(directory, budget.seconds / 2))
    return _found(calls, commits, fsyncs)


def _found(
    calls: dict[tuple[str, int], list[dict[str, float]]],
    commits: dict[tuple[str, int], list[list[float]]],
    fsyncs: list[list[float]],
) -> Findings:
    fsync_ms = [percentile(one, 0.5) * 1000 for one in fsyncs]
    alone = [one["per_second"] for one in calls[min(calls, key=lambda key: (key[0] != "unary", key[1]))]]
    call_rows = [
        [
            RPC[shape],
            concurrency,
            summary(one["per_second"] for one in found),
            ratios([one["per_second"] for one in found], alone),
            summary(one["p50"] for one in found),
            summary(one["p99"] for one in found),
        ]
        for (shape, concurrency), found in calls.items()
    ]
    commit_rows, rates = [], dict[str, dict[int, Summary]]()
    for (name, group), found in commits.items():
        milliseconds = [percentile(one, 0.5) * 1000 for one in found]
        rate = summary(group * 1000 / one for one in milliseconds)
        rates.setdefault(name, {})[group] = rate
        commit_rows.append([name, group, rate, summary(milliseconds), ratios(milliseconds, fsync_ms)])
    return Findings(
        "limits",
        "The limits",
        "What no step can beat here: a call through the same server with an empty handler, and rows of as many bytes as a small "
        f"step leaves ({bytes_of_a_step():,}), inserted by the driver alone and committed in groups.",
        tables=[
            Table(
                "The bare echo",
                ("RPC", "callers", "calls/s", "of one unary caller's", "p50 ms", "p99 ms"),
                call_rows,
            ),
            Table(
                "Raw durable commits",
                ("database", "rows a commit", "rows/s", "ms a commit", "of a bare fdatasync"),
                commit_rows,
                note=f"A page appended and `fdatasync`: {fsync_text(summary(fsync_ms))}.",
            ),
        ],
        plots=[
            Plot(
                "limits",
                "Calls that do nothing, rows that mean nothing",
                "callers, or rows a commit",
                "a second",
                [
                    *(
                        Series.of(
                            f"echo, {RPC[shape]}",
                            {
                                concurrency: summary(one["per_second"] for one in found)
                                for (of, concurrency), found in calls.items()
                                if of == shape
                            },
                        )
                        for shape in SHAPES
                    ),
                    *(Series.of(f"raw rows, {name}", by_group) for name, by_group in rates.items()),
                ],
                log_y=True,
            )
        ],
    )


def fsync_text(milliseconds: Summary) -> str:
    """Return a summary as text."""
    return f"{milliseconds['median']:.2g} ms ({milliseconds['least']:.2g} – {milliseconds['greatest']:.2g})"


def measure(budget: Budget) -> Findings:
    """Measure the limits."""
    with (
        scratch_directory() as directory,
        server("echo", directory) as echo,
        postgresql_server(start=budget.name != "tiny") as postgresql,
        contextlib.ExitStack() as stack,
    ):
        inserts = {"SQLite": stack.enter_context(sqlite_inserts(directory))}
        if postgresql:
            database = stack.enter_context(new_database(postgresql))
            inserts["PostgreSQL"] = stack.enter_context(postgresql_inserts(database))
        found = run(_measure(directory, echo, inserts, budget))
        if not postgresql:
            found.left_out.append(LEFT_OUT)
        return found


if __name__ == "__main__":
    run_topic(__doc__, measure)
