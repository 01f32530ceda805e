"""The synchronous way to a server: channel, connect phase, retries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.wrappers_pb2 import StringValue

from agenttx.endpoint import Endpoint
from agenttx.errors import (
    AgentTxError,
    ClientClosed,
    ConnectionFailed,
    DeadlineExceeded,
    RpcError,
    Unavailable,
)
from agenttx.methods import HEALTH_CHECK, Method, RequestT, ResponseT
from agenttx.operation import Call, Operation
from agenttx.retry_policy import RetryPolicy
from agenttx.rich_errors import from_call
from agenttx.sendable_text import unsendable
from agenttx.trace_context import with_trace

__all__ = ["Connection", "closed", "connection_failed"]

T = TypeVar("T")


class Connection:
    """The synchronous way: a channel of gRPC's own threads, made on first use. Any thread may use it."""

    def __init__(self, endpoint: Endpoint, retry: RetryPolicy, connect_timeout_seconds: float) -> None:
        self.endpoint = endpoint
        self.retry = retry
        self._connect_timeout_seconds = connect_timeout_seconds
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._connected = False
        self._closed = False
        self._unary: dict[str, Any] = {}

    def perform(self, operation: Operation[T]) -> T:
        """Drive an operation to its end and return its result."""
        try:
            call = next(operation)
            while True:
                try:
                    response = self.call(call)
                except BaseException as failure:
                    call = operation.throw(failure)
                else:
                    call = operation.send(response)
        except StopIteration as end:
            return cast("T", end.value)
        except UnicodeEncodeError as error:
            raise unsendable(error) from None

    def call(self, call: Call[RequestT, ResponseT]) -> ResponseT:
        """Make one call with its retries.

        Raises:
            RpcError: the typed error of the last attempt.
            ClientClosed: the connection was closed.
        """
        self.connect()
        schedule = call.begin(self.retry)
        while True:
            try:
                return self._attempt(call.method, call.request, schedule.next_attempt())
            except RpcError as error:
                wait = schedule.wait_after(error)
                if wait is None:
                    raise
            self.retry.sleep(wait)

    def stream(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        on_open: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Iterator[ResponseT]:
        """Open a stream of responses; its typed error is raised by the iterator, once, without retries.

        `on_open` is given the initial metadata.
        """
        self.connect()
        channel = self._open_channel()
        call = channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )(request, metadata=with_trace(self.endpoint.metadata))
        try:
            if on_open is not None:
                on_open(dict(call.initial_metadata() or ()))
            yield from call
        except grpc.RpcError as failure:
            raise self.translated(failure) from None
        finally:
            call.cancel()

    def duplex(self, method: Method[RequestT, ResponseT], requests: Iterator[RequestT]) -> Any:
        """Open a stream in both directions and return gRPC's call object."""
        self.connect()
        return self._open_channel().stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )(requests, metadata=with_trace(self.endpoint.metadata))

    def connect(self) -> None:
        """Wait until the server answers, at most the connect timeout; later calls return at once.

        Raises:
            ConnectionFailed: nothing answered.
        """
        if self._connected and not self._closed:
            return
        schedule = self.retry.begin(limit_seconds=self._connect_timeout_seconds)
        while True:
            try:
                self._attempt(HEALTH_CHECK, StringValue(), schedule.next_attempt())
            except (Unavailable, DeadlineExceeded) as error:
                wait = schedule.wait_after(error)
                if wait is None:
                    raise connection_failed(self.endpoint, error) from None
            except RpcError:
                break  # An answer, whatever it says.
            else:
                break
            self.retry.sleep(wait)
        self._connected = True

    def close(self) -> None:
        """Close the channel; calls under way end with ClientClosed or Cancelled."""
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
            self._unary.clear()
        if channel is not None:
            channel.close()

    def _attempt(self, method: Method[RequestT, ResponseT], request: RequestT, timeout: float) -> ResponseT:
        call = self._unary.get(method.path) or self._bind(method)
        try:
            return cast(
                "ResponseT", call(request, timeout=timeout, metadata=with_trace(self.endpoint.metadata))
            )
        except grpc.RpcError as failure:
            raise self.translated(failure) from None
        except ValueError as failure:
            # What grpc raises on a channel that another thread has closed.
            if self._closed:
                raise closed() from failure
            raise

    def translated(self, failure: grpc.RpcError) -> AgentTxError:
        """Return the typed error of a failed call."""
        error = from_call(failure)
        return closed() if self._closed and error.code is grpc.StatusCode.CANCELLED else error

    def _bind(self, method: Method[Any, Any]) -> Any:
        bound = self._open_channel().unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        self._unary[method.path] = bound
        return bound

    def _open_channel(self) -> grpc.Channel:
        with self._lock:
            if self._closed:
                raise closed()
            if self._channel is None:
                target, options = self.endpoint.address, self.endpoint.channel_options()
                self._channel = (
                    grpc.secure_channel(target, self.endpoint.tls.credentials(), options)
                    if self.endpoint.tls
                    else grpc.insecure_channel(target, options)
                )
            return self._channel


def connection_failed(endpoint: Endpoint, last: RpcError) -> ConnectionFailed:
    """Return the error that names the address, and what the last attempt met."""
    failure = ConnectionFailed(
        f"no AgentTx server answers at {endpoint.address}: {last.message}", code=last.code
    )
    failure.address = endpoint.address
    failure.attempts = last.attempts
    return failure


def closed() -> ClientClosed:
    """Return the error of a call on a closed connection."""
    return ClientClosed("the client was closed")
