"""The databases that a run can be made on, by name: each gives the address of a new one for as long as it is entered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.postgres_cluster import PostgresCluster

__all__ = ["DATABASES", "SHARED"]


@contextmanager
def sqlite() -> Iterator[str]:
    yield ""  # the file in the server's data directory


@contextmanager
def postgresql() -> Iterator[str]:
    # With fsync, as it is used; only the servers are killed, so what it costs is all that it does here.
    with PostgresCluster(durable=True) as cluster, cluster.database() as address:
        yield address


DATABASES = {"sqlite": sqlite, "postgresql": postgresql}
# Those that several servers may share.
SHARED = ("postgresql",)
