"""ToolService: a worker's connection, between gRPC's stream and the hub of workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import grpc.aio
import structlog

from agenttx.v1 import tool_pb2 as pb
from agenttx_server.access.errors import PermissionDenied
from agenttx_server.api.interceptors.call import RpcContext, current_call
from agenttx_server.api.message_conversion import workers
from agenttx_server.engine.errors import Unavailable
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.worker_messages import ServerDirectory, WorkerHub, WorkerLink

__all__ = ["ToolServicer", "WorkerAccess"]

FIRST_MESSAGE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class WorkerAccess:
    """What workers' connections are served with: the hub of each tenant's. ``now`` is wall time in microseconds.

    ``note_tools`` is told of a tenant and the tools that a worker of it is about to offer, before anybody sees them.
    """

    hub_of: Callable[[str], WorkerHub]
    servers: ServerDirectory
    note_tools: Callable[[str, Sequence[str]], Awaitable[None]]
    now: Callable[[], MicrosecondsUtc]
    output_limit_bytes: int


class ToolServicer:
    """Serves Connect. ``ending`` is set when the server has no more calls for its workers."""

    def __init__(self, access: WorkerAccess, ending: asyncio.Event) -> None:
        self._access = access
        self._ending = ending

    async def Connect(self, request_iterator: AsyncIterator[pb.ConnectRequest], context: RpcContext) -> None:
        if self._ending.is_set():
            raise _draining()
        try:
            async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
                first = await context.read()
        except TimeoutError:
            workers.out_of_turn("hello", f"did not come within {FIRST_MESSAGE_SECONDS:g} s")
        if first is grpc.aio.EOF:
            return
        if first.WhichOneof("message") != "hello":
            workers.out_of_turn("hello", "must be the first message")
        await _Connection(self._access, self._ending, context).serve(first.hello)


class _Connection:
    def __init__(self, access: WorkerAccess, ending: asyncio.Event, context: RpcContext) -> None:
        self._access = access
        self._ending = ending
        self._context = context
        # Bounded by what the hub has under way with the worker: its calls and the requests of these.
        self._outbox: asyncio.Queue[pb.ConnectResponse] = asyncio.Queue()

    async def serve(self, hello: pb.WorkerHello) -> None:
        access, outbox = self._access, self._outbox
        identity = current_call().identity
        assert identity is not None
        hub = access.hub_of(identity.tenant)
        _check_allowed(hello)
        offer = workers.offer(hello)
        # Sent apart from the first message: gRPC sends the headers a second time, and so never the status, if
        # the write that carries them is cancelled, which is what an end of the connection does to a write.
        await self._context.send_initial_metadata(())
        await access.note_tools(identity.tenant, [tool.description.name for tool in offer.tools])
        # The hub may give the worker calls at once, and the welcome comes first.
        outbox.put_nowait(
            workers.welcome(
                access.servers.own_id,
                access.servers.listed,
                hub.silence_limit_seconds,
                hub.idle_silence_limit_seconds,
                access.output_limit_bytes,
            )
        )
        link = hub.connect(offer, lambda told: outbox.put_nowait(workers.command(told, access.now())))
        log = structlog.get_logger().bind(worker=offer.worker_name)
        log.info("worker connected", tools=[tool.description.name for tool in offer.tools], sdk=offer.sdk)
        why = "the connection broke"
        try:
            why = await self._until_over(link)
        finally:
            link.close(why)
            current_call().note(worker=offer.worker_name)
            log.info("worker disconnected", reason=why or "goodbye")

    async def _until_over(self, link: WorkerLink) -> str:
        """Carry messages until one side has done; return why, empty if in order."""
        over = asyncio.create_task(link.over())
        reading = asyncio.create_task(self._read(link))
        tasks: list[asyncio.Task[object]] = [
            over,
            reading,
            asyncio.create_task(self._write()),
            asyncio.create_task(self._tell_servers()),
            asyncio.create_task(self._ending.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[-1] in done:
                raise _draining()
            for task in done:
                task.result()
            if over in done:
                why = over.result()
                if why:
                    raise Unavailable(f"the worker was given up: {why}", reason="WORKER_LOST")
                return ""
            return "it closed its connection"
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait(tasks)

    async def _read(self, link: WorkerLink) -> None:
        while (message := await self._context.read()) is not grpc.aio.EOF:
            link.heard()
            match message.WhichOneof("message"):
                case "outcome":
                    link.finished(message.outcome.call_id, workers.outcome(message.outcome))
                case "context":
                    asked = message.context
                    link.asked(asked.call_id, asked.request_id, workers.context_request(asked))
                case "progress":
                    told = message.progress
                    link.progressed(told.call_id, told.fraction, told.message[:1024])
                case "event":
                    link.emitted(*workers.call_event(message.event))
                case "heartbeat":
                    pass
                case "goodbye":
                    link.says_goodbye()
                case "hello":
                    workers.out_of_turn("hello", "came a second time")
                case _:
                    workers.out_of_turn("message", "is not set, or unknown to this server")

    async def _write(self) -> None:
        while True:
            await self._context.write(await self._outbox.get())

    async def _tell_servers(self) -> None:
        async for servers in self._access.servers.changes():
            self._outbox.put_nowait(workers.server_list(servers))


def _check_allowed(hello: pb.WorkerHello) -> None:
    """Refuse a worker that offers what its credentials don't name."""
    identity = current_call().identity
    for name in (*(tool.name for tool in hello.tools), *hello.functions, *hello.channels):
        if identity is None or not identity.may_offer(name):
            raise PermissionDenied(
                "the worker's credentials don't let it offer one of these names",
                reason="PERMISSION_DENIED",
                metadata={"tool": name[:128]},
            )


def _draining() -> Unavailable:
    return Unavailable(
        "the server is shutting down; connect to another one, or to this one again later", reason="DRAINING"
    )
