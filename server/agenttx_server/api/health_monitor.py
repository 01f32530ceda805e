"""Keeps the health service honest about the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from agenttx_server.api.health import Health
from agenttx_server.engine.ports import StoreUnavailable

__all__ = ["follow_database"]

INTERVAL_SECONDS = 5.0
# Between two checks at the least, while the database is gone or calls say that it may be.
SHORT_INTERVAL_SECONDS = 1.0
# A check that takes longer says no: a database that hangs is of no more use than one that is gone.
PATIENCE_SECONDS = 5.0

Check = Callable[[], Awaitable[None]]
Sleep = Callable[[float], Awaitable[None]]


async def follow_database(health: Health, check: Check, sleep: Sleep) -> None:
    """Say SERVING while ``check`` passes and NOT_SERVING while it raises StoreUnavailable or hangs; never returns.

    A call that could not be served brings the next check forward, so that health tells of an outage
    about as soon as callers notice it.
    """
    log = structlog.get_logger()
    was_there = True
    while True:
        health.doubt.clear()
        reason = await _problem(health, check)
        if reason and was_there:
            log.error("database gone", reason=reason)
        if not reason and not was_there:
            log.info("database back")
        was_there = not reason
        health.set_serving(was_there)
        await sleep(SHORT_INTERVAL_SECONDS)
        if was_there:
            await _first_of(sleep(INTERVAL_SECONDS - SHORT_INTERVAL_SECONDS), health.doubt.wait())


async def _problem(health: Health, check: Check) -> str:
    """Return what is wrong with the database, empty if nothing is."""
    checking = asyncio.ensure_future(check())
    try:
        done, _ = await asyncio.wait((checking,), timeout=PATIENCE_SECONDS)
        if not done:
            # Waited for all the same: one check at a time, or those that hang would pile up.
            health.set_serving(False)
        await checking
    except StoreUnavailable as error:
        return str(error) or type(error).__name__
    finally:
        checking.cancel()
    return ""


async def _first_of(*waits: Awaitable[object]) -> None:
    """Return when one of several waits has ended; raise what it raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
