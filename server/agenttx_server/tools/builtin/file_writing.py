"""Writing a file: look and keep, put, undo."""

from __future__ import annotations

import errno
import hashlib
from dataclasses import dataclass

from agenttx_server.tools.builtin.file_backups import new_token
from agenttx_server.tools.builtin.file_content import ABSENT, Content
from agenttx_server.tools.builtin.file_restoring import restore
from agenttx_server.tools.builtin.file_store import (
    FileStore,
    keep_file,
    put_file,
    remove_temporary,
    withdrawing,
)
from agenttx_server.tools.builtin.sandbox import FileStatus
from agenttx_server.tools.builtin.sandbox_path import SandboxPath

__all__ = ["NEW_FILE_MODE", "WritePlan", "plan_write", "undo_write", "write_file"]

NEW_FILE_MODE = 0o644


@dataclass(frozen=True, slots=True)
class WritePlan:
    """A write that was looked at and whose undo can be registered."""

    path: SandboxPath
    payload: bytes
    token: str
    status: FileStatus
    before: Content
    after: Content
    created: tuple[SandboxPath, ...]


def plan_write(
    store: FileStore, transaction_id: str, path: SandboxPath, payload: bytes, mode: int | None
) -> WritePlan:
    """Look at the target, keep its bytes and say what will be created. Changes nothing in the sandbox."""
    if not path.names or path.must_be_directory:
        raise path.failure(errno.EISDIR)
    limit = store.settings.max_file_bytes
    if len(payload) > limit:
        raise path.failure(errno.EFBIG, f"The content is {len(payload)} bytes, the limit is {limit}")
    token = new_token()
    created = tuple(store.sandbox.missing_directories(path))
    before, status = ABSENT, FileStatus("absent") if created else store.sandbox.read_status(path)
    if status.kind != "absent":
        before, status = keep_file(store, transaction_id, path, token, to_write=True)
    if mode is None:
        mode = before.mode & 0o777 if before.kind == "file" else NEW_FILE_MODE
    after = Content("file", hashlib.sha256(payload).hexdigest(), mode)
    return WritePlan(path, payload, token, status, before, after, created)


def write_file(store: FileStore, transaction_id: str, plan: WritePlan) -> None:
    """Make the write, atomically and durably, unless somebody changed the target since it was looked at."""
    with withdrawing(store, transaction_id, plan.token, plan.path):
        store.sandbox.make_directories(plan.created)
        put_file(store, plan.path, (plan.payload,), plan.after.mode, plan.token, plan.status)


def undo_write(
    store: FileStore,
    transaction_id: str,
    path: SandboxPath,
    before: Content,
    after: Content,
    created: list[SandboxPath],
    token: str,
) -> None:
    """Restore what was there: bytes and mode, or absence, and remove directories that were made for it."""
    remove_temporary(store, path, token)
    if not store.backups.is_withdrawn(transaction_id, token):
        restore(store, transaction_id, path, before, after, token)
    store.sandbox.remove_empty_directories(created)
