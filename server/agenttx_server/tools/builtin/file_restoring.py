"""Putting back what stood at a path before a change.

Undo is at-least-once and may find any state between "not begun" and "done twice". It acts on
what it finds: what was there before is left, what the step left is replaced, anything else is
somebody else's work and never overwritten.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import HintCategory
from agenttx_server.tools.builtin.file_content import Content, read_content
from agenttx_server.tools.builtin.file_errors import failing_as
from agenttx_server.tools.builtin.file_store import FileStore, Overtaken, put_file
from agenttx_server.tools.builtin.sandbox import FileStatus, open_directory, open_file, read_status
from agenttx_server.tools.builtin.sandbox_path import SandboxPath
from agenttx_server.tools.builtin.wording import shown

__all__ = ["not_as_left", "restore", "restore_file"]


def not_as_left(path: SandboxPath) -> ToolFailure:
    """Return the failure of an undo that met somebody else's change."""
    return ToolFailure(
        HintCategory.CONFLICT,
        f"{shown(str(path))} is no longer what the step left: someone else changed it, and undo overwrote nothing. "
        "Look at it, then retry or resolve this undo",
        (path.argument,),
    )


def restore(
    store: FileStore, transaction_id: str, path: SandboxPath, before: Content, left: Content, token: str
) -> None:
    """Make a path what it was before a change that left ``left``, if that is what stands there.

    Raises ToolFailure (conflict) if it is neither, having changed nothing.
    """
    current, status = read_content(store.sandbox, path)
    if current.same_as(before):
        _restore_mode(store, path, before, current)
    elif not current.same_as(left):
        raise not_as_left(path)
    elif before.kind == "file":
        restore_file(store, transaction_id, path, before, status, token)
    elif before.kind == "directory":
        _make_directory(store, path, before)
    else:
        _remove_file(store, path, status)


def restore_file(
    store: FileStore,
    transaction_id: str,
    path: SandboxPath,
    before: Content,
    expected: FileStatus,
    token: str,
) -> None:
    """Put the kept bytes of a file over what is expected at the path."""
    try:
        with store.backups.content(transaction_id, before.backup) as chunks:
            put_file(store, path, _verified(chunks, before, path), before.mode, token, expected)
    except Overtaken:
        raise not_as_left(path) from None


def _verified(chunks: Iterable[bytes], before: Content, path: SandboxPath) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != before.digest:
        raise ToolFailure(
            HintCategory.UNKNOWN, f"the kept content of {shown(str(path))} is damaged", (path.argument,)
        )


def _restore_mode(store: FileStore, path: SandboxPath, before: Content, current: Content) -> None:
    if before.kind == "absent" or current.mode == before.mode:
        return
    with store.sandbox.parent(path) as descriptor, failing_as(str(path), path.argument):
        if before.kind == "directory":
            directory = open_directory(descriptor, path.name, path)
            try:
                _set_mode(directory, before.mode)
            finally:
                os.close(directory)
        else:
            with open_file(descriptor, path.name, path) as (file, _):
                _set_mode(file, before.mode)


def _set_mode(opened: int, mode: int) -> None:
    os.fchmod(opened, mode)
    os.fsync(opened)


def _make_directory(store: FileStore, path: SandboxPath, before: Content) -> None:
    with store.sandbox.parent(path) as descriptor, failing_as(str(path), path.argument):
        os.mkdir(path.name, 0o700, dir_fd=descriptor)
        os.fsync(descriptor)
    _restore_mode(store, path, before, Content("directory"))


def _remove_file(store: FileStore, path: SandboxPath, expected: FileStatus) -> None:
    with store.sandbox.parent(path) as descriptor, failing_as(str(path), path.argument):
        with store.sandbox.changing:
            if read_status(descriptor, path.name) != expected:
                raise not_as_left(path)
            os.unlink(path.name, dir_fd=descriptor)
        os.fsync(descriptor)
