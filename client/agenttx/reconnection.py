"""When a stream that was cut is opened again."""

from __future__ import annotations

from agenttx.errors import RpcError
from agenttx.retry_policy import RetryPolicy, RetrySchedule

__all__ = ["Reconnection"]

_CUT_FOR_READING_SLOWLY = "SLOW_CONSUMER"


class Reconnection:
    """How long a reader has been cut off: nothing came since the first break."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._cut_off: RetrySchedule | None = None
        self._opened_at = 0.0

    def opening(self) -> None:
        """A stream is opened now."""
        self._opened_at = self._policy.clock()
        if self._cut_off is not None:
            self._cut_off.next_attempt()

    def came(self) -> None:
        """Something new came: the next break is a new one."""
        self._cut_off = None

    def wait_after(self, error: RpcError) -> float | None:
        """Return the seconds to wait before the stream is opened again, or None where the error is final."""
        if error.reason == _CUT_FOR_READING_SLOWLY:
            return 0.0
        if self._policy.clock() - self._opened_at > self._policy.attempt_timeout_seconds:
            # The stream had stood, only nothing happened: this is a new break.
            self._cut_off = None
        if self._cut_off is None:
            self._cut_off = self._policy.begin()
            self._cut_off.next_attempt()
        return self._cut_off.wait_after(error)
