"""Files under one directory, reached name by name through directory descriptors.

No symbolic link is ever followed, the last name included: each directory is opened with
O_NOFOLLOW relative to the one before, and everything is done relative to the descriptor that
was opened. So whatever somebody renames or links meanwhile, an operation happens in the
directory that was checked or not at all; a path is never looked up twice.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from agenttx_server.tools.builtin.file_errors import FileFailure, failing_as
from agenttx_server.tools.builtin.sandbox_path import SandboxPath

__all__ = [
    "FileStatus",
    "Sandbox",
    "chunks_of",
    "create_file",
    "open_directory",
    "open_file",
    "read_status",
]

_CHUNK_BYTES: Final = 1 << 20

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO would wait for its other end.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Of rmdir: it has entries, or something else stands there now.
_IN_USE: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.EBUSY})


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What stands at a name at one moment; ``identity`` changes when it is replaced or written to."""

    kind: Literal["absent", "file", "directory", "link", "special"]
    mode: int = 0
    size: int = 0
    links: int = 0
    identity: tuple[int, ...] = ()


class Sandbox:
    """A directory with confined access. Everything blocks; errors are FileFailure.

    ``changing`` is held while a change is checked and made, so that two changes of this
    process can't pass one another between check and effect.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve(strict=True)
        self.changing = threading.Lock()

    @contextmanager
    def directory(self, path: SandboxPath) -> Iterator[int]:
        """Open a directory of the sandbox."""
        with failing_as(".", path.argument):
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for depth, name in enumerate(path.names, start=1):
                above = descriptor
                descriptor = open_directory(above, name, SandboxPath(path.names[:depth], True, path.argument))
                os.close(above)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def parent(self, path: SandboxPath) -> Iterator[int]:
        """Open the directory that a path is in; if that is missing, so is the path."""
        with ExitStack() as stack:
            try:
                descriptor = stack.enter_context(self.directory(path.parent))
            except FileFailure as failure:
                raise (path.failure(errno.ENOENT) if failure.errno == errno.ENOENT else failure) from None
            yield descriptor

    def read_status(self, path: SandboxPath) -> FileStatus:
        """Say what stands at a path; absent too if its directory is."""
        if not path.names:
            return FileStatus("directory")
        try:
            with self.parent(path) as descriptor, failing_as(str(path), path.argument):
                return read_status(descriptor, path.name)
        except FileFailure as failure:
            if failure.errno == errno.ENOENT:
                return FileStatus("absent")
            raise

    def missing_directories(self, path: SandboxPath) -> list[SandboxPath]:
        """Return the directories above a path that don't exist, outermost first."""
        for depth in range(1, len(path.names)):
            above = [
                SandboxPath(path.names[:end], True, path.argument) for end in range(depth, len(path.names))
            ]
            status = self.read_status(above[0])
            if status.kind == "absent":
                return above
            if status.kind != "directory":
                raise above[0].failure(errno.ELOOP if status.kind == "link" else errno.ENOTDIR)
        return []

    def make_directories(self, directories: Iterable[SandboxPath]) -> None:
        """Make directories, outermost first, durably. One that somebody else made meanwhile is as good."""
        for directory in directories:
            with (
                self.parent(directory) as descriptor,
                failing_as(str(directory), directory.argument),
            ):
                with suppress(FileExistsError):
                    os.mkdir(directory.name, 0o755, dir_fd=descriptor)
                os.fsync(descriptor)

    def remove_empty_directories(self, directories: Iterable[SandboxPath]) -> None:
        """Remove directories, outermost given first, as far as they are empty; missing ones count as removed."""
        for directory in reversed(list(directories)):
            try:
                with self.parent(directory) as descriptor, failing_as(str(directory), directory.argument):
                    os.rmdir(directory.name, dir_fd=descriptor)
                    os.fsync(descriptor)
            except FileFailure as failure:
                if failure.errno in _IN_USE:
                    return  # and so are those above it
                if failure.errno != errno.ENOENT:
                    raise


def read_status(descriptor: int, name: str) -> FileStatus:
    """Say what stands at a name in an open directory."""
    try:
        raw = os.lstat(name, dir_fd=descriptor)
    except FileNotFoundError:
        return FileStatus("absent")
    return _status_of(raw)


def _status_of(raw: os.stat_result) -> FileStatus:
    mode = stat.S_IMODE(raw.st_mode)
    if stat.S_ISDIR(raw.st_mode):
        return FileStatus("directory", mode, identity=(raw.st_dev, raw.st_ino))
    identity = (raw.st_dev, raw.st_ino, raw.st_size, raw.st_mtime_ns, raw.st_ctime_ns)
    if stat.S_ISREG(raw.st_mode):
        return FileStatus("file", mode, raw.st_size, raw.st_nlink, identity)
    return FileStatus("link" if stat.S_ISLNK(raw.st_mode) else "special", mode, identity=identity)


def open_directory(descriptor: int, name: str, path: SandboxPath) -> int:
    """Open a directory in an open directory; the caller closes it."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=descriptor)
    except OSError as error:
        code = error.errno or errno.EIO
        if code in (errno.ENOTDIR, errno.ELOOP):  # which of the two a link gives depends on the system
            code = errno.ELOOP if read_status(descriptor, name).kind == "link" else errno.ENOTDIR
        raise path.failure(code) from error


@contextmanager
def open_file(descriptor: int, name: str, path: SandboxPath) -> Iterator[tuple[int, FileStatus]]:
    """Open a regular file for reading; give its descriptor and what it is."""
    _refuse_irregular(read_status(descriptor, name), path)  # before the open, which a device would notice
    with failing_as(str(path), path.argument):
        file = os.open(name, _READ, dir_fd=descriptor)
    try:
        status = _status_of(os.fstat(file))
        _refuse_irregular(status, path)
        yield file, status
    finally:
        os.close(file)


def _refuse_irregular(status: FileStatus, path: SandboxPath) -> None:
    if status.kind == "absent":
        raise path.failure(errno.ENOENT)
    if status.kind == "directory":
        raise path.failure(errno.EISDIR)
    if status.kind == "link":
        raise path.failure(errno.ELOOP)
    if status.kind == "special":
        raise path.failure(errno.EPERM, "It is no regular file but a device, socket or pipe")
    if path.must_be_directory:
        raise path.failure(errno.ENOTDIR, "It is a file: leave out the slash at the end")


def chunks_of(file: int, limit: int | None = None) -> Iterator[bytes]:
    """Read a file to its end; raise OSError (EFBIG) when it turns out longer than ``limit`` bytes."""
    read = 0
    while chunk := os.read(file, _CHUNK_BYTES):
        read += len(chunk)
        if limit is not None and read > limit:  # it grows while it is read
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        yield chunk


def create_file(descriptor: int, name: str, chunks: Iterable[bytes], mode: int) -> str:
    """Create a file durably, its name aside, and return its content's SHA-256 in hex."""
    file = os.open(name, _CREATE, 0o600, dir_fd=descriptor)
    try:
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
            left = memoryview(chunk)
            while left:
                left = left[os.write(file, left) :]
        os.fchmod(file, mode)
        os.fsync(file)
    finally:
        os.close(file)
    return digest.hexdigest()
