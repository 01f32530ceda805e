"""Between protobuf messages and the SDK's records: the only module that reads responses."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

import orjson
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from agenttx import records
from agenttx.errors import InvalidValue
from agenttx.v1 import event_pb2
from agenttx.v1 import transaction_pb2 as pb
from agenttx.values import count, decode_json, member

__all__ = [
    "acknowledgement",
    "approval",
    "cancel_step_result",
    "commit_result",
    "compensation",
    "compensation_result",
    "dependency_graph",
    "duration",
    "effect",
    "event",
    "number_of",
    "policy_message",
    "resolve_step_result",
    "rewind_result",
    "rollback_result",
    "root_cause",
    "seconds",
    "state_entry",
    "step_attempt",
    "step_outcome",
    "timestamp",
    "tool",
    "transaction_info",
    "transaction_summary",
]

EnumT = TypeVar("EnumT", bound=StrEnum)


def step_outcome(
    message: pb.ExecuteStepResponse, *, transaction_id: str, step_id: int, tool_name: str, request_id: str
) -> records.StepOutcome:
    """Return the answer to the step that was sent with these."""
    return records.StepOutcome(
        transaction_id=transaction_id,
        step_id=step_id,
        tool_name=tool_name,
        request_id=request_id,
        status=_enum(records.StepStatus, pb.StepStatus, message.status, "STEP_STATUS_"),
        output=decode_json(message.output_json),
        next_step_id=message.next_step_id,
        generation=message.generation,
        attempt=message.attempt,
        hint=message.clean_hint,
        error_category=message.error_category,
        strategy=_strategy(message.strategy),
        rollback_to_step=message.rollback_to_step,
        constraints=tuple(message.constraints),
        context_reset=message.context_reset,
        rollback_latency_ms=message.rollback_latency_ms,
        abort_reason=message.abort_reason,
        decision=_decision(message.decision) if message.HasField("decision") else None,
        dependencies=_dependencies(message.dependencies),
        compensation_errors=tuple(message.compensation_errors),
        kept_effects=_kept_effects(message.kept_effects),
        rollback_incomplete=message.rollback_incomplete,
        rewound=message.rewound,
        replayed=message.replayed,
        record_ids=tuple(message.record_ids),
        output_omitted=message.output_omitted,
        pending_undo=_pending_undo(message.pending_undo),
        approval=approval(message.approval) if message.HasField("approval") else None,
    )


def commit_result(message: pb.CommitTransactionResponse) -> records.CommitResult:
    """Return what a commit published."""
    return records.CommitResult(
        steps_committed=message.steps_committed,
        effects_dispatched=message.effects_dispatched,
        effects_pending=message.effects_pending,
        dispatch_errors=tuple(message.dispatch_errors),
        keys_published=message.keys_published,
        commit_version=message.commit_version,
    )


def rollback_result(message: pb.RollbackTransactionResponse) -> records.RollbackResult:
    """Return how a rollback ended."""
    return records.RollbackResult(
        compensations_run=message.compensations_run,
        compensation_errors=tuple(message.compensation_errors),
        kept_effects=_kept_effects(message.kept_effects),
        rollback_incomplete=message.rollback_incomplete,
        pending_undo=_pending_undo(message.pending_undo),
    )


def rewind_result(message: pb.RewindResponse) -> records.RewindResult:
    """Return how a rewind ended, or what it would do."""
    return records.RewindResult(
        next_step_id=message.next_step_id,
        generation=message.generation,
        compensations_run=message.compensations_run,
        compensation_errors=tuple(message.compensation_errors),
        kept_effects=_kept_effects(message.kept_effects),
        rollback_incomplete=message.rollback_incomplete,
        plan=_rewind_plan(message.plan) if message.HasField("plan") else None,
        pending_undo=_pending_undo(message.pending_undo),
    )


def transaction_info(message: pb.GetTransactionResponse) -> records.TransactionInfo:
    """Return a transaction as it stands."""
    return records.TransactionInfo(
        transaction_id=message.transaction_id,
        status=_transaction_status(message.status),
        agent_id=message.agent_id,
        metadata=dict(message.metadata),
        next_step_id=message.next_step_id,
        generation=message.generation,
        epoch=message.epoch,
        steps_completed=message.steps_completed,
        furthest_step=message.furthest_step,
        constraints=tuple(message.constraints),
        context=tuple(
            records.ContextEntry(entry.step_id, entry.tool_name, entry.raw_context)
            for entry in message.context
        ),
        context_truncated=message.context_truncated,
        global_resets=message.global_resets,
        replayed_steps=message.replayed_steps,
        replay_budget=message.replay_budget,
        budget_spent=message.budget_spent,
        pending_effects=message.pending_effects,
        policy=_policy(message.policy),
        isolation=_enum(records.Isolation, pb.Isolation, message.isolation, "ISOLATION_"),
        crash_policy=_enum(records.CrashPolicy, pb.CrashPolicy, message.crash_policy, "CRASH_POLICY_"),
        created_at=_time(message, "created_at"),
        updated_at=_time(message, "updated_at"),
        ended_at=_time(message, "ended_at"),
        deadline_at=_time(message, "deadline_at"),
        idle_timeout_seconds=_seconds_of(message, "idle_timeout"),
        step_timeout_seconds=_seconds_of(message, "step_timeout"),
        abort_reason=message.abort_reason,
        commit_version=message.commit_version,
        rollback_incomplete=message.rollback_incomplete,
        continues_after_undo_failure=message.continues_after_undo_failure,
        failed_compensations=_failed_compensations(message.failed_compensations),
        kept_effects=_kept_effects(message.kept_effects),
        running_steps=tuple(_running_step(step) for step in message.running_steps),
        owned_by_run=message.owned_by_run,
        recovery_problem=message.recovery_problem,
        pending_undo=_pending_undo(message.pending_undo),
        approvals=tuple(approval(entry) for entry in message.approvals),
    )


def transaction_summary(message: pb.TransactionSummary) -> records.TransactionSummary:
    """Return one line of a list of transactions."""
    return records.TransactionSummary(
        transaction_id=message.transaction_id,
        status=_transaction_status(message.status),
        agent_id=message.agent_id,
        metadata=dict(message.metadata),
        next_step_id=message.next_step_id,
        steps_completed=message.steps_completed,
        generation=message.generation,
        global_resets=message.global_resets,
        created_at=_time(message, "created_at"),
        updated_at=_time(message, "updated_at"),
        ended_at=_time(message, "ended_at"),
        abort_reason=message.abort_reason,
        pending_effects=message.pending_effects,
        dead_effects=message.dead_effects,
        failed_compensations=_failed_compensations(message.failed_compensations),
        rollback_incomplete=message.rollback_incomplete,
        continues_after_undo_failure=message.continues_after_undo_failure,
        owned_by_run=message.owned_by_run,
        recovery_problem=message.recovery_problem,
    )


def step_attempt(message: pb.StepAttempt) -> records.StepAttempt:
    """Return one execution of a step."""
    return records.StepAttempt(
        step_id=message.step_id,
        sub_step=message.sub_step,
        attempt=message.attempt,
        epoch=message.epoch,
        generation=message.generation,
        group_first_step=message.group_first_step,
        tool_name=message.tool_name,
        effect_class=_effect_class(message.effect_class),
        state=_attempt_state(message.state),
        rewound=message.rewound,
        request_id=message.request_id,
        arguments=_json_or_none(message.arguments_json),
        arguments_json=message.arguments_json,
        output=decode_json(message.output_json),
        raw_context=message.raw_context,
        hint=message.hint,
        hint_rule=message.hint_rule,
        category=message.category,
        error_keys=tuple(message.error_keys),
        raw_error=message.raw_error,
        dependencies=_dependencies(message.dependencies),
        decision=_decision(message.decision) if message.HasField("decision") else None,
        idempotency_key=message.idempotency_key,
        tries=message.tries,
        started_at=_time(message, "started_at"),
        ended_at=_time(message, "ended_at"),
        record_ids=tuple(message.record_ids),
        reported=message.reported,
    )


def approval(message: pb.Approval) -> records.Approval:
    """Return what a step waits or waited for."""
    return records.Approval(
        approval_id=message.approval_id,
        transaction_id=message.transaction_id,
        step_id=message.step_id,
        sub_step=message.sub_step,
        attempt=message.attempt,
        tool_name=message.tool_name,
        effect_class=_effect_class(message.effect_class),
        arguments=decode_json(message.arguments_json),
        agent_id=message.agent_id,
        reason=message.reason,
        state=_enum(records.ApprovalState, pb.ApprovalState, message.state, "APPROVAL_STATE_"),
        requested_at=_time(message, "requested_at"),
        decided_at=_time(message, "decided_at"),
        decided_by=message.decided_by,
        comment=message.comment,
        used_at=_time(message, "used_at"),
        withdrawn_at=_time(message, "withdrawn_at"),
        withdrawn_reason=message.withdrawn_reason,
        arguments_omitted=message.arguments_omitted,
    )


def compensation(message: pb.Compensation) -> records.Compensation:
    """Return an undo action."""
    return records.Compensation(
        compensation_id=message.compensation_id,
        transaction_id=message.transaction_id,
        step_id=message.step_id,
        sub_step=message.sub_step,
        attempt=message.attempt,
        tool_name=message.tool_name,
        sequence=message.sequence,
        action=message.action,
        arguments=decode_json(message.arguments_json),
        state=_enum(records.CompensationState, pb.CompensationState, message.state, "COMPENSATION_STATE_"),
        tries=message.tries,
        hint=message.hint,
        category=message.category,
        late_effect=message.late_effect,
        raw_error=message.raw_error,
        idempotency_key=message.idempotency_key,
        registered_at=_time(message, "registered_at"),
        updated_at=_time(message, "updated_at"),
        resolution=_enum(
            records.CompensationResolution,
            pb.CompensationResolution,
            message.resolution,
            "COMPENSATION_RESOLUTION_",
        ),
        note=message.note,
        by_agent=message.by_agent,
    )


def compensation_result(
    message: pb.RetryCompensationResponse | pb.ResolveCompensationResponse,
) -> records.CompensationResult:
    """Return how an undo action stands after it was retried or resolved."""
    return records.CompensationResult(
        compensation(message.compensation),
        message.rollback_incomplete,
        message.next_step_id,
        message.generation,
    )


def acknowledgement(message: pb.AcknowledgeUndoResponse) -> records.CompensationResult:
    """Return how an undo action, and what is behind it, stands after the agent acknowledged it."""
    return records.CompensationResult(
        compensation(message.compensation),
        message.rollback_incomplete,
        message.next_step_id,
        message.generation,
        _pending_undo(message.pending_undo),
    )


def cancel_step_result(message: pb.CancelStepResponse) -> records.CancelStepResult:
    """Return what a cancelled step was settled as."""
    return records.CancelStepResult(
        _attempt_state(message.state),
        message.next_step_id,
        message.generation,
    )


def resolve_step_result(
    message: pb.ResolveStepResponse, *, transaction_id: str, step_id: int, tool_name: str, request_id: str
) -> records.ResolveStepResult:
    """Return what became of a step in doubt, which was sent with these."""
    outcome = None
    if message.HasField("result"):
        outcome = step_outcome(
            message.result,
            transaction_id=transaction_id,
            step_id=step_id,
            tool_name=tool_name,
            request_id=request_id,
        )
    return records.ResolveStepResult(outcome, message.next_step_id, message.generation)


def effect(message: pb.Effect) -> records.Effect:
    """Return an entry of the outbox."""
    return records.Effect(
        effect_id=message.effect_id,
        transaction_id=message.transaction_id,
        step_id=message.step_id,
        sub_step=message.sub_step,
        attempt=message.attempt,
        sequence=message.sequence,
        channel=message.channel,
        payload=decode_json(message.payload_json),
        idempotency_key=message.idempotency_key,
        state=_enum(records.EffectState, pb.EffectState, message.state, "EFFECT_STATE_"),
        delivery_attempts=message.delivery_attempts,
        last_error=message.last_error,
        staged_at=_time(message, "staged_at"),
        settled_at=_time(message, "settled_at"),
        ready_at=_time(message, "ready_at"),
        next_attempt_at=_time(message, "next_attempt_at"),
    )


def dependency_graph(message: pb.GetDependencyGraphResponse) -> records.DependencyGraph:
    """Return a graph given as messages."""
    return records.DependencyGraph(
        nodes=tuple(
            records.DependencyNode(
                node.step_id, node.sub_step, node.attempt, node.tool_name, _attempt_state(node.state)
            )
            for node in message.nodes
        ),
        edges=tuple(
            records.DependencyEdge(
                edge.from_step,
                edge.to_step,
                edge.to_sub_step,
                edge.source_key,
                edge.target_key,
                _dependency_kind(edge.kind),
            )
            for edge in message.edges
        ),
    )


def root_cause(message: pb.FindRootCauseResponse) -> records.RootCause | None:
    """Return the root cause, or None where no edge carries the key."""
    return records.RootCause(message.root_step, _path(message.path)) if message.found else None


def event(message: event_pb2.TransactionEvent) -> records.Event:
    """Return one entry of a transaction's journal."""
    return records.Event(
        sequence=message.sequence,
        transaction_id=message.transaction_id,
        type=_enum(records.EventType, event_pb2.EventType, message.type, "EVENT_TYPE_"),
        step_id=message.step_id,
        sub_step=message.sub_step,
        attempt=message.attempt,
        generation=message.generation,
        occurred_at=_time(message, "occurred_at"),
        payload=decode_json(message.payload_json),
    )


