"""The tools and the sink of one server's life: they act on the world as a call's plan says.

A tool keeps its class's promise, whatever it does. One that fails by itself had no effect, or has registered
its undo; one that is idempotent answers by its key; one that can't tell says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from random import Random
from typing import Any

from tests.simulation.loop import Process
from tests.simulation.world import EFFECT_CLASSES, UNDO_NAMES, PlannedCall, Run, World

from agenttx_server.engine import json_values
from agenttx_server.engine.ports import DeliveryFailed, OutcomeUnknown, ToolContext, ToolFailure, UndoContext
from agenttx_server.engine.records import (
    EffectClass,
    EffectRecord,
    HintCategory,
    ToolDescription,
    TransactionId,
)

__all__ = ["SimulatedSink", "SimulatedTools"]

_DESCRIPTIONS = {
    name: ToolDescription(
        name,
        "A tool.",
        "{}",
        effect_class,
        retries=1 if name in ("lookup", "upload") else 0,
        undo_names=(UNDO_NAMES[name],) if name in UNDO_NAMES else (),
    )
    for name, effect_class in EFFECT_CLASSES.items()
}
_ALL = [_DESCRIPTIONS[name] for name in sorted(_DESCRIPTIONS)]


class SimulatedTools:
    """Implements ports.ToolRunner."""

    def __init__(self, world: World, process: Process, random: Random) -> None:
        self._world = world
        self._process = process
        self._random = random

    def describe(self, name: str) -> ToolDescription | None:
        return _DESCRIPTIONS.get(name)

    def describe_all(self) -> Sequence[ToolDescription]:
        return _ALL

    async def find(self, name: str, wait_seconds: float) -> ToolDescription | None:
        return self.describe(name)

    async def was_offered(self, name: str) -> bool:
        return False

    def progress(self, transaction_id: TransactionId, step_id: int, sub_step: int) -> None:
        return None

    async def transaction_ended(self, transaction_id: TransactionId) -> None:
        pass

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        world = self._world
        call = world.calls[arguments["name"]]
        run = world.begin(
            self._process.name,
            call,
            context.transaction_id,
            context.step_id,
            context.attempt,
            context.idempotency_key,
        )
        how = "failed"
        try:
            output = await self._behave(run, call, arguments, context)
            how = "returned"
            return output
        except asyncio.CancelledError:
            how = "cancelled"
            raise
        finally:
            if not self._process.is_dead:
                world.end(run, how)

    async def _behave(self, run: Run, call: PlannedCall, arguments: Any, context: ToolContext) -> Any:
        behaviour = call.behaviours.pop(0) if call.behaviours else "succeed"
        if call.tool_name == "upload" and behaviour in ("fail", "fail_by_key", "transient"):
            behaviour = self._by_key(run, behaviour)
        await self._use_state(run, arguments, context)
        if behaviour == "transient":
            raise ToolFailure(HintCategory.CONNECTION, "no connection")
        if behaviour == "fail":
            raise RuntimeError("it does not work")
        if behaviour == "fail_by_key":
            raise ToolFailure(HintCategory.MISSING_RECORD, "no such user", ("user_id",))
        if behaviour == "unknown":
            raise OutcomeUnknown("no answer")
        if behaviour == "cancel":
            raise asyncio.CancelledError
        if behaviour == "slow":
            await asyncio.sleep(self._random.choice((0.3, 1.5, 5.0)))
        if behaviour == "deaf":
            await _deaf_sleep(self._random.choice((0.7, 4.0, 9.0)))
        if call.tool_name in UNDO_NAMES:
            await context.register_undo(UNDO_NAMES[call.tool_name], json.dumps({"name": call.name}))
            if behaviour == "deaf_later":
                await _deaf_sleep(self._random.choice((0.7, 4.0, 9.0)))
        if call.tool_name not in ("lookup", "note"):
            self._world.effect(run)
        if behaviour == "slow_after":
            await asyncio.sleep(self._random.choice((0.3, 1.5, 5.0)))
        if behaviour == "unknown_after":
            raise OutcomeUnknown("no answer")
        if behaviour == "fail_after" and call.tool_name in UNDO_NAMES:
            raise RuntimeError("it broke half way")
        return {"id": arguments.get("id", call.name), "list": [{"id": call.name}]}

    def _by_key(self, run: Run, behaviour: str) -> str:
        """A service that knows the key answers so; one that is still at it can't tell."""
        if (run.call.name, run.key) in self._world.standing:
            return "succeed"
        busy = any(other is not run and other.key == run.key for other in self._world.running)
        return "unknown" if busy else behaviour

    async def _use_state(self, run: Run, arguments: Any, context: ToolContext) -> None:
        for key in arguments.get("get", ()):
            run.reads[key] = await context.get(key)
        for key in arguments.get("count", ()):
            text = run.reads[key] = await context.get(key)
            value = json.dumps((json_values.load(text) if text else 0) + 1)
            await context.put(key, value)
            run.puts[key] = value
            run.counted.append(key)
        for key, value in arguments.get("put", {}).items():
            text = json.dumps(value)
            await context.put(key, text)
            run.puts[key] = text
        for key in arguments.get("delete", ()):
            await context.delete(key)
            run.puts[key] = None
        for channel in arguments.get("stage", ()):
            payload = f"{run.number}-{len(run.staged)}"
            await context.stage_effect(channel, json.dumps(payload))
            run.staged.append(payload)

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        world = self._world
        name, key = arguments["name"], context.idempotency_key
        call = world.calls[name]
        behaviour = call.undo.pop(0) if call.undo else "succeed"
        about = (self._process.name, context.transaction_id, context.step_id, context.attempt, name, key)
        world.note("undo", *about)
        if behaviour == "slow":
            await asyncio.sleep(self._random.choice((0.5, 4.0)))
        if behaviour == "deaf":
            await _deaf_sleep(self._random.choice((1.0, 5.0)))
        if behaviour == "fail":
            world.note("undofails", *about)
            raise RuntimeError("the undo does not work")
        world.undo(name, key)
        world.note("undone", *about)
        if behaviour == "fail_after":
            raise RuntimeError("the undo worked, and says it did not")


class SimulatedSink:
    """Implements ports.EffectSink."""

    def __init__(self, world: World, process: Process, random: Random, trouble: float) -> None:
        self._world = world
        self._process = process
        self._random = random
        self.trouble = trouble

    async def deliver(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        chance = self._random.random() if self.trouble else 1.0
        about = (
            self._process.name,
            transaction_id,
            effect.step_id,
            effect.attempt,
            effect.effect_id,
            effect.idempotency_key,
            effect.channel,
        )
        self._world.note("deliver", *about)
        if chance < self.trouble * 0.2:
            self._world.note("refused", *about)
            raise DeliveryFailed("no such mailbox", permanent=True)
        if chance < self.trouble * 0.6:
            raise DeliveryFailed("busy")
        if chance < self.trouble:
            await asyncio.sleep(self._random.choice((0.2, 2.0)))
        self._world.note("delivered", *about)
        if self.trouble and self._random.random() < self.trouble * 0.3:
            raise DeliveryFailed("it was delivered, and the answer lost")


async def _deaf_sleep(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while (left := end - loop.time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


def acts_outside(tool_name: str) -> bool:
    """Whether a tool has effects outside."""
    return EFFECT_CLASSES[tool_name] not in (EffectClass.READ_ONLY, EffectClass.TRANSACTIONAL)
