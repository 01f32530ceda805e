"""What a call's ``ctx`` is made over: the engine itself in the server, a connection to it in a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agenttx.values import decode_json, encode_json

__all__ = ["SDK_JSON", "CallPort", "JsonForm", "UndoContext"]


class CallPort(Protocol):
    """One call's facts, and what it may ask for. Keys are ``namespace/key``, values JSON text.

    After the call is over every method raises ContextClosed.
    """

    @property
    def transaction_id(self) -> str: ...
    @property
    def agent_id(self) -> str: ...
    @property
    def step_id(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def idempotency_key(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def metadata(self) -> str: ...
    @property
    def seconds_left(self) -> float: ...

    async def get(self, key: str) -> str | None: ...
    async def scan(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[tuple[str, str]]: ...
    async def put(self, key: str, value: str) -> None: ...
    async def delete(self, key: str) -> None: ...
    async def require_exists(self, key: str, error: str) -> None: ...
    async def require_none(self, prefix: str, error: str) -> None: ...
    async def register_undo(self, undo_name: str, arguments: str, idempotency_key: str = "") -> None: ...
    async def update_undo(self, undo_name: str, arguments: str) -> None: ...
    async def stage_effect(self, channel: str, payload: str, idempotency_key: str = "") -> str: ...
    async def touch(self, key: str, *, writes: bool) -> None: ...
    async def step(self, tool_name: str, arguments: str, timeout_us: int | None = None) -> str: ...


@dataclass(frozen=True, slots=True)
class JsonForm:
    """How values become JSON text and back; ``encode`` refuses what JSON can't carry exactly."""

    encode: Callable[[Any], str]
    decode: Callable[[str], Any]


SDK_JSON = JsonForm(encode_json, decode_json)


@dataclass(frozen=True, slots=True)
class UndoContext:
    """What an undo action is told: whose effect it takes back and the key it always gets."""

    transaction_id: str
    agent_id: str
    step_id: int
    attempt: int
    idempotency_key: str
