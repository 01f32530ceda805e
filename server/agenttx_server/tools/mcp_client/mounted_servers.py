"""Tools of MCP servers as the engine runs tools: by their full names, with undo, and with what their loss means."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import mcp_types as types

from agenttx_server.engine import json_values
from agenttx_server.engine.ports import (
    ArgumentsRefused,
    NotCalled,
    OutcomeUnknown,
    ReportedFailure,
    ToolContext,
    ToolFailure,
    UndoContext,
    UndoUnavailable,
)
from agenttx_server.engine.records import EffectClass, HintCategory, ToolDescription
from agenttx_server.mcp_servers import McpServer, UndoRule
from agenttx_server.tools.mcp_client.connection import (
    ConnectionLost,
    McpConnection,
    NotConnected,
    NotDone,
    Silent,
    Unsettled,
)
from agenttx_server.tools.mcp_client.offered_tools import OfferedTool, absent_tool, offered, undo_name
from agenttx_server.tools.mcp_client.results import output_of, raise_if_failed
from agenttx_server.tools.mcp_client.templates import TemplateFailed, filled, needs_result

__all__ = ["McpRulesRefused", "MountedServers"]

_LOGGER = logging.getLogger(__name__)

KEY = "agenttx/idempotency-key"
UNDO_CALLS = 3
RETURN_SECONDS = 10.0
"""How long a call waits for a server that was there: it is being started anew, and a failure would undo work for that."""
LAST_SECONDS = 1.0
"""Of a call's time, what is left to say that the server didn't come."""


class McpRulesRefused(Exception):
    """The rules for a server's tools don't fit the tools that it has; one line."""


class _Mounted:
    """A server with its tools as they were listed last."""

    def __init__(self, server: McpServer, on_undo_offered: Callable[[Collection[str]], None]) -> None:
        self.server = server
        self.tools: dict[str, OfferedTool] = {}
        self.known: dict[str, OfferedTool] = {}
        self.problems: list[str] = []
        self.was_there = False
        self._on_undo_offered = on_undo_offered
        self.connection = McpConnection(server, self._listed, lambda: None)

    def _listed(self, tools: list[types.Tool]) -> None:
        self.tools, self.problems = offered(self.server, tools, self.known)
        self.known |= self.tools
        self.was_there = True
        for problem in self.problems:
            _LOGGER.error("MCP server %s: %s", self.server.name, problem)
        undo = {name for tool in self.tools.values() for name in tool.description.undo_names}
        if undo:
            # Once the connection can be used, which is after the list was read.
            asyncio.get_running_loop().call_soon(self._on_undo_offered, undo)


class MountedServers:
    """All servers that are mounted. ``undo_wait_seconds`` is how long undo waits for a server that is away."""

    def __init__(
        self,
        servers: Sequence[McpServer],
        *,
        undo_wait_seconds: float,
        on_undo_offered: Callable[[Collection[str]], None] = lambda names: None,
    ) -> None:
        self._mounted = {server.name: _Mounted(server, on_undo_offered) for server in servers}
        self._undo_wait_seconds = undo_wait_seconds
        self._running: list[asyncio.Task[None]] = []

    async def start(self, wait_seconds: float) -> None:
        """Connect to all, and wait so long for those that are slow; they may come later.

        Raises:
            McpRulesRefused: a rule is about a tool that a server doesn't have.
        """
        self._running = [asyncio.create_task(mounted.connection.run()) for mounted in self._mounted.values()]
        waits = [asyncio.create_task(mounted.connection.tried.wait()) for mounted in self._mounted.values()]
        if waits:
            _, slow = await asyncio.wait(waits, timeout=wait_seconds)
            for wait in slow:
                wait.cancel()
        problems = [problem for mounted in self._mounted.values() for problem in mounted.problems]
        if problems:
            raise McpRulesRefused("; ".join(problems[:5]))

    async def stop(self) -> None:
        """End all connections, and with them the servers that were started."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    # --- the tools that there are -----------------------------------------------------------

    def owns(self, name: str) -> bool:
        """Whether a tool or an undo action of this name is, or would be, a mounted server's."""
        return self._split(name) is not None

    def describe(self, name: str) -> ToolDescription | None:
        """Return a tool's description; of a server that was never there, what is assumed of it."""
        found = self._split(name)
        if found is None:
            return None
        mounted, tool_name = found
        tool = mounted.known.get(name)
        if tool is not None:
            return tool.description
        return None if mounted.was_there else absent_tool(mounted.server, tool_name)

    def describe_all(self) -> Sequence[ToolDescription]:
        """Return the tools that are offered now."""
        return tuple(
            tool.description
            for mounted in self._mounted.values()
            if mounted.connection.is_connected
            for tool in mounted.tools.values()
        )

    # --- calls --------------------------------------------------------------------------------

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        """Run a tool; see :meth:`.ports.ToolRunner.run`."""
        try:
            mounted, tool = await self._ready(name, arguments, context)
        except asyncio.CancelledError:
            # Its time was over, or it was cancelled. Said like this, it is not in doubt.
            raise NotCalled(
                HintCategory.TIMEOUT, f"{name} was stopped before it was called; its MCP server was not asked"
            ) from None
        rule = tool.rules.undo
        effect_class = tool.description.effect_class
        meta = {KEY: context.idempotency_key}
        try:
            result = await mounted.connection.call(
                tool.name, arguments, idle_seconds=tool.rules.idle_timeout_seconds, meta=meta
            )
            raise_if_failed(result)
        except NotConnected as absent:
            await self._register_nothing(mounted, rule, context)
            raise _absent(mounted, str(absent)) from None
        except NotDone as refused:
            await self._register_nothing(mounted, rule, context)
            raise ReportedFailure(str(refused)) from None
        except Unsettled as error:
            if effect_class.acts_outside:
                raise OutcomeUnknown(f"{name}: its MCP server told of an error: {str(error)[:200]}") from None
            raise ReportedFailure(str(error)) from None
        except (ToolFailure, ReportedFailure):
            await self._register_nothing(mounted, rule, context)
            raise
        except ConnectionLost as lost:
            raise _lost(name, effect_class, f"its MCP server was lost: {lost}") from None
        except Silent:
            seconds = tool.rules.idle_timeout_seconds
            raise _lost(name, effect_class, f"it told nothing for {seconds:g} s") from None
        except (
            RuntimeError,
            ValueError,
        ) as broken:  # an answer that is none, or breaks the tool's own schema
            raise _lost(name, effect_class, f"its answer can't be read: {str(broken)[:200]}") from None
        output = output_of(result)
        if rule is not None and needs_result(rule.arguments):
            await _complete(mounted.server.name, name, rule, arguments, output, context)
        return output

    async def _ready(self, name: str, arguments: Any, context: ToolContext) -> tuple[_Mounted, OfferedTool]:
        """Do all that comes before the server is asked: wait for it, check the arguments, register the undo."""
        mounted, tool = await self._callable(name, context.seconds_left)
        if not isinstance(arguments, dict):
            raise ArgumentsRefused(HintCategory.INVALID_VALUE, f"{name} takes an object of arguments")
        tool.check(arguments)
        if tool.rules.undo is not None:
            await _register_before(mounted.server.name, name, tool.rules.undo, arguments, context)
        return mounted, tool

    async def undo(self, name: str, arguments: Any, context: UndoContext) -> None:
        """Take a call back; raise UndoUnavailable while its server is away."""
        found = self._split(name)
        assert found is not None, "only what a mounted server owns comes here"
        mounted, tool_name = found
        if arguments.get("nothing"):
            return
        if arguments.get("needs_result"):
            if arguments["when_unknown"] == "skip":
                return
            raise ToolFailure(
                HintCategory.UNKNOWN,
                f"whether {arguments['needs_result']} took effect, and with what result, is not known, and undoing it "
                "needs the result. Find out, undo it by hand, then resolve this undo action",
            )
        for _ in range(UNDO_CALLS):
            if not await mounted.connection.wait_connected(self._undo_wait_seconds):
                break
            try:
                result = await mounted.connection.call(
                    tool_name, arguments["arguments"], idle_seconds=None, meta={KEY: context.idempotency_key}
                )
            except (NotConnected, ConnectionLost):
                continue  # It must bear being called twice, and a server over HTTP is known to be gone only now.
            except (NotDone, Unsettled) as error:
                raise ReportedFailure(str(error)) from None
            raise_if_failed(result)
            return
        raise UndoUnavailable(f"undo action '{name}' waits: MCP server '{mounted.server.name}' is not there")

    async def _register_nothing(self, mounted: _Mounted, rule: UndoRule | None, context: ToolContext) -> None:
        """Note that a call whose undo needs its result failed: there is nothing to take back."""
        if rule is not None and needs_result(rule.arguments):
            await context.update_undo(
                undo_name(mounted.server.name, rule.tool), json_values.canonical({"nothing": True})
            )

    async def _callable(self, name: str, seconds_left: float) -> tuple[_Mounted, OfferedTool]:
        found = self._split(name)
        assert found is not None, "only what a mounted server owns comes here"
        mounted, tool_name = found
        patience = min(RETURN_SECONDS, seconds_left - LAST_SECONDS) if mounted.was_there else 0.0
        if not await mounted.connection.wait_connected(max(patience, 0.0)):
            raise _absent(mounted, mounted.connection.why_gone)
        tool = mounted.tools.get(name)
        if tool is not None:
            return mounted, tool
        near = difflib.get_close_matches(name, list(mounted.tools), n=1)
        advice = f"Did you mean '{near[0]}'?" if near else "ListTools names those it has"
        was = "has no longer" if name in mounted.known else "has no"
        raise NotCalled(
            HintCategory.UNKNOWN_TOOL,
            f"MCP server '{mounted.server.name}' {was} a tool '{tool_name[:64]}'. {advice}",
        )

    def _split(self, name: str) -> tuple[_Mounted, str] | None:
        prefix, dot, tool_name = name.partition(".")
        mounted = self._mounted.get(prefix)
        return (mounted, tool_name) if mounted is not None and dot and tool_name else None


