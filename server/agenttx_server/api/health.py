"""The standard health service, and what it says when."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from agenttx_server.api.interceptors.call import RpcContext
from agenttx_server.api.methods import (
    AGENT_TX_SERVICE,
    AUDIT_SERVICE,
    GRAPH_SERVICE,
    LINEAGE_SERVICE,
    PIPELINE_SERVICE,
    TOOL_SERVICE,
)
from agenttx_server.engine.errors import NotFound, Unavailable

__all__ = ["LIVENESS", "READINESS", "Health"]

OVERALL = ""
LIVENESS = "liveness"
READINESS = "readiness"
_SERVING_NAMES = (
    OVERALL,
    AGENT_TX_SERVICE,
    GRAPH_SERVICE,
    PIPELINE_SERVICE,
    AUDIT_SERVICE,
    LINEAGE_SERVICE,
    TOOL_SERVICE,
    READINESS,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):
    """Answers Check, List and Watch for the server, its services, ``liveness`` and ``readiness``.

    ``liveness`` is SERVING as long as the process answers at all: an orchestrator that restarts
    on it must not kill a server that drains or waits for its database. The others are SERVING
    only while calls are.

    Not grpcio's own servicer: it aborts calls itself, and its watches can't be ended, so that
    each would hold the server's stop until the last moment.
    """

    def __init__(self) -> None:
        # Set by calls that met a database which did not answer: somebody should look.
        self.doubt = asyncio.Event()
        self._statuses: dict[str, int] = dict.fromkeys(_SERVING_NAMES, NOT_SERVING)
        self._statuses[LIVENESS] = SERVING
        self._is_draining = False
        self._is_closed = False
        self._changed = asyncio.Event()

    def set_serving(self, serving: bool) -> None:
        """Say whether calls are served; once the server drains it stays at not."""
        status = SERVING if serving and not self._is_draining else NOT_SERVING
        for name in _SERVING_NAMES:
            self._statuses[name] = status
        self._notify()

    @property
    def is_serving(self) -> bool:
        """Whether calls are served, as clients are told."""
        return self._statuses[OVERALL] == SERVING

    def begin_drain(self) -> None:
        """Say NOT_SERVING from now on."""
        self._is_draining = True
        self.set_serving(False)

    def close(self) -> None:
        """End the watches."""
        self._is_closed = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: RpcContext
    ) -> health_pb2.HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            raise NotFound(f"there is no service {request.service[:100]!r}", reason="SERVICE_NOT_FOUND")
        return health_pb2.HealthCheckResponse(status=status)

    async def List(self, request: Any, context: RpcContext) -> Any:
        statuses = {
            name: health_pb2.HealthCheckResponse(status=status) for name, status in self._statuses.items()
        }
        response = health_pb2.HealthListResponse  # type: ignore[attr-defined]  # not in its stubs yet
        return response(statuses=statuses)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: RpcContext) -> None:
        told = None
        while not self._is_closed:
            changed = self._changed  # Before the status is read, so that no change is missed.
            status = self._statuses.get(request.service, SERVICE_UNKNOWN)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            if changed is self._changed:
                await changed.wait()
        raise Unavailable("the server is shutting down", reason="DRAINING")
