"""Tool calls as clients make them up."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.simulation.world import PlannedCall, World

from agenttx_server.engine.requests import StepCall

__all__ = ["CallMaker"]

_TOOLS = ("lookup", "note", "note", "note", "upload", "upload", "book", "book", "book", "pay", "wire")
_GROUP_TOOLS = ("lookup", "note", "note", "upload", "book", "book", "wire")
_BEHAVIOURS = {
    "lookup": ("fail", "fail_by_key", "transient", "slow", "deaf", "unknown"),
    "note": ("fail", "fail_by_key", "transient", "slow", "deaf", "unknown", "cancel"),
    "upload": ("fail", "fail_by_key", "transient", "slow", "slow_after", "deaf", "unknown", "unknown_after"),
    "book": (
        *("fail", "fail_by_key", "fail_after", "slow", "slow_after", "deaf", "deaf_later", "unknown"),
        *("unknown_after", "cancel"),
    ),
    "pay": ("fail", "fail_by_key", "slow", "slow_after", "deaf", "unknown", "unknown_after", "cancel"),
    "wire": ("fail", "fail_after", "slow", "slow_after", "deaf", "deaf_later", "unknown", "unknown_after"),
}
_UNDO = ("fail", "fail", "fail_after", "slow", "deaf")


class CallMaker:
    """Makes calls with names of their own; what a call's runs do is told to the world."""

    def __init__(self, random: Random, world: World, trouble: float, prefix: str) -> None:
        self._prefix = prefix
        self._random = random
        self._world = world
        self._trouble = trouble
        self._last = 0

    def new_name(self, prefix: str) -> str:
        """Return a name that no request has."""
        self._last += 1
        return f"{prefix}{self._last}"

    def call(self, step_id: int, *, in_group: bool = False) -> StepCall:
        """Return a call for a step."""
        random, chance = self._random, self._random.random
        tool_name = random.choice(_GROUP_TOOLS if in_group else _TOOLS)
        name = self.new_name(f"{self._prefix}e")
        behaviours: list[str] = []
        undo: list[str] = []
        while chance() < self._trouble and len(behaviours) < 4:
            behaviours.append(random.choice(_BEHAVIOURS[tool_name]))
        while chance() < self._trouble and len(undo) < 5:
            undo.append(random.choice(_UNDO))
        self._world.calls[name] = PlannedCall(name, tool_name, behaviours, undo)
        return StepCall(tool_name, self._arguments(name, step_id), f"said {name}", f"q-{name}")

    def _arguments(self, name: str, step_id: int) -> str:
        random, chance = self._random, self._random.random
        arguments: dict[str, Any] = {"name": name}
        if chance() < 0.4:
            arguments["count"] = random.sample(("kv/n", "kv/m"), 1)
        if chance() < 0.3:
            arguments["put"] = {random.choice(("kv/a", "kv/b")): name}
        if chance() < 0.1:
            arguments["delete"] = ["kv/c"]
        if chance() < 0.2:
            arguments["get"] = [random.choice(("kv/a", "kv/c", "kv/n"))]
        if chance() < 0.35:
            arguments["stage"] = random.choice((["mail"], ["sms"], ["mail", "mail"], ["sms", "mail"]))
        if step_id > 1 and chance() < 0.4:
            arguments["user_id"] = f"${{steps.{random.randint(1, step_id - 1)}.id}}"
        elif chance() < 0.03:
            arguments["user_id"] = f"${{steps.{step_id}.id}}"
        text = json.dumps(arguments)
        return text[:-1] if chance() < 0.02 else text
