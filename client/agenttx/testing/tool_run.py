"""Runs one tool over a transaction in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agenttx.tools.blocking_pool import BlockingPool
from agenttx.tools.call_context import DEFAULT_NAMESPACE, ToolCallContext
from agenttx.tools.call_port import UndoContext
from agenttx.tools.definition import AnyTool, Tool, UndoAction
from agenttx.tools.errors import ContextClosed, SubStepFailed, ToolFailure
from agenttx.tools.hint_category import HintCategory
from agenttx.tools.running import run_tool as run_function
from agenttx.tools.running import run_undo as run_undo_function
from agenttx.values import decode_json, encode_json

__all__ = [
    "MadeStep",
    "MemoryPort",
    "RegisteredUndo",
    "StagedEffect",
    "StandIn",
    "ToolRun",
    "run_tool",
]

_THREADS = 4


@dataclass(frozen=True, slots=True)
class RegisteredUndo:
    """An undo action that the tool registered, with its arguments and the key that it is given."""

    name: str
    arguments: dict[str, Any]
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class StagedEffect:
    """An effect that the tool staged."""

    effect_id: str
    channel: str
    payload: Any
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class MadeStep:
    """A call that the tool made with `ctx.step`: what it gave, or what it failed with."""

    tool_name: str
    arguments: dict[str, Any]
    result: Any = None
    error: SubStepFailed | None = None


StandIn = AnyTool | Callable[[dict[str, Any]], Any]
"""What `ctx.step` finds under a name: a tool, or a function of its arguments that returns its output."""


@dataclass
class ToolRun:
    """What a tool did.

    Attributes:
        result: What it returned, in JSON's types; None if it raised.
        state: The transaction's state after it, by ``namespace/key``.
        written: What of it the tool wrote; None for a key that it deleted.
        undo: The undo actions that it registered, oldest first.
        effects: The effects that it staged, in order.
        touches: The outside things that it named, and whether it was to change them.
        progress: What it told of how far it got.
        steps: The calls that it made with `ctx.step`, in order; given to `run_tool` as `journal` they are answered again.
        error: What it raised, if `run_tool` was told to keep that.
    """

    result: Any = None
    state: dict[str, Any] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)
    undo: list[RegisteredUndo] = field(default_factory=list)
    effects: list[StagedEffect] = field(default_factory=list)
    touches: list[tuple[str, bool]] = field(default_factory=list)
    progress: list[tuple[float, str]] = field(default_factory=list)
    steps: list[MadeStep] = field(default_factory=list)
    error: BaseException | None = None
    _actions: Mapping[str, UndoAction] = field(default_factory=dict, repr=False)
    _pool: BlockingPool | None = field(default=None, repr=False)
    _port: MemoryPort | None = field(default=None, repr=False)

    async def run_undo(self, *, times: int = 1) -> None:
        """Run the registered undo actions, newest first; ``times`` 2 shows that they may be repeated.

        Raises what they raise.
        """
        assert self._port is not None
        assert self._pool is not None
        for undo in reversed(self.undo):
            context = UndoContext(
                self._port.transaction_id,
                self._port.agent_id,
                self._port.step_id,
                self._port.attempt,
                undo.idempotency_key,
            )
            for _ in range(times):
                await run_undo_function(self._actions[undo.name], dict(undo.arguments), context, self._pool)


class MemoryPort:
    """Implements :class:`agenttx.tools.call_port.CallPort` in memory."""

    def __init__(
        self,
        run: ToolRun,
        facts: Mapping[str, Any],
        seconds: float,
        stand_ins: Mapping[str, StandIn],
        journal: Sequence[MadeStep],
    ) -> None:
        self.transaction_id = str(facts["transaction_id"])
        self.agent_id = str(facts["agent_id"])
        self.step_id = int(facts["step_id"])
        self.attempt = int(facts["attempt"])
        self.idempotency_key = str(facts["idempotency_key"])
        self.fence = 1
        self.metadata = ""
        self._facts = facts
        self._stand_ins = stand_ins
        self._journal = list(journal)
        self._run = run
        self._deadline = time.monotonic() + seconds
        self._closed = False
        self._state = {key: encode_json(value) for key, value in run.state.items()}

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def close(self) -> None:
        self._closed = True

    async def get(self, key: str) -> str | None:
        self._check_open()
        return self._state.get(key)

    async def scan(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[tuple[str, str]]:
        self._check_open()
        found = [(key, text) for key, text in self._state.items() if key.startswith(prefix) and key > after]
        return sorted(found)[: max(1, min(limit, 1000))]

    async def put(self, key: str, value: str) -> None:
        self._check_open()
        self._state[key] = value
        self._run.state[key] = self._run.written[key] = decode_json(value)

    async def delete(self, key: str) -> None:
        self._check_open()
        self._state.pop(key, None)
        self._run.state.pop(key, None)
        self._run.written[key] = None

    async def require_exists(self, key: str, error: str) -> None:
        self._check_open()

    async def require_none(self, prefix: str, error: str) -> None:
        self._check_open()

    async def register_undo(self, undo_name: str, arguments: str, idempotency_key: str = "") -> None:
        self._check_open()
        key = idempotency_key or self.idempotency_key
        self._run.undo.append(RegisteredUndo(undo_name, decode_json(arguments), key))

    async def update_undo(self, undo_name: str, arguments: str) -> None:
        self._check_open()
        undo = self._run.undo
        for position in reversed(range(len(undo))):
            if undo[position].name == undo_name:
                undo[position] = replace(undo[position], arguments=decode_json(arguments))
                return
        raise ToolFailure(HintCategory.UNKNOWN, f"the undo action '{undo_name}' was not registered")

    async def stage_effect(self, channel: str, payload: str, idempotency_key: str = "") -> str:
        self._check_open()
        effect_id = f"effect-{len(self._run.effects) + 1}"
        self._run.effects.append(
            StagedEffect(effect_id, channel, decode_json(payload), idempotency_key or effect_id)
        )
        return effect_id

    async def touch(self, key: str, *, writes: bool) -> None:
        self._check_open()
        self._run.touches.append((key, writes))

    async def step(self, tool_name: str, arguments: str, timeout_us: int | None = None) -> str:
        self._check_open()
        number = len(self._run.steps)
        given = decode_json(arguments)
        made = self._journal[number] if number < len(self._journal) else None
        if made is None or made.error is not None or (made.tool_name, made.arguments) != (tool_name, given):
            del self._journal[number:]
            made = await self._call(number + 1, tool_name, given)
        self._run.steps.append(made)
        if made.error is not None:
            raise made.error
        return encode_json(made.result)

    async def _call(self, number: int, tool_name: str, arguments: dict[str, Any]) -> MadeStep:
        stand_in = self._stand_ins.get(tool_name)
        try:
            if stand_in is None:
                raise ToolFailure(
                    HintCategory.UNKNOWN_TOOL, f"there is no tool '{tool_name}': give it in steps={{...}}"
                )
            if isinstance(stand_in, Tool):
                result = await self._run_tool(stand_in, arguments)
            else:
                result = stand_in(arguments)
            return MadeStep(tool_name, arguments, decode_json(encode_json(result)))
        except SubStepFailed as error:
            return MadeStep(tool_name, arguments, error=error)
        except Exception as error:
            category = error.category if isinstance(error, ToolFailure) else HintCategory.UNKNOWN
            keys = error.keys if isinstance(error, ToolFailure) else ()
            failed = SubStepFailed(category, f"Hint: {error}", keys, sub_step=number)
            failed.__cause__ = error
            return MadeStep(tool_name, arguments, error=failed)

    async def _run_tool(self, tool: AnyTool, arguments: dict[str, Any]) -> Any:
        """Run a tool over the same state; what it did counts as the step's own."""
        inner = await run_tool(
            tool,
            arguments,
            state={key: decode_json(text) for key, text in self._state.items()},
            seconds=max(self.seconds_left, 0.001),
            transaction_id=self.transaction_id,
            agent_id=self.agent_id,
            step_id=self.step_id,
            idempotency_key=f"{self.idempotency_key}.{len(self._run.steps) + 1}",
            steps=self._stand_ins,
        )
        for key, value in inner.written.items():
            if value is None:
                await self.delete(key)
            else:
                await self.put(key, encode_json(value))
        self._run._actions = {**self._run._actions, **tool.undo_actions}
        self._run.undo += inner.undo
        self._run.effects += inner.effects
        self._run.touches += inner.touches
        return inner.result

    def _check_open(self) -> None:
        if self._closed:
            raise ContextClosed("the step has ended")


