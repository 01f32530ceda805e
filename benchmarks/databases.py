"""The databases to measure on: a file of SQLite each, and databases of one PostgreSQL server with ``fsync = on``.

The server is the one whose address ``AGENTTX_BENCH_POSTGRESQL`` has (of a user who may create databases), else one that
is started for as long as it is needed, else none, where PostgreSQL's programs are not installed.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator

VARIABLE = "AGENTTX_BENCH_POSTGRESQL"
LEFT_OUT = "PostgreSQL: no address was given and its programs are not installed"


@contextlib.contextmanager
def postgresql_server(*, start: bool = True) -> Iterator[str | None]:
    """Yield the address of a database on a server, None where there is none and none is to be started."""
    given = os.environ.get(VARIABLE)
    if given or not start:
        yield given
        return
    from tests.support.postgres_cluster import PostgresCluster, binaries

    if binaries() is None:
        yield None
        return
    # Its shared memory is as large as a small server's; all else is left as it comes.
    with PostgresCluster(durable=True, settings=("max_connections=200",)) as cluster:
        yield cluster.address("postgres")


@contextlib.contextmanager
def new_database(server: str) -> Iterator[str]:
    """Make an empty database on a server and yield its address; it is dropped in the end."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    name = f"bench_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            before = str(conninfo_to_dict(server)["dbname"])
            yield server.replace(f"/{before}", f"/{name}", 1)
        finally:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
