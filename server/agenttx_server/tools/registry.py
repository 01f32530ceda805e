"""The tools of this process: found by name, validated, run, undone.

Coroutine functions run on the event loop, plain functions on the blocking pool. Whatever a
tool does (exits, cancels itself, blocks), the server goes on: its outcome is a result or an
error of this call and nothing else.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from agenttx.tools.blocking_pool import BlockingPool
from agenttx.tools.call_context import ToolCallContext
from agenttx.tools.definition import (
    AnyTool,
    Declaration,
    ToolDefinitionError,
    TransactionEndedHook,
    UndoAction,
)
from agenttx.tools.running import run_at_once, run_tool, run_undo
from agenttx_server.engine.ports import ToolContext, ToolFailure, UndoContext
from agenttx_server.engine.records import EffectClass, HintCategory, ToolDescription, TransactionId
from agenttx_server.tools.engine_port import ENGINE_JSON, EnginePort
from agenttx_server.tools.tool_errors import for_engine

__all__ = ["ToolRegistry"]


class ToolRegistry:
    """Runs tools and undo actions by name; implements :class:`.ports.ToolRunner`.

    ``blocking_threads`` bounds how many plain functions run at once; further calls wait
    for a thread, their deadline running. Raises ToolDefinitionError for two tools, or two
    undo actions, of one name.
    """

    def __init__(self, tools: Iterable[AnyTool], *, blocking_threads: int = 32) -> None:
        self._tools: dict[str, AnyTool] = {}
        self._undo_actions: dict[str, UndoAction] = {}
        self._ended_hooks: dict[TransactionEndedHook, None] = {}
        for tool in tools:
            self._add(tool)
        self._descriptions = {
            name: _description(self._tools[name].describe()) for name in sorted(self._tools)
        }
        self._pool = BlockingPool(blocking_threads, "agenttx-tool")

    def _add(self, tool: AnyTool) -> None:
        if tool.name in self._tools:
            raise ToolDefinitionError(f"two tools are named '{tool.name}'; give one of them another name")
        self._tools[tool.name] = tool
        for name, action in tool.undo_actions.items():
            if name in self._undo_actions:
                raise ToolDefinitionError(
                    f"two undo actions are named '{name}', one of them of tool '{tool.name}'; rename one"
                )
            self._undo_actions[name] = action
        self._ended_hooks.update(dict.fromkeys(tool.ended_hooks))

    def describe(self, name: str) -> ToolDescription | None:
        """Return a tool's description, None if there is no such tool."""
        return self._descriptions.get(name)

    def describe_all(self) -> Sequence[ToolDescription]:
        """Return all tools by name."""
        return tuple(self._descriptions.values())

    @property
    def waiting_for_threads(self) -> int:
        """How many calls of blocking tools wait for a thread."""
        return self._pool.waiting

    def has_undo(self, undo_name: str) -> bool:
        """Whether there is an undo action of this name."""
        return undo_name in self._undo_actions

    async def find(self, name: str, wait_seconds: float) -> ToolDescription | None:
        """Return a tool's description; there is nobody to wait for."""
        return self.describe(name)

    async def was_offered(self, name: str) -> bool:
        """Whether a tool that is not here was: never."""
        return False

    def check_arguments(self, name: str, arguments: Any) -> None:
        """Raise ArgumentsRefused if a tool's schema refuses arguments."""
        tool = self._tools.get(name)
        if tool is not None:
            with for_engine():
                tool.parameters.validate(arguments)

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        """Run a tool; see :meth:`.ports.ToolRunner.run`.

        A plain function that was cancelled while it still waited for a thread raises
        ToolFailure (resource_exhausted): its code did not run, so nothing is in doubt.
        """
        tool = self._tools.get(name)
        if tool is None:
            raise _unknown("tool", name, self._tools)
        with for_engine():
            call_context = ToolCallContext(EnginePort(context), tool, self._undo_actions, json=ENGINE_JSON)
            return await run_tool(tool, arguments, call_context, self._pool)

    def run_prompt(self, name: str, arguments: Any, context: ToolContext) -> Any:
        """Run a prompt tool; see :meth:`.ports.ToolRunner.run_prompt`."""
        tool = self._tools[name]
        # Not through EnginePort, which is for tools that catch errors: of these any error is thrown away.
        return run_at_once(
            tool, arguments, ToolCallContext(context, tool, self._undo_actions, json=ENGINE_JSON)
        )

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        """Run an undo action; raise what it raises."""
        action = self._undo_actions.get(undo_name)
        if action is None:
            raise _unknown("undo action", undo_name, self._undo_actions)
        with for_engine():
            await run_undo(action, arguments, context, self._pool)

    def progress(self, transaction_id: TransactionId, step_id: int, sub_step: int) -> None:
        return None

    async def transaction_ended(self, transaction_id: TransactionId) -> None:
        """Call every tool's hook, also after one failed; raise what failed."""
        errors: list[Exception] = []
        for hook in self._ended_hooks:
            try:
                await hook(transaction_id)
            except Exception as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"letting go of transaction {transaction_id} failed", errors)


def _description(declared: Declaration) -> ToolDescription:
    return ToolDescription(
        name=declared.name,
        description=declared.description,
        arguments_schema=declared.arguments_schema,
        effect_class=EffectClass(declared.effect_class),
        timeout_us=declared.timeout_us,
        retries=declared.retries,
        undo_names=declared.undo_names,
        blocking=declared.blocking,
        needs_approval=declared.needs_approval,
        restartable=declared.restartable,
        reads_templates=declared.reads_templates,
        prompt=declared.prompt,
        emits_records=declared.emits_records,
    )


def _unknown(kind: str, name: str, known: Iterable[str]) -> ToolFailure:
    near = difflib.get_close_matches(name, list(known), n=1)
    advice = f"Did you mean '{near[0]}'?" if near else "ListTools names those there are"
    return ToolFailure(HintCategory.UNKNOWN_TOOL, f"there is no {kind} '{name[:64]}'. {advice}")
