"""The sandbox with its backups, and the two halves of every change: keep what is there, put what comes.

A change looks at its path, keeps the previous bytes, has its undo registered, and only then
acts, if what it looked at still stands there.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agenttx_server.tools.builtin.exclusive_rename import rename_exclusively
from agenttx_server.tools.builtin.file_backups import FileBackups
from agenttx_server.tools.builtin.file_content import Content
from agenttx_server.tools.builtin.file_errors import FileFailure, changed_meanwhile, failing_as
from agenttx_server.tools.builtin.path_claims import PathClaims
from agenttx_server.tools.builtin.sandbox import (
    FileStatus,
    Sandbox,
    chunks_of,
    create_file,
    open_file,
    read_status,
)
from agenttx_server.tools.builtin.sandbox_path import RESERVED_PREFIX, SandboxPath

__all__ = ["FileStore", "FsSettings", "Overtaken", "keep_file", "put_file", "remove_temporary", "withdrawing"]


@dataclass(frozen=True, slots=True)
class FsSettings:
    """Where files are and how large they may be.

    ``root`` is the sandbox; ``backup_directory`` must lie outside it. Both are created if
    absent. ``max_file_bytes`` bounds what is read, written, deleted or moved as one file.
    ``is_over`` says of a transaction that claims a path whether it has ended and nothing of it can
    still be undone; by default that is known of none.
    """

    root: Path
    backup_directory: Path
    max_file_bytes: int = 4 << 20
    max_tree_entries: int = 10_000
    max_tree_bytes: int = 64 << 20
    threads: int = 8
    is_over: Callable[[str], Awaitable[bool]] | None = None


class FileStore:
    """The sandbox with its backups and claims. Raises ValueError, in one line, for directories that can't be used."""

    def __init__(self, settings: FsSettings) -> None:
        self.settings = settings
        try:
            self.sandbox = Sandbox(settings.root)
            self.backups = FileBackups(settings.backup_directory)
        except OSError as error:
            raise ValueError(f"can't use the directory {error.filename}: {error.strerror}") from error
        root, backups = self.sandbox.root, self.backups.directory
        if backups.is_relative_to(root) or root.is_relative_to(backups):
            raise ValueError(
                f"the sandbox {root} and the directory of backups {backups} must not lie in one another: tools would "
                "reach what undoes them"
            )
        try:
            self.claims = PathClaims(backups)
        except (OSError, sqlite3.Error) as error:
            raise ValueError(f"can't keep claims of paths in {backups}: {error}") from error


class Overtaken(Exception):
    """What stands at the path is not what was looked at: somebody changed it in between."""


def _temporary_name(token: str) -> str:
    return f"{RESERVED_PREFIX}-{token}.tmp"


def remove_temporary(store: FileStore, path: SandboxPath, token: str) -> None:
    """Remove what a change that was cut off may have left beside its target."""
    with suppress(FileFailure, FileNotFoundError), store.sandbox.parent(path) as descriptor:
        os.unlink(_temporary_name(token), dir_fd=descriptor)


def keep_file(
    store: FileStore, transaction_id: str, path: SandboxPath, token: str, *, to_write: bool
) -> tuple[Content, FileStatus]:
    """Keep a file's bytes before it is changed. Refuses what undo could not restore exactly."""
    limit = store.settings.max_file_bytes
    with (
        store.sandbox.parent(path) as descriptor,
        open_file(descriptor, path.name, path) as (file, status),
    ):
        if status.links > 1:
            raise path.failure(
                errno.EMLINK, "The file has other names (hard links), which a rewind could not restore"
            )
        if status.size > limit:
            raise path.failure(
                errno.EFBIG, f"Files are limited to {limit} bytes, so that a rewind can restore them"
            )
        if to_write and not os.access(path.name, os.W_OK, dir_fd=descriptor, follow_symlinks=False):
            raise path.failure(errno.EACCES, "The file is read-only")
        with failing_as(str(path), path.argument):
            digest = store.backups.keep(transaction_id, token, chunks_of(file, limit))
        return Content("file", digest, status.mode, token), status


def put_file(
    store: FileStore, path: SandboxPath, chunks: Iterable[bytes], mode: int, token: str, expected: FileStatus
) -> str:
    """Put a file at a path atomically and durably, over what is expected there; return its SHA-256.

    Raises Overtaken if something else stands there.
    """
    temporary = _temporary_name(token)
    with store.sandbox.parent(path) as descriptor, failing_as(str(path), path.argument):
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=descriptor)  # of a try that was cut off
        try:
            digest = create_file(descriptor, temporary, chunks, mode)
            with store.sandbox.changing:
                _replace(descriptor, temporary, path.name, expected)
            os.fsync(descriptor)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=descriptor)
    return digest


def _replace(descriptor: int, temporary: str, name: str, expected: FileStatus) -> None:
    if read_status(descriptor, name) != expected:
        raise Overtaken
    if expected.kind != "absent":
        os.rename(temporary, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
        return
    try:
        rename_exclusively(temporary, descriptor, name, descriptor)
    except FileExistsError:
        raise Overtaken from None


@contextmanager
def withdrawing(store: FileStore, transaction_id: str, token: str, path: SandboxPath) -> Iterator[None]:
    """Turn Overtaken into a failure, after noting that the change was not made: its undo was registered."""
    try:
        yield
    except Overtaken:
        store.backups.withdraw(transaction_id, token)
        raise changed_meanwhile(str(path), path.argument) from None
