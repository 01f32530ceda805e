"""The ``fs.*`` tools of one server with what they keep beside the sandbox: whose it is, and what is left of it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from agenttx_server.engine.kept_for_undo import is_over
from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import TransactionId
from agenttx_server.tools.builtin import FileTools, FsSettings, check_marker

__all__ = ["FileKeeping"]


class _Database(TransactionStore, Protocol):
    async def database_id(self) -> str: ...


class FileKeeping:
    """Sandbox, backups and claims. Made before the store is open; raises ValueError for unusable directories."""

    def __init__(self, root: Path, backups: Path) -> None:
        self._directories = {"fs_root": root, "fs_backup_dir": backups}
        self._store: TransactionStore | None = None
        self.tools = FileTools(FsSettings(root=root, backup_directory=backups, is_over=self._is_over))

    async def attach(self, store: _Database, *, adopt: bool) -> None:
        """Take the directories for a database.

        Those that have no marker get one, but where other servers may share the database only if ``adopt``:
        a directory of this machine alone would hide from them what their transactions changed. Raises
        ValueError, in one line, for another database's directory or a missing marker; StoreUnavailable.
        """
        database_id = await store.database_id()
        for setting, directory in self._directories.items():
            check_marker(directory, setting, database_id, may_write=adopt or not store.is_shared)
        self._store = store

    async def let_go_of_ended(self) -> int:
        """Drop what a server left behind that died between a transaction's end and its cleaning up.

        Return of how many transactions. Raises StoreUnavailable.
        """
        over = [kept for kept in self.tools.transactions_kept() if await self._is_over(kept)]
        for transaction_id in over:
            await self.tools.transaction_ended(transaction_id)
        return len(over)

    async def _is_over(self, transaction_id: str) -> bool:
        return self._store is not None and await is_over(self._store, TransactionId(transaction_id))
