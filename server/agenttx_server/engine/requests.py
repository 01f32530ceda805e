"""What callers ask of the coordinator and what they are answered.

The api layer turns protobuf messages into these and back; nothing here knows the wire.
Sizes and ranges of single fields are checked by the coordinator's ``limits``, so that
every caller (gRPC, graphs, pipelines) meets the same rules.
"""

from __future__ import annotations

from enum import StrEnum

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.ports import ToolProgress
from agenttx_server.engine.records import (
    ApprovalRecord,
    ApprovalState,
    AttemptRecord,
    AttemptState,
    CrashPolicy,
    Decision,
    Edge,
    EffectClass,
    EffectRecord,
    Hint,
    Isolation,
    KeptEffect,
    MicrosecondsUtc,
    OnConflict,
    OnUndoFailure,
    PathElement,
    RejectedCalls,
    StepResolution,
    Strategy,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
    UndoResolution,
    UndoState,
)

__all__ = [
    "AcknowledgeUndoRequest",
    "AgentUndo",
    "ApprovalListing",
    "ApprovalView",
    "BeginAnswer",
    "BeginRequest",
    "CancelStepAnswer",
    "CancelStepRequest",
    "CommitAnswer",
    "CommitRequest",
    "CompensationAnswer",
    "CompensationListing",
    "CompensationState",
    "ContextEntry",
    "DecideApprovalRequest",
    "EffectAnswer",
    "EffectRequest",
    "GraphView",
    "GroupRequest",
    "PolicyOverride",
    "ResolveCompensationRequest",
    "ResolveStepAnswer",
    "ResolveStepRequest",
    "RetryCompensationRequest",
    "RewindAnswer",
    "RewindPreview",
    "RewindRequest",
    "RollbackRequest",
    "RootCause",
    "StepAnswer",
    "StepCall",
    "StepNode",
    "StepReport",
    "StepRequest",
    "StepStatus",
    "TransactionView",
    "UnsettledStep",
    "compensation_id",
    "compensation_state",
]


@dataclass(frozen=True, slots=True)
class PolicyOverride:
    """A transaction's own policy; None keeps the server's default."""

    max_local_depth: int | None = None
    max_global_resets: int | None = None
    replay_budget_factor: float | None = None
    on_conflict: OnConflict | None = None
    on_undo_failure: OnUndoFailure | None = None
    rejected_calls: RejectedCalls | None = None


@dataclass(frozen=True, slots=True)
class BeginRequest:
    """Open a transaction. Durations are microseconds; None keeps the server's default.

    ``run_id`` is the run that owns it, set by the layer above the engine alone. ``keep_records``: what its steps
    give is kept as records when it commits.
    """

    agent_id: str
    principal: str = "anonymous"
    metadata: tuple[tuple[str, str], ...] = ()
    policy: PolicyOverride = PolicyOverride()
    request_id: str = ""
    isolation: Isolation | None = None
    crash_policy: CrashPolicy | None = None
    idle_timeout_us: int | None = None
    step_timeout_us: int | None = None
    deadline_us: int | None = None
    run_id: str = ""
    keep_records: bool = False


@dataclass(frozen=True, slots=True)
class BeginAnswer:
    """The new transaction's id and where to begin."""

    transaction_id: TransactionId
    next_step_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class AgentUndo:
    """An undo action that only the agent can do; ``arguments_json`` is what it wants told then."""

    action: str
    arguments_json: str = "{}"


@dataclass(frozen=True, slots=True)
class StepReport:
    """What an agent tells of a step that it ran itself: the outcome in place of a run.

    ``output_json`` is None where it failed, with ``error``. ``undo`` is in the order in which the effects
    happened. ``effect_class`` None is one that was not said, which is refused.
    """

    effect_class: EffectClass | None
    output_json: str | None = None
    error: str = ""
    undo: tuple[AgentUndo, ...] = ()


@dataclass(frozen=True, slots=True)
class StepCall:
    """One tool call. ``arguments_json`` is the text as sent (a Struct was turned into text before).

    ``timeout_us`` None means the tool's, else the transaction's, else the server's.
    ``output_limit_bytes`` lowers the server's limit (2 MiB where the answer is a Struct).
    ``report`` is the outcome where the agent made the call itself: then there is no tool to run.
    ``metadata`` is a JSON object that the tool is told beside its arguments; empty for none.
    """

    tool_name: str
    arguments_json: str
    raw_context: str = ""
    request_id: str = ""
    timeout_us: int | None = None
    output_limit_bytes: int | None = None
    report: StepReport | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """Run one step. ``generation`` None skips the staleness check."""

    transaction_id: TransactionId
    step_id: int
    call: StepCall
    generation: int | None = None
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """Run steps ``step_id`` … ``step_id + len(calls) - 1`` side by side."""

    transaction_id: TransactionId
    step_id: int
    calls: tuple[StepCall, ...]
    generation: int | None = None
    principal: str = "anonymous"


