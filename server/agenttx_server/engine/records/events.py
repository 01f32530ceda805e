"""The history of a transaction."""

from __future__ import annotations

from enum import StrEnum

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records.identities import MicrosecondsUtc

__all__ = ["EventRecord", "EventType"]


class EventType(StrEnum):
    """What an event of a transaction tells."""

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
    STEP_RESOLVED = "STEP_RESOLVED"
    STEP_SUPERSEDED = "STEP_SUPERSEDED"
    UNDO_RESOLVED = "UNDO_RESOLVED"
    LATE_EFFECT_REPORTED = "LATE_EFFECT_REPORTED"
    STEP_AWAITING_APPROVAL = "STEP_AWAITING_APPROVAL"
    STEP_APPROVED = "STEP_APPROVED"
    STEP_REJECTED = "STEP_REJECTED"
    APPROVAL_WITHDRAWN = "APPROVAL_WITHDRAWN"


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event; ``sequence`` counts from 1 without gaps in its transaction; ``payload`` is JSON."""

    sequence: int
    type: EventType
    generation: int
    occurred_at: MicrosecondsUtc
    step_id: int = 0
    attempt: int = 0
    payload: str = "{}"
    sub_step: int = 0
