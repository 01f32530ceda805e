"""The stores of graph runs on which their contract is tested: each database, and the model in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.memory_run_store import RUN_TABLES, MemoryRunStore
from tests.support.memory_store import MemoryStore
from tests.support.store_databases import DATABASES, SEALED, database

from agenttx_server.engine.ports import TransactionStore
from agenttx_server.graphs.runs.ports import RunStore
from agenttx_server.store import open_store

__all__ = ["Stores", "run_stores"]


class Stores:
    """A store of transactions with that of runs in the same database."""

    def __init__(self, transactions: Any, runs: Any) -> None:
        self.transactions: TransactionStore = transactions
        self.runs: RunStore = runs


@pytest.fixture(params=[*DATABASES, SEALED, "memory"])
async def run_stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    if request.param == "memory":
        model = MemoryStore(extra_tables=RUN_TABLES)
        yield Stores(model, MemoryRunStore(model.database))
        return
    with database(request.param, tmp_path) as (address, keys):
        async with open_store(address, payload_keys=keys) as opened:
            yield Stores(opened, opened.runs)
