"""The engine's context as tools are given it: the same calls, with the errors that tools know."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx.tools.call_port import JsonForm
from agenttx_server.engine.json_values import canonical, load
from agenttx_server.engine.ports import ToolContext
from agenttx_server.tools.tool_errors import for_tools

__all__ = ["ENGINE_JSON", "EnginePort"]

ENGINE_JSON = JsonForm(canonical, load)


class EnginePort:
    """One call's engine context; implements :class:`agenttx.tools.call_port.CallPort`."""

    __slots__ = ("_context",)

    def __init__(self, context: ToolContext) -> None:
        self._context = context

    @property
    def transaction_id(self) -> str:
        return self._context.transaction_id

    @property
    def agent_id(self) -> str:
        return self._context.agent_id

    @property
    def step_id(self) -> int:
        return self._context.step_id

    @property
    def attempt(self) -> int:
        return self._context.attempt

    @property
    def idempotency_key(self) -> str:
        return self._context.idempotency_key

    @property
    def fence(self) -> int:
        return self._context.fence

    @property
    def metadata(self) -> str:
        return self._context.metadata

    @property
    def seconds_left(self) -> float:
        return self._context.seconds_left

    async def get(self, key: str) -> str | None:
        with for_tools():
            return await self._context.get(key)

    async def scan(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[tuple[str, str]]:
        with for_tools():
            return await self._context.scan(prefix, after, limit)

    async def put(self, key: str, value: str) -> None:
        with for_tools():
            await self._context.put(key, value)

    async def delete(self, key: str) -> None:
        with for_tools():
            await self._context.delete(key)

    async def require_exists(self, key: str, error: str) -> None:
        with for_tools():
            await self._context.require_exists(key, error)

    async def require_none(self, prefix: str, error: str) -> None:
        with for_tools():
            await self._context.require_none(prefix, error)

    async def register_undo(self, undo_name: str, arguments: str, idempotency_key: str = "") -> None:
        with for_tools():
            await self._context.register_undo(undo_name, arguments, idempotency_key)

    async def update_undo(self, undo_name: str, arguments: str) -> None:
        with for_tools():
            await self._context.update_undo(undo_name, arguments)

    async def stage_effect(self, channel: str, payload: str, idempotency_key: str = "") -> str:
        with for_tools():
            return await self._context.stage_effect(channel, payload, idempotency_key)

    async def step(self, tool_name: str, arguments: str, timeout_us: int | None = None) -> str:
        with for_tools():
            return await self._context.step(tool_name, arguments, timeout_us)

    async def touch(self, key: str, *, writes: bool) -> None:
        with for_tools():
            await self._context.touch(key, writes=writes)
