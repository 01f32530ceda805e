"""The tools of this process: found by name, validated, run, undone.

Coroutine functions run on the event loop, plain functions on the blocking pool. Whatever a
tool does (exits, cancels itself, blocks), the server goes on: its outcome is a result or an
error of this call and nothing else.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agenttx_server.engine.ports import ToolContext, ToolFailure, UndoContext
from agenttx_server.engine.records import HintCategory, ToolDescription, TransactionId
from agenttx_server.tools.blocking_context import BlockingToolCallContext
from agenttx_server.tools.blocking_pool import BlockingPool, NeverStarted
from agenttx_server.tools.call_context import ToolCallContext
from agenttx_server.tools.definition import AnyTool, ToolDefinitionError, TransactionEndedHook, UndoAction
from agenttx_server.tools.parameters import Parameters

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
        self._descriptions = {name: self._tools[name].describe() for name in sorted(self._tools)}
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

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        """Run a tool; see :meth:`.ports.ToolRunner.run`.

        A plain function that was cancelled while it still waited for a thread raises
        ToolFailure (resource_exhausted): its code did not run, so nothing is in doubt.
        """
        tool = self._tools.get(name)
        if tool is None:
            raise _unknown("tool", name, self._tools)
        values = tool.parameters.validate(arguments)
        call_context = ToolCallContext(context, tool, self._undo_actions)
        if tool.is_async:
            work = _bound(tool.function, tool.parameters, values, call_context)
            return tool.output(await self._run_async(f"tool '{name}'", work))
        blocking_context = BlockingToolCallContext(call_context, asyncio.get_running_loop())
        work = _bound(tool.function, tool.parameters, values, blocking_context)
        return tool.output(await self._run_blocking(f"tool '{name}'", work, blocking_context.cancel))

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        """Run an undo action; raise what it raises."""
        action = self._undo_actions.get(undo_name)
        if action is None:
            raise _unknown("undo action", undo_name, self._undo_actions)
        work = _bound(action.function, action.parameters, action.parameters.validate(arguments), context)
        if action.is_async:
            await self._run_async(f"undo action '{undo_name}'", work)
        else:
            await self._run_blocking(f"undo action '{undo_name}'", work, lambda: None)

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

    async def _run_async(self, what: str, work: Callable[[], Any]) -> Any:
        try:
            return await work()
        except (SystemExit, KeyboardInterrupt) as error:
            raise _exited(what, error) from error
        except asyncio.CancelledError as error:
            raise _told_apart(what, error) from error

    async def _run_blocking(self, what: str, work: Callable[[], Any], on_cancel: Callable[[], None]) -> Any:
        try:
            result = await self._pool.run(work, on_cancel)
        except NeverStarted as error:
            raise ToolFailure(
                HintCategory.RESOURCE_EXHAUSTED,
                f"{what} never started: all threads for blocking tools were busy. Try again later",
            ) from error
        except (SystemExit, KeyboardInterrupt) as error:
            raise _exited(what, error) from error
        except asyncio.CancelledError as error:
            raise _told_apart(what, error) from error
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise ToolDefinitionError(
                f"{what} is a plain function that returned an awaitable; make it `async def`"
            )
        return result


def _bound(
    function: Callable[..., Any], parameters: Parameters, values: dict[str, Any], context: object
) -> Callable[[], Any]:
    if parameters.context_name is None:
        return functools.partial(function, **values)
    return functools.partial(function, context, **values)


def _unknown(kind: str, name: str, known: Iterable[str]) -> ToolFailure:
    near = difflib.get_close_matches(name, list(known), n=1)
    advice = f"Did you mean '{near[0]}'?" if near else "ListTools names those there are"
    return ToolFailure(HintCategory.UNKNOWN_TOOL, f"there is no {kind} '{name[:64]}'. {advice}")


def _exited(what: str, error: BaseException) -> ToolFailure:
    call = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else "KeyboardInterrupt"
    return ToolFailure(HintCategory.UNKNOWN, f"{what} tried to end the process ({call[:64]})")


def _told_apart(what: str, error: asyncio.CancelledError) -> BaseException:
    """Return the error itself if this task was cancelled, else a failure: the tool cancelled itself."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return error
    return ToolFailure(HintCategory.CANCELLED, f"{what} was cancelled from within")