def tool(message: pb.ToolDescription) -> records.Tool:
    """Return the description of a tool."""
    return records.Tool(
        name=message.name,
        description=message.description,
        arguments_schema=decode_json(message.arguments_schema_json),
        effect_class=_effect_class(message.effect_class),
        location=_enum(records.ToolLocation, pb.ToolLocation, message.location, "TOOL_LOCATION_"),
        timeout_seconds=_seconds_of(message, "timeout"),
        retries=message.retries,
        blocking=message.blocking,
        needs_approval=message.needs_approval,
        restartable=message.restartable,
        emits_records=message.emits_records,
    )


def state_entry(message: pb.StateEntry) -> records.StateEntry:
    """Return one key of the committed state."""
    return records.StateEntry(
        message.namespace, message.key, decode_json(message.value_json), message.version, message.found
    )


def policy_message(policy: records.Policy) -> pb.RollbackPolicy:
    """Return the message of a policy; what is None stays unset."""
    return pb.RollbackPolicy(
        max_local_depth=_count_or_unset("policy.max_local_depth", policy.max_local_depth),
        max_global_resets=_count_or_unset("policy.max_global_resets", policy.max_global_resets),
        replay_budget_factor=policy.replay_budget_factor,
        on_conflict=number_of(
            pb.OnConflict,
            "ON_CONFLICT_",
            member("policy.on_conflict", records.OnConflict, policy.on_conflict),
        ),
        on_undo_failure=number_of(
            pb.OnUndoFailure,
            "ON_UNDO_FAILURE_",
            member("policy.on_undo_failure", records.OnUndoFailure, policy.on_undo_failure),
        ),
        rejected_calls=number_of(
            pb.RejectedCalls,
            "REJECTED_CALLS_",
            member("policy.rejected_calls", records.RejectedCalls, policy.rejected_calls),
        ),
    )


