"""A transaction in memory, as far as tools see it: for tests of tools without engine and store."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agenttx_server.engine.ports import ContextClosed, ToolRunner, UndoContext
from agenttx_server.engine.records import TransactionId

TRANSACTION_ID = TransactionId("0190a000-0000-7000-8000-000000000001")


@dataclass
class RegisteredUndo:
    """An undo action that a tool registered."""

    name: str
    arguments: Any
    context: UndoContext


@dataclass
class StagedEffect:
    """An effect that a tool staged."""

    effect_id: str
    channel: str
    payload: Any
    idempotency_key: str


@dataclass
class FakeTransaction:
    """State, undo actions and effects of one transaction; give it to `run` of a registry through `context()`."""

    transaction_id: TransactionId = TRANSACTION_ID
    agent_id: str = "agent-1"
    state: dict[str, str] = field(default_factory=dict)
    undo: list[RegisteredUndo] = field(default_factory=list)
    effects: list[StagedEffect] = field(default_factory=list)
    touches: list[tuple[str, bool]] = field(default_factory=list)
    """Keys of outside things, in order, and whether they were to be written."""
    exists_checks: list[tuple[str, str]] = field(default_factory=list)
    none_checks: list[tuple[str, str]] = field(default_factory=list)
    steps: int = 0
    on_register_undo: Callable[[], object] = lambda: None
    """Called, and awaited, when an undo action was registered: between a tool's look and its effect."""

    def context(self) -> FakeToolContext:
        """The context of the next step."""
        self.steps += 1
        return FakeToolContext(self, self.steps)

    async def rewind(self, runner: ToolRunner, keep: int = 0) -> None:
        """Run the undo actions registered after the first `keep`, newest first."""
        while len(self.undo) > keep:
            action = self.undo[-1]
            await runner.undo(action.name, action.arguments, action.context)
            self.undo.pop()

    def failing_checks(self) -> list[str]:
        """The errors of the commit checks that don't hold now, as the commit would report them."""
        missing = [error for key, error in self.exists_checks if key not in self.state]
        present = [
            error for prefix, error in self.none_checks if any(key.startswith(prefix) for key in self.state)
        ]
        return missing + present


class FakeToolContext:
    """Implements `ports.ToolContext` over a FakeTransaction; writes are seen at once."""

    def __init__(self, transaction: FakeTransaction, step_id: int) -> None:
        self._transaction = transaction
        self.step_id = step_id
        self.sub_step = 0
        self.attempt = 1
        self.fence = 7
        self.metadata = ""
        self.seconds_left = 30.0
        self.closed = False

    @property
    def transaction_id(self) -> TransactionId:
        return self._transaction.transaction_id

    @property
    def agent_id(self) -> str:
        return self._transaction.agent_id

    def check_begin(self) -> None:
        """It always may."""

    @property
    def idempotency_key(self) -> str:
        return f"key-{self.step_id}-{self.attempt}"

    async def get(self, key: str) -> str | None:
        self._check_open()
        return self._transaction.state.get(key)

    async def scan(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[tuple[str, str]]:
        self._check_open()
        found = sorted(
            (key, value)
            for key, value in self._transaction.state.items()
            if key.startswith(prefix) and key > after
        )
        return found[:limit]

    async def put(self, key: str, value: str) -> None:
        self._check_open()
        assert isinstance(value, str)
        json.loads(value)
        self._transaction.state[key] = value

    async def delete(self, key: str) -> None:
        self._check_open()
        self._transaction.state.pop(key, None)

    async def require_exists(self, key: str, error: str) -> None:
        self._check_open()
        self._transaction.exists_checks.append((key, error))

    async def require_none(self, prefix: str, error: str) -> None:
        self._check_open()
        self._transaction.none_checks.append((prefix, error))

    async def register_undo(self, undo_name: str, arguments: str, idempotency_key: str = "") -> None:
        self._check_open()
        context = UndoContext(
            self.transaction_id,
            self.agent_id,
            self.step_id,
            self.attempt,
            idempotency_key or self.idempotency_key,
        )
        self._transaction.undo.append(RegisteredUndo(undo_name, json.loads(arguments), context))
        waiting = self._transaction.on_register_undo()
        if inspect.isawaitable(waiting):
            await waiting

    async def update_undo(self, undo_name: str, arguments: str) -> None:
        self._check_open()
        undo = self._transaction.undo
        position = max(index for index, registered in enumerate(undo) if registered.name == undo_name)
        undo[position] = replace(undo[position], arguments=json.loads(arguments))

    async def stage_effect(self, channel: str, payload: str, idempotency_key: str = "") -> str:
        self._check_open()
        effect_id = f"effect-{len(self._transaction.effects) + 1}"
        self._transaction.effects.append(
            StagedEffect(effect_id, channel, json.loads(payload), idempotency_key)
        )
        return effect_id

    async def touch(self, key: str, *, writes: bool) -> None:
        self._check_open()
        self._transaction.touches.append((key, writes))

    def _check_open(self) -> None:
        if self.closed:
            raise ContextClosed("the deadline passed")
