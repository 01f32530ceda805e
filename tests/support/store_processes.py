"""Processes around one database, for the store's integration tests.

Run as a program: ``python -m tests.support.store_processes ROLE DATABASE [ARGUMENT …]``. The database is
a file or, for the first of these roles, an address:

- ``serve``: open the store, print ``open``, and wait for the end of stdin;
- ``serve-fork``: the same, and leave a forked child behind that lives until the end of stdin,
  printing its process id first;
- ``write TRANSACTIONS``: write steps of so many transactions side by side without end, printing
  ``<transaction> <step>`` once a step is acknowledged;
- ``migrate``: bring the database to the newest version and print it;
- ``migrate-half``: do so but stop for ever, printing ``half``, before the transaction ends;
- ``hold-read``: hold a read transaction open, printing ``open``, until the end of stdin;
- ``write-loop``: write to a table of its own as fast as can be, printing ``open`` first, until
  the end of stdin.

A refusal is printed as ``refused: <line>``.
"""

from __future__ import annotations

import asyncio
import os
import select
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.store_records import Driver, effect, undo

from agenttx_server.store import DatabaseRefused, migrate, open_store, schema_revisions

__all__ = ["process", "read_line"]

REPOSITORY = Path(__file__).resolve().parents[2]


@contextmanager
def process(role: str, database: Path | str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a role; on leaving, close its stdin and see it end."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.store_processes", role, str(database), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    try:
        yield child
    finally:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
        finally:
            child.stdout.close()


def read_line(child: subprocess.Popen[str]) -> str:
    """Return the next line a role printed, without its end."""
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def stdin_ended() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


async def serve(url: str) -> None:
    async with open_store(url):
        await serve_until_stdin_ends()


async def serve_fork(url: str) -> None:
    async with open_store(url):
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tell, b".")  # what happens in a child at its fork has happened
            sys.stdin.read()
            os._exit(0)
        os.read(ready, 1)
        say(str(child))
        await serve_until_stdin_ends()


async def serve_until_stdin_ends() -> None:
    say("open")
    await asyncio.to_thread(sys.stdin.read)


async def write(url: str, transactions: str) -> None:
    async with open_store(url) as store:

        async def run(number: int) -> None:
            driver = await Driver(store, f"t-{os.getpid()}-{number}").begin()
            while True:
                step = driver.record.next_step_id
                name = f"{driver.id}/{step}"
                # Everything of a step, or nothing: the test counts.
                await driver.step(
                    {f"kv/{name}": "1", "kv/last": str(step)},
                    effects=[effect(name, step, step)],
                    undo=[undo(step, step)],
                )
                say(f"{driver.id} {step}")

        await asyncio.gather(*(run(number) for number in range(int(transactions))))


def migrate_half(url: str) -> None:
    def stop(connection: object) -> None:
        say("half")
        sys.stdin.read()
        os._exit(0)

    schema_revisions._record_facts = stop
    migrate(url)


def hold_read(database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM transactions").fetchall()
        say("open")
        sys.stdin.read()


def write_loop(database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None, timeout=60)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS other_program (number INTEGER)")
        say("open")
        while not stdin_ended():
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO other_program VALUES (?)", [(n,) for n in range(2000)])
            connection.execute("COMMIT")


def main(role: str, database: str, *arguments: str) -> None:
    url = database if "://" in database else f"sqlite:///{database}"
    try:
        if role == "serve":
            asyncio.run(serve(url))
        elif role == "serve-fork":
            asyncio.run(serve_fork(url))
        elif role == "write":
            asyncio.run(write(url, *arguments))
        elif role == "migrate":
            say(migrate(url))
        elif role == "migrate-half":
            migrate_half(url)
        elif role == "hold-read":
            hold_read(Path(database))
        elif role == "write-loop":
            write_loop(Path(database))
    except DatabaseRefused as refused:
        say(f"refused: {refused}")


if __name__ == "__main__":
    main(*sys.argv[1:])