def _count_or_unset(name: str, value: int | None) -> int | None:
    return None if value is None else count(name, value)


def number_of(wrapper: Any, prefix: str, member: StrEnum) -> Any:
    """Return the protobuf value of an enum member."""
    return wrapper.Value(f"{prefix}{member.value}")


def seconds(length: float | timedelta) -> float:
    """Return a length of time in seconds."""
    return length.total_seconds() if isinstance(length, timedelta) else float(length)


def duration(name: str, length: float | timedelta | None) -> Duration | None:
    """Return the message of the argument `name`, a time in seconds or a timedelta; None stays unset.

    Raises:
        InvalidValue: it is no number of seconds that can be sent.
    """
    if length is None:
        return None
    message = Duration()
    try:
        message.FromNanoseconds(round(seconds(length) * 1_000_000_000))
    except (ValueError, OverflowError):
        raise InvalidValue(
            f"{length!r} is no length of time that can be sent", path=name, rule="duration_range"
        ) from None
    return message


def timestamp(moment: datetime | None) -> Timestamp | None:
    """Return the message of an aware datetime; None stays unset.

    Raises:
        ValueError: the datetime is naive.
    """
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise ValueError("a datetime without time zone: which moment it means is a guess; add one")
    message = Timestamp()
    message.FromDatetime(moment.astimezone(UTC))
    return message


