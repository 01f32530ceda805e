"""The facts the engine works with: ids, enumerations and frozen records.

Everything that crosses a layer is one of these. JSON values travel as canonical text
(``str``; see :mod:`.json_values`), so that a layer which only carries a value never pays
for parsing it and can never change it. Times are UTC microseconds since 1970 (``int``).
"""

from __future__ import annotations

from dataclasses import field
from decimal import Decimal
from enum import StrEnum
from typing import NewType

from agenttx_server.engine.frozen import dataclass

__all__ = [
    "ApprovalRecord",
    "ApprovalState",
    "AttemptKey",
    "AttemptRecord",
    "AttemptState",
    "CommitCheck",
    "CommitCheckKind",
    "CommittedEntry",
    "Constraint",
    "CrashPolicy",
    "Decision",
    "DependencyKind",
    "Edge",
    "EffectClass",
    "EffectRecord",
    "EffectState",
    "EventRecord",
    "EventType",
    "HeldState",
    "Hint",
    "HintCategory",
    "Isolation",
    "KeptEffect",
    "MicrosecondsUtc",
    "OnConflict",
    "OnUndoFailure",
    "PassedOverRung",
    "PathElement",
    "PathSource",
    "PendingRewind",
    "Policy",
    "RecordedResponse",
    "RejectedCalls",
    "RewindPurpose",
    "RewindRequestKey",
    "ServerId",
    "StateRead",
    "StateWrite",
    "StepResolution",
    "StopKind",
    "StopRequest",
    "Strategy",
    "SubStepPlace",
    "ToolDescription",
    "ToolLocation",
    "TransactionId",
    "TransactionRecord",
    "TransactionStatus",
    "UndoRecord",
    "UndoResolution",
    "UndoState",
]

TransactionId = NewType("TransactionId", str)
MicrosecondsUtc = NewType("MicrosecondsUtc", int)
# One life of one server process: a process that starts again, or lost its lease, takes a new one.
ServerId = NewType("ServerId", str)


class HintCategory(StrEnum):
    """What kind of mistake a failed step was; the closed list of Clean Hints."""

    FOREIGN_KEY_VIOLATION = "foreign_key_violation"
    UNIQUE_VIOLATION = "unique_violation"
    NOT_NULL_VIOLATION = "not_null_violation"
    CHECK_VIOLATION = "check_violation"
    MISSING_SCHEMA_OBJECT = "missing_schema_object"
    MISSING_RECORD = "missing_record"
    MISSING_ARGUMENT = "missing_argument"
    MISSING_KEY = "missing_key"
    NULL_REFERENCE = "null_reference"
    INVALID_VALUE = "invalid_value"
    INVALID_JSON = "invalid_json"
    FILE_NOT_FOUND = "file_not_found"
    PERMISSION_DENIED = "permission_denied"
    AUTHENTICATION = "authentication"
    RATE_LIMITED = "rate_limited"
    HTTP_CLIENT_ERROR = "http_client_error"
    HTTP_SERVER_ERROR = "http_server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    UNKNOWN_TOOL = "unknown_tool"
    UNRESOLVED_REFERENCE = "unresolved_reference"
    CONFLICT = "conflict"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    CANCELLED = "cancelled"
    ASSERTION = "assertion"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Hint:
    """One true line about a failure, for the agent.

    ``text`` begins with ``Hint: `` and is one line of at most 240 characters. ``keys`` are
    the offending columns, fields or arguments, most telling first; empty when the error
    names none. ``rule`` is the rule that read the error, None for the fallback line.
    """

    text: str
    category: HintCategory
    rule: str | None = None
    keys: tuple[str, ...] = ()


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


class AttemptState(StrEnum):
    """How far one execution of a step got.

    SUPERSEDED: its server died, or its settlement was lost, and nothing of it counts any more; the
    step is run again as a newer attempt. WAITING and WITHDRAWN are of members of held groups alone: one
    stopped to wait for something outside, and one was taken back unfinished when its group was closed early.
    """

    EXECUTING = "EXECUTING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    IN_DOUBT = "IN_DOUBT"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    SUPERSEDED = "SUPERSEDED"
    WAITING = "WAITING"
    WITHDRAWN = "WITHDRAWN"


class EffectClass(StrEnum):
    """What a tool promises about its effects outside the transaction."""

    READ_ONLY = "READ_ONLY"
    TRANSACTIONAL = "TRANSACTIONAL"
    IDEMPOTENT = "IDEMPOTENT"
    COMPENSATABLE = "COMPENSATABLE"
    IRREVERSIBLE = "IRREVERSIBLE"

    @property
    def acts_outside(self) -> bool:
        """Whether the tool may change the world, so that its intent is written ahead."""
        return self not in (EffectClass.READ_ONLY, EffectClass.TRANSACTIONAL)


