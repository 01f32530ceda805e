"""A PostgreSQL server of the tests' own: on a socket only, as an unprivileged user, gone when they end.

:func:`shared_cluster` is one a process, without fsync. To make a database takes most of a second, so one that
is migrated is emptied after its test and given to the next. A test that stops or kills the server makes a :class:`PostgresCluster` for itself::

    with PostgresCluster(durable=True) as cluster, cluster.database() as address:
        cluster.stop("immediate")
        cluster.start()
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import psycopg
import pytest

from agenttx_server.store import migrate
from agenttx_server.store.schema import METADATA

__all__ = ["PostgresCluster", "binaries", "remove_shared_cluster", "shared_cluster", "terminate_backends"]

STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}
# What a crash of the machine could lose, no test but a durable one looks at.
NOT_DURABLE = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")
START_SECONDS = 60.0
KEPT = ("counters", "database_facts")
# By DELETE: of the few rows of a test it is faster than TRUNCATE, which makes new files.
EMPTY = "; ".join(
    [
        *(f"DELETE FROM {table.name}" for table in METADATA.sorted_tables if table.name not in KEPT),
        "UPDATE counters SET value = 0",
        "ALTER SEQUENCE transactions_number_seq RESTART",
    ]
)


def binaries() -> Path | None:
    """The directory of the newest PostgreSQL's programs, None if there is none."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]), reverse=True
    )
    if found:
        return found[0].parent
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


def unprivileged(*command: object) -> list[str]:
    """A command as PostgreSQL will run it: never as root, and ended with the process that started it."""
    setpriv = ["setpriv", "--pdeathsig", "QUIT"] if shutil.which("setpriv") else []
    if os.getuid() == 0:
        setpriv += ["--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    return [*setpriv, *map(str, command)]


class PostgresCluster:
    """One server. ``durable`` as in earnest; else nothing waits for the disk. ``inside`` is where its directory is made."""

    def __init__(
        self, *, durable: bool = False, settings: tuple[str, ...] = (), inside: Path = Path("/tmp")
    ) -> None:
        found = binaries()
        if found is None:
            pytest.skip("PostgreSQL's programs (initdb, postgres) are not installed")
        self._binaries = found
        # Short: a socket's path has 107 bytes at most.
        self.directory = Path(tempfile.mkdtemp(prefix="agenttx-pg-", dir=inside))
        self._settings = (*settings, *(() if durable else NOT_DURABLE))
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._free: list[str] = []
        if os.getuid() == 0:
            shutil.chown(self.directory, "nobody")
        self._initialise()

    def _initialise(self) -> None:
        initdb = self._binaries / "initdb"
        options = ["-U", "agenttx", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"]
        subprocess.run(
            unprivileged(initdb, "-D", self.directory / "data", *options),
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
        )

    # --- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, and return once connections are taken."""
        options = [f"unix_socket_directories={self.directory}", "listen_addresses=", *self._settings]
        flags = [part for option in options for part in ("-c", option)]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                unprivileged(self._binaries / "postgres", "-D", self.directory / "data", *flags),
                stdout=log,
                stderr=log,
                cwd="/",
            )
        self._await_connections()

    def _await_connections(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.directory / "log").read_text()) from None
                time.sleep(0.02)
            else:
                return

    def follow(self, primary: PostgresCluster) -> None:
        """Become a standby of another one, which waits for it at each COMMIT: a copy of it, whatever there was before."""
        self.stop()
        shutil.rmtree(self.directory / "data", ignore_errors=True)
        copying = [
            "-D",
            self.directory / "data",
            "-h",
            primary.directory,
            "-U",
            "agenttx",
            "-R",
            "-c",
            "fast",
        ]
        command = unprivileged(self._binaries / "pg_basebackup", *copying)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")
        self.start()

    def promote(self) -> None:
        """Take writes from now on, as nobody's standby."""
        with self.connect() as connection:
            assert connection.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)

    def revive(self) -> None:
        """Return once connections are taken: again, or still; start it if it gave up."""
        if self._process is not None:
            with contextlib.suppress(RuntimeError):
                self._await_connections()
                return
        self.start()

    def stop(self, how: Literal["fast", "immediate", "kill"] = "immediate") -> None:
        """Stop: ``fast`` ends connections in order, ``immediate`` is a crash, ``kill`` one of the postmaster alone."""
        if self._process is not None:
            self._process.send_signal(STOP_SIGNALS[how])
            self._process.wait(60)
            self._process = None

    def remove(self) -> None:
        """Stop and leave nothing behind."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    # --- databases ----------------------------------------------------------------------------------

    def address(self, database: str, user: str = "agenttx") -> str:
        return f"postgresql://{user}@/{database}?host={self.directory}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """A connection for whatever a test wants, in autocommit mode."""
        return psycopg.connect(
            host=str(self.directory), user="agenttx", dbname=database, autocommit=True, connect_timeout=10
        )

    @contextlib.contextmanager
    def database(self, *, migrated: bool = True, options: str = "") -> Iterator[str]:
        """Give the address of an empty database; one that is not ``migrated`` is the test's own and is dropped."""
        name = self._free.pop() if migrated and self._free else self._create(options)
        address = self.address(name)
        if migrated:
            migrate(address)
        try:
            yield address
        finally:
            if migrated:
                terminate_backends(address)
                with self.connect(name) as connection:
                    connection.execute(EMPTY)
                self._free.append(name)
            else:
                with self.connect() as connection:
                    connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _create(self, options: str) -> str:
        name = f"db{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} {options}")
        return name


def terminate_backends(address: str) -> int:
    """End every other connection to a database, as an administrator does; return how many there were."""
    with psycopg.connect(address, autocommit=True) as connection:
        found = connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
    return len(found)


@cache
def shared_cluster() -> PostgresCluster:
    """The cluster of this process; skips the test where PostgreSQL is not installed."""
    cluster = PostgresCluster()
    atexit.register(cluster.remove)
    cluster.start()
    return cluster


def remove_shared_cluster() -> None:
    """Stop and remove it, if it was started."""
    if shared_cluster.cache_info().currsize:
        shared_cluster().remove()
        shared_cluster.cache_clear()
