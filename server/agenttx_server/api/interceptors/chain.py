"""Runs the stages around handlers of all four shapes, and aborts calls: the one place that does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio
from grpc_status import rpc_status

from agenttx_server.api.interceptors.arrivals import Arrivals
from agenttx_server.api.interceptors.call import Interceptor, Method, RpcCall, RpcContext
from agenttx_server.engine.errors import LimitExceeded, NotSupported

__all__ = ["InterceptorChain", "wrap_handler"]

LAST_STATUS_SECONDS = 1.0
Handler = Any  # grpc.RpcMethodHandler, whose attributes its stubs don't declare
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]


class InterceptorChain(grpc.aio.ServerInterceptor):
    """All stages as one interceptor of the server.

    Each method's handler is wrapped once and kept. A method that the server doesn't have is
    answered through the chain as well, so it is logged and counted like any other call.
    """

    def __init__(
        self,
        stages: Sequence[Interceptor],
        describe: Callable[[str], Method],
        largest_response_bytes: int,
        arrivals: Arrivals | None = None,
    ) -> None:
        self.stages = tuple(stages)
        self._describe = describe
        self._largest_response_bytes = largest_response_bytes
        self._arrivals = arrivals or Arrivals()
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        self._arrivals.accepted += 1
        path: str = handler_call_details.method
        wrapped = self._wrapped.get(path)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            method = self._describe(path)
            if handler is None:
                return wrap_handler(_unknown_method(path), method, self.stages, self._largest_response_bytes)
            wrapped = wrap_handler(handler, method, self.stages, self._largest_response_bytes)
            self._wrapped[path] = wrapped
        return wrapped


def _unknown_method(path: str) -> Handler:
    async def refuse(_: object, __: RpcContext) -> None:
        raise NotSupported(
            f"this server has no method {path[:200]}",
            reason="NOT_SUPPORTED_YET",
            metadata={"feature": path},
        )

    # This shape reads nothing before it answers, and on the wire it answers calls of every shape.
    return grpc.stream_stream_rpc_method_handler(refuse)


def wrap_handler(
    handler: Handler, method: Method, stages: Sequence[Interceptor], largest_response_bytes: int = 1 << 31
) -> Handler:
    """Return a handler of the same shape that runs ``stages`` around this one.

    Single requests are parsed and single responses serialised here, inside the chain: left to
    grpc, a message that doesn't parse would be answered UNKNOWN with Python's own text.
    """
    if handler.request_streaming:
        if handler.response_streaming:
            around = _around_stream(handler.stream_stream, method, stages, None)
            return grpc.stream_stream_rpc_method_handler(
                around, handler.request_deserializer, handler.response_serializer
            )
        around = _around_unary(
            handler.stream_unary, method, stages, None, handler.response_serializer, largest_response_bytes
        )
        return grpc.stream_unary_rpc_method_handler(around, handler.request_deserializer, None)
    if handler.response_streaming:
        around = _around_stream(handler.unary_stream, method, stages, handler.request_deserializer)
        return grpc.unary_stream_rpc_method_handler(around, None, handler.response_serializer)
    around = _around_unary(
        handler.unary_unary,
        method,
        stages,
        handler.request_deserializer,
        handler.response_serializer,
        largest_response_bytes,
    )
    return grpc.unary_unary_rpc_method_handler(around, None, None)


def _around_unary(
    behaviour: Callable[[Any, RpcContext], Awaitable[Any]],
    method: Method,
    stages: Sequence[Interceptor],
    parse: Callable[[bytes], Any] | None,
    serialise: Callable[[Any], bytes] | None,
    largest_response_bytes: int,
) -> Any:
    async def around(request: Any, context: RpcContext) -> Any:
        call = RpcCall(method, context)
        entered = 0
        encoded: Any = None
        try:
            for stage in stages:
                waiting = stage.enter(call)
                entered += 1
                if waiting is not None:
                    await waiting
            if parse is not None:
                request = parse(request)
                call.request = request
            call.response = encoded = await behaviour(request, context)
            if serialise is not None:
                encoded = serialise(encoded)
                if len(encoded) > largest_response_bytes:
                    _refuse_large_response(len(encoded), largest_response_bytes)
        except BaseException as error:
            call.error = error
        while entered:
            entered -= 1
            stages[entered].leave(call)
        if call.error is not None:
            await _end_with_error(call)
        return encoded

    return around


def _around_stream(
    behaviour: Callable[[Any, RpcContext], Any],
    method: Method,
    stages: Sequence[Interceptor],
    parse: Callable[[bytes], Any] | None,
) -> Any:
    async def around(request: Any, context: RpcContext) -> None:
        call = RpcCall(method, context)
        entered = 0
        try:
            for stage in stages:
                waiting = stage.enter(call)
                entered += 1
                if waiting is not None:
                    await waiting
            if parse is not None:
                request = parse(request)
                call.request = request
            responses = behaviour(request, context)
            # Handlers either yield their responses or, like the health service's, write them themselves.
            if hasattr(responses, "__aiter__"):
                async with contextlib.aclosing(responses):
                    async for response in responses:
                        await context.write(response)
            else:
                await responses
        except BaseException as error:
            call.error = error
        while entered:
            entered -= 1
            stages[entered].leave(call)
        if call.error is not None:
            await _end_with_error(call)

    return around


def _refuse_large_response(size: int, limit: int) -> NoReturn:
    raise LimitExceeded(
        f"the answer is {size} bytes long; the limit is {limit}. What was asked for is done; read it in parts",
        reason="SIZE_LIMIT_EXCEEDED",
        metadata={"actual_bytes": str(size), "limit_bytes": str(limit)},
    )


async def _end_with_error(call: RpcCall) -> NoReturn:
    # Taken out of the call: an error holds its frames, which hold the call.
    error, call.error = call.error, None
    assert error is not None
    if call.status is not None:
        try:
            async with asyncio.timeout(LAST_STATUS_SECONDS):
                await call.context.abort_with_status(rpc_status.to_status(call.status))
        except TimeoutError:
            # It waits behind what the client of a stream doesn't read. It is on its way: nobody has to wait with it.
            raise asyncio.CancelledError from error
    if isinstance(error, grpc.aio.InternalError):  # grpc would log it as a fault of the handler
        raise asyncio.CancelledError from error
    raise error