class StepStatus(StrEnum):
    """How a step was answered."""

    SUCCESS = "SUCCESS"
    ROLLBACK_TRIGGERED = "ROLLBACK_TRIGGERED"
    FAILED = "FAILED"
    IN_DOUBT = "IN_DOUBT"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """An approval with what a person needs to know of its transaction.

    ``arguments_omitted``: there was no room for them; ListApprovals has them.
    """

    transaction_id: TransactionId
    agent_id: str
    approval: ApprovalRecord
    arguments_omitted: bool = False

    @classmethod
    def of(cls, record: TransactionRecord, approval: ApprovalRecord) -> ApprovalView:
        """Return an approval of a transaction."""
        return cls(record.transaction_id, record.agent_id, approval)


@dataclass(frozen=True, slots=True)
class ApprovalListing:
    """A page of approvals, the one asked for first first; the cursor is empty on the last page."""

    approvals: tuple[ApprovalView, ...]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class DecideApprovalRequest:
    """Say yes (APPROVED) or no (REJECTED) to a step that waits.

    ``claimed_by`` is the name that the caller gives, empty for none; ``decided_by`` what is recorded.
    """

    transaction_id: TransactionId
    approval_id: str
    decision: ApprovalState
    decided_by: str
    claimed_by: str = ""
    comment: str = ""
    request_id: str = ""
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """The answer to one step, built from what was committed.

    ``rollback_to_step`` and ``next_step_id`` say where the transaction was
    rewound to (0 for a reset or an abort) and the step to send next (0 after an abort).
    ``constraints`` are the lines in force after the answer. ``rollback_latency_ms`` counts
    from the failure to the end of the rewind. ``pending_undo`` is what the agent has to undo now, newest first.
    ``approval`` is what a step waits for.
    """

    status: StepStatus
    next_step_id: int
    generation: int
    attempt: int
    output: str | None = None
    hint: Hint | None = None
    strategy: Strategy = Strategy.NONE
    rollback_to_step: int = 0
    constraints: tuple[str, ...] = ()
    context_reset: bool = False
    rollback_latency_ms: float = 0.0
    abort_reason: str = ""
    compensation_errors: tuple[str, ...] = ()
    dependencies: tuple[Edge, ...] = ()
    decision: Decision | None = None
    replayed: bool = False
    rewound: bool = False
    rollback_incomplete: bool = False
    kept_effects: tuple[KeptEffect, ...] = ()
    output_omitted: bool = False
    pending_undo: tuple[UndoRecord, ...] = ()
    approval: ApprovalView | None = None


@dataclass(frozen=True, slots=True)
class RewindRequest:
    """Rewind to just before ``to_step`` (1 … next_step_id). ``dry_run`` changes nothing."""

    transaction_id: TransactionId
    to_step: int
    reason: str = ""
    dry_run: bool = False
    accept_irreversible: bool = False
    request_id: str = ""
    generation: int | None = None
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    """Abort and compensate everything (``to_step`` None or 0), or rewind to ``to_step``."""

    transaction_id: TransactionId
    to_step: int | None = None
    reason: str = ""
    accept_irreversible: bool = False
    request_id: str = ""
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class RewindPreview:
    """What a rewind would take back: live attempts, undo newest first, state keys, staged effects.

    Of the state at most 1,000 keys are named; ``state_rows`` counts all writes.
    """

    steps: tuple[AttemptRecord, ...]
    undo: tuple[UndoRecord, ...]
    state_rows: int
    state_keys: tuple[str, ...]
    staged_effects: tuple[EffectRecord, ...]


@dataclass(frozen=True, slots=True)
class RewindAnswer:
    """The end of a rewind or an abort; ``preview`` only for a dry run.

    ``pending_undo`` is what the agent has to undo now, newest first.
    """

    status: TransactionStatus
    next_step_id: int
    generation: int
    compensations_run: int = 0
    compensation_errors: tuple[str, ...] = ()
    kept_effects: tuple[KeptEffect, ...] = ()
    rollback_incomplete: bool = False
    preview: RewindPreview | None = None
    pending_undo: tuple[UndoRecord, ...] = ()


class CompensationState(StrEnum):
    """How an undo action stands, seen with its transaction.

    REGISTERED: it runs if its step is undone. PENDING: it is to be run now. RUNNING: a try of it
    outlived its time. RELEASED: its transaction was committed. AWAITING_AGENT: the agent has to do it now.
    """

    REGISTERED = "REGISTERED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    RESOLVED = "RESOLVED"
    RELEASED = "RELEASED"
    AWAITING_AGENT = "AWAITING_AGENT"


def compensation_id(undo: UndoRecord) -> str:
    """Return what callers name an undo action by: unique in its transaction, the same for ever."""
    return str(undo.sequence)


def compensation_state(record: TransactionRecord, undo: UndoRecord) -> CompensationState:
    """Return how an undo action of a transaction stands."""
    if undo.state is UndoState.LATE:
        return CompensationState.PENDING
    if undo.state is not UndoState.PENDING:
        return CompensationState(undo.state)
    pending = record.pending_rewind
    if pending is not None and undo.step_id >= pending.to_step:
        return CompensationState.PENDING
    if record.status is TransactionStatus.COMMITTED:
        return CompensationState.RELEASED
    return CompensationState.REGISTERED


