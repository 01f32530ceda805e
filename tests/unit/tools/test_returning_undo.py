"""Held undo actions are run again when a worker that has them is back, and no others are."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.engine_harness import Engine
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import UndoUnavailable
from agenttx_server.engine.records import TransactionStatus
from agenttx_server.tools.returning_undo import ReturningUndo


async def _held(error: Any) -> tuple[Engine, ReturningUndo, asyncio.Task[None]]:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "book", {"effect": "room"})
    engine.tools.break_undo("room", error=error, text="nobody is there")
    await engine.rewind(1)
    assert (await engine.record()).status is TransactionStatus.ROLLING_BACK
    engine.tools.break_undo("room", 0)
    returning = ReturningUndo()
    return engine, returning, asyncio.create_task(returning.run(engine.memory, engine.coordinator))


@virtual_time
async def test_undo_that_waited_for_a_worker_completes_its_rewind() -> None:
    engine, returning, looking = await _held(UndoUnavailable)
    returning.offered(["something.else"])
    await asyncio.sleep(1)
    assert engine.tools.undo_order == []
    returning.offered(["unbook"])
    await asyncio.sleep(1)
    looking.cancel()

    assert engine.tools.undo_order == ["room"]
    assert (await engine.record()).status is TransactionStatus.ACTIVE


@virtual_time
async def test_undo_that_was_tried_and_failed_is_left_to_a_person() -> None:
    engine, returning, looking = await _held(RuntimeError)
    returning.offered(["unbook"])
    await asyncio.sleep(100)
    looking.cancel()

    assert engine.tools.undo_order == []
    assert (await engine.record()).status is TransactionStatus.ROLLING_BACK


@virtual_time
async def test_one_that_finds_nobody_again_is_tried_again_later() -> None:
    engine, returning, looking = await _held(UndoUnavailable)
    engine.tools.break_undo("room", 1, error=UndoUnavailable, text="still busy")
    returning.offered(["unbook"])
    await asyncio.sleep(5)
    assert engine.tools.undo_order == []
    await asyncio.sleep(60)
    looking.cancel()

    assert engine.tools.undo_order == ["room"]
