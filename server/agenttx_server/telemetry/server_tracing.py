"""The traces of one server, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Literal, cast

from agenttx_server.engine.ports import ToolRunner
from agenttx_server.engine.services import EngineServices, TenantPorts
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.telemetry import trace_export
from agenttx_server.telemetry.release import release
from agenttx_server.telemetry.traced_ports import (
    StepsUnderWay,
    TracedCoordinator,
    TracedFunctions,
    TracedSink,
    TracedTools,
)
from agenttx_server.telemetry.tracing import Tracer
from agenttx_server.tools.hosted_functions import HostedFunctions

__all__ = ["ServerTracing"]


class ServerTracing:
    """Puts spans around the parts of a server; ``services`` are the engine's, with spans around tools and deliveries."""

    def __init__(self, tracer: Tracer, services: EngineServices) -> None:
        self.tracer = tracer
        self._steps = StepsUnderWay()
        self._sink = TracedSink(services.sink, tracer)
        # What the wrappers don't wrap goes to what they are put around.
        tools = cast("ToolRunner", TracedTools(services.tools, tracer, self._steps))
        self._of_tenant = services.of_tenant
        self._tenants: dict[str, TenantPorts] = {}
        self._functions: dict[str, HostedFunctions] = {}
        of_tenant = None if services.of_tenant is None else self._ports_of
        self.services = replace(services, tools=tools, sink=self._sink, of_tenant=of_tenant)

    def _ports_of(self, tenant: str) -> TenantPorts:
        """Return what a tenant has of its own, with spans around it."""
        if tenant not in self._tenants:
            assert self._of_tenant is not None
            own = self._of_tenant(tenant)
            tools = cast("ToolRunner", TracedTools(own.tools, self.tracer, self._steps))
            self._tenants[tenant] = TenantPorts(tools, TracedSink(own.sink, self.tracer, self._sink))
        return self._tenants[tenant]

    @classmethod
    @asynccontextmanager
    async def to(
        cls, protocol: Literal["grpc", "http"], endpoint: str, sampling: float, services: EngineServices
    ) -> AsyncIterator[ServerTracing]:
        """Send spans to a receiver until the context is left."""
        exporter = trace_export.exporter_of(protocol, endpoint)
        async with trace_export.tracing_to(exporter, sampling, release(), services.server_id) as tracer:
            yield cls(tracer, services)

    def around(self, coordinator: TransactionCoordinator) -> TransactionCoordinator:
        """Return the engine's front door with spans around steps, commits and rewinds."""
        return cast("TransactionCoordinator", TracedCoordinator(coordinator, self.tracer, self._sink))

    def around_functions(
        self, of_tenant: Callable[[str], HostedFunctions]
    ) -> Callable[[str], HostedFunctions]:
        """Return what gives a tenant's functions of graphs, with a span around each call."""

        def traced(tenant: str) -> HostedFunctions:
            if tenant not in self._functions:
                functions = TracedFunctions(of_tenant(tenant), self.tracer, self._steps)
                self._functions[tenant] = cast("HostedFunctions", functions)
            return self._functions[tenant]

        return traced
