"""Work over a connection, written once for both clients.

An operation is a generator that yields a `Call` wherever it needs an answer and is resumed with the response, or with
the typed error. The synchronous and the asynchronous connection drive the same operation, each in its own manner.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from agenttx.methods import Method, RequestT, ResponseT
from agenttx.retry_policy import RetryPolicy, RetrySchedule

__all__ = ["Call", "Operation", "invoke"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[RequestT, ResponseT]):
    """One RPC to make, with its retries.

    Attributes:
        method: The RPC.
        request: Its request.
        extra_seconds: Time that the call itself may legitimately take, on top of the overall timeout.
        limit_seconds: Overall time in place of the policy's; None for the policy's.
    """

    method: Method[RequestT, ResponseT]
    request: RequestT
    extra_seconds: float = 0.0
    limit_seconds: float | None = None

    def begin(self, policy: RetryPolicy) -> RetrySchedule:
        """Return the schedule of its attempts, from now."""
        return policy.begin(extra_seconds=self.extra_seconds, limit_seconds=self.limit_seconds)


Operation = Generator[Call[Any, Any], Any, T]
"""A piece of work over some connection: yields calls, is sent their responses, returns its result."""


def invoke(
    method: Method[RequestT, ResponseT],
    request: RequestT,
    *,
    extra_seconds: float = 0.0,
    limit_seconds: float | None = None,
) -> Operation[ResponseT]:
    """Make one call from within an operation."""
    response = yield Call(method, request, extra_seconds, limit_seconds)
    return cast("ResponseT", response)
