"""The engine's errors, one small tree. A failing *step* is never one of these.

    EngineError
    ├── InvalidRequest            INVALID_ARGUMENT     one violation a bad field
    │   └── RequestIdReused       INVALID_ARGUMENT     a request_id met another request
    ├── NotFound                  NOT_FOUND
    ├── PreconditionFailed        FAILED_PRECONDITION  reason says which (STEP_OUT_OF_ORDER, …)
    ├── CommitConflict            ABORTED              the transaction was compensated
    ├── LimitExceeded             RESOURCE_EXHAUSTED
    ├── NotSupported              UNIMPLEMENTED
    └── Unavailable               UNAVAILABLE          retry after ``retry_after_seconds``

Each carries an UPPER_SNAKE ``reason`` of error_reason.proto and flat string ``metadata``;
the api layer maps classes to codes by one table and never reads a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "CommitConflict",
    "EngineError",
    "FieldViolation",
    "InvalidRequest",
    "LimitExceeded",
    "NotFound",
    "NotSupported",
    "PreconditionFailed",
    "RequestIdReused",
    "RunsElsewhere",
    "TooManyOpen",
    "Unavailable",
]


class RunsElsewhere(Exception):
    """Another server is at work on the transaction: the coordinator waits for it and tries again.

    No EngineError: a caller never sees it.
    """


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A request field (its proto name, dotted for nested ones) and what is wrong with it."""

    field: str
    description: str


class EngineError(Exception):
    """A call that was refused; nothing was changed unless the class says otherwise."""

    def __init__(self, message: str, *, reason: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})


class InvalidRequest(EngineError):
    """The request breaks a rule whatever the transaction's state; all violations are listed."""

    def __init__(
        self,
        violations: tuple[FieldViolation, ...],
        *,
        reason: str = "INVALID_REQUEST",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        message = "; ".join(f"{violation.field}: {violation.description}" for violation in violations)
        super().__init__(message, reason=reason, metadata=metadata)
        self.violations = violations


class RequestIdReused(InvalidRequest):
    """A request_id came again with another request."""

    def __init__(self, request_id: str, recorded: str, received: str) -> None:
        super().__init__(
            (
                FieldViolation(
                    "request_id",
                    f"was used for another request (recorded {recorded}, received {received}); "
                    "use a new request_id for a new request",
                ),
            ),
            reason="REQUEST_ID_REUSED",
            metadata={"request_id": request_id, "recorded": recorded, "received": received},
        )


class NotFound(EngineError):
    """No such transaction, step or key (or not the caller's)."""


class PreconditionFailed(EngineError):
    """The transaction's state forbids the call; ``reason`` says how."""


class CommitConflict(EngineError):
    """A written (or, if serializable, read) key was changed by another commit."""


class LimitExceeded(EngineError):
    """A size limit or quota."""


class TooManyOpen(LimitExceeded):
    """As many transactions are open as may be; others may have ended after ``retry_after_seconds``."""

    retry_after_seconds = 5.0


class NotSupported(EngineError):
    """A part of the protocol that this server does not serve."""


class Unavailable(EngineError):
    """Not possible now; the same request may be sent again after ``retry_after_seconds``."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "DATABASE_UNAVAILABLE",
        retry_after_seconds: float = 1.0,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, reason=reason, metadata=metadata)
        self.retry_after_seconds = retry_after_seconds
