"""Previous contents of files, kept until the transaction ended: what undo restores from.

One directory a transaction, outside the sandbox, so that no tool call can reach it. A backup
is on disk, its name too, before the file that it is of is touched.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from agenttx_server.tools.builtin.sandbox import chunks_of, create_file

__all__ = ["FileBackups", "new_token"]

_TOKEN: Final = re.compile(r"[0-9a-f]{32}")
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_HASHED_ID: Final = re.compile(r"[0-9a-f]{64}")


def new_token() -> str:
    """Return a name that nobody else has."""
    return secrets.token_hex(16)


class FileBackups:
    """Backups by transaction and token, under one directory. Everything blocks; errors are OSError."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory.resolve(strict=True)

    def keep(self, transaction_id: str, token: str, chunks: Iterable[bytes]) -> str:
        """Keep a content durably; return its SHA-256 in hex."""
        return self._keep(transaction_id, _checked(token), chunks)

    @contextmanager
    def content(self, transaction_id: str, token: str) -> Iterator[Iterator[bytes]]:
        """Give a kept content in chunks."""
        file = os.open(self._folder(transaction_id) / _checked(token), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield chunks_of(file)
        finally:
            os.close(file)

    def withdraw(self, transaction_id: str, token: str) -> None:
        """Note durably that the change with this token was never made, so that its undo touches nothing."""
        self._keep(transaction_id, f"{_checked(token)}.withdrawn", ())

    def is_withdrawn(self, transaction_id: str, token: str) -> bool:
        """Whether a change was noted as never made."""
        return (self._folder(transaction_id) / f"{_checked(token)}.withdrawn").exists()

    def discard(self, transaction_id: str) -> None:
        """Let go of all backups of a transaction; no error if it has none."""
        folder = self._folder(transaction_id)
        if folder.exists():
            shutil.rmtree(folder)

    def transactions(self) -> list[str]:
        """Return the transactions that have backups."""
        with os.scandir(self.directory) as found:
            return [
                entry.name
                for entry in found
                if entry.is_dir(follow_symlinks=False)
                and _PLAIN_ID.fullmatch(entry.name)
                and not _HASHED_ID.fullmatch(entry.name)
            ]

    def _keep(self, transaction_id: str, name: str, chunks: Iterable[bytes]) -> str:
        folder = self._folder(transaction_id)
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync_directory(self.directory)
        with _opened(folder) as descriptor:
            digest = create_file(descriptor, name, chunks, 0o600)
            os.fsync(descriptor)
        return digest

    def _folder(self, transaction_id: str) -> Path:
        if not _PLAIN_ID.fullmatch(transaction_id):
            transaction_id = hashlib.sha256(transaction_id.encode()).hexdigest()
        return self.directory / transaction_id


def _checked(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ValueError("not the token of a backup")
    return token


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    with _opened(directory) as descriptor:
        os.fsync(descriptor)
