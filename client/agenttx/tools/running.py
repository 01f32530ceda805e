"""Runs a tool's function so that whatever it does, its outcome is a result or an error of that call.

Coroutine functions run on the event loop, plain functions on a pool of threads. A function that
exits, cancels itself or blocks changes nothing for the others.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from agenttx.tools.blocking_context import BlockingToolCallContext
from agenttx.tools.blocking_pool import BlockingPool, NeverStarted
from agenttx.tools.call_context import ToolCallContext
from agenttx.tools.definition import AnyTool, ToolDefinitionError, UndoAction
from agenttx.tools.errors import ToolFailure
from agenttx.tools.hint_category import HintCategory
from agenttx.tools.parameters import Parameters

__all__ = ["call_tool", "run_at_once", "run_function", "run_tool", "run_undo"]


async def run_tool(tool: AnyTool, arguments: Any, context: ToolCallContext, pool: BlockingPool) -> Any:
    """Validate the arguments, then :func:`call_tool`. Raises ArgumentsRefused before the function is called."""
    return await call_tool(tool, tool.parameters.validate(arguments), context, pool)


async def call_tool(
    tool: AnyTool, values: dict[str, Any], context: ToolCallContext, pool: BlockingPool
) -> Any:
    """Call the function with validated arguments; return its result in JSON's types.

    Cancelling this asks the code to stop, and it ends only when the code has. Raises ToolFailure
    (resource_exhausted) for a plain function that was cancelled while it still waited for a thread:
    its code did not run.
    """
    what = f"tool '{tool.name}'"
    if tool.is_async:
        work = _bound(tool.function, tool.parameters, values, context)
        return tool.output(await _run_async(what, work))
    blocking_context = BlockingToolCallContext(context, asyncio.get_running_loop())
    work = _bound(tool.function, tool.parameters, values, blocking_context)
    return tool.output(await _run_blocking(what, work, blocking_context.cancel, pool))


def run_at_once(tool: AnyTool, arguments: Any, context: ToolCallContext) -> Any:
    """Validate the arguments and call the function of a prompt tool, here and now; return its result in JSON's types.

    Raises ArgumentsRefused before the function is called, and ToolDefinitionError if it waits for something.
    """
    values = tool.parameters.validate(arguments)
    work = (
        tool.function(**values) if tool.parameters.context_name is None else tool.function(context, **values)
    )
    try:
        work.send(None)
    except StopIteration as ended:
        return tool.output(ended.value)
    work.close()
    raise ToolDefinitionError(f"tool '{tool.name}' is declared prompt, but it waits for something")


async def run_undo(action: UndoAction, arguments: Any, context: object, pool: BlockingPool) -> None:
    """Validate the arguments and run an undo action; raise what it raises."""
    work = _bound(action.function, action.parameters, action.parameters.validate(arguments), context)
    what = f"undo action '{action.name}'"
    if action.is_async:
        await _run_async(what, work)
    else:
        await _run_blocking(what, work, lambda: None, pool)


async def run_function(
    what: str, work: Callable[[], Any], on_cancel: Callable[[], None], pool: BlockingPool, *, is_async: bool
) -> Any:
    """Call any function of a user's: a coroutine function on the loop, a plain one on a thread of the pool."""
    return await (_run_async(what, work) if is_async else _run_blocking(what, work, on_cancel, pool))


async def _run_async(what: str, work: Callable[[], Any]) -> Any:
    try:
        return await work()
    except (SystemExit, KeyboardInterrupt) as error:
        raise _exited(what, error) from error
    except asyncio.CancelledError as error:
        raise _told_apart(what, error) from error


async def _run_blocking(
    what: str, work: Callable[[], Any], on_cancel: Callable[[], None], pool: BlockingPool
) -> Any:
    try:
        result = await pool.run(work, on_cancel)
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


def _exited(what: str, error: BaseException) -> ToolFailure:
    call = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else "KeyboardInterrupt"
    return ToolFailure(HintCategory.UNKNOWN, f"{what} tried to end the process ({call[:64]})")


def _told_apart(what: str, error: asyncio.CancelledError) -> BaseException:
    """Return the error itself if this task was cancelled, else a failure: the tool cancelled itself."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return error
    return ToolFailure(HintCategory.CANCELLED, f"{what} was cancelled from within")
