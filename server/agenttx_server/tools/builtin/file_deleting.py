"""Deleting a file or an empty directory: look and keep, remove, undo."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from agenttx_server.tools.builtin.file_backups import new_token
from agenttx_server.tools.builtin.file_content import ABSENT, Content
from agenttx_server.tools.builtin.file_errors import failing_as
from agenttx_server.tools.builtin.file_restoring import restore
from agenttx_server.tools.builtin.file_store import (
    FileStore,
    Overtaken,
    keep_file,
    remove_temporary,
    withdrawing,
)
from agenttx_server.tools.builtin.sandbox import FileStatus, read_status
from agenttx_server.tools.builtin.sandbox_path import SandboxPath

__all__ = ["DeletePlan", "delete_path", "plan_delete", "undo_delete"]


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """A deletion that was looked at and whose undo can be registered."""

    path: SandboxPath
    token: str
    status: FileStatus
    before: Content


def plan_delete(store: FileStore, transaction_id: str, path: SandboxPath) -> DeletePlan:
    """Look at the target and keep its bytes. Changes nothing in the sandbox."""
    if not path.names:
        raise path.failure(errno.EBUSY, "The sandbox itself can't be deleted")
    token = new_token()
    status = store.sandbox.read_status(path)
    if status.kind == "directory":
        with store.sandbox.directory(path) as descriptor:
            if os.listdir(descriptor):
                raise path.failure(errno.ENOTEMPTY)
        return DeletePlan(path, token, status, Content("directory", "", status.mode))
    before, status = keep_file(store, transaction_id, path, token, to_write=False)
    return DeletePlan(path, token, status, before)


def delete_path(store: FileStore, transaction_id: str, plan: DeletePlan) -> None:
    """Delete durably, unless somebody changed the target since it was looked at."""
    path = plan.path
    with (
        withdrawing(store, transaction_id, plan.token, path),
        store.sandbox.parent(path) as descriptor,
        failing_as(str(path), path.argument),
    ):
        with store.sandbox.changing:
            if read_status(descriptor, path.name) != plan.status:
                raise Overtaken
            if plan.before.kind == "directory":
                os.rmdir(path.name, dir_fd=descriptor)
            else:
                os.unlink(path.name, dir_fd=descriptor)
        os.fsync(descriptor)


def undo_delete(
    store: FileStore, transaction_id: str, path: SandboxPath, before: Content, token: str
) -> None:
    """Put the file or directory back where it was."""
    remove_temporary(store, path, token)
    if not store.backups.is_withdrawn(transaction_id, token):
        restore(store, transaction_id, path, before, ABSENT, token)