class ToolLocation(StrEnum):
    """Where a tool's code runs."""

    SERVER = "SERVER"
    WORKER = "WORKER"
    MCP = "MCP"
    HTTP = "HTTP"


class DependencyKind(StrEnum):
    """Whether an edge was written as a reference or found by equal values."""

    EXPLICIT = "EXPLICIT"
    IMPLICIT = "IMPLICIT"


class Strategy(StrEnum):
    """What the rollback controller (or a caller) decided."""

    NONE = "NONE"
    LOCAL_BACKTRACK = "LOCAL_BACKTRACK"
    DEPENDENCY_JUMP = "DEPENDENCY_JUMP"
    GLOBAL_RESET = "GLOBAL_RESET"
    MANUAL = "MANUAL"
    ABORT = "ABORT"


class Isolation(StrEnum):
    """What a commit validates besides the keys it wrote."""

    READ_COMMITTED = "READ_COMMITTED"
    SERIALIZABLE = "SERIALIZABLE"


class CrashPolicy(StrEnum):
    """What becomes of an open transaction after its server died."""

    RESUME = "RESUME"
    ABORT = "ABORT"


class OnConflict(StrEnum):
    """What a commit conflict does: end the transaction or rewind it."""

    ABORT = "ABORT"
    REWIND = "REWIND"


class OnUndoFailure(StrEnum):
    """Whether a failed undo holds the rewind (default) or lets it go on."""

    HOLD = "HOLD"
    CONTINUE = "CONTINUE"