def _enum(enum: type[EnumT], wrapper: Any, number: int, prefix: str) -> EnumT:
    """Return the member of a protobuf value; UNSPECIFIED for one that this SDK is too old to know."""
    try:
        return enum(wrapper.Name(number).removeprefix(prefix))
    except ValueError:
        return enum("UNSPECIFIED")


def _transaction_status(text: str) -> records.TransactionStatus:
    try:
        return records.TransactionStatus(text)
    except ValueError:
        return records.TransactionStatus.UNSPECIFIED


def _strategy(number: int) -> records.Strategy:
    return _enum(records.Strategy, pb.RollbackStrategy, number, "ROLLBACK_STRATEGY_")


def _effect_class(number: int) -> records.EffectClass:
    return _enum(records.EffectClass, pb.EffectClass, number, "EFFECT_CLASS_")


def _attempt_state(number: int) -> records.AttemptState:
    return _enum(records.AttemptState, pb.StepAttemptState, number, "STEP_ATTEMPT_STATE_")


def _dependency_kind(number: int) -> records.DependencyKind:
    return _enum(records.DependencyKind, pb.DependencyKind, number, "DEPENDENCY_KIND_")


def _dependencies(messages: Iterable[pb.Dependency]) -> tuple[records.Dependency, ...]:
    return tuple(
        records.Dependency(edge.from_step, edge.source_key, edge.target_key, _dependency_kind(edge.kind))
        for edge in messages
    )


