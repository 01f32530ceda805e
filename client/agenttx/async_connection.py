"""The asynchronous way to a server: channel, connect phase, retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.wrappers_pb2 import StringValue

from agenttx.connection import closed, connection_failed
from agenttx.endpoint import Endpoint
from agenttx.errors import AgentTxError, DeadlineExceeded, RpcError, Unavailable
from agenttx.methods import HEALTH_CHECK, Method, RequestT, ResponseT
from agenttx.operation import Call, Operation
from agenttx.retry_policy import RetryPolicy
from agenttx.rich_errors import from_call
from agenttx.sendable_text import unsendable
from agenttx.trace_context import with_trace

__all__ = ["AsyncConnection"]

T = TypeVar("T")


class AsyncConnection:
    """The asynchronous way: a grpc.aio channel, made inside the running loop on first use.

    A channel belongs to its loop. Used from another loop later (a second `asyncio.run`), the connection makes a new
    one; used from two loops at once it is an error of the caller's.
    """

    def __init__(self, endpoint: Endpoint, retry: RetryPolicy, connect_timeout_seconds: float) -> None:
        self.endpoint = endpoint
        self.retry = retry
        self._connect_timeout_seconds = connect_timeout_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None
        self._connected = False
        self._closed = False
        self._unary: dict[str, Any] = {}

    async def perform(self, operation: Operation[T]) -> T:
        """Drive an operation to its end and return its result."""
        try:
            call = next(operation)
            while True:
                try:
                    response = await self.call(call)
                except BaseException as failure:
                    call = operation.throw(failure)
                else:
                    call = operation.send(response)
        except StopIteration as end:
            return cast("T", end.value)
        except UnicodeEncodeError as error:
            raise unsendable(error) from None

    async def call(self, call: Call[RequestT, ResponseT]) -> ResponseT:
        """Make one call with its retries.

        Raises:
            RpcError: the typed error of the last attempt.
            ClientClosed: the connection was closed.
        """
        await self.connect()
        schedule = call.begin(self.retry)
        while True:
            try:
                return await self._attempt(call.method, call.request, schedule.next_attempt())
            except RpcError as error:
                wait = schedule.wait_after(error)
                if wait is None:
                    raise
            await self.retry.async_sleep(wait)

    async def stream(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        on_open: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> AsyncGenerator[ResponseT]:
        """Open a stream of responses; its typed error is raised by the iterator, once, without retries.

        `on_open` is given the initial metadata.
        """
        await self.connect()
        call = self._open_channel().unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )(request, metadata=with_trace(self.endpoint.metadata))
        try:
            if on_open is not None:
                with self.translating():
                    on_open(dict(await call.initial_metadata() or ()))
            responses = aiter(call)
            while True:
                with self.translating():
                    response = await anext(responses, None)
                if response is None:
                    return
                yield response
        finally:
            call.cancel()

    async def duplex(self, method: Method[RequestT, ResponseT]) -> Any:
        """Open a stream in both directions and return gRPC's call object."""
        await self.connect()
        return self._open_channel().stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )(metadata=with_trace(self.endpoint.metadata))

    async def connect(self) -> None:
        """Wait until the server answers, at most the connect timeout; later calls return at once.

        Raises:
            ConnectionFailed: nothing answered.
        """
        if self._connected and not self._closed and self._loop is asyncio.get_running_loop():
            return
        schedule = self.retry.begin(limit_seconds=self._connect_timeout_seconds)
        while True:
            try:
                await self._attempt(HEALTH_CHECK, StringValue(), schedule.next_attempt())
            except (Unavailable, DeadlineExceeded) as error:
                wait = schedule.wait_after(error)
                if wait is None:
                    raise connection_failed(self.endpoint, error) from None
            except RpcError:
                break  # An answer, whatever it says.
            else:
                break
            await self.retry.async_sleep(wait)
        self._connected = True

    async def close(self) -> None:
        """Close the channel; calls under way end with ClientClosed or Cancelled."""
        self._closed = True
        channel, self._channel = self._channel, None
        self._unary.clear()
        if channel is not None and self._loop is asyncio.get_running_loop():
            await channel.close()

    async def _attempt(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout: float
    ) -> ResponseT:
        channel = self._open_channel()  # First: a new loop drops what was bound to the old one.
        call = self._unary.get(method.path)
        if call is None:
            call = self._unary[method.path] = channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        with self.translating():
            return cast(
                "ResponseT", await call(request, timeout=timeout, metadata=with_trace(self.endpoint.metadata))
            )

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Turn what grpc.aio raises in this block into typed errors."""
        try:
            yield
        except grpc.RpcError as failure:
            raise self._translated(failure) from None
        except grpc.aio.UsageError as failure:
            if self._closed:
                raise closed() from failure
            raise
        except asyncio.CancelledError as failure:
            # Closing a channel cancels its calls, which looks as if the waiting task had been cancelled.
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise closed() from failure
            raise

    def _translated(self, failure: grpc.RpcError) -> AgentTxError:
        error = from_call(failure)
        return closed() if self._closed and error.code is grpc.StatusCode.CANCELLED else error

    def _open_channel(self) -> grpc.aio.Channel:
        if self._closed:
            raise closed()
        loop = asyncio.get_running_loop()
        if self._channel is None or self._loop is not loop:
            target, options = self.endpoint.address, self.endpoint.channel_options()
            self._channel = (
                grpc.aio.secure_channel(target, self.endpoint.tls.credentials(), options)
                if self.endpoint.tls
                else grpc.aio.insecure_channel(target, options)
            )
            self._loop = loop
            self._connected = False
            self._unary.clear()
        return self._channel
