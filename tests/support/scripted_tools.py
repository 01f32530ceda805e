"""Tools that do what a test, or their own arguments, tell them; implements ports.ToolRunner.

One tool of each effect class::

    lookup  READ_ONLY       book    COMPENSATABLE (its undo: unbook)
    note    TRANSACTIONAL   pay     IRREVERSIBLE
    upload  IDEMPOTENT      wire    IRREVERSIBLE, but it registers an undo (unwire)
    jot     TRANSACTIONAL, and prompt: as long as it obeys and reads nothing it runs in one go

By default a call obeys its arguments, in this order: ``touch`` outside things ([key, whether it writes]
each), ``get`` and ``scan`` state (values come back under
``read``), ``put`` and ``delete`` state, cause an outside ``effect``, ``stage`` effects ([channel,
payload] each), ``fail``, return ``output``. A test that needs more gives behaviours, which the next
calls of a tool use up::

    tools.next("book", hang(gate), fail_with("no rooms"))

``world`` holds the outside effects that stand, by the key under which they were caused; a tool that
honours keys (all but lookup and note) causes none twice under one key. ``timeline`` is shared with the
store: what happened, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.support.memory_store import Gate

from agenttx_server.engine import json_values
from agenttx_server.engine.ports import ArgumentsRefused, ToolContext, ToolFailure, UndoContext
from agenttx_server.engine.records import EffectClass, ToolDescription, TransactionId

__all__ = [
    "Behaviour",
    "Call",
    "ScriptedTools",
    "ToolRun",
    "Undone",
    "fail_with",
    "hang",
    "ignore_cancellation",
    "obey",
    "raise_error",
]

Behaviour = Callable[["ToolRun"], Awaitable[Any]]

_UNDO_NAMES = {"book": "unbook", "wire": "unwire"}
_EFFECT_CLASSES = {
    "lookup": EffectClass.READ_ONLY,
    "note": EffectClass.TRANSACTIONAL,
    "jot": EffectClass.TRANSACTIONAL,
    "upload": EffectClass.IDEMPOTENT,
    "book": EffectClass.COMPENSATABLE,
    "pay": EffectClass.IRREVERSIBLE,
    "wire": EffectClass.IRREVERSIBLE,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool."""

    tool_name: str
    step_id: int
    attempt: int
    key: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Undone:
    """One call of an undo action, and whether it did its work."""

    undo_name: str
    effect: str
    key: str
    step_id: int
    done: bool


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A call that runs, as its behaviour gets it."""

    tools: ScriptedTools
    tool_name: str
    arguments: Any
    context: ToolContext

    def cause(self, effect: str) -> None:
        """Cause an outside effect; under a key that caused it already nothing happens."""
        at = (effect, self.context.idempotency_key)
        if at not in self.tools.world:
            self.tools.world[at] = effect
            self.tools.timeline.append(f"effect {effect}")

    async def register_undo(self, effect: str) -> None:
        """Register the undo of an effect."""
        undo_name = _UNDO_NAMES.get(self.tool_name, "unbook")
        await self.context.register_undo(undo_name, json_values.canonical({"effect": effect}))


class ScriptedTools:
    """The tools, their calls, and the world that they act on."""

    def __init__(self, timeline: list[str] | None = None) -> None:
        self.calls: list[Call] = []
        self.undone: list[Undone] = []
        self.ended: list[TransactionId] = []
        self.refusing: dict[str, ArgumentsRefused] = {}
        self.world: dict[tuple[str, str], str] = {}
        self.timeline = timeline if timeline is not None else []
        self.running: set[asyncio.Task[Any]] = set()
        self.prompt_runs = 0
        self._descriptions = {
            name: ToolDescription(
                name,
                f"Test tool of class {effect_class}.",
                "{}",
                effect_class,
                undo_names=(_UNDO_NAMES[name],) if name in _UNDO_NAMES else (),
                prompt=name == "jot",
            )
            for name, effect_class in _EFFECT_CLASSES.items()
        }
        self._elsewhere: dict[str, tuple[float, ToolDescription]] = {}
        self._next: dict[str, list[Behaviour]] = {}
        self._always: dict[str, Behaviour] = {}
        self._broken_undo: dict[str, int] = {}
        self._deaf_undo: set[str] = set()
        self._undo_gates: dict[str, Gate] = {}
        self._broken_undo_error: BaseException = RuntimeError("the booking system is down")

    # --- what a test sets ---------------------------------------------------------------

    def next(self, tool_name: str, *behaviours: Behaviour) -> None:
        """Have the next calls of a tool behave so, one after another."""
        self._next.setdefault(tool_name, []).extend(behaviours)

    def forget_next(self, tool_name: str) -> None:
        """Drop the behaviours that no call has used up."""
        self._next.pop(tool_name, None)

    def always(self, tool_name: str, behaviour: Behaviour | None) -> None:
        """Have every call of a tool behave so; None: obey the arguments again."""
        if behaviour is None:
            self._always.pop(tool_name, None)
        else:
            self._always[tool_name] = behaviour

    def break_undo(
        self,
        effect: str,
        times: int = 1_000_000,
        text: str = "the booking system is down",
        error: type[BaseException] = RuntimeError,
    ) -> None:
        """Have the undo of an effect fail, so many times; 0 mends it."""
        self._broken_undo[effect] = times
        self._broken_undo_error = error(text)

    def hold_undo(self, effect: str, *, deaf: bool = False) -> Gate:
        """Have the undo of an effect wait before it does anything; a deaf one can't be cancelled then."""
        if deaf:
            self._deaf_undo.add(effect)
        return self._undo_gates.setdefault(effect, Gate())

    def offer_elsewhere(self, tool_name: str, seconds: float) -> None:
        """Have another server alone know a tool, whose worker comes here once a call has waited so many seconds."""
        self._elsewhere[tool_name] = seconds, self._descriptions.pop(tool_name)

    def add(self, description: ToolDescription, behaviour: Behaviour | None = None) -> None:
        """Offer one more tool, or describe one otherwise."""
        self._descriptions[description.name] = description
        if behaviour is not None:
            self._always[description.name] = behaviour

    def ask_before(self, *tool_names: str) -> None:
        """Have calls of tools need approval."""
        for name in tool_names:
            self._descriptions[name] = replace(self._descriptions[name], needs_approval=True)

    def remove(self, tool_name: str) -> None:
        """Offer a tool no more."""
        del self._descriptions[tool_name]

    # --- what a test asks ---------------------------------------------------------------

    def count(self, tool_name: str | None = None, step_id: int | None = None) -> int:
        """How often a tool (or any) was called, for a step (or any)."""
        return sum(
            tool_name in (None, call.tool_name) and step_id in (None, call.step_id) for call in self.calls
        )

    @property
    def effects(self) -> list[str]:
        """The outside effects that stand, sorted."""
        return sorted(self.world.values())

    @property
    def undo_order(self) -> list[str]:
        """The effects whose undo did its work, in order."""
        return [undone.effect for undone in self.undone if undone.done]

    def kill(self) -> None:
        """Stop what runs: its server died."""
        for task in list(self.running):
            task.cancel()

    # --- ports.ToolRunner ---------------------------------------------------------------

    def describe(self, name: str) -> ToolDescription | None:
        return self._descriptions.get(name)

    def describe_all(self) -> Sequence[ToolDescription]:
        return [self._descriptions[name] for name in sorted(self._descriptions)]

    def check_arguments(self, name: str, arguments: Any) -> None:
        if name in self.refusing:
            raise self.refusing[name]

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        self.calls.append(Call(name, context.step_id, context.attempt, context.idempotency_key, arguments))
        self.timeline.append(f"run {name} {context.step_id}.{context.attempt}")
        waiting = self._next.get(name)
        behaviour = waiting.pop(0) if waiting else self._always.get(name, obey)
        task = asyncio.current_task()
        assert task is not None
        self.running.add(task)
        try:
            return await behaviour(ToolRun(self, name, arguments, context))
        finally:
            self.running.discard(task)

    def run_prompt(self, name: str, arguments: Any, context: ToolContext) -> Any:
        if self._next.get(name) or name in self._always:
            raise RuntimeError("only what obeys ends at once")
        work = obey(ToolRun(self, name, arguments, context))
        try:
            work.send(None)
        except StopIteration as ended:
            self.prompt_runs += 1
            # Counted once it has succeeded: what has not is run again.
            self.calls.append(
                Call(name, context.step_id, context.attempt, context.idempotency_key, arguments)
            )
            self.timeline.append(f"run {name} {context.step_id}.{context.attempt}")
            return ended.value
        work.close()
        raise RuntimeError("it waits")

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        effect = arguments["effect"]
        gate = self._undo_gates.get(effect)
        if gate is not None and effect in self._deaf_undo:
            await deafly(gate)
        elif gate is not None:
            await gate.wait()
        broken = self._broken_undo.get(effect, 0)
        if broken:
            self._broken_undo[effect] = broken - 1
        self.undone.append(Undone(undo_name, effect, context.idempotency_key, context.step_id, not broken))
        self.timeline.append(f"undo {effect}{' fails' if broken else ''}")
        if broken:
            raise self._broken_undo_error
        self.world.pop((effect, context.idempotency_key), None)

    async def find(self, name: str, wait_seconds: float) -> ToolDescription | None:
        if name not in self._elsewhere:
            return self.describe(name)
        seconds, description = self._elsewhere[name]
        await asyncio.sleep(min(seconds, wait_seconds))
        if seconds > wait_seconds:
            return None
        self._descriptions[name] = description
        return description

    async def was_offered(self, name: str) -> bool:
        return name in self._elsewhere

    def progress(self, transaction_id: TransactionId, step_id: int, sub_step: int) -> None:
        return None

    async def transaction_ended(self, transaction_id: TransactionId) -> None:
        self.ended.append(transaction_id)


