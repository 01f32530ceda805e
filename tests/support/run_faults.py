"""What a run awaits, made to fail: each await of the scheduler is numbered, and one of them raises.

    faults = Faults(runs)
    faults.at(5, StoreUnavailable("down"), behind=True)   # the fifth is carried out, and raises

What the engine itself does below is not touched: it has tests of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.graph_runs import GraphRuns

from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator

__all__ = ["Faults"]


class Faults:
    """Stands between a scheduler and what it awaits. ``awaited`` names the awaits, in order."""

    def __init__(self, runs: GraphRuns) -> None:
        self.awaited: list[str] = []
        self.fired = ""
        self._number = 0
        self._error: Callable[[], Exception] | None = None
        self._behind = False
        self._times = 0
        parts = runs.runs._parts
        wrapped: Any = RunParts(
            _Awaited(self, "store", parts.store),  # type: ignore[arg-type]
            _Transactions(self, parts.transactions),  # type: ignore[arg-type]
            _Awaited(self, "functions", parts.functions),  # type: ignore[arg-type]
            parts.clock,
        )
        catalog: Any = _Awaited(self, "catalog", runs)
        runs.runs = RunCoordinator(wrapped, catalog, runs._ids, lambda: "runs-1")

    def at(self, number: int, error: Callable[[], Exception], *, behind: bool, times: int = 1) -> None:
        """Have the await of that number raise, ``behind`` what it does, and those that follow, so many in all."""
        self._number, self._error, self._behind, self._times = number, error, behind, times

    def over(self) -> None:
        """Let everything through from now on."""
        self._times = 0

    async def through(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Let an await through, or have it fail."""
        self.awaited.append(name)
        fails = bool(self._number) and len(self.awaited) >= self._number and self._times > 0
        if not fails:
            return await work()
        self._times -= 1
        self.fired = self.fired or name
        if self._behind:
            await work()
        assert self._error is not None
        raise self._error()


class _Awaited:
    """All that an object's methods return is awaited through the faults."""

    def __init__(self, faults: Faults, name: str, target: Any) -> None:
        self._faults = faults
        self._name = name
        self._target = target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name in _PLAIN or not callable(found):
            return found

        async def awaited(*arguments: Any, **named: Any) -> Any:
            return await self._faults.through(f"{self._name}.{name}", lambda: found(*arguments, **named))

        return awaited


_PLAIN = frozenset({"rows", "takes", "is_done", "is_in_doubt", "give", "cancel", "is_hosted"})


class _Transactions:
    def __init__(self, faults: Faults, target: Any) -> None:
        self._faults = faults
        self._target = target

    async def begin(self, *arguments: Any) -> Any:
        return await self._faults.through("transactions.begin", lambda: self._target.begin(*arguments))

    def check_stored(self, owner: str) -> None:
        self._target.check_stored(owner)

    def can_open_with(self, owner: str, members: Any) -> bool:
        return bool(self._target.can_open_with(owner, members))

    @asynccontextmanager
    async def turn(self, transaction_id: str, run_id: str, server_id: str = "") -> AsyncIterator[Any]:
        async def nothing() -> None:
            return None

        await self._faults.through("transactions.turn", nothing)
        async with self._target.turn(transaction_id, run_id, server_id) as turn:
            yield _Awaited(self._faults, "turn", turn)
