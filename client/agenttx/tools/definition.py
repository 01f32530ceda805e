"""The ``@tool`` decorator: a Python function becomes a tool, its undo functions beside it.

    @tool("payments.charge", effects="compensatable", timeout_seconds=30)
    async def charge(ctx, amount_cents: int, customer_id: str) -> dict:
        await ctx.register_undo("payments.refund", key=ctx.idempotency_key)
        ...

    @charge.undo("payments.refund")
    async def refund(ctx, key): ...

The function stays callable as it was. Errors in a declaration are ToolDefinitionError, on
import, in one line.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar

import orjson
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from agenttx.enumerations import EffectClass
from agenttx.tools.docstrings import read_docstring
from agenttx.tools.parameters import Parameters, ToolDefinitionError, read_output, read_parameters

__all__ = [
    "AnyTool",
    "Declaration",
    "Tool",
    "ToolDefinitionError",
    "TransactionEndedHook",
    "UndoAction",
    "tool",
]

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])
TransactionEndedHook = Callable[[str], Awaitable[None]]

MAX_RETRIES = 5
MAX_TIMEOUT_SECONDS = 7 * 86_400.0

_NAME = re.compile(r"[A-Za-z0-9_.:/@-]{1,128}")


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """What a tool says of itself. ``arguments_schema`` is JSON Schema as text; ``timeout_us`` None: the
    transaction's; ``blocking`` ones hold a thread, so nothing can interrupt them; ``needs_approval``: a person is asked
    first; ``restartable`` ones may be started again from their first line; ``reads_templates`` and
    ``prompt``: see :class:`Tool`; ``emits_records`` ones answer ``{"records": [...]}``, each a record of its own.
    """

    name: str
    description: str
    arguments_schema: str
    effect_class: EffectClass
    timeout_us: int | None
    retries: int
    undo_names: tuple[str, ...]
    blocking: bool
    needs_approval: bool = False
    restartable: bool = False
    reads_templates: bool = False
    prompt: bool = False
    emits_records: bool = False


class UndoAction:
    """A function that takes an effect back; it must be idempotent, and always gets the same key."""

    __slots__ = ("function", "is_async", "name", "parameters")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        _check_name(name)
        self.name = name
        self.function = function
        self.is_async = _is_async(function)
        self.parameters: Parameters = read_parameters(function, read_docstring(function.__doc__))


class Tool(Generic[P, R]):
    """A function with its declaration as a tool. Calling it calls the function.

    ``reads_templates`` is for tools inside the server that fill in ``${…}`` of their own: what references put into
    their arguments then has ``${$}`` for each dollar sign that could begin one. ``prompt`` is for tools inside the
    server whose function does no more than write and stage through its context, and waits for nothing: it is called
    without a task of its own, and perhaps twice.
    """

    def __init__(
        self,
        name: str,
        function: Callable[P, R],
        *,
        effects: EffectClass | str,
        timeout_seconds: float | None = None,
        retries: int = 0,
        description: str | None = None,
        approval: bool = False,
        restartable: bool = False,
        emits_records: bool = False,
    ) -> None:
        _check_name(name)
        self.name = name
        self.function = function
        self.effect_class = _effect_class(name, effects)
        self.timeout_seconds = _checked_timeout(name, timeout_seconds)
        self.retries = _checked_retries(name, retries, self.effect_class)
        self.needs_approval = bool(approval)
        self.restartable = restartable
        self.emits_records = emits_records
        self.reads_templates = False
        self.prompt = False
        if restartable and self.effect_class.acts_outside:
            raise ToolDefinitionError(
                f"tool '{name}': a restartable tool does what it does outside with ctx.step; declare it "
                f'effects="transactional", not {self.effect_class}'
            )
        self.is_async = _is_async(function)
        documentation = read_docstring(function.__doc__)
        self.description = documentation.description if description is None else description
        self.parameters = read_parameters(function, documentation)
        self.undo_actions: dict[str, UndoAction] = {}
        self.ended_hooks: list[TransactionEndedHook] = []
        self._output = read_output(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself: no validation, no transaction."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    def undo(self, name: str) -> Callable[[Function], Function]:
        """Declare a function as undo action of this tool; undo names are unique in a registry."""

        def declare(function: Function) -> Function:
            if not self.effect_class.acts_outside:
                raise ToolDefinitionError(
                    f"tool '{self.name}' is declared {self.effect_class}: rewinding its state needs no undo action; "
                    'declare it effects="compensatable" if it acts outside'
                )
            if name in self.undo_actions:
                raise ToolDefinitionError(f"tool '{self.name}' has two undo actions named '{name}'")
            self.undo_actions[name] = UndoAction(name, function)
            return function

        return declare

    def when_transaction_ends(self, hook: TransactionEndedHook) -> TransactionEndedHook:
        """Have a coroutine function called with the transaction's id after it ended, to let go of kept things."""
        self.ended_hooks.append(hook)
        return hook

    def describe(self) -> Declaration:
        """Return what ListTools tells about this tool."""
        timeout = self.timeout_seconds
        return Declaration(
            name=self.name,
            description=self.description,
            arguments_schema=orjson.dumps(
                self.parameters.json_schema(), option=orjson.OPT_SORT_KEYS
            ).decode(),
            effect_class=self.effect_class,
            timeout_us=None if timeout is None else max(1, round(timeout * 1_000_000)),
            retries=self.retries,
            undo_names=tuple(sorted(self.undo_actions)),
            blocking=not self.is_async,
            needs_approval=self.needs_approval,
            restartable=self.restartable,
            reads_templates=self.reads_templates,
            prompt=self.prompt,
            emits_records=self.emits_records,
        )

    def output(self, result: Any) -> Any:
        """Return what the function returned as JSON-able value: models and dataclasses become objects."""
        if self._output is not None:
            return self._output.dump_python(result, mode="json", warnings=False)
        if isinstance(result, BaseModel) or (
            dataclasses.is_dataclass(result) and not isinstance(result, type)
        ):
            return to_jsonable_python(result)
        return result