def _decision(message: pb.RollbackDecision) -> records.Decision:
    return records.Decision(
        strategy=_strategy(message.strategy),
        failed_step=message.failed_step,
        target_step=message.target_step,
        error_keys=tuple(message.error_keys),
        traced_key=message.traced_key,
        path=_path(message.path),
        attempt=message.attempt,
        cost=message.cost,
        budget_total=message.budget_total,
        budget_spent_before=message.budget_spent_before,
        budget_left=message.budget_left,
        passed_over=tuple(
            records.PassedOverRung(_strategy(rung.strategy), rung.target_step, rung.reason)
            for rung in message.passed_over
        ),
    )


def _path(messages: Iterable[pb.RootCausePathElement]) -> tuple[records.PathElement, ...]:
    return tuple(
        records.PathElement(
            element.step_id,
            element.key,
            _enum(records.PathSource, pb.RootCausePathSource, element.source, "ROOT_CAUSE_PATH_SOURCE_"),
        )
        for element in messages
    )


def _kept_effects(messages: Iterable[pb.KeptEffect]) -> tuple[records.KeptEffect, ...]:
    return tuple(
        records.KeptEffect(
            kept.step_id,
            kept.sub_step,
            kept.attempt,
            kept.tool_name,
            _effect_class(kept.effect_class),
            kept.reason,
        )
        for kept in messages
    )


