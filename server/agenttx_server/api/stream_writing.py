"""Writing to streams whose clients may not read.

A message is handed to gRPC when the client's window has room for it. A client that doesn't read for long enough is
cut: what it has not taken is in the journal, and nothing is kept for it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import Message

from agenttx_server.api.drain_signal import Interruptible
from agenttx_server.api.interceptors.call import RpcContext
from agenttx_server.engine.errors import LimitExceeded

__all__ = ["SlowConsumer", "StreamWriting"]


class SlowConsumer(LimitExceeded):
    """A client did not read for as long as it may."""


@dataclass(frozen=True, slots=True)
class StreamWriting:
    """How streams are written to: ``stall_seconds`` is how long one message may wait for its client."""

    stall_seconds: float

    async def write(
        self, context: RpcContext, waits: Interruptible, message: Message, place: Mapping[str, str]
    ) -> None:
        """Write a message. Raises SlowConsumer, with ``place`` as its metadata, and Unavailable when the server drains."""
        try:
            async with asyncio.timeout(self.stall_seconds):
                await waits.wait(context.write(message))
        except TimeoutError:
            raise SlowConsumer(
                f"the client read nothing for {self.stall_seconds:g} s; {waits.advice}",
                reason="SLOW_CONSUMER",
                metadata=dict(place),
            ) from None
