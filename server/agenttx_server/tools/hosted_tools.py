"""All tools of a server as the engine knows them: its own, those of MCP servers, and those of its workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from agenttx_server.engine.ports import ToolContext, ToolProgress, UndoContext
from agenttx_server.engine.records import ToolDescription, TransactionId
from agenttx_server.stay import outside
from agenttx_server.tools.registry import ToolRegistry
from agenttx_server.tools.remote_workers import RemoteWorkers
from agenttx_server.tools.secret_references import SecretReferences

__all__ = ["HostedTools", "Mounted"]


class Mounted(Protocol):
    """Tools of other servers, under prefixes that are theirs alone."""

    def owns(self, name: str) -> bool:
        """Whether a tool or an undo action of this name is, or would be, theirs."""

    def describe(self, name: str) -> ToolDescription | None:
        """Return a tool's description."""

    def describe_all(self) -> Sequence[ToolDescription]:
        """Return the tools that are offered now."""

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        """Run a tool."""

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        """Run an undo action."""


class NothingMounted:
    """No other server."""

    def owns(self, name: str) -> bool:
        return False

    def describe(self, name: str) -> ToolDescription | None:
        return None

    def describe_all(self) -> Sequence[ToolDescription]:
        return ()

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        raise AssertionError("it owns no tool")

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        raise AssertionError("it owns no undo action")


class HostedTools:
    """Implements :class:`.ports.ToolRunner`. The server's own tools come first: no worker may take their names.

    ``allows`` says which of the server's own, and of other servers', there are; the others are not there. Undo that is owed
    is run all the same. ``secrets`` are put into calls, None where there are none. ``offered_before`` says whether a worker has
    offered a tool lately to any server.
    """

    def __init__(
        self,
        own: ToolRegistry,
        workers: RemoteWorkers,
        mounted: Mounted | None = None,
        allows: Callable[[str], bool] = lambda name: True,
        secrets: SecretReferences | None = None,
        offered_before: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        self._own = own
        self._workers = workers
        self._mounted = mounted or NothingMounted()
        self._allows = allows
        self._secrets = secrets
        self._offered_before = offered_before

    def describe(self, name: str) -> ToolDescription | None:
        found = self._own.describe(name)
        if found is not None:
            return found if self._allows(name) else None
        if self._mounted.owns(name):
            return self._mounted.describe(name) if self._allows(name) else None
        return self._workers.describe(name)

    def describe_all(self) -> Sequence[ToolDescription]:
        own = [
            tool
            for tool in (*self._own.describe_all(), *self._mounted.describe_all())
            if self._allows(tool.name)
        ]
        return tuple(sorted((*own, *self._workers.describe_all()), key=lambda tool: tool.name))

    async def find(self, name: str, wait_seconds: float) -> ToolDescription | None:
        if self._own.describe(name) is not None or self._mounted.owns(name):
            return self.describe(name)
        with outside():
            return await self._workers.find(name, wait_seconds)

    async def was_offered(self, name: str) -> bool:
        # What is not allowed, and what another server's own tools leave out, is not waited for.
        if self._offered_before is None or self._own.describe(name) is not None or self._mounted.owns(name):
            return False
        return await self._offered_before(name)

    def check_arguments(self, name: str, arguments: Any) -> None:
        self._own.check_arguments(name, arguments)  # a worker checks its own, when it is called

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        with outside():
            if self._secrets is not None:
                return await self._secrets.call(name, arguments, context, partial(self._run, name))
            return await self._run(name, arguments, context)

    async def _run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        if self._own.describe(name):
            return await self._own.run(name, arguments, context)
        runner = self._mounted if self._mounted.owns(name) else self._workers
        return await runner.run(name, arguments, context)

    def run_prompt(self, name: str, arguments: Any, context: ToolContext) -> Any:
        if self._secrets is not None and self._secrets.are_in(arguments):
            raise RuntimeError("arguments with secrets take the way of all other calls")
        return self._own.run_prompt(name, arguments, context)  # no other one is described as prompt

    def progress(self, transaction_id: TransactionId, step_id: int, sub_step: int) -> ToolProgress | None:
        told = self._workers.progress(transaction_id, step_id, sub_step)
        if told is None or self._secrets is None:
            return told
        return ToolProgress(told.fraction, self._secrets.mask(told.message))

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        if self._secrets is not None:
            await self._secrets.undo(
                undo_name, arguments, lambda filled: self._undo(undo_name, filled, context)
            )
            return
        await self._undo(undo_name, arguments, context)

    async def _undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        if self._own.has_undo(undo_name):
            await self._own.undo(undo_name, arguments, context)
            return
        runner = self._mounted if self._mounted.owns(undo_name) else self._workers
        await runner.undo(undo_name, arguments, context)

    async def transaction_ended(self, transaction_id: TransactionId) -> None:
        await self._own.transaction_ended(transaction_id)
