"""What is settled after a step: effects on their way, undo, approvals."""

from __future__ import annotations

from enum import StrEnum

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records.decisions import Hint
from agenttx_server.engine.records.identities import MicrosecondsUtc
from agenttx_server.engine.records.tools import EffectClass

__all__ = [
    "ApprovalRecord",
    "ApprovalState",
    "EffectRecord",
    "EffectState",
    "UndoRecord",
    "UndoResolution",
    "UndoState",
]


class EffectState(StrEnum):
    """Where a staged effect is on its way out."""

    STAGED = "STAGED"
    READY = "READY"
    DELIVERED = "DELIVERED"
    DEAD = "DEAD"
    DISCARDED = "DISCARDED"


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """An outside effect that waits for commit, then for delivery.

    ``next_attempt_at`` is when a READY one is tried next, None for at once; ``settled_at`` when it
    was delivered, given up or discarded.
    """

    effect_id: str
    step_id: int
    attempt: int
    sequence: int
    channel: str
    payload: str
    idempotency_key: str
    staged_at: MicrosecondsUtc
    state: EffectState = EffectState.STAGED
    attempts: int = 0
    last_error: str = ""
    delivered_at: MicrosecondsUtc | None = None
    next_attempt_at: MicrosecondsUtc | None = None
    settled_at: MicrosecondsUtc | None = None
    sub_step: int = 0


class UndoState(StrEnum):
    """Whether an undo action is owed if its step is undone, was done, failed, or was settled by a person.

    LATE: its attempt reported a late effect, so it is owed now, whatever becomes of its step.
    AWAITING_AGENT: its step is being undone, and the agent that ran it has to do this now.
    """

    PENDING = "PENDING"
    DONE = "DONE"
    FAILED = "FAILED"
    RESOLVED = "RESOLVED"
    LATE = "LATE"
    AWAITING_AGENT = "AWAITING_AGENT"


class UndoResolution(StrEnum):
    """What a person said of an effect whose undo failed: undone by other means, or it stays."""

    UNDONE = "UNDONE"
    KEPT = "KEPT"


@dataclass(frozen=True, slots=True)
class UndoRecord:
    """An undo action registered before its effect; run newest ``sequence`` first.

    ``late`` is that its attempt reported an effect after it was given up; such a row holds no
    rewind and no rewind removes it. A late effect without undo has an empty ``undo_name``. ``by_agent`` is
    that no server can do it, only the agent that ran the step itself.
    """

    sequence: int
    step_id: int
    attempt: int
    tool_name: str
    undo_name: str
    arguments: str
    idempotency_key: str
    registered_at: MicrosecondsUtc
    state: UndoState = UndoState.PENDING
    attempts: int = 0
    hint: Hint | None = None
    ended_at: MicrosecondsUtc | None = None
    raw_error: str = ""
    late: bool = False
    resolution: UndoResolution | None = None
    note: str = ""
    by_agent: bool = False
    sub_step: int = 0


class ApprovalState(StrEnum):
    """Whether a person has said yes or no to a step, or is asked no more."""

    PENDING = "PENDING"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    WITHDRAWN = "WITHDRAWN"


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    """A question to a person: may this very call run, once?

    ``sequence`` counts a transaction's questions from 1. ``arguments`` is the canonical text after
    references: an approval covers these and no others. ``attempt`` is the attempt that asked,
    ``used_attempt`` the one that began under it, 0 while none has. ``reason`` is why a person is asked, in
    one line. ``decided_*`` and ``comment`` stay when what was approved is withdrawn.
    """

    sequence: int
    step_id: int
    attempt: int
    tool_name: str
    effect_class: EffectClass
    arguments: str
    reason: str
    requested_at: MicrosecondsUtc
    state: ApprovalState = ApprovalState.PENDING
    decided_at: MicrosecondsUtc | None = None
    decided_by: str = ""
    comment: str = ""
    used_attempt: int = 0
    used_at: MicrosecondsUtc | None = None
    withdrawn_at: MicrosecondsUtc | None = None
    withdrawn_reason: str = ""

    @property
    def is_live(self) -> bool:
        """Whether it waits for a decision, or was given and not used yet."""
        return self.state in (ApprovalState.PENDING, ApprovalState.APPROVED) and not self.used_attempt
