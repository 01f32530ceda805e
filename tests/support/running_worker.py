"""A worker in this process, connected to a server, for tests.

async with running_worker(server.address, tools=[charge]) as worker:
    ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from agenttx.worker import Worker

CONNECT_SECONDS = 20.0


async def until_connected(worker: Worker, servers: int = 1) -> None:
    """Wait until a worker has met so many servers."""
    async with asyncio.timeout(CONNECT_SECONDS):
        while len(worker.server_ids) < servers:  # noqa: ASYNC110 — it has no event for that
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running_worker(address: str, *, servers: int = 1, **settings: Any) -> AsyncIterator[Worker]:
    """Run a worker until the context is left; it is stopped in order."""
    worker = Worker(address, **settings)
    serving = asyncio.create_task(worker.serve())
    try:
        connected = asyncio.create_task(until_connected(worker, servers))
        await asyncio.wait((serving, connected), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            connected.cancel()
            serving.result()
        await connected
        yield worker
    finally:
        worker.stop()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(serving, CONNECT_SECONDS)
