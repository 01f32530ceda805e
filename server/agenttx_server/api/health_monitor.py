"""Keeps the health service honest about the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from agenttx_server.api.health import Health
from agenttx_server.engine.ports import StoreUnavailable

__all__ = ["follow_database"]

INTERVAL_SECONDS = 5.0
INTERVAL_WHILE_GONE_SECONDS = 1.0


async def follow_database(
    health: Health, check: Callable[[], Awaitable[None]], sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Say SERVING while ``check`` passes and NOT_SERVING while it raises StoreUnavailable; never returns."""
    log = structlog.get_logger()
    was_there = True
    while True:
        try:
            await check()
            is_there = True
        except StoreUnavailable as error:
            is_there = False
            if was_there:
                log.error("database gone", reason=str(error))
        if is_there and not was_there:
            log.info("database back")
        health.set_serving(is_there)
        was_there = is_there
        await sleep(INTERVAL_SECONDS if is_there else INTERVAL_WHILE_GONE_SECONDS)
