"""Effects on their way out, people who approve, time, ids and chance."""

from __future__ import annotations

from typing import Any, Protocol

from agenttx_server.engine.records import (
    EffectRecord,
    MicrosecondsUtc,
    TransactionId,
)

__all__ = ["ApprovalPolicy", "Clock", "DeliveryFailed", "EffectSink", "IdSource"]


class ApprovalPolicy(Protocol):
    """Says which calls a person is asked about, beside those of tools that always need it."""

    def why(self, tool_name: str, arguments: Any) -> str:
        """Return in one line why a call needs approval, empty if it does not. ``arguments`` are left as they are.

        Pure, and never raises: a rule that can't be judged is a reason to ask.
        """


class DeliveryFailed(Exception):
    """An effect could not be delivered, and the sink knows more about when it could.

    ``permanent`` is that trying again is pointless; ``retry_after_seconds`` the least time that the
    receiver asks to be left alone for, None if it doesn't say.
    """

    def __init__(
        self, message: str, *, permanent: bool = False, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.permanent = permanent
        self.retry_after_seconds = retry_after_seconds


class EffectSink(Protocol):
    """Takes an effect out into the world, at least once, under a stable key."""

    async def deliver(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        """Deliver one effect; returning means that it is safely delivered.

        ``effect.attempts`` counts this delivery, and those before it whose end a crash may have
        hidden. Raises DeliveryFailed, or anything else, on failure: it is then tried again later.
        """


class Clock(Protocol):
    """Time. ``now`` is wall time, ``monotonic`` seconds for durations."""

    def now(self) -> MicrosecondsUtc: ...
    def monotonic(self) -> float: ...
    async def sleep(self, seconds: float) -> None: ...


class IdSource(Protocol):
    """New ids (UUIDv7, ordered by time of making) and randomness for jitter."""

    def new_id(self) -> str: ...
    def random(self) -> float:
        """Return a number in [0, 1)."""
