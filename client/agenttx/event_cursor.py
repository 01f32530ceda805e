"""Watching a transaction over as many streams as it takes: every event once, in order."""

from __future__ import annotations

from agenttx import message_conversion as conversion
from agenttx.errors import RpcError
from agenttx.records import Event
from agenttx.retry_policy import RetryPolicy, RetrySchedule
from agenttx.v1 import transaction_pb2 as pb

__all__ = ["EventCursor"]

_CUT_FOR_READING_SLOWLY = "SLOW_CONSUMER"


class EventCursor:
    """How far a watcher has come, and how long it has been without an event."""

    def __init__(self, transaction_id: str, from_sequence: int, policy: RetryPolicy) -> None:
        self._transaction_id = transaction_id
        self._policy = policy
        self._next_sequence = max(from_sequence, 1)
        self._schedule = self._begin()

    def request(self) -> pb.WatchTransactionRequest:
        """Return the request for what is next."""
        return pb.WatchTransactionRequest(
            transaction_id=self._transaction_id, from_sequence=self._next_sequence
        )

    def take(self, message: pb.WatchTransactionResponse) -> Event | None:
        """Return the event, or None where it was there before."""
        event = conversion.event(message.event)
        if event.sequence < self._next_sequence:
            return None
        self._next_sequence = event.sequence + 1
        self._schedule = self._begin()
        return event

    def wait_after(self, error: RpcError) -> float | None:
        """Return the seconds to wait before watching on, or None where the error is final."""
        if error.reason == _CUT_FOR_READING_SLOWLY:
            return 0.0
        wait = self._schedule.wait_after(error)
        self._schedule.next_attempt()
        return wait

    def _begin(self) -> RetrySchedule:
        schedule = self._policy.begin()
        schedule.next_attempt()
        return schedule
