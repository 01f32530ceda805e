"""A graph's function as a worker hosts it: how it wants to be called, and the call."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from agenttx.node_context import BlockingNodeContext, NodeContext, NodeState
from agenttx.tools.blocking_context import LoopBridge
from agenttx.tools.blocking_pool import BlockingPool
from agenttx.tools.definition import ToolDefinitionError
from agenttx.tools.errors import ToolFailure
from agenttx.tools.hint_category import HintCategory
from agenttx.tools.running import run_function

__all__ = ["GraphFunction"]


class GraphFunction:
    """A node or a router: a function of nothing, of the state, or of the state and `ctx`.

    Raises ToolDefinitionError for one that can't be called so.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function
        called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
        if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
            raise ToolDefinitionError(f"function '{name}' is a generator; a node returns one result")
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
        self._takes = _takes(name, function)

    async def run(self, state: NodeState, context: NodeContext | None, pool: BlockingPool) -> Any:
        """Call it; a router has no context. Raises what it raises."""
        on_cancel: Callable[[], None] = lambda: None  # noqa: E731
        given: tuple[Any, ...] = (state,)
        if context is not None:
            if self.is_async:
                given = (state, context)
            else:
                blocking = BlockingNodeContext(context, LoopBridge(asyncio.get_running_loop()))
                given, on_cancel = (state, blocking), blocking.cancel
        elif self._takes > 1:
            raise ToolFailure(
                HintCategory.INVALID_VALUE, f"router '{self.name}' takes the state alone: it has no ctx"
            )
        work = functools.partial(self.function, *given[: self._takes])
        return await run_function(f"function '{self.name}'", work, on_cancel, pool, is_async=self.is_async)


def _takes(name: str, function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return 2
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    required = [one for one in positional if one.default is one.empty]
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if len(required) > 2 or named:
        raise ToolDefinitionError(
            f"function '{name}' needs {', '.join(named or [one.name for one in required])}; a node is called with "
            "(state, ctx), a router with (state)"
        )
    # What has a default is not ours to fill, unless it is named as ours are.
    return max(len(required), sum(one.name in ("state", "ctx") for one in positional[:2]))