@dataclass(frozen=True, slots=True)
class CompensationListing:
    """A page of undo actions, each with its transaction and how it stands; the cursor is empty on the last page."""

    undo: tuple[tuple[TransactionId, UndoRecord, CompensationState], ...]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class RetryCompensationRequest:
    """Run a failed undo action again."""

    transaction_id: TransactionId
    compensation_id: str
    request_id: str = ""
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class ResolveCompensationRequest:
    """Say what became of an effect whose undo failed."""

    transaction_id: TransactionId
    compensation_id: str
    resolution: UndoResolution
    note: str = ""
    request_id: str = ""
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class AcknowledgeUndoRequest:
    """Say that the agent has done an undo action of its own or, with ``error``, that it could not."""

    transaction_id: TransactionId
    compensation_id: str
    error: str = ""
    request_id: str = ""
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class CompensationAnswer:
    """An undo action after it was retried, resolved or acknowledged, and how the rewind it held stands.

    ``rollback_incomplete`` is that the rewind is still held; ``next_step_id`` is 0 where the
    transaction has ended or is being ended. ``pending_undo`` is what the agent has to undo now, newest first.
    """

    transaction_id: TransactionId
    undo: UndoRecord
    state: CompensationState
    rollback_incomplete: bool
    next_step_id: int
    generation: int
    pending_undo: tuple[UndoRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Publish state and release staged effects."""

    transaction_id: TransactionId
    request_id: str = ""
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """What was published, and how far delivery got within the dispatch wait."""

    steps_committed: int
    effects_dispatched: int
    dispatch_errors: tuple[str, ...]
    effects_pending: int
    keys_published: int
    commit_version: int


@dataclass(frozen=True, slots=True)
class EffectRequest:
    """Requeue or discard an effect; ``reason`` is for a discarded one."""

    transaction_id: TransactionId
    effect_id: str
    reason: str = ""
    request_id: str = ""
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class EffectAnswer:
    """An effect as it stands now; ``ready_at`` is when its transaction was committed."""

    transaction_id: TransactionId
    effect: EffectRecord
    ready_at: MicrosecondsUtc | None


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """What the agent said when it sent a live step."""

    step_id: int
    tool_name: str
    raw_context: str


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transaction as it stands; ``record.status`` is EXECUTING while a step runs.

    ``replay_budget`` is the epoch's budget at the furthest step reached;
    ``undo_failed`` the undo actions that failed, newest first, late ones too; ``pending_undo`` what the agent has to
    undo now, newest first; ``unsettled`` the steps that have begun and run, whose outcome is unknown,
    or that wait for approval; ``approvals`` those that are waited for, or given and not used.
    """

    record: TransactionRecord
    context: tuple[ContextEntry, ...]
    context_truncated: bool
    replay_budget: int
    pending_effects: int
    undo_failed: tuple[UndoRecord, ...] = ()
    unsettled: tuple[UnsettledStep, ...] = ()
    approvals: tuple[ApprovalView, ...] = ()
    recovery_problem: str = ""
    pending_undo: tuple[UndoRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class UnsettledStep:
    """An attempt without a final outcome: EXECUTING, also where its server died, IN_DOUBT or AWAITING_APPROVAL.

    ``sub_step`` is 0 for a step itself. ``progress`` is the tool's own word, where it runs through this server.
    """

    step_id: int
    attempt: int
    tool_name: str
    effect_class: EffectClass | None
    state: AttemptState
    request_id: str
    started_at: MicrosecondsUtc
    sub_step: int = 0
    progress: ToolProgress | None = None


@dataclass(frozen=True, slots=True)
class StepNode:
    """A live step in the dependency graph."""

    step_id: int
    attempt: int
    tool_name: str
    effect_class: EffectClass | None
    state: AttemptState = AttemptState.COMPLETED


@dataclass(frozen=True, slots=True)
class GraphView:
    """The dependency graph, nodes by step, edges by the step that consumed, then the one that gave."""

    nodes: tuple[StepNode, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class RootCause:
    """The earliest producer of a failing key; ``step_id`` None when no edge carries it."""

    step_id: int | None
    path: tuple[PathElement, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolveStepRequest:
    """Settle a step in doubt. ``output_json`` belongs to SUCCEEDED (empty: null), ``error`` to FAILED."""

    transaction_id: TransactionId
    step_id: int
    resolution: StepResolution
    output_json: str = ""
    error: str = ""
    sub_step: int = 0
    request_id: str = ""
    generation: int | None = None
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class ResolveStepAnswer:
    """``result`` is what the step's sender is answered, None while its group is not settled."""

    result: StepAnswer | None
    next_step_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class CancelStepRequest:
    """Stop a running step; of a group the others go on."""

    transaction_id: TransactionId
    step_id: int
    reason: str = ""
    request_id: str = ""
    generation: int | None = None
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class CancelStepAnswer:
    """What the stopped attempt was settled as, and where the transaction is now."""

    state: AttemptState
    next_step_id: int
    generation: int
