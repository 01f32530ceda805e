"""The databases that a run can be made on, by name: each gives a new one for as long as it is entered.

One on a small disk can be left without room (``is_small``): it is a file system of its own in memory, which takes a user who may mount.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.crash.scratch import scratch_directory
from tests.support.postgres_cluster import PostgresCluster

from agenttx_server.store import migrate

__all__ = ["DATABASES", "SHARED", "Database", "Pair", "SmallDisk", "replicated", "small_disk"]

_DISK_MEGABYTES = 768
_FILLED_AT_ONCE = 1 << 16


class SmallDisk:
    """A file system that can be filled to its last block, and emptied again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Leave no room, also for whoever writes at the same time."""
        with self._ballast.open("wb", buffering=0) as file:
            left = os.statvfs(self.path)
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(left.f_bavail * left.f_frsize - _FILLED_AT_ONCE, 1))
            file.seek(0, os.SEEK_END)
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Mount one at a directory. Raises CalledProcessError where that is not allowed."""
    options = f"size={_DISK_MEGABYTES}m,mode=777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True, capture_output=True)
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


class Pair:
    """Two clusters, of which one takes writes and the other one follows; they change places."""

    def __init__(self, primary: PostgresCluster, standby: PostgresCluster) -> None:
        self._primary = primary
        self._standby = standby

    def follow(self) -> None:
        """Have the standby follow, as a new copy. From now on each COMMIT waits for it."""
        self._standby.follow(self._primary)

    def fail_over(self) -> None:
        """Have the primary die and the standby take its place. Nothing is committed before the other one follows it."""
        self._primary.stop("immediate")
        self._standby.promote()
        self._primary, self._standby = self._standby, self._primary


@contextmanager
def replicated() -> Iterator[Database]:
    """Two PostgreSQL servers under one address, which leads to the one that takes writes."""
    settings = ("synchronous_standby_names=*", "wal_keep_size=256MB")
    first = PostgresCluster(durable=True, settings=settings)
    second = PostgresCluster(durable=True, settings=settings)
    # Before there is a standby nothing could be committed.
    with first, second:
        pair = Pair(first, second)
        pair.follow()
        with first.connect() as connection:
            connection.execute("CREATE DATABASE crash")
        hosts = f"{first.directory},{second.directory}"
        address = f"postgresql://agenttx@/crash?host={hosts}&target_session_attrs=read-write"
        migrate(address)
        yield Database(address, pair=pair)


@dataclass(frozen=True)
class Database:
    """A database: ``address`` is empty for the file in the server's data directory, ``cluster`` what can be stopped.

    ``pair`` is a primary with the standby that it waits for at each COMMIT.
    """

    address: str = ""
    cluster: PostgresCluster | None = None
    disk: SmallDisk | None = None
    pair: Pair | None = None


@contextmanager
def sqlite(*, is_small: bool = False) -> Iterator[Database]:
    if not is_small:
        yield Database()
        return
    with scratch_directory() as directory, small_disk(directory) as disk:
        yield Database(disk=disk)


@contextmanager
def postgresql(*, is_small: bool = False) -> Iterator[Database]:
    # With fsync, as it is used; where only servers are killed, what it costs is all that it does here.
    if not is_small:
        with PostgresCluster(durable=True) as cluster, cluster.database() as address:
            yield Database(address, cluster)
        return
    with scratch_directory() as directory, small_disk(directory) as disk:
        directory.chmod(0o755)
        settings = ("max_wal_size=64MB", "min_wal_size=32MB")
        with (
            PostgresCluster(durable=True, settings=settings, inside=directory) as cluster,
            cluster.database() as address,
        ):
            yield Database(address, cluster, disk)


DATABASES = {"sqlite": sqlite, "postgresql": postgresql}
# Those that several servers may share.
SHARED = ("postgresql",)
