"""gRPC handlers for every method of a service, those that are served and those that are not yet."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from agenttx_server.api import redaction
from agenttx_server.api.interceptors.call import RpcContext
from agenttx_server.api.thread_names import ThreadNames
from agenttx_server.engine.errors import NotSupported

__all__ = ["handlers"]


def handlers(
    service: ServiceDescriptor, *servicers: object, names: ThreadNames | None = None
) -> grpc.GenericRpcHandler:
    """Return the handlers of a service; methods that no servicer has are answered UNIMPLEMENTED.

    ``names`` goes around all of them.
    """
    return grpc.method_handlers_generic_handler(
        service.full_name, {method.name: _handler(method, servicers, names) for method in service.methods}
    )


def _handler(method: MethodDescriptor, servicers: Sequence[object], names: ThreadNames | None) -> Any:
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[method.client_streaming, method.server_streaming]
    served = (getattr(servicer, method.name, None) for servicer in servicers)
    behaviour = next(filter(None, served), None)
    if behaviour is not None and names is not None:
        behaviour = names.around(method, behaviour)
    if behaviour is not None:
        behaviour = redaction.around(method, behaviour)
    return make(
        behaviour or _not_served(method.name),
        message_factory.GetMessageClass(method.input_type).FromString,
        message_factory.GetMessageClass(method.output_type).SerializeToString,
    )


def _not_served(name: str) -> Any:
    async def refuse(_: object, __: RpcContext) -> Awaitable[None]:
        raise NotSupported(
            f"this server does not serve {name} yet", reason="NOT_SUPPORTED_YET", metadata={"feature": name}
        )

    return refuse
