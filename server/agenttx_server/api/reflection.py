"""Server reflection, under its old name and its new one.

The library serves v1alpha only. v1 is the same messages under another service name, so the same
servicer answers both.
"""

from __future__ import annotations

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from agenttx_server.api.methods import (
    AGENT_TX_SERVICE,
    HEALTH_SERVICE,
    REFLECTION_SERVICES,
    REFLECTION_V1ALPHA,
)

__all__ = ["add_reflection"]


def add_reflection(server: grpc.aio.Server) -> None:
    """Let clients ask for the protocol of every service."""
    # Not listed under its new name, of which there is no descriptor to describe it with.
    servicer = ReflectionServicer((AGENT_TX_SERVICE, HEALTH_SERVICE, REFLECTION_V1ALPHA))
    handlers = {
        "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
    }
    for service in REFLECTION_SERVICES:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
