"""One server a database file: a lock file beside it, held for life.

The lock is ``flock``'s and ends with the process, however it ends; the text in the file
(process id and purpose) only tells people who holds it. A process that migrates or restores holds
it for a short time, so others wait for that; a server holds it until it stops, so others are
refused at once.

A forked child of the holder shares the lock, and would keep it if it outlived the holder;
so it lets go of its share at once.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from agenttx_server.store.storage_errors import DatabaseRefused

__all__ = ["LockFile"]

Purpose = Literal["serving", "migrating", "restoring"]
_POLL_SECONDS = 0.05


class LockFile:
    """The lock of one database file. Use as a context manager, or ``acquire`` and ``release``."""

    def __init__(self, database: Path, purpose: Purpose, *, wait_seconds: float = 60.0) -> None:
        self.path = database.with_name(database.name + ".lock")
        self._database = database
        self._purpose = purpose
        self._wait_seconds = wait_seconds
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock; wait while its holder migrates. Raises DatabaseRefused."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise DatabaseRefused(f"the lock file {self.path} can't be opened: {error.strerror}") from error
        try:
            self._wait_for_lock(descriptor)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {self._purpose}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        os.register_at_fork(after_in_child=_release_of(weakref.ref(self)))

    def release(self) -> None:
        """Let the lock go. The file stays: removing it could part two processes' locks."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _wait_for_lock(self, descriptor: int) -> None:
        deadline = time.monotonic() + self._wait_seconds
        # The holder writes its line just after it got the lock: one empty look is no answer.
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder, _, purpose = (
                    os.pread(descriptor, 64, 0).decode(errors="replace").strip().partition(" ")
                )
            else:
                return
            if purpose == "serving" or time.monotonic() >= deadline:
                raise DatabaseRefused(
                    f"the database {self._database} is in use by process {holder or 'unknown'} "
                    f"({purpose or 'unknown'}; lock file {self.path}); only one server can serve a SQLite "
                    "database: stop the other one, or give another --data-dir"
                )
            time.sleep(_POLL_SECONDS)


def _release_of(lock: weakref.ref[LockFile]) -> Callable[[], None]:
    def release() -> None:
        held = lock()
        if held is not None:
            held.release()

    return release