# --- behaviours ---------------------------------------------------------------------------


async def obey(run: ToolRun) -> Any:
    """Do what the arguments say."""
    arguments, context = run.arguments, run.context
    if not isinstance(arguments, dict):
        return arguments
    for key, writes in arguments.get("touch", ()):
        await context.touch(key, writes=writes)
    read: dict[str, Any] = {}
    for key in arguments.get("get", ()):
        text = await context.get(key)
        read[key] = None if text is None else json_values.load(text)
    for prefix in arguments.get("scan", ()):
        read[prefix] = [key for key, _ in await context.scan(prefix)]
    for key, value in arguments.get("put", {}).items():
        await context.put(key, json_values.canonical(value))
    for key in arguments.get("delete", ()):
        await context.delete(key)
    for effect in _listed(arguments.get("effect")):
        if run.tool_name in _UNDO_NAMES:
            await run.register_undo(effect)
        run.cause(effect)
    for channel, payload in arguments.get("stage", ()):
        await context.stage_effect(channel, json_values.canonical(payload))
    failure = arguments.get("fail")
    if isinstance(failure, dict):
        raise ToolFailure(failure.get("category", "unknown"), failure["message"], failure.get("keys", ()))
    if failure:
        raise RuntimeError(failure)
    output = arguments.get("output", {"ok": True})
    return {**output, "read": read} if read else output


