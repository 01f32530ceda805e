"""``fs.*``: text files in a sandbox directory, undone exactly when a step is rewound."""

# ruff: noqa: D417 — ctx is not an argument of the tool

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, TypeVar

from pydantic import Field

from agenttx.tools.blocking_pool import BlockingPool
from agenttx.tools.call_context import ToolCallContext
from agenttx.tools.definition import AnyTool, tool
from agenttx_server.engine.ports import ToolFailure, UndoContext
from agenttx_server.engine.records import HintCategory
from agenttx_server.tools.builtin.file_content import Content
from agenttx_server.tools.builtin.file_deleting import delete_path, plan_delete, undo_delete
from agenttx_server.tools.builtin.file_errors import failing_as
from agenttx_server.tools.builtin.file_moving import move_path, plan_move, undo_move
from agenttx_server.tools.builtin.file_store import FileStore, FsSettings
from agenttx_server.tools.builtin.file_writing import plan_write, undo_write, write_file
from agenttx_server.tools.builtin.path_claims import PathClaimed
from agenttx_server.tools.builtin.path_locks import PathLocks
from agenttx_server.tools.builtin.sandbox import chunks_of, open_file
from agenttx_server.tools.builtin.sandbox_path import RESERVED_PREFIX, SandboxPath
from agenttx_server.tools.builtin.wording import shown

__all__ = ["FileTools", "FsSettings", "fs_tools"]

Result = TypeVar("Result")

ObjectOfUndo = dict[str, Any]
Mode = Annotated[str, Field(pattern=r"^0?[4-7][0-7]{2}$")]


def fs_tools(settings: FsSettings) -> list[AnyTool]:
    """Return the ``fs.*`` tools over one sandbox. Raises ValueError or OSError for unusable directories."""
    return FileTools(settings).tools()


