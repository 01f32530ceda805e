"""The words of the protocol, as string enumerations: `Strategy.ABORT == "ABORT"`.

A value that this version of the SDK doesn't know reads as `UNSPECIFIED`.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "ApprovalState",
    "AttemptState",
    "CompensationResolution",
    "CompensationState",
    "CrashPolicy",
    "DependencyKind",
    "EffectClass",
    "EffectState",
    "EventType",
    "GraphFormat",
    "HealthStatus",
    "Isolation",
    "OnConflict",
    "OnUndoFailure",
    "PathSource",
    "RejectedCalls",
    "StepResolution",
    "StepStatus",
    "Strategy",
    "ToolLocation",
    "TransactionStatus",
]


class TransactionStatus(StrEnum):
    """Where a transaction is in its life; the last three are terminal."""

    UNSPECIFIED = "UNSPECIFIED"
    ACTIVE = "ACTIVE"
    EXECUTING = "EXECUTING"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    IN_DOUBT = "IN_DOUBT"
    ROLLING_BACK = "ROLLING_BACK"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        """Whether the transaction has ended."""
        return self in (TransactionStatus.COMMITTED, TransactionStatus.ROLLED_BACK, TransactionStatus.FAILED)


class StepStatus(StrEnum):
    """How a step was answered."""

    UNSPECIFIED = "UNSPECIFIED"
    SUCCESS = "SUCCESS"
    ROLLBACK_TRIGGERED = "ROLLBACK_TRIGGERED"
    FAILED = "FAILED"
    IN_DOUBT = "IN_DOUBT"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"


class StepResolution(StrEnum):
    """What a person says of a step in doubt: its effect happened, it did not, or its call may be run again."""

    UNSPECIFIED = "UNSPECIFIED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    RETRY = "RETRY"


class Strategy(StrEnum):
    """How the rollback controller answered a failure."""

    UNSPECIFIED = "UNSPECIFIED"
    NONE = "NONE"
    LOCAL_BACKTRACK = "LOCAL_BACKTRACK"
    DEPENDENCY_JUMP = "DEPENDENCY_JUMP"
    GLOBAL_RESET = "GLOBAL_RESET"
    MANUAL = "MANUAL"
    ABORT = "ABORT"


class DependencyKind(StrEnum):
    """How a dependency was found: by a reference, or by an equal value under a matching key."""

    UNSPECIFIED = "UNSPECIFIED"
    EXPLICIT = "EXPLICIT"
    IMPLICIT = "IMPLICIT"


class PathSource(StrEnum):
    """How the search for a root cause came to a path element."""

    UNSPECIFIED = "UNSPECIFIED"
    ERROR_KEY = "ERROR_KEY"
    EXPLICIT_EDGE = "EXPLICIT_EDGE"
    IMPLICIT_EDGE = "IMPLICIT_EDGE"
    PASS_THROUGH = "PASS_THROUGH"


class EffectClass(StrEnum):
    """What a tool promises about its effect."""

    UNSPECIFIED = "UNSPECIFIED"
    READ_ONLY = "READ_ONLY"
    TRANSACTIONAL = "TRANSACTIONAL"
    IDEMPOTENT = "IDEMPOTENT"
    COMPENSATABLE = "COMPENSATABLE"
    IRREVERSIBLE = "IRREVERSIBLE"

    @property
    def acts_outside(self) -> bool:
        """Whether a tool of this class may change the world outside its transaction."""
        return self in (EffectClass.IDEMPOTENT, EffectClass.COMPENSATABLE, EffectClass.IRREVERSIBLE)


class ToolLocation(StrEnum):
    """Where a tool runs."""

    UNSPECIFIED = "UNSPECIFIED"
    SERVER = "SERVER"
    WORKER = "WORKER"
    MCP = "MCP"
    HTTP = "HTTP"


class AttemptState(StrEnum):
    """How far one execution of a step got."""

    UNSPECIFIED = "UNSPECIFIED"
    EXECUTING = "EXECUTING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    IN_DOUBT = "IN_DOUBT"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    SUPERSEDED = "SUPERSEDED"
    WITHDRAWN = "WITHDRAWN"
    WAITING = "WAITING"


class ApprovalState(StrEnum):
    """Whether a person has said yes or no to a step that waits, or is asked no more."""

    UNSPECIFIED = "UNSPECIFIED"
    PENDING = "PENDING"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    WITHDRAWN = "WITHDRAWN"


class CompensationState(StrEnum):
    """How far an undo action got."""

    UNSPECIFIED = "UNSPECIFIED"
    REGISTERED = "REGISTERED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    RESOLVED = "RESOLVED"
    RELEASED = "RELEASED"
    AWAITING_AGENT = "AWAITING_AGENT"


class CompensationResolution(StrEnum):
    """What a person said of an effect whose undo failed: undone by other means, or it stays."""

    UNSPECIFIED = "UNSPECIFIED"
    UNDONE = "UNDONE"
    KEPT = "KEPT"


class EffectState(StrEnum):
    """How far a staged effect got."""

    UNSPECIFIED = "UNSPECIFIED"
    STAGED = "STAGED"
    READY = "READY"
    DELIVERED = "DELIVERED"
    DEAD = "DEAD"
    DISCARDED = "DISCARDED"


class Isolation(StrEnum):
    """What a commit checks: written keys, or written and read ones. UNSPECIFIED is READ_COMMITTED."""

    UNSPECIFIED = "UNSPECIFIED"
    READ_COMMITTED = "READ_COMMITTED"
    SERIALIZABLE = "SERIALIZABLE"


class CrashPolicy(StrEnum):
    """What becomes of an open transaction when its server dies. UNSPECIFIED is RESUME."""

    UNSPECIFIED = "UNSPECIFIED"
    RESUME = "RESUME"
    ABORT = "ABORT"


class OnConflict(StrEnum):
    """What a commit conflict does. UNSPECIFIED is the server's default."""

    UNSPECIFIED = "UNSPECIFIED"
    ABORT = "ABORT"
    REWIND = "REWIND"


