"""Server reflection, under its old name and its new one.

The library serves v1alpha only. v1 is the same messages under another service name, so the same
servicer answers both.
"""

from __future__ import annotations

from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

from agenttx_server.api.methods import (
    AGENT_TX_SERVICE,
    AUDIT_SERVICE,
    GRAPH_SERVICE,
    HEALTH_SERVICE,
    LINEAGE_SERVICE,
    PIPELINE_SERVICE,
    REFLECTION_SERVICES,
    REFLECTION_V1ALPHA,
    TOOL_SERVICE,
)

__all__ = ["add_reflection"]


def add_reflection(server: grpc.aio.Server) -> None:
    """Let clients ask for the protocol of every service."""
    # Not listed under its new name, of which there is no descriptor to describe it with.
    pool = cast("descriptor_pool.DescriptorPool", _PoolThatKnowsMethods())
    servicer = reflection.aio.ReflectionServicer(
        (
            AGENT_TX_SERVICE,
            GRAPH_SERVICE,
            PIPELINE_SERVICE,
            AUDIT_SERVICE,
            LINEAGE_SERVICE,
            TOOL_SERVICE,
            HEALTH_SERVICE,
            REFLECTION_V1ALPHA,
        ),
        pool,
    )
    handlers = {
        "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
    }
    for service in REFLECTION_SERVICES:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


class _PoolThatKnowsMethods:
    """protobuf's own pool, which finds the file of every symbol but a method's; `grpcurl describe` asks for those."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)
