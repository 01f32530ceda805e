"""Moving a file or directory: look and keep, rename, undo.

The rename is atomic, so undo finds one of two states: source there and destination as before,
or source gone and its content at the destination. The third it makes itself on its way back:
source there again and the replaced destination not yet restored.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from agenttx_server.tools.builtin.exclusive_rename import rename_exclusively
from agenttx_server.tools.builtin.file_backups import new_token
from agenttx_server.tools.builtin.file_content import ABSENT, Content, TreeLimits, read_content
from agenttx_server.tools.builtin.file_errors import failing_as
from agenttx_server.tools.builtin.file_restoring import not_as_left, restore, restore_file
from agenttx_server.tools.builtin.file_store import (
    FileStore,
    Overtaken,
    keep_file,
    remove_temporary,
    withdrawing,
)
from agenttx_server.tools.builtin.sandbox import FileStatus, read_status
from agenttx_server.tools.builtin.sandbox_path import SandboxPath

__all__ = ["MovePlan", "move_path", "plan_move", "undo_move"]


@dataclass(frozen=True, slots=True)
class MovePlan:
    """A move that was looked at and whose undo can be registered."""

    source: SandboxPath
    destination: SandboxPath
    token: str
    source_status: FileStatus
    destination_status: FileStatus
    moved: Content
    before: Content
    created: tuple[SandboxPath, ...]


def plan_move(
    store: FileStore, transaction_id: str, source: SandboxPath, destination: SandboxPath, overwrite: bool
) -> MovePlan:
    """Look at both ends, and keep the bytes of a file that will be replaced. Changes nothing in the sandbox."""
    _check_paths(store, source, destination)
    moved, source_status = _look_at_source(store, source)
    if destination.must_be_directory and moved.kind == "file":
        raise destination.failure(errno.ENOTDIR, "Give the file's full new name, without a slash at the end")
    token = new_token()
    created = tuple(store.sandbox.missing_directories(destination))
    status = FileStatus("absent") if created else store.sandbox.read_status(destination)
    before = ABSENT
    if status.kind != "absent":
        _check_replacing(source_status, destination, status, overwrite)
        before, status = keep_file(store, transaction_id, destination, token, to_write=False)
    return MovePlan(source, destination, token, source_status, status, moved, before, created)


def move_path(store: FileStore, transaction_id: str, plan: MovePlan) -> None:
    """Move durably, unless somebody changed one of the ends since they were looked at."""
    with withdrawing(store, transaction_id, plan.token, plan.destination):
        store.sandbox.make_directories(plan.created)
        _rename(store, plan.source, plan.source_status, plan.destination, plan.destination_status)


def undo_move(
    store: FileStore,
    transaction_id: str,
    source: SandboxPath,
    destination: SandboxPath,
    moved: Content,
    before: Content,
    created: list[SandboxPath],
    token: str,
) -> None:
    """Move back, restore what was replaced, and remove directories that were made for it."""
    remove_temporary(store, destination, token)
    if not store.backups.is_withdrawn(transaction_id, token):
        _undo_rename(store, source, destination, moved)
        if before.kind == "file":
            _restore_replaced(store, transaction_id, destination, before, moved, token)
    store.sandbox.remove_empty_directories(created)


def _check_paths(store: FileStore, source: SandboxPath, destination: SandboxPath) -> None:
    for path in (source, destination):
        if not path.names:
            raise path.failure(errno.EBUSY, "The sandbox itself can't be moved or replaced")
    if source.names == destination.names:
        raise destination.failure(errno.EINVAL, "Source and destination are the same")
    if source.contains(destination) and store.sandbox.read_status(source).kind == "directory":
        raise destination.failure(errno.EINVAL, "A directory can't be moved into itself")


def _look_at_source(store: FileStore, source: SandboxPath) -> tuple[Content, FileStatus]:
    settings = store.settings
    status = store.sandbox.read_status(source)
    if status.kind == "absent":
        raise source.failure(errno.ENOENT)
    if status.kind == "file" and status.size > settings.max_file_bytes:
        raise source.failure(errno.EFBIG, f"Files are limited to {settings.max_file_bytes} bytes")
    if status.kind == "file" and source.must_be_directory:
        raise source.failure(errno.ENOTDIR, "It is a file: leave out the slash at the end")
    limits = TreeLimits(settings.max_tree_entries, settings.max_tree_bytes)
    moved, status = read_content(store.sandbox, source, with_tree=True, limits=limits)
    if moved.kind == "other":
        code = errno.ELOOP if status.kind == "link" else errno.EPERM
        raise source.failure(code, "Only regular files and directories can be moved")
    return moved, status


def _check_replacing(
    source: FileStatus, destination: SandboxPath, status: FileStatus, overwrite: bool
) -> None:
    if status.kind == "directory":
        raise destination.failure(
            errno.EEXIST, "It is a directory: give the full new name, also in a directory"
        )
    if not overwrite:
        raise destination.failure(errno.EEXIST, "Use another path, or set overwrite to true")
    if source.kind == "directory":
        raise destination.failure(errno.ENOTDIR, "A directory can't replace a file")
    if source.identity[:2] == status.identity[:2]:
        raise destination.failure(errno.EINVAL, "Source and destination are the same file under two names")


def _rename(
    store: FileStore,
    source: SandboxPath,
    expected: FileStatus,
    destination: SandboxPath,
    replaced: FileStatus,
) -> None:
    """Rename if both ends are as expected; raise Overtaken otherwise."""
    with (
        store.sandbox.parent(source) as from_directory,
        store.sandbox.parent(destination) as to_directory,
        failing_as(str(source), source.argument),
    ):
        with store.sandbox.changing:
            if (
                read_status(from_directory, source.name) != expected
                or read_status(to_directory, destination.name) != replaced
            ):
                raise Overtaken
            if replaced.kind == "absent":
                try:
                    rename_exclusively(source.name, from_directory, destination.name, to_directory)
                except FileExistsError:
                    raise Overtaken from None
            else:
                os.rename(source.name, destination.name, src_dir_fd=from_directory, dst_dir_fd=to_directory)
        os.fsync(to_directory)
        os.fsync(from_directory)


def _undo_rename(store: FileStore, source: SandboxPath, destination: SandboxPath, moved: Content) -> None:
    with_tree = moved.kind == "directory"
    at_source, source_status = read_content(store.sandbox, source, with_tree=with_tree)
    if at_source.kind != "absent":
        if not at_source.same_as(moved):
            raise not_as_left(source)
        return
    at_destination, destination_status = read_content(store.sandbox, destination, with_tree=with_tree)
    if not at_destination.same_as(moved):
        raise not_as_left(destination)
    try:
        _rename(store, destination, destination_status, source, source_status)
    except Overtaken:
        raise not_as_left(destination) from None


def _restore_replaced(
    store: FileStore, transaction_id: str, path: SandboxPath, before: Content, moved: Content, token: str
) -> None:
    current, status = read_content(store.sandbox, path)
    if current.kind == "absent":
        restore_file(store, transaction_id, path, before, status, token)
    else:
        restore(store, transaction_id, path, before, before, token)
