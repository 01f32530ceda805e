"""A run that is started and followed, on the synchronous client."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any, Self

from agenttx.connection import Connection
from agenttx.errors import RpcError
from agenttx.methods import STREAM_RUN
from agenttx.run_event_cursors import RunStreamCursor, SubscriptionCursor
from agenttx.run_events import GraphEvent
from agenttx.run_records import RunOutcome

__all__ = ["RunStream", "follow"]


class RunStream:
    """The events of a run, as `graph.stream` returns it: an iterator that ends when the invocation does.

    The run begins when the first event is asked for. A lost connection is mended, and the stream goes on where it
    was. Leaving it ends no run, unless the run was started so.
    """

    def __init__(self, connection: Connection, cursor: RunStreamCursor) -> None:
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

    def close(self) -> None:
        """Stop following."""
        self._events.close()

    def __iter__(self) -> Iterator[GraphEvent]:
        return self

    def __next__(self) -> GraphEvent:
        return next(self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def follow(
    connection: Connection, method: Any, cursor: RunStreamCursor | SubscriptionCursor
) -> Generator[GraphEvent]:
    """Yield what a cursor takes, over as many streams as it takes."""
    opened = getattr(cursor, "opened", None)
    while True:
        try:
            for message in connection.stream(method, cursor.open(), opened):
                if (event := cursor.take(message)) is not None:
                    yield event
        except RpcError as error:
            wait = cursor.wait_after(error)
            if wait is None:
                raise
        else:
            return
        connection.retry.sleep(wait)
