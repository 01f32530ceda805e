"""One connection to one server: the stream, its greeting, its heartbeats and its end.

The stream is carried by threads of its own and not by the event loop that the tools run on: a
coroutine that keeps the loop busy delays its own calls, and the server still hears that the worker lives.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import grpc

from agenttx.endpoint import Endpoint
from agenttx.errors import ConnectionFailed, RpcError
from agenttx.hosting.calls import Calls
from agenttx.hosting.offer import Offered
from agenttx.methods import CONNECT
from agenttx.rich_errors import from_call
from agenttx.tools.blocking_pool import BlockingPool
from agenttx.v1 import tool_pb2 as pb

__all__ = ["OnServers", "ServerLink", "is_final"]

GREETING_SECONDS = 10.0
LARGEST_VALUE_BYTES = 4 << 20

OnServers = Callable[[Sequence[pb.ServerAddress]], None]


class _Outgoing:
    """What is sent, in order; a heartbeat whenever nothing else was for a while. gRPC takes it on a thread.

    The while is longer when no call runs. It is looked at in the shorter interval all the same: a call may have begun.
    """

    def __init__(self, hello: pb.WorkerHello) -> None:
        self.heartbeat_seconds = 1.0
        self.idle_heartbeat_seconds = 1.0
        self.running_call_ids: Callable[[], list[int]] | None = None
        self._queue: queue.SimpleQueue[pb.ConnectRequest | None] = queue.SimpleQueue()
        self.send(pb.ConnectRequest(hello=hello))

    def send(self, message: pb.ConnectRequest) -> None:
        self._queue.put(message)

    def end(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[pb.ConnectRequest]:
        sent_at = time.monotonic()
        while True:
            try:
                message = self._queue.get(timeout=self.heartbeat_seconds)
            except queue.Empty:
                if self.running_call_ids is None:
                    continue
                running = self.running_call_ids()
                # By the next look it would be too late by as much again.
                if (
                    not running
                    and time.monotonic() - sent_at
                    < self.idle_heartbeat_seconds - 0.5 * self.heartbeat_seconds
                ):
                    continue
                message = pb.ConnectRequest(heartbeat=pb.WorkerHeartbeat(running_call_ids=running))
            if message is None:
                return
            sent_at = time.monotonic()
            yield message


class _Incoming:
    """What comes in, read on a thread and handed to the loop; ``ended`` is done when nothing more comes."""

    def __init__(self, stream: Any, received: Callable[[pb.ConnectResponse], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[RpcError | None] = self._loop.create_future()
        self._stream = stream
        self._received = received
        threading.Thread(target=self._read, name="agenttx-worker-connection", daemon=True).start()

    def _read(self) -> None:
        error: RpcError | None = None
        try:
            for message in self._stream:
                self._in_loop(self._received, message)
        except grpc.RpcError as failure:
            error = from_call(failure)
        self._in_loop(self._end, error)

    def _end(self, error: RpcError | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)

    def _in_loop(self, function: Callable[..., None], argument: Any) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, argument)


class ServerLink:
    """A connection. Made by :meth:`open`; ``run`` waits for its end."""

    def __init__(
        self,
        endpoint: Endpoint,
        hello: pb.WorkerHello,
        offered: Offered,
        pool: BlockingPool,
        on_servers: OnServers,
    ) -> None:
        self.server_id = ""
        self.is_leaving = False
        self._offered = offered
        self._pool = pool
        self._on_servers = on_servers
        self._calls: Calls | None = None
        self._outgoing = _Outgoing(hello)
        target, options = endpoint.address, endpoint.channel_options()
        self._channel = (
            grpc.secure_channel(target, endpoint.tls.credentials(), options)
            if endpoint.tls
            else grpc.insecure_channel(target, options)
        )
        self._stream = self._channel.stream_stream(
            CONNECT.path,
            request_serializer=CONNECT.request.SerializeToString,
            response_deserializer=CONNECT.response.FromString,
        )(iter(self._outgoing), metadata=endpoint.metadata)
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._incoming = _Incoming(self._stream, self._take)

    @classmethod
    async def open(
        cls,
        endpoint: Endpoint,
        hello: pb.WorkerHello,
        offered: Offered,
        pool: BlockingPool,
        on_servers: OnServers,
    ) -> ServerLink:
        """Connect and greet. Raises RpcError, a ConnectionFailed where nothing answers."""
        link = cls(endpoint, hello, offered, pool, on_servers)
        try:
            await asyncio.wait(
                (link._greeted, link._incoming.ended),
                timeout=GREETING_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not link._greeted.done():
                error = link._incoming.ended.result() if link._incoming.ended.done() else None
                raise error or ConnectionFailed(
                    f"nothing answers at {endpoint.address}", code=grpc.StatusCode.UNAVAILABLE
                )
        except BaseException:
            link._close()
            raise
        return link

    async def run(self) -> None:
        """Wait until the connection ends; raise RpcError unless it ended in order."""
        try:
            error = await asyncio.shield(self._incoming.ended)
        finally:
            self._close()
        if error is not None:
            raise error

    def say_goodbye(self) -> None:
        """Take no further calls; the server ends the connection once those that run are answered."""
        if not self.is_leaving:
            self.is_leaving = True
            self._outgoing.send(pb.ConnectRequest(goodbye=pb.WorkerGoodbye()))

    def _take(self, message: pb.ConnectResponse) -> None:
        if self._calls is None:
            self._greet(message.welcome)
        elif message.WhichOneof("message") == "servers":
            self._on_servers(message.servers.servers)
        else:
            self._calls.take(message)

    def _greet(self, welcome: pb.ServerWelcome) -> None:
        self.server_id = welcome.server_id
        largest = welcome.output_limit_bytes or LARGEST_VALUE_BYTES
        calls = self._calls = Calls(self._offered, self._pool, self._outgoing.send, largest)
        self._outgoing.heartbeat_seconds = max(0.05, welcome.heartbeat_interval.ToNanoseconds() / 1e9)
        self._outgoing.idle_heartbeat_seconds = max(
            self._outgoing.heartbeat_seconds, welcome.idle_heartbeat_interval.ToNanoseconds() / 1e9
        )
        self._outgoing.running_call_ids = lambda: calls.ids
        self._on_servers(welcome.servers.servers)
        if not self._greeted.done():
            self._greeted.set_result(None)

    def _close(self) -> None:
        if self._calls is not None:
            self._calls.close("the connection to the server has ended")
        self._outgoing.end()
        self._stream.cancel()
        self._channel.close()


def is_final(error: RpcError) -> bool:
    """Whether connecting again leads to the same refusal."""
    if error.reason == "TOOL_CONFLICT":
        return error.metadata.get("offered_by") == "server"
    return error.code in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    )