def _listed(value: Any) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def fail_with(text: str) -> Behaviour:
    """Raise an ordinary exception with a text."""
    return raise_error(RuntimeError(text))


def raise_error(error: BaseException) -> Behaviour:
    """Raise this."""

    async def behave(run: ToolRun) -> Any:
        raise error

    return behave


def hang(gate: Gate, then: Behaviour = obey, *, first: Behaviour | None = None) -> Behaviour:
    """Wait at a gate, then go on; stops when cancelled."""

    async def behave(run: ToolRun) -> Any:
        if first is not None:
            await first(run)
        await gate.wait()
        return await then(run)

    return behave


def ignore_cancellation(
    gate: Gate, then: Behaviour = obey, *, first: Behaviour | None = None, told: list[str] | None = None
) -> Behaviour:
    """As a synchronous tool in a thread: goes on until its gate is open, whoever cancels it.

    ``told`` counts how often it was asked to stop.
    """

    async def behave(run: ToolRun) -> Any:
        if first is not None:
            await first(run)
        await deafly(gate, told)
        return await then(run)

    return behave


async def deafly(gate: Gate, told: list[str] | None = None) -> None:
    """Wait at a gate, whoever cancels it."""
    while True:
        try:
            await gate.wait()
            break
        except asyncio.CancelledError:
            if told is not None:
                told.append("stop")
