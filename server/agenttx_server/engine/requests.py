"""What callers ask of the coordinator and what they are answered.

The api layer turns protobuf messages into these and back; nothing here knows the wire.
Sizes and ranges of single fields are checked by the coordinator's ``limits``, so that
every caller (gRPC, graphs, pipelines) meets the same rules.
"""

from __future__ import annotations

from enum import StrEnum

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records import (
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
    Strategy,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
)

__all__ = [
    "BeginAnswer",
    "BeginRequest",
    "CommitAnswer",
    "CommitRequest",
    "ContextEntry",
    "GraphView",
    "GroupRequest",
    "PolicyOverride",
    "RewindAnswer",
    "RewindPreview",
    "RewindRequest",
    "RollbackRequest",
    "RootCause",
    "StepAnswer",
    "StepCall",
    "StepNode",
    "StepRequest",
    "StepStatus",
    "TransactionView",
    "UnsettledStep",
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
    """Open a transaction. Durations are microseconds; None keeps the server's default."""

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


@dataclass(frozen=True, slots=True)
class BeginAnswer:
    """The new transaction's id and where to begin."""

    transaction_id: TransactionId
    next_step_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class StepCall:
    """One tool call. ``arguments_json`` is the text as sent (a Struct was turned into text before).

    ``timeout_us`` None means the tool's, else the transaction's, else the server's.
    ``output_limit_bytes`` lowers the server's limit (2 MiB where the answer is a Struct).
    """

    tool_name: str
    arguments_json: str
    raw_context: str = ""
    request_id: str = ""
    timeout_us: int | None = None
    output_limit_bytes: int | None = None


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
class StepAnswer:
    """The answer to one step, built from what was committed.

    ``rollback_to_step`` and ``next_step_id`` say where the transaction was
    rewound to (0 for a reset or an abort) and the step to send next (0 after an abort).
    ``constraints`` are the lines in force after the answer. ``rollback_latency_ms`` counts
    from the failure to the end of the rewind.
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
    """The end of a rewind or an abort; ``preview`` only for a dry run."""

    status: TransactionStatus
    next_step_id: int
    generation: int
    compensations_run: int = 0
    compensation_errors: tuple[str, ...] = ()
    kept_effects: tuple[KeptEffect, ...] = ()
    rollback_incomplete: bool = False
    preview: RewindPreview | None = None


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
class ContextEntry:
    """What the agent said when it sent a live step."""

    step_id: int
    tool_name: str
    raw_context: str


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transaction as it stands; ``record.status`` is EXECUTING while a step runs.

    ``replay_budget`` is the epoch's budget at the furthest step reached;
    ``undo_failed`` the undo actions that hold a rewind; ``unsettled`` the steps that have begun and
    run, or whose outcome is unknown.
    """

    record: TransactionRecord
    context: tuple[ContextEntry, ...]
    context_truncated: bool
    replay_budget: int
    pending_effects: int
    undo_failed: tuple[UndoRecord, ...] = ()
    unsettled: tuple[UnsettledStep, ...] = ()


@dataclass(frozen=True, slots=True)
class UnsettledStep:
    """An attempt without a final outcome: EXECUTING, also where its server died, or IN_DOUBT."""

    step_id: int
    attempt: int
    tool_name: str
    effect_class: EffectClass | None
    state: AttemptState
    request_id: str
    started_at: MicrosecondsUtc


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
