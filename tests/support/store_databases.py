"""The databases on which the store's contract is tested, and fixtures that open them.

``reopen`` opens one database, and when called again closes it and opens it anew; ``store`` is it
opened once. Add a database by adding its address to ``DATABASES``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.store_records import Driver

from agenttx_server.engine.ports import TransactionStore, WriteReceipt
from agenttx_server.store import open_store as open_sql_store

__all__ = ["DATABASES", "Opener", "gather", "publish", "reopen", "store"]

Opener = Callable[[], Awaitable[TransactionStore]]


def sqlite_address(folder: Path) -> str:
    return f"sqlite:///{folder / 'agenttx.db'}"


DATABASES = {"sqlite": sqlite_address}


@pytest.fixture(params=DATABASES)
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    address = DATABASES[request.param](tmp_path)
    stack = AsyncExitStack()

    async def open_again() -> TransactionStore:
        await stack.aclose()
        return await stack.enter_async_context(open_sql_store(address))

    yield open_again
    await stack.aclose()


@pytest.fixture
async def store(reopen: Opener) -> TransactionStore:
    return await reopen()


async def gather(*writes: Awaitable[WriteReceipt]) -> list[Any]:
    """Queue writes at once and return their receipts or errors, in order."""
    return list(await asyncio.gather(*writes, return_exceptions=True))


async def publish(store: TransactionStore, name: str, writes: dict[str, str | None]) -> WriteReceipt:
    """Run a transaction of one step and commit it."""
    driver = await Driver(store, name).begin()
    await driver.step(writes)
    return await driver.commit()