AnyTool = Tool[..., Any]


def tool(
    name: str,
    *,
    effects: EffectClass | str,
    timeout_seconds: float | None = None,
    retries: int = 0,
    description: str | None = None,
    approval: bool = False,
    restartable: bool = False,
    emits_records: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a function a tool.

    Args:
        name: 1 to 128 characters of ``A-Z a-z 0-9 _ . : / @ -``.
        effects: the effect class, what the function promises about its effects outside the
            transaction: "read_only", "transactional", "idempotent", "compensatable" or "irreversible".
        timeout_seconds: the deadline of one call; None: the transaction's.
        retries: repeats in place after transient failures (timeouts, connections, 5xx), 0 to 5; only
            for classes that may be repeated.
        description: for the tool list; the function's docstring if None.
        approval: whether a person is asked before each call; see docs/approval.md.
        restartable: all that the function does outside is in ``ctx.step`` calls, so that after a crash it is
            started again from its first line, and those are answered from the journal.
        emits_records: it returns ``{"records": [...]}``, each of which is a record of its own where a transaction
            keeps records (docs/lineage.md).
    """
    if callable(name):
        raise ToolDefinitionError(
            '@tool needs a name and an effect class: @tool("my.tool", effects="transactional")'
        )

    def declare(function: Callable[P, R]) -> Tool[P, R]:
        return Tool(
            name,
            function,
            effects=effects,
            timeout_seconds=timeout_seconds,
            retries=retries,
            description=description,
            approval=approval,
            restartable=restartable,
            emits_records=emits_records,
        )

    return declare


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ToolDefinitionError(
            f"a tool's name is 1 to 128 characters of A-Z a-z 0-9 _ . : / @ -, not {name!r}"
        )


def _effect_class(name: str, effects: EffectClass | str) -> EffectClass:
    try:
        found = EffectClass(effects.upper())
        if found is not EffectClass.UNSPECIFIED:
            return found
    except (ValueError, AttributeError):
        pass
    classes = ", ".join(
        member.value.lower() for member in EffectClass if member is not EffectClass.UNSPECIFIED
    )
    raise ToolDefinitionError(f"tool '{name}': effects is one of {classes}, not {effects!r}")


def _checked_timeout(name: str, seconds: object) -> float | None:
    if seconds is None:
        return None
    if not (isinstance(seconds, (int, float)) and 0 < seconds <= MAX_TIMEOUT_SECONDS and seconds is not True):
        raise ToolDefinitionError(
            f"tool '{name}': timeout_seconds is above 0 and at most 604800, not {seconds!r}"
        )
    return float(seconds)


def _checked_retries(name: str, retries: object, effect_class: EffectClass) -> int:
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= MAX_RETRIES:
        raise ToolDefinitionError(f"tool '{name}': retries is 0 to {MAX_RETRIES}, not {retries!r}")
    if retries and effect_class in (EffectClass.COMPENSATABLE, EffectClass.IRREVERSIBLE):
        raise ToolDefinitionError(
            f"tool '{name}': {effect_class} tools are not repeated in place; leave retries at 0"
        )
    return retries


def _is_async(function: Callable[..., Any]) -> bool:
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        name = getattr(function, "__qualname__", repr(function))
        raise ToolDefinitionError(f"{name} is a generator; a tool returns one JSON value")
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
