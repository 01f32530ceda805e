"""The databases on which the store's contract is tested, and fixtures that open them.

``reopen`` opens one database, and when called again closes it and opens it anew; ``store`` is it
opened once. Add a database by adding its address to ``DATABASES``. ``store_or_model`` is one of them or
the store in memory that the engine's tests run on: what holds of both lets them stand for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.memory_store import MemoryStore
from tests.support.postgres_cluster import shared_cluster
from tests.support.store_records import Driver

from agenttx_server.engine.ports import TransactionStore, WriteReceipt
from agenttx_server.store import PayloadKeys
from agenttx_server.store import open_store as open_sql_store

__all__ = [
    "DATABASES",
    "SEALED",
    "Opener",
    "counts_leases_by_the_engines_clock",
    "database",
    "gather",
    "publish",
    "reopen",
    "store",
    "store_or_model",
]

Opener = Callable[[], Awaitable[TransactionStore]]


@contextmanager
def sqlite_address(folder: Path) -> Iterator[str]:
    yield f"sqlite:///{folder / 'agenttx.db'}"


@contextmanager
def postgresql_address(folder: Path) -> Iterator[str]:
    with shared_cluster().database() as address:
        yield address


# Each gives the address of a new database for as long as it is entered.
DATABASES = {"sqlite": sqlite_address, "postgresql": postgresql_address}


# What holds of a database holds of it with its payloads sealed; once is enough, the codec is the same.
SEALED = "sqlite-sealed"
SEALING_KEYS = PayloadKeys("k1", {"k1": bytes(range(32))})


@contextmanager
def database(kind: str, folder: Path) -> Iterator[tuple[str, PayloadKeys | None]]:
    """Give the address of a new database and the keys that it is opened with."""
    with DATABASES[kind.removesuffix("-sealed")](folder) as address:
        yield address, SEALING_KEYS if kind == SEALED else None


@pytest.fixture(params=[*DATABASES, SEALED])
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    with database(request.param, tmp_path) as (address, keys):
        stack = AsyncExitStack()

        async def open_again() -> TransactionStore:
            await stack.aclose()
            return await stack.enter_async_context(open_sql_store(address, payload_keys=keys))

        yield open_again
        await stack.aclose()


@pytest.fixture
async def store(reopen: Opener) -> TransactionStore:
    return await reopen()


@pytest.fixture(params=[*DATABASES, "memory"])
async def store_or_model(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TransactionStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with DATABASES[request.param](tmp_path) as address:
        async with open_sql_store(address) as opened:
            yield opened


def counts_leases_by_the_engines_clock(store: TransactionStore) -> None:
    """Skip a test that lets time go by where leases are counted by the database's clock."""
    if store.is_shared:
        pytest.skip("leases are counted by the database's clock")


async def gather(*writes: Awaitable[WriteReceipt]) -> list[Any]:
    """Queue writes at once and return their receipts or errors, in order."""
    return list(await asyncio.gather(*writes, return_exceptions=True))


async def publish(store: TransactionStore, name: str, writes: dict[str, str | None]) -> WriteReceipt:
    """Run a transaction of one step and commit it."""
    driver = await Driver(store, name).begin()
    await driver.step(writes)
    return await driver.commit()
