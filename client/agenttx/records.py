"""What the SDK returns: small frozen records, no protobuf messages.

Times are aware datetimes in UTC, durations are seconds. An enum value that this version of the SDK doesn't know reads
as `UNSPECIFIED`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agenttx.enumerations import (
    ApprovalState,
    AttemptState,
    CompensationResolution,
    CompensationState,
    CrashPolicy,
    DependencyKind,
    EffectClass,
    EffectState,
    EventType,
    GraphFormat,
    HealthStatus,
    Isolation,
    OnConflict,
    OnUndoFailure,
    PathSource,
    RejectedCalls,
    StepResolution,
    StepStatus,
    Strategy,
    ToolLocation,
    TransactionStatus,
)
from agenttx.references import Reference, parse_path

__all__ = [
    "Approval",
    "ApprovalState",
    "AttemptState",
    "CancelStepResult",
    "CommitResult",
    "Compensation",
    "CompensationResolution",
    "CompensationResult",
    "CompensationState",
    "ContextEntry",
    "CrashPolicy",
    "Decision",
    "Dependency",
    "DependencyEdge",
    "DependencyGraph",
    "DependencyKind",
    "DependencyNode",
    "Effect",
    "EffectClass",
    "EffectState",
    "Event",
    "EventType",
    "FailedCompensation",
    "GraphFormat",
    "HealthStatus",
    "Isolation",
    "KeptEffect",
    "OnConflict",
    "OnUndoFailure",
    "PassedOverRung",
    "PathElement",
    "PathSource",
    "PendingUndo",
    "PlannedStep",
    "Policy",
    "RejectedCalls",
    "ResolveStepResult",
    "RewindPlan",
    "RewindResult",
    "RollbackResult",
    "RootCause",
    "RunningStep",
    "StateEntry",
    "StateKey",
    "StepAttempt",
    "StepOutcome",
    "StepResolution",
    "StepStatus",
    "Strategy",
    "Tool",
    "ToolLocation",
    "TransactionInfo",
    "TransactionStatus",
    "TransactionSummary",
]


@dataclass(frozen=True, slots=True)
class Policy:
    """A transaction's own rollback policy; None and UNSPECIFIED keep the server's default.

    Attributes:
        max_local_depth: Failures of a step that are answered by a local backtrack; 0 to 16, default 2.
        max_global_resets: Resets to the beginning before the transaction is aborted; 0 to 16, default 1.
        replay_budget_factor: Factor c of the replay budget; 0.1 to 1000, default 2.0.
        on_conflict: What a commit conflict does.
        on_undo_failure: What an undo action that fails for good does.
        rejected_calls: How calls that never reached their tool are decided; RETRY_STEP undoes nothing earlier
            for a typo and suits transactions whose steps are payments.
    """

    max_local_depth: int | None = None
    max_global_resets: int | None = None
    replay_budget_factor: float | None = None
    on_conflict: OnConflict = OnConflict.UNSPECIFIED
    on_undo_failure: OnUndoFailure = OnUndoFailure.UNSPECIFIED
    rejected_calls: RejectedCalls = RejectedCalls.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class Dependency:
    """An edge into a step: its input `target_key` came from `source_key` of `from_step`."""

    from_step: int
    source_key: str
    target_key: str
    kind: DependencyKind


@dataclass(frozen=True, slots=True)
class PathElement:
    """One (step, key) on the way from a failing step to its root cause."""

    step_id: int
    key: str
    source: PathSource


@dataclass(frozen=True, slots=True)
class PassedOverRung:
    """A strategy that was considered and not taken, and why."""

    strategy: Strategy
    target_step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of the rollback controller, explained.

    Attributes:
        strategy: What was decided.
        failed_step: The step whose failure was decided on.
        target_step: The step gone back to; 0 for a reset or an abort.
        error_keys: The keys that the hint names.
        traced_key: The key that was traced to the target; empty if none was.
        path: The way from the failing step to the root cause.
        attempt: Which failure of the step in this epoch it was, from 1.
        cost: Steps that will run again.
        budget_total: Replay budget of the epoch, in steps.
        budget_spent_before: Spent before this decision, in steps.
        budget_left: Left after it, in steps.
        passed_over: The strategies that were considered first, in order.
    """

    strategy: Strategy
    failed_step: int
    target_step: int
    error_keys: tuple[str, ...]
    traced_key: str
    path: tuple[PathElement, ...]
    attempt: int
    cost: int
    budget_total: int
    budget_spent_before: int
    budget_left: int
    passed_over: tuple[PassedOverRung, ...]


