"""Watching a transaction over as many streams as it takes: every event once, in order."""

from __future__ import annotations

from agenttx import message_conversion as conversion
from agenttx.errors import RpcError
from agenttx.records import Event
from agenttx.retry_policy import RetryPolicy, RetrySchedule
from agenttx.v1 import transaction_pb2 as pb
from agenttx.values import count

__all__ = ["EventCursor"]

_CUT_FOR_READING_SLOWLY = "SLOW_CONSUMER"


class EventCursor:
    """How far a watcher has come, and how long it has been cut off."""

    def __init__(self, transaction_id: str, from_sequence: int, policy: RetryPolicy) -> None:
        self._transaction_id = transaction_id
        self._policy = policy
        self._next_sequence = max(count("from_sequence", from_sequence, bits=64), 1)
        self._cut_off: RetrySchedule | None = None
        self._opened_at = 0.0

    def open(self) -> pb.WatchTransactionRequest:
        """Return the request for what is next, for a stream that is opened now."""
        self._opened_at = self._policy.clock()
        if self._cut_off is not None:
            self._cut_off.next_attempt()
        return pb.WatchTransactionRequest(
            transaction_id=self._transaction_id, from_sequence=self._next_sequence
        )

    def take(self, message: pb.WatchTransactionResponse) -> Event | None:
        """Return the event, or None where it was there before."""
        event = conversion.event(message.event)
        if event.sequence < self._next_sequence:
            return None
        self._next_sequence = event.sequence + 1
        self._cut_off = None
        return event

    def wait_after(self, error: RpcError) -> float | None:
        """Return the seconds to wait before watching on, or None where the error is final."""
        if error.reason == _CUT_FOR_READING_SLOWLY:
            return 0.0
        if self._policy.clock() - self._opened_at > self._policy.attempt_timeout_seconds:
            # The stream had stood, only nothing happened in the transaction: this is a new break.
            self._cut_off = None
        if self._cut_off is None:
            self._cut_off = self._policy.begin()
            self._cut_off.next_attempt()
        return self._cut_off.wait_after(error)