def _failed_compensations(
    messages: Iterable[pb.FailedCompensation],
) -> tuple[records.FailedCompensation, ...]:
    return tuple(
        records.FailedCompensation(
            compensation_id=failed.compensation_id,
            step_id=failed.step_id,
            sub_step=failed.sub_step,
            attempt=failed.attempt,
            tool_name=failed.tool_name,
            action=failed.action,
            hint=failed.hint,
            category=failed.category,
            tries=failed.tries,
            late_effect=failed.late_effect,
            failed_at=_time(failed, "failed_at"),
        )
        for failed in messages
    )


def _running_step(message: pb.RunningStep) -> records.RunningStep:
    return records.RunningStep(
        step_id=message.step_id,
        sub_step=message.sub_step,
        attempt=message.attempt,
        tool_name=message.tool_name,
        effect_class=_effect_class(message.effect_class),
        state=_attempt_state(message.state),
        request_id=message.request_id,
        started_at=_time(message, "started_at"),
        progress=message.progress if message.HasField("progress") else None,
        progress_message=message.progress_message,
    )


def _policy(message: pb.RollbackPolicy) -> records.Policy:
    return records.Policy(
        max_local_depth=message.max_local_depth if message.HasField("max_local_depth") else None,
        max_global_resets=message.max_global_resets if message.HasField("max_global_resets") else None,
        replay_budget_factor=(
            message.replay_budget_factor if message.HasField("replay_budget_factor") else None
        ),
        on_conflict=_enum(records.OnConflict, pb.OnConflict, message.on_conflict, "ON_CONFLICT_"),
        on_undo_failure=_enum(
            records.OnUndoFailure, pb.OnUndoFailure, message.on_undo_failure, "ON_UNDO_FAILURE_"
        ),
        rejected_calls=_enum(
            records.RejectedCalls, pb.RejectedCalls, message.rejected_calls, "REJECTED_CALLS_"
        ),
    )


def _pending_undo(messages: Iterable[pb.PendingUndo]) -> tuple[records.PendingUndo, ...]:
    return tuple(
        records.PendingUndo(
            compensation_id=undo.compensation_id,
            step_id=undo.step_id,
            attempt=undo.attempt,
            tool_name=undo.tool_name,
            action=undo.action,
            arguments=decode_json(undo.arguments_json),
            idempotency_key=undo.idempotency_key,
        )
        for undo in messages
    )


def _rewind_plan(message: pb.RewindPlan) -> records.RewindPlan:
    return records.RewindPlan(
        steps=tuple(
            records.PlannedStep(step.step_id, step.attempt, step.tool_name, _effect_class(step.effect_class))
            for step in message.steps
        ),
        undo_actions=tuple(compensation(action) for action in message.undo_actions),
        state_keys=tuple(records.StateKey(key.namespace, key.key) for key in message.state_keys),
        staged_effects=tuple(effect(entry) for entry in message.staged_effects),
        truncated=message.truncated,
        steps_total=message.steps_total,
        undo_actions_total=message.undo_actions_total,
        state_writes_total=message.state_writes_total,
        staged_effects_total=message.staged_effects_total,
    )


def _json_or_none(text: str) -> Any:
    """Return the value of text that a caller sent and that need not be JSON."""
    try:
        return decode_json(text)
    except (orjson.JSONDecodeError, ValueError):
        return None


def _seconds_of(message: Any, field: str) -> float | None:
    if not message.HasField(field):
        return None
    nanoseconds: int = getattr(message, field).ToNanoseconds()
    return nanoseconds / 1_000_000_000


def _time(message: Any, field: str) -> datetime | None:
    return getattr(message, field).ToDatetime(tzinfo=UTC) if message.HasField(field) else None
