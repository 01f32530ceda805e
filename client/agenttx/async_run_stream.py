"""A run that is started and followed, on the asynchronous client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from agenttx.async_connection import AsyncConnection
from agenttx.errors import RpcError
from agenttx.methods import STREAM_RUN
from agenttx.run_event_cursors import RunStreamCursor, SubscriptionCursor
from agenttx.run_events import GraphEvent
from agenttx.run_records import RunOutcome

__all__ = ["AsyncRunStream", "follow"]


class AsyncRunStream:
    """The events of a run, as `graph.stream` returns it: an iterator that ends when the invocation does.

    The run begins when the first event is asked for. A lost connection is mended, and the stream goes on where it
    was. Leaving it ends no run, unless the run was started so.
    """

    def __init__(self, connection: AsyncConnection, cursor: RunStreamCursor) -> None:
        self._cursor = cursor
        self._events = follow(connection, STREAM_RUN, cursor)

    @property
    def run_id(self) -> str:
        """The run; "" before the first event."""
        return self._cursor.run_id

    @property
    def outcome(self) -> RunOutcome | None:
        """How the invocation ended; None before the stream has ended."""
        return self._cursor.outcome

    async def close(self) -> None:
        """Stop following."""
        await self._events.aclose()

    def __aiter__(self) -> AsyncIterator[GraphEvent]:
        return self

    async def __anext__(self) -> GraphEvent:
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def follow(
    connection: AsyncConnection, method: Any, cursor: RunStreamCursor | SubscriptionCursor
) -> AsyncGenerator[GraphEvent]:
    """Yield what a cursor takes, over as many streams as it takes."""
    opened = getattr(cursor, "opened", None)
    while True:
        try:
            async with aclosing(connection.stream(method, cursor.open(), opened)) as messages:
                async for message in messages:
                    if (event := cursor.take(message)) is not None:
                        yield event
        except RpcError as error:
            wait = cursor.wait_after(error)
            if wait is None:
                raise
        else:
            return
        await connection.retry.async_sleep(wait)