class RejectedCalls(StrEnum):
    """Where a step that failed before its tool was called goes back to."""

    BACKTRACK = "BACKTRACK"
    RETRY_STEP = "RETRY_STEP"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rollback policy in force for one transaction."""

    max_local_depth: int = 2
    max_global_resets: int = 1
    replay_budget_factor: Decimal = Decimal("2.0")
    on_conflict: OnConflict = OnConflict.ABORT
    on_undo_failure: OnUndoFailure = OnUndoFailure.HOLD
    rejected_calls: RejectedCalls = RejectedCalls.BACKTRACK


@dataclass(frozen=True, slots=True)
class Constraint:
    """A hint that the agent must heed from now on; kept over rewinds and resets."""

    text: str
    category: HintCategory
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """Step ``to_step`` consumed, under ``target_key``, what ``from_step`` gave under ``source_key``.

    ``to_sub_step`` is the sub-step that did, 0 for the step itself.
    """

    from_step: int
    to_step: int
    source_key: str
    target_key: str
    kind: DependencyKind
    to_sub_step: int = 0


class PathSource(StrEnum):
    """How a root-cause walk came to a stop of its path."""

    ERROR_KEY = "ERROR_KEY"
    EXPLICIT_EDGE = "EXPLICIT_EDGE"
    IMPLICIT_EDGE = "IMPLICIT_EDGE"
    PASS_THROUGH = "PASS_THROUGH"


@dataclass(frozen=True, slots=True)
class PathElement:
    """One stop of a root-cause walk: the value stood in ``step_id`` under ``key``.

    ``source`` tells how the walk came there and plays no part in equality.
    """

    step_id: int
    key: str
    source: PathSource = field(default=PathSource.ERROR_KEY, compare=False)


@dataclass(frozen=True, slots=True)
class KeptEffect:
    """An effect that a rewind or an abort could not take back, named to the caller."""

    step_id: int
    attempt: int
    tool_name: str
    effect_class: EffectClass
    reason: str
    sub_step: int = 0


@dataclass(frozen=True, slots=True)
class PassedOverRung:
    """A strategy that was considered before the one chosen, and why it was not taken."""

    strategy: Strategy
    target_step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What the controller decided on a failure, with its reasons.

    ``target_step`` is where the agent resumes (1 for a reset, 0 for an abort);
    ``error_keys`` are the hint's, ``error_key`` the one that was traced;
    ``cost``, ``budget_*`` count replayed steps; ``path`` leads from the failed step
    to the root, empty when no key was traced.
    """

    strategy: Strategy
    failed_step: int
    target_step: int
    failure_number: int
    cost: int
    budget_total: int
    budget_spent_before: int
    error_keys: tuple[str, ...] = ()
    error_key: str | None = None
    path: tuple[PathElement, ...] = ()
    passed_over: tuple[PassedOverRung, ...] = ()
    abort_reason: str = ""
    kept_effects: tuple[KeptEffect, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """One execution of one step."""

    step_id: int
    attempt: int


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


@dataclass(frozen=True, slots=True)
class SubStepPlace:
    """A sub-step of some transaction's step."""

    transaction_id: TransactionId
    step_id: int
    sub_step: int


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One execution of a step, as kept for ever in the history.

    ``arguments`` is the JSON as sent (canonical where it parsed), ``resolved_arguments``
    the canonical text after references, ``output`` canonical JSON. ``fingerprint`` is the
    identity of the request that a reused request_id is compared with. ``response`` is the
    recorded answer without its output, set when the answer is final. ``undo_registered``
    tells whether the attempt ever registered undo: without, a repeat keeps its key.
    ``resolved_arguments`` is None where it equals ``arguments``. ``tries`` counts the calls of the
    tool: 0 where the step failed before it, more than 1 after repeats in place. ``reported`` is that the agent
    ran it itself and told of it. ``approval_rejected``
    is that it failed because a person said no.

    With ``sub_step`` above 0 it is a sub-step of ``step_id``: the ``ordinal``-th call, from 1, of ``scope`` (the
    path of ordinals of the calls that it was made in; empty in the step's own code). ``adopted`` is where the
    call was made, if its step took it over. ``failed_sub_step`` is the sub-step whose failure was the step's own.
    ``restartable`` is that its tool is started again from its first line after a crash; ``emits_records`` that each
    item of its output's ``records`` is a record.
    """

    step_id: int
    attempt: int
    group_first: int
    group_size: int
    epoch: int
    generation: int
    request_id: str
    fingerprint: str
    tool_name: str
    effect_class: EffectClass | None
    state: AttemptState
    arguments: str
    started_at: MicrosecondsUtc
    idempotency_key: str = ""
    resolved_arguments: str | None = None
    output: str | None = None
    raw_context: str = ""
    hint: Hint | None = None
    raw_error: str = ""
    tries: int = 0
    undo_registered: bool = False
    edges: tuple[Edge, ...] = ()
    response: str | None = None
    ended_at: MicrosecondsUtc | None = None
    reported: bool = False
    approval_rejected: bool = False
    sub_step: int = 0
    scope: str = ""
    ordinal: int = 0
    adopted: SubStepPlace | None = None
    failed_sub_step: int = 0
    restartable: bool = False
    emits_records: bool = False


@dataclass(frozen=True, slots=True)
class StateWrite:
    """An uncommitted write; ``value`` None deletes. Its base version is set by the store.

    ``sequence`` orders the writes of a step and tells which of its sub-steps made one; see :mod:`.write_order`.
    """

    step_id: int
    sequence: int
    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class StateRead:
    """A read of committed state: the version seen (0: absent), or a prefix that was scanned."""

    step_id: int
    key: str
    version: int
    is_prefix: bool = False
    sub_step: int = 0


class CommitCheckKind(StrEnum):
    """What a commit asserts again about state as it will be published."""

    EXISTS = "EXISTS"
    NONE_WITH_PREFIX = "NONE_WITH_PREFIX"


@dataclass(frozen=True, slots=True)
class CommitCheck:
    """An assertion of a step that is checked again inside the commit; ``error`` says what broke."""

    step_id: int
    sequence: int
    kind: CommitCheckKind
    key: str
    error: str


@dataclass(frozen=True, slots=True)
class CommittedEntry:
    """A key of committed state. ``value`` is canonical JSON, None when the key is absent."""

    key: str
    value: str | None
    version: int


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


class StepResolution(StrEnum):
    """What a person said of a step in doubt: its effect happened, it did not, or the call may be repeated."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    RETRY = "RETRY"


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


@dataclass(frozen=True, slots=True)
class ToolDescription:
    """What is known about a tool before it is called.

    ``arguments_schema`` is a JSON Schema as text; ``timeout_us`` None means the
    transaction's; ``retries`` are repeats in place (0-5) after transient failures; ``blocking``
    ones hold a thread, so nothing can interrupt them. ``needs_approval``: a person is asked before each call.
    ``restartable`` ones do all that they do outside in sub-steps, so that they may be started again from their
    first line. ``reads_templates``: what references put into its arguments is written as data (references.py).
    ``prompt`` ones have no effect but through their context and wait for nothing, so that they run in one go.
    ``emits_records``: it answers ``{"records": [...]}``, each a record of its own.
    """

    name: str
    description: str
    arguments_schema: str
    effect_class: EffectClass
    location: ToolLocation = ToolLocation.SERVER
    timeout_us: int | None = None
    retries: int = 0
    undo_names: tuple[str, ...] = field(default=())
    blocking: bool = False
    needs_approval: bool = False
    restartable: bool = False
    reads_templates: bool = False
    prompt: bool = False
    emits_records: bool = False