class OnUndoFailure(StrEnum):
    """What an undo action that fails for good does to its rewind. UNSPECIFIED is the server's default."""

    UNSPECIFIED = "UNSPECIFIED"
    HOLD = "HOLD"
    CONTINUE = "CONTINUE"


class RejectedCalls(StrEnum):
    """How a call that never reached its tool is decided. UNSPECIFIED is the server's default."""

    UNSPECIFIED = "UNSPECIFIED"
    BACKTRACK = "BACKTRACK"
    RETRY_STEP = "RETRY_STEP"


class GraphFormat(StrEnum):
    """Form of a dependency graph drawn as text."""

    MERMAID = "MERMAID"
    DOT = "DOT"
    JSON = "JSON"


class HealthStatus(StrEnum):
    """What the server says of its own health; SERVICE_UNKNOWN where it doesn't know the service's name."""

    UNSPECIFIED = "UNSPECIFIED"
    UNKNOWN = "UNKNOWN"
    SERVING = "SERVING"
    NOT_SERVING = "NOT_SERVING"
    SERVICE_UNKNOWN = "SERVICE_UNKNOWN"


class EventType(StrEnum):
    """What an event of a transaction's journal reports."""

    UNSPECIFIED = "UNSPECIFIED"
    TRANSACTION_BEGUN = "TRANSACTION_BEGUN"
    STEP_STARTED = "STEP_STARTED"
    STEP_COMPLETED = "STEP_COMPLETED"
    STEP_FAILED = "STEP_FAILED"
    STEP_IN_DOUBT = "STEP_IN_DOUBT"
    STEP_CANCELLED = "STEP_CANCELLED"
    ROLLBACK_STARTED = "ROLLBACK_STARTED"
    UNDO_COMPLETED = "UNDO_COMPLETED"
    UNDO_FAILED = "UNDO_FAILED"
    TRANSACTION_REWOUND = "TRANSACTION_REWOUND"
    ROLLBACK_HELD = "ROLLBACK_HELD"
    TRANSACTION_COMMITTED = "TRANSACTION_COMMITTED"
    TRANSACTION_ROLLED_BACK = "TRANSACTION_ROLLED_BACK"
    TRANSACTION_FAILED = "TRANSACTION_FAILED"
    COMMIT_CONFLICT = "COMMIT_CONFLICT"
    EFFECT_DELIVERED = "EFFECT_DELIVERED"
    EFFECT_FAILED = "EFFECT_FAILED"
    EFFECT_DEAD = "EFFECT_DEAD"
    EFFECT_REQUEUED = "EFFECT_REQUEUED"
    EFFECT_DISCARDED = "EFFECT_DISCARDED"
    STEP_AWAITING_APPROVAL = "STEP_AWAITING_APPROVAL"
    STEP_APPROVED = "STEP_APPROVED"
    STEP_REJECTED = "STEP_REJECTED"
    STEP_RESOLVED = "STEP_RESOLVED"
    UNDO_RESOLVED = "UNDO_RESOLVED"
    LATE_EFFECT_REPORTED = "LATE_EFFECT_REPORTED"
    STEP_SUPERSEDED = "STEP_SUPERSEDED"
    APPROVAL_WITHDRAWN = "APPROVAL_WITHDRAWN"