async def run_tool(
    tool: AnyTool,
    arguments: Mapping[str, Any] | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    transaction_id: str = "transaction-1",
    agent_id: str = "agent-1",
    step_id: int = 1,
    attempt: int = 1,
    idempotency_key: str = "key-1",
    seconds: float = 30.0,
    keep_error: bool = False,
    steps: Mapping[str, StandIn] | None = None,
    journal: Sequence[MadeStep] = (),
) -> ToolRun:
    """Run a tool as a server or worker would: arguments validated as sent, its result brought into JSON's types.

    Args:
        tool: What `@tool` made.
        arguments: Its arguments, as the agent would send them.
        state: What its transaction sees, by key; a key without ``/`` is one of ``ctx.store`` itself.
        transaction_id: As `ctx` tells it; so are the next four.
        agent_id: The agent.
        step_id: The step.
        attempt: The attempt.
        idempotency_key: The attempt's key.
        seconds: Its deadline; a tool that runs longer is cancelled.
        steps: What `ctx.step` finds, by name: tools, or functions of the arguments that return an output.
        journal: The calls of a run before (`ToolRun.steps`), which are answered from there as after a crash.
        keep_error: Return what it raised in `error` instead of raising it, with all that it did before.

    Raises:
        ArgumentsRefused: the arguments don't fit; the function was not called.
        TimeoutError: it ran past its deadline.
        InvalidValue: its result is not plain JSON.
    """
    run = ToolRun(state={_full(key): value for key, value in (state or {}).items()})
    facts = {
        "transaction_id": transaction_id,
        "agent_id": agent_id,
        "step_id": step_id,
        "attempt": attempt,
        "idempotency_key": idempotency_key,
    }
    port = run._port = MemoryPort(run, facts, seconds, steps or {}, journal)
    pool = run._pool = BlockingPool(_THREADS, "agenttx-testing")
    run._actions = tool.undo_actions
    context = ToolCallContext(
        port,
        tool,
        tool.undo_actions,
        on_progress=lambda fraction, message: run.progress.append((fraction, message)),
    )
    try:
        sent = decode_json(encode_json(dict(arguments or {})))
        async with asyncio.timeout(seconds):
            result = await run_function(tool, sent, context, pool)
        run.result = decode_json(encode_json(result))
    except Exception as error:
        if not keep_error:
            raise
        run.error = error
    finally:
        port.close()
    return run


def _full(key: str) -> str:
    return key if "/" in key else f"{DEFAULT_NAMESPACE}/{key}"
