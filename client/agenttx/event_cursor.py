"""Watching a transaction over as many streams as it takes: every event once, in order."""

from __future__ import annotations

from agenttx import message_conversion as conversion
from agenttx.errors import RpcError
from agenttx.reconnection import Reconnection
from agenttx.records import Event
from agenttx.retry_policy import RetryPolicy
from agenttx.sendable_text import sends_text
from agenttx.v1 import transaction_pb2 as pb
from agenttx.values import count

__all__ = ["EventCursor"]


class EventCursor:
    """How far a watcher has come, and how long it has been cut off."""

    def __init__(self, transaction_id: str, from_sequence: int, policy: RetryPolicy) -> None:
        self._transaction_id = transaction_id
        self._next_sequence = max(count("from_sequence", from_sequence, bits=64), 1)
        self._reconnection = Reconnection(policy)

    @sends_text
    def open(self) -> pb.WatchTransactionRequest:
        """Return the request for what is next, for a stream that is opened now."""
        self._reconnection.opening()
        return pb.WatchTransactionRequest(
            transaction_id=self._transaction_id, from_sequence=self._next_sequence
        )

    def take(self, message: pb.WatchTransactionResponse) -> Event | None:
        """Return the event, or None where it was there before."""
        event = conversion.event(message.event)
        if event.sequence < self._next_sequence:
            return None
        self._next_sequence = event.sequence + 1
        self._reconnection.came()
        return event

    def wait_after(self, error: RpcError) -> float | None:
        """Return the seconds to wait before watching on, or None where the error is final."""
        return self._reconnection.wait_after(error)
