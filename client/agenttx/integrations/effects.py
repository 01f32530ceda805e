"""What a framework's tool promises, declared beside it: its effect class, and how its effect is undone."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from agenttx.enumerations import EffectClass
from agenttx.tools import (
    AnyTool,
    BlockingToolCallContext,
    Tool,
    ToolCallContext,
    ToolDefinitionError,
    UndoContext,
)
from agenttx.tools.argument_problems import refuse_non_object
from agenttx.tools.parameters import Parameters

__all__ = [
    "Effects",
    "FrameworkTool",
    "Promise",
    "check_declared",
    "current_call",
    "effects",
    "promise_of",
    "worker_tool",
]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Undo = Callable[[dict[str, Any], str], Awaitable[None] | None]

_DECLARED = "__agenttx_promise__"
_CALL: ContextVar[ToolCallContext | BlockingToolCallContext | None] = ContextVar("agenttx_call", default=None)


@dataclass(frozen=True, slots=True)
class Promise:
    """What a tool promises.

    Attributes:
        effect_class: Its effect class; IRREVERSIBLE promises nothing.
        undo: Takes its effect back, for COMPENSATABLE ones: called with the arguments that the tool was called with and
            the call's idempotency key. It is registered before the tool is called, so it may run for an effect that
            never happened, and it may run twice.
        timeout_seconds: The deadline of a call; None for the transaction's.
    """

    effect_class: EffectClass | str = EffectClass.IRREVERSIBLE
    undo: Undo | None = None
    timeout_seconds: float | None = None


Effects = Mapping[str, Promise | EffectClass | str]
"""Promises by tool name; an effect class alone will do where there is nothing to undo."""


@dataclass(frozen=True, slots=True)
class FrameworkTool:
    """A tool of some framework, as a worker can run it.

    Attributes:
        name: Its name at the server.
        description: For the tool list.
        schema: JSON Schema of its arguments.
        function: Runs it with its arguments, a coroutine function or a plain one; raises if it failed.
        check: Raises ArgumentsRefused for arguments that it would refuse.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    function: Callable[[dict[str, Any]], Any]
    check: Callable[[dict[str, Any]], None] = lambda arguments: None


def effects(
    effect_class: EffectClass | str, *, undo: Undo | None = None, timeout_seconds: float | None = None
) -> Callable[[FunctionT], FunctionT]:
    """Declare what a function promises, under a framework's own decorator.

    Example:
        @langchain_core.tools.tool
        @effects("compensatable", undo=cancel_booking)
        def book(hotel: str) -> dict: ...
    """
    promise = Promise(effect_class, undo, timeout_seconds)

    def declare(function: FunctionT) -> FunctionT:
        setattr(function, _DECLARED, promise)
        return function

    return declare


def promise_of(name: str, declared: Effects, *functions: object) -> Promise:
    """Return what a tool promises: as the mapping says, else as one of its functions was declared, else nothing."""
    found = declared.get(name)
    if found is None:
        found = next((getattr(f, _DECLARED) for f in functions if hasattr(f, _DECLARED)), Promise())
    return found if isinstance(found, Promise) else Promise(found)


def check_declared(declared: Effects, names: Iterable[str]) -> None:
    """Raise ToolDefinitionError for a promise of a tool that isn't there."""
    unknown = set(declared) - set(names)
    if unknown:
        raise ToolDefinitionError(f"effects: there is no tool {', '.join(sorted(map(repr, unknown)))} here")


def current_call() -> ToolCallContext | BlockingToolCallContext:
    """Return the context of the call that runs, as a tool of AgentTx is given it: its key, its transaction, its state.

    Raises:
        LookupError: no step runs here.
    """
    context = _CALL.get()
    if context is None:
        raise LookupError("this tool does not run as a step of a transaction")
    return context


def worker_tool(tool: FrameworkTool, promise: Promise) -> AnyTool:
    """Return a framework's tool as a tool that a worker offers.

    Raises:
        ToolDefinitionError: the promise contradicts itself.
    """
    made = _called(tool, promise)
    made.parameters = _AsTheFrameworkReads(tool)
    if promise.undo is not None:
        made.undo(_undo_name(tool.name))(_undone(promise.undo))
    elif made.effect_class is EffectClass.COMPENSATABLE:
        raise ToolDefinitionError(
            f"tool '{tool.name}' is declared COMPENSATABLE and nothing takes it back: give "
            'Promise("compensatable", undo=function)'
        )
    return made


def _called(tool: FrameworkTool, promise: Promise) -> AnyTool:
    undo_name = _undo_name(tool.name) if promise.undo is not None else ""

    async def run(ctx: ToolCallContext, arguments: dict[str, Any]) -> Any:
        if undo_name:
            await ctx.register_undo(undo_name, arguments=arguments)
        _CALL.set(ctx)
        return _plain(await tool.function(arguments))

    def run_blocking(ctx: BlockingToolCallContext, arguments: dict[str, Any]) -> Any:
        if undo_name:
            ctx.register_undo(undo_name, arguments=arguments)
        _CALL.set(ctx)
        return _plain(tool.function(arguments))

    function: Callable[..., Any] = run if inspect.iscoroutinefunction(tool.function) else run_blocking
    return Tool(
        tool.name,
        function,
        effects=promise.effect_class,
        timeout_seconds=promise.timeout_seconds,
        description=tool.description,
    )


def _undone(undo: Undo) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(undo):

        async def run(ctx: UndoContext, arguments: dict[str, Any]) -> None:
            await undo(arguments, ctx.idempotency_key)

        return run

    def run_blocking(ctx: UndoContext, arguments: dict[str, Any]) -> None:
        undo(arguments, ctx.idempotency_key)

    return run_blocking


class _AsTheFrameworkReads(Parameters):
    """Arguments that the framework validates, under the schema that it shows."""

    __slots__ = ("_check", "_schema")

    def __init__(self, tool: FrameworkTool) -> None:
        super().__init__(tool.name, {}, "ctx")
        self._schema = dict(tool.schema)
        self._check = tool.check

    def json_schema(self) -> dict[str, Any]:
        return self._schema

    def validate(self, arguments: Any) -> dict[str, Any]:
        if not isinstance(arguments, dict):
            raise refuse_non_object(arguments)
        self._check(arguments)
        return {"arguments": arguments}


def _undo_name(name: str) -> str:
    return f"{name}.undo"


# Effects have happened when a result turns out not to be JSON: text is better than a step in doubt.
_plain = functools.partial(to_jsonable_python, fallback=str)