@dataclass(frozen=True, slots=True)
class KeptEffect:
    """An effect that a rewind or an abort did not undo, and why."""

    step_id: int
    sub_step: int
    attempt: int
    tool_name: str
    effect_class: EffectClass
    reason: str


@dataclass(frozen=True, slots=True)
class PendingUndo:
    """An undo action that the agent has to do now, because it ran the step itself.

    Attributes:
        compensation_id: Its id, to acknowledge it by.
        step_id: The step that it undoes.
        attempt: The attempt that it undoes, from 1.
        tool_name: What was run in that step.
        action: Its name, as it was reported.
        arguments: What it was reported with.
        idempotency_key: A key that is the same whenever the agent is asked for it.
    """

    compensation_id: str
    step_id: int
    attempt: int
    tool_name: str
    action: str
    arguments: Any
    idempotency_key: str = ""


@dataclass(frozen=True, slots=True)
class Approval:
    """A step that waits, or waited, for a person's decision.

    Attributes:
        approval_id: Its id, unique within its transaction.
        transaction_id: The transaction.
        step_id: The step.
        sub_step: The sub-step; 0 for the step itself.
        attempt: The attempt that asked.
        tool_name: The tool that would be called.
        effect_class: What the tool promises about its effects.
        arguments: What the tool would be given, references replaced; no other arguments run under this approval.
            None where `arguments_omitted`.
        agent_id: Name of the transaction's agent.
        reason: Why a person is asked.
        state: Whether and how it was decided.
        requested_at: When it was asked for.
        decided_at: When it was approved or rejected; None if it wasn't.
        decided_by: Who decided, as they named themselves, else the address that it came from.
        comment: What they said.
        used_at: When a step was begun under it; None if none was.
        withdrawn_at: When it was withdrawn; None if it wasn't.
        withdrawn_reason: Why it was withdrawn.
        arguments_omitted: Whether the arguments were left out for their size; `Client.approvals` has them.
    """

    approval_id: str
    transaction_id: str
    step_id: int
    sub_step: int
    attempt: int
    tool_name: str
    effect_class: EffectClass
    arguments: Any
    agent_id: str
    reason: str
    state: ApprovalState
    requested_at: datetime | None
    decided_at: datetime | None = None
    decided_by: str = ""
    comment: str = ""
    used_at: datetime | None = None
    withdrawn_at: datetime | None = None
    withdrawn_reason: str = ""
    arguments_omitted: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class StepOutcome:
    """The answer to one step. It behaves like the output: `outcome["id"]`, `"id" in outcome`, `len(outcome)`.

    Given as an argument of a later step it stands for its whole output; `ref` refers to a part of it.

    Attributes:
        transaction_id: The transaction.
        step_id: The step, from 1.
        tool_name: The tool.
        status: How the step ended.
        output: What the tool returned, decoded exactly; None unless the step succeeded.
        next_step_id: The step to send next; 0 where the transaction ended.
        generation: The transaction's generation after this answer.
        attempt: Which execution of the step it was, from 1.
        hint: One line that says what to fix; empty on success.
        error_category: Category of the error; empty on success.
        strategy: How a failure was answered.
        rollback_to_step: The step that the transaction was rewound to; 0 for a reset, an abort or none.
        constraints: The hints collected so far, oldest first.
        context_reset: Whether the agent should clear its own context and begin anew.
        rollback_latency_ms: Time the rollback took, in milliseconds.
        abort_reason: Why the transaction was aborted; empty if it wasn't.
        decision: The rollback decision explained; None on success.
        dependencies: The edges into this step.
        compensation_errors: Hints of the undo actions that failed.
        kept_effects: Effects that were not undone.
        rollback_incomplete: Whether the rewind is held by undo actions that failed or that the agent has to do.
        pending_undo: What the agent has to undo now, newest first.
        rewound: Whether this attempt has been rewound (by a sibling's failure, or since).
        replayed: Whether this is the recorded answer of an earlier call.
        record_ids: Ids of the lineage records that the step produced.
        output_omitted: Whether the output was left out of a group's answer for its size.
        approval: What the step waits for; None unless its status is AWAITING_APPROVAL.
        request_id: The id that made the call safe to retry.
    """

    transaction_id: str
    step_id: int
    tool_name: str
    status: StepStatus
    output: Any = None
    next_step_id: int = 0
    generation: int = 0
    attempt: int = 0
    hint: str = ""
    error_category: str = ""
    strategy: Strategy = Strategy.NONE
    rollback_to_step: int = 0
    constraints: tuple[str, ...] = ()
    context_reset: bool = False
    rollback_latency_ms: float = 0.0
    abort_reason: str = ""
    decision: Decision | None = None
    dependencies: tuple[Dependency, ...] = ()
    compensation_errors: tuple[str, ...] = ()
    kept_effects: tuple[KeptEffect, ...] = ()
    rollback_incomplete: bool = False
    rewound: bool = False
    replayed: bool = False
    record_ids: tuple[str, ...] = ()
    output_omitted: bool = False
    pending_undo: tuple[PendingUndo, ...] = ()
    approval: Approval | None = None
    request_id: str = field(default="", compare=False)

    @property
    def succeeded(self) -> bool:
        """Whether the step is done and still stands."""
        return self.status is StepStatus.SUCCESS and not self.rewound

    def ref(self, *path: str | int) -> Reference:
        """Return a reference to a value in this step's output.

        Args:
            *path: The way to it, as `"a.b.0"` or `"a", "b", 0`; none for the whole output.

        Raises:
            ValueError: a segment is not made of `A-Z a-z 0-9 _ -`.
        """
        return Reference(self.step_id, parse_path(*path))

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field of the output, or the default where there is none."""
        return self.output.get(key, default) if isinstance(self.output, dict) else default

    def __getitem__(self, key: str | int) -> Any:
        return self.output[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.output)

    def __contains__(self, key: object) -> bool:
        return key in self.output

    def __len__(self) -> int:
        return len(self.output)

    def __repr__(self) -> str:
        detail = f"output={self.output!r}" if self.status is StepStatus.SUCCESS else f"hint={self.hint!r}"
        return f"<StepOutcome {self.step_id} {self.tool_name} {self.status}: {detail}>"

    def __bool__(self) -> bool:
        # Without this an empty output would make the outcome false, and `if outcome:` a trap.
        return True


@dataclass(frozen=True, slots=True)
class CancelStepResult:
    """What became of a step that was cancelled.

    Attributes:
        state: What its attempt was settled as: FAILED or IN_DOUBT, or COMPLETED if it ended before it could be stopped.
        next_step_id: The step to send next; 0 where the transaction ended.
        generation: The transaction's generation.
    """

    state: AttemptState
    next_step_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class ResolveStepResult:
    """What became of a step in doubt.

    Attributes:
        outcome: What the request that sent the step is answered from now on; None while that is open: other members of
            its group are unsettled, or a RETRY ended in doubt again.
        next_step_id: The step to send next; 0 where the transaction ended.
        generation: The transaction's generation.
    """

    outcome: StepOutcome | None
    next_step_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit published.

    Attributes:
        steps_committed: Steps in the committed transaction.
        effects_dispatched: Staged effects delivered while the commit waited.
        effects_pending: Effects still to be delivered; the server goes on trying.
        dispatch_errors: Errors of first deliveries.
        keys_published: Keys of the state that were published.
        commit_version: The commit's version.
    """

    steps_committed: int
    effects_dispatched: int
    effects_pending: int
    dispatch_errors: tuple[str, ...]
    keys_published: int
    commit_version: int


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """The end of a transaction by rollback.

    Attributes:
        compensations_run: Undo actions that succeeded.
        compensation_errors: Hints of those that failed.
        kept_effects: Effects that were not undone.
        rollback_incomplete: Whether the rollback is held until failed undo actions are retried or resolved, and the
            agent has done its own.
        pending_undo: What the agent has to undo now, newest first.
    """

    compensations_run: int
    compensation_errors: tuple[str, ...]
    kept_effects: tuple[KeptEffect, ...]
    rollback_incomplete: bool
    pending_undo: tuple[PendingUndo, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step that a rewind would undo."""

    step_id: int
    attempt: int
    tool_name: str
    effect_class: EffectClass


@dataclass(frozen=True, slots=True)
class StateKey:
    """A key of the state."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class Compensation:
    """An undo action: registered by a tool before the effect that it undoes.

    Attributes:
        compensation_id: Its id, to retry or resolve it by.
        transaction_id: The transaction.
        step_id: The step that it undoes.
        sub_step: The sub-step that it undoes, from 1; 0 for the step itself.
        attempt: The attempt that it undoes, from 1.
        tool_name: The tool that registered it.
        sequence: Its place in the order of registration, from 1; the newest runs first.
        action: Name of the undo action; empty for a late effect that has none.
        arguments: What it was registered with.
        state: How far it got.
        tries: How many times it was tried.
        hint: What went wrong with its last try, in one line; empty if nothing did.
        category: What kind of error that was; empty if there was none.
        late_effect: Whether it is about an effect that an attempt reported after it was given up.
        raw_error: The error of its last try, masked; empty if there was none.
        idempotency_key: The key that it is given every time.
        registered_at: When it was registered, or the late effect reported.
        updated_at: When its state last changed.
        resolution: How a person settled it; UNSPECIFIED if nobody did.
        note: What that person said.
        by_agent: Whether only the agent can do it, because it ran the step itself.
    """

    compensation_id: str
    transaction_id: str
    step_id: int
    sub_step: int
    attempt: int
    tool_name: str
    sequence: int
    action: str
    arguments: Any
    state: CompensationState
    tries: int
    hint: str
    category: str
    late_effect: bool
    raw_error: str = ""
    idempotency_key: str = ""
    registered_at: datetime | None = None
    updated_at: datetime | None = None
    resolution: CompensationResolution = CompensationResolution.UNSPECIFIED
    note: str = ""
    by_agent: bool = False


@dataclass(frozen=True, slots=True)
class CompensationResult:
    """An undo action after it was retried, resolved or acknowledged, and how the transaction stands.

    Attributes:
        compensation: The undo action as it is now.
        rollback_incomplete: Whether the rewind or abort is still held, by this or another undo action.
        next_step_id: The step to send next; 0 where the transaction has ended.
        generation: The transaction's generation; a rewind that is completed counts it up.
        pending_undo: What the agent has to undo next, newest first; told of an acknowledgement only.
    """

    compensation: Compensation
    rollback_incomplete: bool
    next_step_id: int
    generation: int
    pending_undo: tuple[PendingUndo, ...] = ()


@dataclass(frozen=True, slots=True)
class Effect:
    """An entry of the outbox: staged by a step, delivered after the commit, dropped by a rewind past its step.

    Attributes:
        effect_id: Its id, to requeue or discard it by.
        transaction_id: The transaction.
        step_id: The step that staged it.
        sub_step: The sub-step that staged it, from 1; 0 for the step itself.
        attempt: The attempt that staged it, from 1.
        sequence: Its place in the order of staging within the transaction; there may be gaps.
        channel: Where it goes: the name that a sink of the server is bound to.
        payload: What is delivered.
        idempotency_key: The key that it is delivered with every time.
        state: How far it got.
        delivery_attempts: How many deliveries were begun; one whose end a crash hid counts.
        last_error: What went wrong with the last one, in one line; empty if nothing did.
        staged_at: When it was staged.
        settled_at: When it was delivered, given up or discarded; None before.
        ready_at: When its transaction was committed; None while it is STAGED.
        next_attempt_at: When it is tried next; None if that is not planned, or as soon as it can be.
    """

    effect_id: str
    transaction_id: str
    step_id: int
    sub_step: int
    attempt: int
    sequence: int
    channel: str
    payload: Any
    idempotency_key: str
    state: EffectState
    delivery_attempts: int
    last_error: str
    staged_at: datetime | None
    settled_at: datetime | None
    ready_at: datetime | None = None
    next_attempt_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What a rewind would undo. Long lists are cut (`truncated`); the totals count everything."""

    steps: tuple[PlannedStep, ...]
    undo_actions: tuple[Compensation, ...]
    state_keys: tuple[StateKey, ...]
    staged_effects: tuple[Effect, ...]
    truncated: bool
    steps_total: int
    undo_actions_total: int
    state_writes_total: int
    staged_effects_total: int


@dataclass(frozen=True, slots=True)
class RewindResult:
    """The end of a rewind; `plan` only for a dry run, which changes nothing; `pending_undo` as in `StepOutcome`."""

    next_step_id: int
    generation: int
    compensations_run: int
    compensation_errors: tuple[str, ...]
    kept_effects: tuple[KeptEffect, ...]
    rollback_incomplete: bool
    plan: RewindPlan | None
    pending_undo: tuple[PendingUndo, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """What the agent said when it sent a live step."""

    step_id: int
    tool_name: str
    raw_context: str


@dataclass(frozen=True, slots=True)
class FailedCompensation:
    """An undo action that failed for good, or an effect that came too late to be undone."""

    compensation_id: str
    step_id: int
    sub_step: int
    attempt: int
    tool_name: str
    action: str
    hint: str
    category: str
    tries: int
    late_effect: bool
    failed_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunningStep:
    """A step that has begun and isn't settled.

    Attributes:
        progress: What part of its work its tool says is done, 0 to 1; None where it can't tell.
        progress_message: What the tool says it is doing, in one line.
    """

    step_id: int
    sub_step: int
    attempt: int
    tool_name: str
    effect_class: EffectClass
    state: AttemptState
    request_id: str
    started_at: datetime | None
    progress: float | None = None
    progress_message: str = ""


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction as it stands, ended ones too.

    Attributes:
        transaction_id: Its id.
        status: Where it is in its life.
        agent_id: Name of the agent.
        metadata: Its labels.
        next_step_id: The step to send next; 0 where it ended.
        generation: Counts its rewinds and resets, from 1.
        epoch: Counts its resets, from 1.
        steps_completed: Steps completed and not rewound.
        furthest_step: The furthest step ever reached.
        constraints: The hints collected so far, oldest first.
        context: What the agent said with each live step.
        context_truncated: Whether older context entries were left out for their size.
        global_resets: Resets so far.
        replayed_steps: Steps that its rollbacks have sent back to be run again, over all epochs.
        replay_budget: Replay budget of this epoch, in steps.
        budget_spent: What the rollbacks of this epoch have spent of it.
        pending_effects: Effects staged or not yet delivered.
        policy: The rollback policy in force.
        isolation: What its commit checks.
        crash_policy: What becomes of it when its server dies.
        created_at: When it was opened.
        updated_at: When it last changed.
        ended_at: When it ended; None while open.
        deadline_at: When it is rolled back if still open; None without a deadline.
        idle_timeout_seconds: Idle time after which it is rolled back; 0 is never, None where the server didn't say.
        step_timeout_seconds: Time a step may run where its request and tool say nothing; None for the server's
            default.
        abort_reason: Why it was aborted.
        commit_version: The commit's version; 0 if not committed.
        rollback_incomplete: Whether a rewind or abort is held by undo actions that failed or that the agent has to do.
        continues_after_undo_failure: Whether failed undo actions are passed over.
        failed_compensations: Failed undo actions and late effects.
        kept_effects: Effects that were not undone.
        running_steps: Steps begun and not settled.
        owned_by_run: The graph run that owns it; empty if none.
        recovery_problem: Why it could not be recovered after its server died, which is tried again; empty otherwise.
        pending_undo: What the agent has to undo now, newest first.
        approvals: What is waited for, and what was approved and not run yet, in the order in which it was asked for.
    """

    transaction_id: str
    status: TransactionStatus
    agent_id: str
    metadata: Mapping[str, str]
    next_step_id: int
    generation: int
    epoch: int
    steps_completed: int
    furthest_step: int
    constraints: tuple[str, ...]
    context: tuple[ContextEntry, ...]
    context_truncated: bool
    global_resets: int
    replayed_steps: int
    replay_budget: int
    budget_spent: int
    pending_effects: int
    policy: Policy
    isolation: Isolation
    crash_policy: CrashPolicy
    created_at: datetime | None
    updated_at: datetime | None
    ended_at: datetime | None
    deadline_at: datetime | None
    idle_timeout_seconds: float | None
    step_timeout_seconds: float | None
    abort_reason: str
    commit_version: int
    rollback_incomplete: bool
    continues_after_undo_failure: bool
    failed_compensations: tuple[FailedCompensation, ...]
    kept_effects: tuple[KeptEffect, ...]
    running_steps: tuple[RunningStep, ...]
    owned_by_run: str
    recovery_problem: str = ""
    pending_undo: tuple[PendingUndo, ...] = ()
    approvals: tuple[Approval, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionSummary:
    """A transaction in short, as lists give it; fields as in `TransactionInfo`. `dead_effects` were given up."""

    transaction_id: str
    status: TransactionStatus
    agent_id: str
    metadata: Mapping[str, str]
    next_step_id: int
    steps_completed: int
    generation: int
    global_resets: int
    created_at: datetime | None
    updated_at: datetime | None
    ended_at: datetime | None
    abort_reason: str
    pending_effects: int
    dead_effects: int
    failed_compensations: tuple[FailedCompensation, ...]
    rollback_incomplete: bool
    continues_after_undo_failure: bool
    owned_by_run: str
    recovery_problem: str = ""


@dataclass(frozen=True, slots=True)
class StepAttempt:
    """One execution of a step, rewound ones included.

    Attributes:
        step_id: The step.
        sub_step: The sub-step, from 1; 0 for the step itself.
        attempt: Number of the attempt, from 1.
        epoch: The epoch it ran in.
        generation: The generation it ran in.
        group_first_step: First step of its group; `step_id` for a step on its own.
        tool_name: The tool.
        effect_class: What the tool promises.
        state: How far it got.
        rewound: Whether it was rewound.
        request_id: The request that it came with.
        arguments: What was sent, references unresolved; None where it was no JSON (see `arguments_json`).
        arguments_json: What was sent, as text.
        output: What the tool returned; None unless it completed.
        raw_context: What the agent said.
        hint: One line that says what to fix; empty unless it failed.
        hint_rule: The rule that made the hint; empty for the fallback.
        category: Category of the error.
        error_keys: The keys that the hint names.
        raw_error: The error as the tool gave it, masked and bounded.
        dependencies: The edges into it.
        decision: The rollback decision on its failure.
        idempotency_key: The key that its tool was given.
        tries: How many times the tool was called.
        started_at: When it began.
        ended_at: When it ended; None while it runs.
        record_ids: Ids of the lineage records that it produced.
        reported: Whether the agent ran it itself and reported it.
    """

    step_id: int
    sub_step: int
    attempt: int
    epoch: int
    generation: int
    group_first_step: int
    tool_name: str
    effect_class: EffectClass
    state: AttemptState
    rewound: bool
    request_id: str
    arguments: Any
    arguments_json: str
    output: Any
    raw_context: str
    hint: str
    hint_rule: str
    category: str
    error_keys: tuple[str, ...]
    raw_error: str
    dependencies: tuple[Dependency, ...]
    decision: Decision | None
    idempotency_key: str
    tries: int
    started_at: datetime | None
    ended_at: datetime | None
    record_ids: tuple[str, ...]
    reported: bool = False


@dataclass(frozen=True, slots=True)
class DependencyNode:
    """A step in the dependency graph."""

    step_id: int
    sub_step: int
    attempt: int
    tool_name: str
    state: AttemptState


@dataclass(frozen=True, slots=True)
class DependencyEdge:
    """`to_step` used, as its input `target_key`, the value under `source_key` of `from_step`."""

    from_step: int
    to_step: int
    to_sub_step: int
    source_key: str
    target_key: str
    kind: DependencyKind


@dataclass(frozen=True, slots=True)
class DependencyGraph:
    """A transaction's dependency graph, nodes by step."""

    nodes: tuple[DependencyNode, ...]
    edges: tuple[DependencyEdge, ...]


@dataclass(frozen=True, slots=True)
class RootCause:
    """The earliest producer of a failing value, and the way from the failing step to it."""

    step_id: int
    path: tuple[PathElement, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a transaction's journal; `sequence` counts from 1 without gaps."""

    sequence: int
    transaction_id: str
    type: EventType
    step_id: int
    sub_step: int
    attempt: int
    generation: int
    occurred_at: datetime | None
    payload: Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that steps can call; `arguments_schema` is a JSON Schema, `timeout_seconds` None for the server's default.

    `needs_approval`: a person is asked before each call.
    A `restartable` one is started again from its first line after a crash: what it does outside it does in sub-steps.
    One that `emits_records` answers `{"records": [...]}`, each a record of its own.
    """

    name: str
    description: str
    arguments_schema: Any
    effect_class: EffectClass
    location: ToolLocation
    timeout_seconds: float | None
    retries: int
    blocking: bool
    needs_approval: bool = False
    restartable: bool = False
    emits_records: bool = False


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One key of the committed state; `value` is None and `found` false where there is none."""

    namespace: str
    key: str
    value: Any
    version: int
    found: bool
