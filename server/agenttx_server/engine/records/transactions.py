"""A transaction: its status, its rewinds, and what was answered of it."""

from __future__ import annotations

from enum import StrEnum

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records.decisions import (
    Constraint,
    CrashPolicy,
    Decision,
    Isolation,
    Policy,
    Strategy,
)
from agenttx_server.engine.records.identities import AttemptKey, MicrosecondsUtc, ServerId, TransactionId
from agenttx_server.engine.records.tools import KeptEffect

__all__ = [
    "HeldState",
    "PendingRewind",
    "RecordedResponse",
    "RewindPurpose",
    "RewindRequestKey",
    "StopKind",
    "StopRequest",
    "TransactionRecord",
    "TransactionStatus",
]


class TransactionStatus(StrEnum):
    """Where a transaction is in its life; the last three are terminal."""

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


class RewindPurpose(StrEnum):
    """Why a transaction is being rewound; it settles the status at the end."""

    DECISION = "DECISION"
    REWIND = "REWIND"
    ROLLBACK = "ROLLBACK"
    CONFLICT = "CONFLICT"
    RECOVERY = "RECOVERY"


@dataclass(frozen=True, slots=True)
class RewindRequestKey:
    """A call that asked for a rewind and is owed its answer: RPC name, request_id, identity."""

    method: str
    request_id: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class PendingRewind:
    """A rewind whose undo actions are running or held; durable until its last commit.

    ``members`` are the attempts of the failing group whose recorded answers wait for the
    end, ``requests`` the calls that do; ``final_status`` is ACTIVE, ROLLED_BACK or FAILED.
    ``held`` is that it waits for a person, because undo actions failed, or for the agent, which has some to do
    itself; ``retrying`` that the owner runs one of them again.
    """

    purpose: RewindPurpose
    to_step: int
    final_status: TransactionStatus
    started_at: MicrosecondsUtc
    strategy: Strategy = Strategy.MANUAL
    decision: Decision | None = None
    members: tuple[AttemptKey, ...] = ()
    context_reset: bool = False
    requests: tuple[RewindRequestKey, ...] = ()
    reason: str = ""
    kept_effects: tuple[KeptEffect, ...] = ()
    compensations_run: int = 0
    held: bool = False
    retrying: bool = False

    @property
    def is_under_way(self) -> bool:
        """Whether the transaction's owner is at work on it."""
        return not self.held or self.retrying


@dataclass(frozen=True, slots=True)
class HeldState:
    """Of an open held group: the members that were let go, and those that lost a conflict and are to run again."""

    let_go: tuple[int, ...] = ()
    losers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """The head of a transaction: everything about it that is one row.

    ``revision`` is 1 at the first write and grows by one with each; a write is guarded by
    it. ``furthest_step`` is N of the replay budget, kept over resets. ``failures`` and
    ``jumps`` count by step in this epoch; ``budget_spent`` is this epoch's replayed steps.
    ``open_group`` is (first step, size) of a group that is not settled yet.

    ``owner`` is the server that has unsettled work here (under crash policy ABORT: the one that
    wrote last); when its lease ends, another one takes the transaction over. ``outbox_due_at`` is
    when its effects are to be delivered next, None if none waits; ``outbox_owner`` is the server
    that delivers them now. ``idle_timeout_us`` 0 is never. ``undo_was_skipped`` is that a rewind was
    completed over a failed undo action (policy on_undo_failure = CONTINUE). ``begin_request_id`` leads
    to the recorded answer of the call that began it, which is kept as long as it is.

    ``has_sub_steps`` is that a step of it ever made one. ``run_id`` is the run that owns it, empty for none: then only
    the run moves it on. ``keeps_records`` is that its steps' outputs become records when it commits. ``held`` is that ``open_group`` is decided on by nobody, and what is known of it beyond its
    attempts.
    """

    transaction_id: TransactionId
    principal: str
    agent_id: str
    metadata: tuple[tuple[str, str], ...]
    policy: Policy
    isolation: Isolation
    crash_policy: CrashPolicy
    created_at: MicrosecondsUtc
    updated_at: MicrosecondsUtc
    idle_timeout_us: int | None = None
    step_timeout_us: int | None = None
    status: TransactionStatus = TransactionStatus.ACTIVE
    revision: int = 1
    next_step_id: int = 1
    generation: int = 1
    epoch: int = 1
    furthest_step: int = 0
    global_resets: int = 0
    budget_spent: int = 0
    replayed_steps: int = 0
    failures: tuple[tuple[int, int], ...] = ()
    jumps: tuple[tuple[int, int], ...] = ()
    constraints: tuple[Constraint, ...] = ()
    open_group: tuple[int, int] | None = None
    pending_rewind: PendingRewind | None = None
    kept_effects: tuple[KeptEffect, ...] = ()
    abort_reason: str = ""
    commit_version: int = 0
    event_sequence: int = 0
    undo_sequence: int = 0
    effect_sequence: int = 0
    approval_sequence: int = 0
    ended_at: MicrosecondsUtc | None = None
    deadline_at: MicrosecondsUtc | None = None
    owner: ServerId = ServerId("")
    outbox_owner: ServerId = ServerId("")
    outbox_due_at: MicrosecondsUtc | None = None
    undo_was_skipped: bool = False
    begin_request_id: str = ""
    has_sub_steps: bool = False
    run_id: str = ""
    held: HeldState | None = None
    keeps_records: bool = False


class StopKind(StrEnum):
    """Why a running step is to stop: CancelStep, or a rewind or an abort that waits for it."""

    CANCEL_STEP = "CANCEL_STEP"
    REWIND = "REWIND"


@dataclass(frozen=True, slots=True)
class StopRequest:
    """What a server asks of the one that runs a transaction's step; ``step_id`` 0 means its whole group."""

    transaction_id: TransactionId
    kind: StopKind
    step_id: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class RecordedResponse:
    """The final answer to a changing call other than a step, found again by its request_id.

    ``scope`` is the transaction id, or ``principal:<name>`` for calls outside one;
    ``method`` and ``fingerprint`` tell a repeat from a reuse.
    """

    scope: str
    request_id: str
    method: str
    fingerprint: str
    response: str