class FileTools:
    """The tools over one sandbox. Raises ValueError, in one line, for unusable directories."""

    def __init__(self, settings: FsSettings) -> None:
        self._store = FileStore(settings)
        # Of their own: the other blocking tools, however many hang, must not keep an undo from running.
        self._pool = BlockingPool(settings.threads, "agenttx-files")
        # Held by changes only: what is read is replaced as a whole. Undo waits for nobody, since a
        # call that never ends must not keep it from running; it compares before it acts.
        self._locks = PathLocks()
        self._is_over = settings.is_over

    def transactions_kept(self) -> list[str]:
        """Return the transactions that have backups or claims."""
        return sorted({*self._store.backups.transactions(), *self._store.claims.holders()})

    def tools(self) -> list[AnyTool]:
        write = tool("fs.write", effects="compensatable")(self.write)
        write.undo("fs.write.undo")(self.undo_write)
        write.when_transaction_ends(self.transaction_ended)
        delete = tool("fs.delete", effects="compensatable")(self.delete)
        delete.undo("fs.delete.undo")(self.undo_delete)
        move = tool("fs.move", effects="compensatable")(self.move)
        move.undo("fs.move.undo")(self.undo_move)
        read = tool("fs.read", effects="read_only")(self.read)
        list_directory = tool("fs.list", effects="read_only")(self.list_directory)
        return [write, read, delete, move, list_directory]

    async def write(
        self, ctx: ToolCallContext, path: str, content: str, mode: Mode | None = None
    ) -> dict[str, Any]:
        """Write a UTF-8 text file, replacing it if it exists; missing directories are created.

        Readers see the old content or the new one, never a part. A rewind restores the previous
        content and permissions, or the absence, and removes the created directories.

        Args:
            path: relative to the sandbox, "/" between names, for example "reports/may.txt".
            content: the whole text.
            mode: permissions in octal, for example "600"; by default those it has, "644" for a new file.

        Returns:
            {"path", "bytes", "created"}: created is false if a file was replaced.
        """
        target = SandboxPath.parse(path)
        payload = content.encode()
        bits = None if mode is None else int(mode, 8)
        transaction = ctx.transaction_id
        async with self._changing(ctx, target):
            plan = await self._run(lambda: plan_write(self._store, transaction, target, payload, bits))
            await self._claim(ctx, target)
            await ctx.register_undo(
                "fs.write.undo",
                path=str(target),
                before=plan.before.to_json(),
                after=plan.after.to_json(),
                created=[str(directory) for directory in plan.created],
                token=plan.token,
            )
            await self._run(lambda: write_file(self._store, transaction, plan))
        return {"path": str(target), "bytes": len(payload), "created": plan.before.kind == "absent"}

    async def undo_write(
        self,
        ctx: UndoContext,
        path: str,
        before: ObjectOfUndo,
        after: ObjectOfUndo,
        created: list[str],
        token: str,
    ) -> None:
        """Restore what a write replaced."""
        await self._run(
            lambda: undo_write(
                self._store,
                ctx.transaction_id,
                SandboxPath.parse(path),
                Content.from_json(before),
                Content.from_json(after),
                [SandboxPath.parse(directory) for directory in created],
                token,
            )
        )

    async def read(self, ctx: ToolCallContext, path: str) -> dict[str, Any]:
        """Read a UTF-8 text file.

        Args:
            path: relative to the sandbox.

        Returns:
            {"path", "content", "bytes"}.
        """
        target = SandboxPath.parse(path)
        await ctx.touch(_key(target), writes=False)
        payload = await self._run(lambda: self._read(target))
        try:
            content = payload.decode()
        except UnicodeDecodeError as error:
            raise ToolFailure(
                HintCategory.INVALID_VALUE,
                f"{shown(str(target))} is not UTF-8 text (byte {error.start}). fs.read reads text files only",
                ("path",),
            ) from None
        return {"path": str(target), "content": content, "bytes": len(payload)}

    def _read(self, path: SandboxPath) -> bytes:
        if not path.names:
            raise path.failure(errno.EISDIR)
        limit = self._store.settings.max_file_bytes
        with (
            self._store.sandbox.parent(path) as descriptor,
            open_file(descriptor, path.name, path) as (file, status),
            failing_as(str(path), path.argument),
        ):
            if status.size > limit:
                raise path.failure(errno.EFBIG, f"It has {status.size} bytes, the limit is {limit}")
            return b"".join(chunks_of(file, limit))

    async def delete(self, ctx: ToolCallContext, path: str) -> dict[str, Any]:
        """Delete a file or an empty directory. A rewind puts it back as it was.

        Args:
            path: relative to the sandbox.

        Returns:
            {"path"}.
        """
        target = SandboxPath.parse(path)
        transaction = ctx.transaction_id
        async with self._changing(ctx, target):
            plan = await self._run(lambda: plan_delete(self._store, transaction, target))
            await self._claim(ctx, target)
            await ctx.register_undo(
                "fs.delete.undo", path=str(target), before=plan.before.to_json(), token=plan.token
            )
            await self._run(lambda: delete_path(self._store, transaction, plan))
        return {"path": str(target)}

    async def undo_delete(self, ctx: UndoContext, path: str, before: ObjectOfUndo, token: str) -> None:
        """Put back what was deleted."""
        await self._run(
            lambda: undo_delete(
                self._store, ctx.transaction_id, SandboxPath.parse(path), Content.from_json(before), token
            )
        )

    async def move(
        self, ctx: ToolCallContext, source: str, destination: str, overwrite: bool = False
    ) -> dict[str, Any]:
        """Move or rename a file or directory; missing directories are created. A rewind moves it back.

        Args:
            source: what to move, relative to the sandbox.
            destination: its full new path (never just the directory to move it into).
            overwrite: whether an existing file may be replaced; a rewind restores it.

        Returns:
            {"path", "source"}: path is the new one.
        """
        old, new = SandboxPath.parse(source, "source"), SandboxPath.parse(destination, "destination")
        transaction = ctx.transaction_id
        async with self._changing(ctx, old, new):
            plan = await self._run(lambda: plan_move(self._store, transaction, old, new, overwrite))
            await self._claim(ctx, old, new)
            await ctx.register_undo(
                "fs.move.undo",
                source=str(old),
                destination=str(new),
                moved=plan.moved.to_json(),
                before=plan.before.to_json(),
                created=[str(directory) for directory in plan.created],
                token=plan.token,
            )
            await self._run(lambda: move_path(self._store, transaction, plan))
        return {"path": str(new), "source": str(old)}

    async def undo_move(
        self,
        ctx: UndoContext,
        source: str,
        destination: str,
        moved: ObjectOfUndo,
        before: ObjectOfUndo,
        created: list[str],
        token: str,
    ) -> None:
        """Move back, and restore what was replaced."""
        await self._run(
            lambda: undo_move(
                self._store,
                ctx.transaction_id,
                SandboxPath.parse(source, "source"),
                SandboxPath.parse(destination, "destination"),
                Content.from_json(moved),
                Content.from_json(before),
                [SandboxPath.parse(directory, "destination") for directory in created],
                token,
            )
        )

    async def list_directory(
        self,
        ctx: ToolCallContext,
        path: str = ".",
        after: str = "",
        limit: Annotated[int, Field(ge=1, le=10_000)] = 1000,
    ) -> dict[str, Any]:
        """List a directory: one entry for each file and directory in it, by name.

        Args:
            path: the directory, relative to the sandbox; "." is the sandbox itself.
            after: go on after this name, the last one of the page before.
            limit: entries at most, 1 to 10000.

        Returns:
            {"path", "entries": [{"name", "type", "bytes"}], "truncated"}: type is "file", "directory",
            "link" or "special"; truncated says that there are more.
        """
        target = SandboxPath.parse(path)
        await ctx.touch(_key(target), writes=False)
        entries = await self._run(lambda: self._entries(target))
        page = [entry for entry in entries if entry["name"] > after]
        return {"path": str(target), "entries": page[:limit], "truncated": len(page) > limit}

    def _entries(self, path: SandboxPath) -> list[dict[str, Any]]:
        with (
            self._store.sandbox.directory(path) as descriptor,
            failing_as(str(path)),
            os.scandir(descriptor) as found,
        ):
            entries = [_entry(entry) for entry in found if not entry.name.startswith(RESERVED_PREFIX)]
        return sorted(entries, key=lambda entry: str(entry["name"]))

    async def transaction_ended(self, transaction_id: str) -> None:
        """Let go of the backups and of the claims."""
        await self._run(lambda: self._let_go(transaction_id))

    def _let_go(self, transaction_id: str) -> None:
        self._store.backups.discard(transaction_id)
        self._store.claims.release(transaction_id)

    @asynccontextmanager
    async def _changing(self, ctx: ToolCallContext, *paths: SandboxPath) -> AsyncIterator[None]:
        """Say which paths are changed and have them to oneself, from the look to the effect.

        Other transactions' claims come first: what is there now may be gone when they are undone.
        """
        for path in paths:
            await ctx.touch(_key(path), writes=True)
        async with self._locks.held(*paths):
            await self._past_ended(lambda: self._store.claims.check(ctx.transaction_id, paths))
            yield

    async def _claim(self, ctx: ToolCallContext, *paths: SandboxPath) -> None:
        """Claim what is about to be changed, until the transaction has ended."""
        await self._past_ended(lambda: self._store.claims.claim(ctx.transaction_id, paths))

    async def _past_ended(self, work: Callable[[], None]) -> None:
        """Do what may meet a claim; one of a transaction that is over is dropped: its server died before it could."""
        passed: set[str] = set()
        while True:
            try:
                return await self._run(work)
            except PathClaimed as claimed:
                holder = claimed.holder
                if holder in passed or self._is_over is None or not await self._is_over(holder):
                    raise
            passed.add(holder)
            await self.transaction_ended(holder)

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await self._pool.run(work)


def _key(path: SandboxPath) -> str:
    """Return what a path is called where members of a group are judged."""
    return "/".join(("file", *path.names))


def _entry(entry: os.DirEntry[str]) -> dict[str, Any]:
    # A name that is no UTF-8 can't be given to a tool, but it is shown.
    name = os.fsencode(entry.name).decode("utf-8", "backslashreplace")
    if entry.is_symlink():
        return {"name": name, "type": "link", "bytes": 0}
    if entry.is_dir(follow_symlinks=False):
        return {"name": name, "type": "directory", "bytes": 0}
    if entry.is_file(follow_symlinks=False):
        with suppress(FileNotFoundError):  # deleted meanwhile
            return {"name": name, "type": "file", "bytes": entry.stat(follow_symlinks=False).st_size}
        return {"name": name, "type": "file", "bytes": 0}
    return {"name": name, "type": "special", "bytes": 0}
