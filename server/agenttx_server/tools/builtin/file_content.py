"""What stood, or stands, at a path, as far as undo needs to know it: kind, content hash, mode.

Directories are compared by a hash over everything in them, so that one that was moved is
moved back only if nobody changed anything inside.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from agenttx_server.tools.builtin.sandbox import (
    FileStatus,
    Sandbox,
    chunks_of,
    open_directory,
    open_file,
    read_status,
)
from agenttx_server.tools.builtin.sandbox_path import SandboxPath

__all__ = ["ABSENT", "Content", "TreeLimits", "read_content"]

DEEPEST_TREE: Final = 100


@dataclass(frozen=True, slots=True)
class Content:
    """A file, a directory or nothing. ``backup`` is the token of the kept bytes, where they were kept."""

    kind: Literal["absent", "file", "directory", "other"]
    digest: str = ""
    mode: int = 0
    backup: str = ""

    def same_as(self, other: Content) -> bool:
        """Whether kind and content are equal; the mode may differ."""
        return (self.kind, self.digest) == (other.kind, other.digest) and self.kind != "other"

    def to_json(self) -> dict[str, Any]:
        """Return the form in undo arguments."""
        return {"kind": self.kind, "digest": self.digest, "mode": f"{self.mode:04o}", "backup": self.backup}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Content:
        """Read the form in undo arguments."""
        return cls(value["kind"], value["digest"], int(value["mode"], 8), value["backup"])


ABSENT: Final = Content("absent")


@dataclass(slots=True)
class TreeLimits:
    """How much of a directory may still be read to hash it."""

    entries: int
    bytes: int

    def take(self, path: SandboxPath, size: int) -> None:
        """Count one entry; raise FileFailure (EFBIG) when it is too much."""
        self.entries -= 1
        self.bytes -= size
        if self.entries < 0 or self.bytes < 0:
            raise path.failure(
                errno.EFBIG, "The directory is too large to be moved in one step: move parts of it"
            )


def read_content(
    sandbox: Sandbox, path: SandboxPath, *, with_tree: bool = False, limits: TreeLimits | None = None
) -> tuple[Content, FileStatus]:
    """Read what stands at a path now. A directory's content is hashed ``with_tree`` only."""
    status = sandbox.read_status(path)
    if status.kind == "absent":
        return ABSENT, status
    with sandbox.parent(path) as descriptor:
        if status.kind == "file":
            with open_file(descriptor, path.name, replace(path, must_be_directory=False)) as (file, opened):
                return Content("file", _hash(chunks_of(file)), opened.mode), opened
        if status.kind == "directory":
            digest = ""
            if with_tree:
                inner = open_directory(descriptor, path.name, path)
                try:
                    digest = _hash_tree(inner, path, limits, 0)
                finally:
                    os.close(inner)
            return Content("directory", digest, status.mode), status
    return Content("other"), status


def _hash(chunks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _hash_tree(descriptor: int, path: SandboxPath, limits: TreeLimits | None, depth: int) -> str:
    if depth > DEEPEST_TREE:
        raise path.failure(errno.EFBIG, f"The directory is nested deeper than {DEEPEST_TREE}")
    digest = hashlib.sha256()
    for name in sorted(os.listdir(descriptor)):
        status = read_status(descriptor, name)
        if limits is not None:
            limits.take(path, status.size)
        fact = f"{status.kind} {status.mode:o} {_hash_entry(descriptor, name, status, path, limits, depth)} "
        digest.update(fact.encode() + os.fsencode(name) + b"\0")
    return digest.hexdigest()


def _hash_entry(
    descriptor: int, name: str, status: FileStatus, path: SandboxPath, limits: TreeLimits | None, depth: int
) -> str:
    below = SandboxPath((*path.names, name), False, path.argument)
    if status.kind == "file":
        with open_file(descriptor, name, below) as (file, _):
            return _hash(chunks_of(file))
    if status.kind == "directory":
        inner = open_directory(descriptor, name, below)
        try:
            return _hash_tree(inner, below, limits, depth + 1)
        finally:
            os.close(inner)
    if status.kind == "link":
        return os.readlink(name, dir_fd=descriptor).encode("utf-8", "surrogateescape").hex()
    return "-"