async def _register_before(
    server: str, name: str, rule: UndoRule, arguments: Any, context: ToolContext
) -> None:
    """Register the undo of a call before it is made: as it will be called, or as what needs the result yet."""
    if needs_result(rule.arguments):
        registered: dict[str, Any] = {
            "needs_result": name,
            "when_unknown": rule.when_unknown,
            "call": arguments,
        }
    else:
        try:
            registered = {"arguments": filled(rule.arguments, arguments, None)}
        except TemplateFailed as failed:
            raise ArgumentsRefused(
                HintCategory.MISSING_ARGUMENT, f"{name} can't be undone with these arguments: {failed}"
            ) from None
    await context.register_undo(undo_name(server, rule.tool), json_values.canonical(registered))


async def _complete(
    server: str, name: str, rule: UndoRule, arguments: Any, output: Any, context: ToolContext
) -> None:
    """Fill the undo of a call that has returned with its result."""
    try:
        registered = {"arguments": filled(rule.arguments, arguments, output)}
    except TemplateFailed as failed:
        # The effect is there: what was registered before the call has a person look.
        raise ToolFailure(
            HintCategory.INVALID_VALUE, f"{name} returned no value that its undo needs: {failed}"
        ) from None
    await context.update_undo(undo_name(server, rule.tool), json_values.canonical(registered))


def _absent(mounted: _Mounted, why: str) -> NotCalled:
    return NotCalled(
        HintCategory.CONNECTION,
        f"MCP server '{mounted.server.name}' is not there now ({why[:100]}). It is tried again by itself; run the step "
        "again later",
    )


def _lost(name: str, effect_class: EffectClass, why: str) -> Exception:
    if effect_class.acts_outside:
        return OutcomeUnknown(f"{name}: {why}")
    return ToolFailure(HintCategory.CONNECTION, f"{name} did not answer: {why}. Run the step again")
