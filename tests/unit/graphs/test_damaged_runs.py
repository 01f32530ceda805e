"""A run whose stored values can't be opened keeps nobody from the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agenttx_server.engine.ports import StoredValueDamaged
from agenttx_server.graphs.runs.run_life import RunLife


class Runs:
    """Finds one that is damaged, three times, and then none."""

    is_draining = False

    def __init__(self) -> None:
        self.looked = 0
        self.well = asyncio.Event()

    async def recover(self, now: int) -> list[str]:
        self.looked += 1
        if self.looked <= 3:
            raise StoredValueDamaged("graph_runs.details of 'r-1' was changed outside the server")
        self.well.set()
        return []


class Nothing:
    """Whatever else a life looks after: there is nothing to do."""

    async def follow(self) -> None:
        await asyncio.Event().wait()

    async def end_overdue(self) -> list[str]:
        return []


class Clock:
    """Time goes by as soon as it is waited for."""

    def now(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


async def test_the_start_and_the_search_go_on_beside_a_damaged_run(caplog: pytest.LogCaptureFixture):
    runs, nothing = Runs(), Nothing()
    parts: Any = (runs, nothing, nothing, nothing, (), Clock())
    life = RunLife(*parts)
    async with asyncio.timeout(10):
        await life.start(1.0)
        await runs.well.wait()
    await life.stop()
    assert runs.looked >= 4
    assert "graph_runs.details of 'r-1'" in caplog.text
