"""When a call is sent again, and when its error is final.

Every changing call carries a request_id, so sending it again never makes it happen twice: the server answers the
recorded response, or waits for the one still running. That makes UNAVAILABLE safe to retry, and the deadline of a
single attempt, and whatever the server marked with a RetryInfo. Nothing else is retried. gRPC's own retries are
switched off, or two layers would multiply.

tenacity was considered and left out: the SDK adds no dependency to its host application, and what is here is one
decision that the synchronous and the asynchronous client share.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agenttx.errors import DeadlineExceeded, RpcError, Unavailable

__all__ = ["RetryPolicy", "RetrySchedule"]

# Deadlines of the work itself and not of the call: they have been reached for good.
_FINAL_REASONS = frozenset({"NODE_TIMEOUT", "RUN_DEADLINE"})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a call is tried, and how often.

    Attributes:
        overall_timeout_seconds: Time for a call with all its retries; a step's own timeout comes on top. > 0.
        attempt_timeout_seconds: Time for one attempt; a call that goes on at the server is found again by the next
            attempt. > 0.
        initial_backoff_seconds: Upper end of the first wait. Waits are drawn evenly between 0 and the upper end
            ("full jitter"), on top of what the server asked for in a RetryInfo. ≥ 0.
        max_backoff_seconds: Upper end of the longest wait. ≥ initial_backoff_seconds.
        multiplier: How the upper end grows from wait to wait. ≥ 1.
        max_attempts: Most attempts; None for as many as fit; 1 for no retries.
        clock: Seconds that never go back; tests give their own, as they do for the next three.
        random: A number in [0, 1).
        sleep: Waits, in the synchronous client.
        async_sleep: Waits, in the asynchronous client.
    """

    overall_timeout_seconds: float = 120.0
    attempt_timeout_seconds: float = 40.0
    initial_backoff_seconds: float = 0.05
    max_backoff_seconds: float = 5.0
    multiplier: float = 2.0
    max_attempts: int | None = None
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    random: Callable[[], float] = field(default=random.random, repr=False, compare=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)
    async_sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (self.overall_timeout_seconds > 0 and self.attempt_timeout_seconds > 0):
            raise ValueError("overall_timeout_seconds and attempt_timeout_seconds must be greater than 0")
        if not 0 <= self.initial_backoff_seconds <= self.max_backoff_seconds:
            raise ValueError("initial_backoff_seconds must lie between 0 and max_backoff_seconds")
        if self.multiplier < 1:
            raise ValueError("multiplier must be at least 1")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ValueError("max_attempts must be at least 1")

    def begin(self, *, extra_seconds: float = 0.0, limit_seconds: float | None = None) -> RetrySchedule:
        """Return the schedule of one call that begins now.

        Args:
            extra_seconds: Added to overall_timeout_seconds: the time the call itself may legitimately take.
            limit_seconds: In place of overall_timeout_seconds and extra_seconds.
        """
        limit = self.overall_timeout_seconds + extra_seconds if limit_seconds is None else limit_seconds
        return RetrySchedule(self, self.clock() + limit)


class RetrySchedule:
    """The attempts of one call: how long the next may take, and whether there is another after an error."""

    def __init__(self, policy: RetryPolicy, deadline: float) -> None:
        self._policy = policy
        self._deadline = deadline
        self._attempts = 0
        self._longest_wait = policy.initial_backoff_seconds

    def next_attempt(self) -> float:
        """Count one more attempt and return the seconds it may take."""
        self._attempts += 1
        return max(min(self._policy.attempt_timeout_seconds, self._remaining()), 0.001)

    def wait_after(self, error: RpcError) -> float | None:
        """Return the seconds to wait before the next attempt, or None where the error is final."""
        error.attempts = self._attempts
        if self._attempts == self._policy.max_attempts or not is_retryable(error):
            return None
        wait = (error.retry_after_seconds or 0.0) + self._longest_wait * self._policy.random()
        self._longest_wait = min(
            self._longest_wait * self._policy.multiplier, self._policy.max_backoff_seconds
        )
        # Waiting out the rest only to give up then would tell the caller the same, later.
        return wait if wait < self._remaining() else None

    def _remaining(self) -> float:
        return self._deadline - self._policy.clock()


def is_retryable(error: RpcError) -> bool:
    """Whether the same request may succeed later."""
    if error.reason in _FINAL_REASONS:
        return False
    return isinstance(error, Unavailable | DeadlineExceeded) or error.retry_after_seconds is not None
