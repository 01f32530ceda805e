"""The metrics of one server, put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agenttx_server.api.server import ApiServer
from agenttx_server.engine.ports import Clock, ToolRunner
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.listen_address import ListenAddress
from agenttx_server.live_servers import LiveServers
from agenttx_server.store import SqlTransactionStore
from agenttx_server.stored_quotas import StoredQuotas
from agenttx_server.telemetry import sources
from agenttx_server.telemetry.change_metrics import ChangeMetrics
from agenttx_server.telemetry.database_sampling import DatabaseSampling
from agenttx_server.telemetry.exposition import Exposition
from agenttx_server.telemetry.loop_lag import LoopLag
from agenttx_server.telemetry.metrics_endpoint import MetricsEndpoint
from agenttx_server.tools import ToolRegistry
from agenttx_server.tools.remote_workers import RemoteWorkers

__all__ = ["ServerMetrics"]


class ServerMetrics:
    """Counts from the start, by ``changes``, and serves what was counted once the parts of the server are there."""

    def __init__(self, tools: ToolRunner, clock: Clock) -> None:
        self.changes = ChangeMetrics(lambda name: tools.describe(name) is not None)
        self._clock = clock

    @asynccontextmanager
    async def serve(
        self,
        address: ListenAddress,
        api: ApiServer,
        coordinator: TransactionCoordinator,
        store: SqlTransactionStore,
        servers: LiveServers,
        own_tools: ToolRegistry,
        workers: RemoteWorkers,
        quotas: StoredQuotas | None = None,
    ) -> AsyncIterator[ListenAddress]:
        """Serve until the context is left; it gets the address with its real port.

        Raises:
            MetricsAddressRefused: nothing is served.
        """
        lag = LoopLag(self._clock)
        database = DatabaseSampling(store.count_standing, self._clock)
        exposition = Exposition(
            [
                sources.of_api(api),
                sources.of_loop(lag),
                sources.of_engine(coordinator, servers),
                sources.of_store(store),
                sources.of_tools(own_tools, workers),
                self.changes.read,
                database.read,
                *(() if quotas is None else (sources.of_quotas(quotas),)),
            ]
        )
        endpoint = MetricsEndpoint(exposition, lambda: api.health.is_serving)
        async with endpoint.serve(address) as serving:
            following = [asyncio.create_task(work) for work in (lag.measure(), database.follow())]
            try:
                yield serving
            finally:
                for task in following:
                    task.cancel()
