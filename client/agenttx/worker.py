"""Workers: your functions under transaction protection, in your own process.

    from agenttx.worker import Worker, tool

    @tool("payments.charge", effects="compensatable")
    async def charge(ctx, amount_cents: int, customer_id: str) -> dict:
        await ctx.register_undo("payments.refund", key=ctx.idempotency_key)
        return await gateway.charge(amount_cents, customer_id, idempotency_key=ctx.idempotency_key)

    @charge.undo("payments.refund")
    async def refund(ctx, key):
        await gateway.refund(key)

    Worker("127.0.0.1:50051", tools=[charge]).run()

Needs pydantic: ``pip install 'agenttx[worker]'``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata

from agenttx.endpoint import Endpoint, Tls
from agenttx.errors import ConfigurationError
from agenttx.graph import GraphBuilder
from agenttx.hosting.fleet import Fleet
from agenttx.hosting.offer import ChannelHandler, Offered
from agenttx.hosting.server_link import OnServers, ServerLink
from agenttx.records import Effect
from agenttx.tools import (
    AnyTool,
    ArgumentsRefused,
    BlockingToolCallContext,
    ContextClosed,
    DeliveryFailed,
    EffectClass,
    HintCategory,
    OutcomeUnknown,
    SubStepFailed,
    Tool,
    ToolCallContext,
    ToolDefinitionError,
    ToolFailure,
    UndoContext,
    tool,
)
from agenttx.tools.blocking_pool import BlockingPool

__all__ = [
    "AnyTool",
    "ArgumentsRefused",
    "BlockingToolCallContext",
    "ContextClosed",
    "DeliveryFailed",
    "Effect",
    "EffectClass",
    "HintCategory",
    "OutcomeUnknown",
    "SubStepFailed",
    "Tool",
    "ToolCallContext",
    "ToolDefinitionError",
    "ToolFailure",
    "UndoContext",
    "Worker",
    "tool",
]

_LOGGER = logging.getLogger("agenttx.worker")

MAX_CONCURRENCY = 10_000


class Worker:
    """Offers tools to the servers at an address and runs their calls until it is stopped.

    Args:
        address: `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`, or several of them; None: AGENTTX_ADDRESS, else
            127.0.0.1:50051. Where several servers share a database the worker connects to each that is reached there.
        tools: What it offers: functions made tools by `@tool`.
        graphs: Graphs whose functions it hosts, nodes and routers. They need not be registered here.
        channels: Functions that deliver staged effects, by channel; each is called with the Effect, at least
            once, under the same `idempotency_key`. Raising means trying again later; see DeliveryFailed.
        concurrency: How many calls it runs at once for each server, 1 to 10,000. As many threads are there for
            plain functions.
        name: For logs; by default the host and process.
        token: Bearer token; None: AGENTTX_TOKEN.
        tls: As for Client.
        drain_seconds: How long calls under way may go on once it is to stop.

    Raises:
        ToolDefinitionError: two tools, undo actions or graphs' functions of one name; nothing to offer.
        ConfigurationError: the address, token or a number makes no sense.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        tools: Iterable[AnyTool] = (),
        graphs: Iterable[GraphBuilder] = (),
        channels: Mapping[str, ChannelHandler] | None = None,
        concurrency: int = 16,
        name: str | None = None,
        token: str | None = None,
        tls: Tls | bool | None = None,
        drain_seconds: float = 30.0,
    ) -> None:
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise ConfigurationError(f"concurrency is 1 to {MAX_CONCURRENCY}, not {concurrency}")
        addresses = [address] if address is None or isinstance(address, str) else list(address)
        if not addresses:
            raise ConfigurationError("address is an empty list: give one address at least")
        self._endpoints = [Endpoint.resolve(one, token=token, tls=tls) for one in addresses]
        self._offered = Offered.of(tools, channels or {}, graphs)
        self._concurrency = concurrency
        self._drain_seconds = drain_seconds
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._fleet: Fleet | None = None
        self._was_stopped = False

    @property
    def server_ids(self) -> list[str]:
        """The servers that it is connected to now."""
        return self._fleet.server_ids if self._fleet is not None else []

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; then finish what runs, and return. A second signal ends the process at once.

        Raises:
            RpcError: a server refused the worker for good: its credentials, or a tool's name that is the server's own.
        """
        asyncio.run(self._run_until_signalled())

    async def serve(self) -> None:
        """The same in a running event loop, until `stop` is called or the task is cancelled; signals are yours."""
        pool = BlockingPool(self._concurrency, "agenttx-worker")
        hello = self._offered.hello(self.name, f"agenttx-python {_version()}", self._concurrency)

        async def open_link(endpoint: Endpoint, on_servers: OnServers) -> ServerLink:
            return await ServerLink.open(endpoint, hello, self._offered, pool, on_servers)

        fleet = self._fleet = Fleet(self._endpoints, open_link)
        if self._was_stopped:
            fleet.stop()
        try:
            await fleet.keep()
            try:
                async with asyncio.timeout(self._drain_seconds):
                    await fleet.ended()
            except TimeoutError:
                _LOGGER.warning("calls were cut off after %g s", self._drain_seconds)
        finally:
            await fleet.cut()
            self._fleet = None

    def stop(self) -> None:
        """Take no further calls; `serve` returns when those under way have ended. From the loop's own thread."""
        self._was_stopped = True
        if self._fleet is not None:
            self._fleet.stop()

    async def _run_until_signalled(self) -> None:
        def stop(number: signal.Signals) -> None:
            if self._was_stopped:
                os._exit(128 + number)
            _LOGGER.info("stopping: waiting for the calls under way")
            self.stop()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        await self.serve()


def _version() -> str:
    try:
        return metadata.version("agenttx")
    except metadata.PackageNotFoundError:
        return "unknown"
