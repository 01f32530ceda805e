"""Transactions, their history and the plan of a rewind, as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.message_conversion.answers import (
    dependency,
    effect_class,
    kept_effect,
    pending_undo,
    rewind_fields,
    rollback_decision,
)
from agenttx_server.api.message_conversion.approvals import approval
from agenttx_server.api.message_conversion.compensations import compensation, failed_compensation
from agenttx_server.api.message_conversion.effects import effect
from agenttx_server.api.message_conversion.enumerations import to_wire
from agenttx_server.api.message_conversion.values import (
    duration_from_microseconds,
    timestamp_from_microseconds,
)
from agenttx_server.engine.ports import TransactionPage
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    CommittedEntry,
    EffectRecord,
    EffectState,
    Policy,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
    UndoState,
)
from agenttx_server.engine.requests import (
    CompensationState,
    RewindAnswer,
    RewindPreview,
    TransactionView,
    UnsettledStep,
)
from agenttx_server.engine.step_answers import decode_answer

__all__ = ["rewind_response", "state_entry", "step_attempt", "transaction_response", "transaction_summaries"]

PREVIEWED_KEYS = 1000
PREVIEWED_EFFECT_BYTES = 1 << 20

# What a rewind that was only asked about would run: what is registered, and what failed and holds one.
_PREVIEWED_STATES = {
    UndoState.PENDING: CompensationState.REGISTERED,
    UndoState.FAILED: CompensationState.FAILED,
    UndoState.AWAITING_AGENT: CompensationState.AWAITING_AGENT,
}


def transaction_response(view: TransactionView) -> pb.GetTransactionResponse:
    """Return the answer of GetTransaction."""
    record = view.record
    response = pb.GetTransactionResponse(
        transaction_id=record.transaction_id,
        status=record.status.value,
        next_step_id=_next_step_id(record),
        constraints=[constraint.text for constraint in record.constraints],
        global_resets=record.global_resets,
        context=[
            pb.ContextEntry(step_id=entry.step_id, tool_name=entry.tool_name, raw_context=entry.raw_context)
            for entry in view.context
        ],
        agent_id=record.agent_id,
        metadata=dict(record.metadata),
        policy=_policy(record.policy),
        isolation=to_wire(record.isolation),
        epoch=record.epoch,
        replayed_steps=record.replayed_steps,
        replay_budget=view.replay_budget,
        steps_completed=_steps_completed(record),
        pending_effects=view.pending_effects,
        created_at=timestamp_from_microseconds(record.created_at),
        updated_at=timestamp_from_microseconds(record.updated_at),
        abort_reason=record.abort_reason,
        failed_compensations=[failed_compensation(undo) for undo in view.undo_failed],
        generation=record.generation,
        crash_policy=to_wire(record.crash_policy),
        kept_effects=[kept_effect(kept) for kept in record.kept_effects],
        context_truncated=view.context_truncated,
        rollback_incomplete=_is_held(record),
        running_steps=[_running_step(step) for step in view.unsettled],
        continues_after_undo_failure=record.undo_was_skipped,
        furthest_step=record.furthest_step,
        commit_version=record.commit_version,
        budget_spent=record.budget_spent,
        recovery_problem=view.recovery_problem,
        pending_undo=map(pending_undo, view.pending_undo),
        approvals=map(approval, view.approvals),
    )
    if record.ended_at is not None:
        response.ended_at.CopyFrom(timestamp_from_microseconds(record.ended_at))
    if record.deadline_at is not None:
        response.deadline_at.CopyFrom(timestamp_from_microseconds(record.deadline_at))
    if record.idle_timeout_us is not None:
        response.idle_timeout.CopyFrom(duration_from_microseconds(record.idle_timeout_us))
    if record.step_timeout_us is not None:
        response.step_timeout.CopyFrom(duration_from_microseconds(record.step_timeout_us))
    return response


def transaction_summaries(page: TransactionPage) -> list[pb.TransactionSummary]:
    """Return a page of transactions in short."""
    return [
        _summary(
            record,
            page.effects.get(record.transaction_id, {}),
            page.undo_failed.get(record.transaction_id, ()),
            page.unrecovered.get(record.transaction_id, ""),
        )
        for record in page.transactions
    ]


def _summary(
    record: TransactionRecord,
    effects: Mapping[EffectState, int],
    undo_failed: Sequence[UndoRecord],
    recovery_problem: str,
) -> pb.TransactionSummary:
    summary = pb.TransactionSummary(
        transaction_id=record.transaction_id,
        status=record.status.value,
        agent_id=record.agent_id,
        metadata=dict(record.metadata),
        next_step_id=_next_step_id(record),
        steps_completed=_steps_completed(record),
        generation=record.generation,
        global_resets=record.global_resets,
        created_at=timestamp_from_microseconds(record.created_at),
        updated_at=timestamp_from_microseconds(record.updated_at),
        abort_reason=record.abort_reason,
        pending_effects=effects.get(EffectState.STAGED, 0) + effects.get(EffectState.READY, 0),
        dead_effects=effects.get(EffectState.DEAD, 0),
        failed_compensations=[failed_compensation(undo) for undo in undo_failed],
        rollback_incomplete=_is_held(record),
        continues_after_undo_failure=record.undo_was_skipped,
        recovery_problem=recovery_problem,
    )
    if record.ended_at is not None:
        summary.ended_at.CopyFrom(timestamp_from_microseconds(record.ended_at))
    return summary


def _is_held(record: TransactionRecord) -> bool:
    return record.pending_rewind is not None and record.pending_rewind.held


def _next_step_id(record: TransactionRecord) -> int:
    return 0 if record.status.is_terminal else record.next_step_id


def _steps_completed(record: TransactionRecord) -> int:
    if record.status in (TransactionStatus.ROLLED_BACK, TransactionStatus.FAILED):
        return 0
    return max(record.next_step_id - 1, 0)


def _policy(policy: Policy) -> pb.RollbackPolicy:
    return pb.RollbackPolicy(
        max_local_depth=policy.max_local_depth,
        max_global_resets=policy.max_global_resets,
        replay_budget_factor=float(policy.replay_budget_factor),
        on_conflict=to_wire(policy.on_conflict),
        on_undo_failure=to_wire(policy.on_undo_failure),
        rejected_calls=to_wire(policy.rejected_calls),
    )


def _running_step(step: UnsettledStep) -> pb.RunningStep:
    return pb.RunningStep(
        step_id=step.step_id,
        attempt=step.attempt,
        tool_name=step.tool_name,
        effect_class=effect_class(step.effect_class),
        state=to_wire(step.state),
        request_id=step.request_id,
        started_at=timestamp_from_microseconds(step.started_at),
        sub_step=step.sub_step,
        progress=step.progress.fraction if step.progress else None,
        progress_message=step.progress.message if step.progress else "",
    )


def rewind_response(transaction_id: TransactionId, answer: RewindAnswer) -> pb.RewindResponse:
    """Return the answer of Rewind; of a dry run with its plan."""
    response = rewind_fields(answer)
    if answer.preview is not None:
        response.plan.CopyFrom(_plan(transaction_id, answer.preview))
    return response


def _plan(transaction_id: TransactionId, preview: RewindPreview) -> pb.RewindPlan:
    keys = [key.partition("/") for key in preview.state_keys]
    shown = _first_bytes(preview.staged_effects, PREVIEWED_EFFECT_BYTES)
    return pb.RewindPlan(
        steps=[
            pb.PlannedStep(
                step_id=step.step_id,
                attempt=step.attempt,
                tool_name=step.tool_name,
                effect_class=effect_class(step.effect_class),
            )
            for step in preview.steps
        ],
        undo_actions=[
            compensation(transaction_id, undo, _PREVIEWED_STATES[undo.state]) for undo in preview.undo
        ],
        state_keys=[pb.StateKey(namespace=namespace, key=key) for namespace, _, key in keys],
        staged_effects=[effect(transaction_id, staged) for staged in shown],
        truncated=len(shown) < len(preview.staged_effects) or len(keys) >= PREVIEWED_KEYS,
        steps_total=len(preview.steps),
        undo_actions_total=len(preview.undo),
        state_writes_total=preview.state_rows,
        staged_effects_total=len(preview.staged_effects),
    )


def _first_bytes(effects: Sequence[EffectRecord], limit: int) -> list[EffectRecord]:
    shown = []
    for staged in effects:
        limit -= len(staged.payload)
        if limit < 0:
            break
        shown.append(staged)
    return shown


def step_attempt(attempt: AttemptRecord, *, rewound: bool) -> pb.StepAttempt:
    """Return one execution of a step."""
    message = pb.StepAttempt(
        step_id=attempt.step_id,
        sub_step=attempt.sub_step,
        attempt=attempt.attempt,
        epoch=attempt.epoch,
        generation=attempt.generation,
        group_first_step=attempt.group_first,
        group_size=attempt.group_size,
        tool_name=attempt.tool_name,
        effect_class=effect_class(attempt.effect_class),
        state=to_wire(attempt.state),
        rewound=rewound,
        request_id=attempt.request_id,
        arguments_json=attempt.arguments,
        output_json=attempt.output or "",
        raw_context=attempt.raw_context,
        raw_error=attempt.raw_error,
        dependencies=[dependency(edge) for edge in attempt.edges],
        idempotency_key=attempt.idempotency_key,
        started_at=timestamp_from_microseconds(attempt.started_at),
        tries=attempt.tries,
        reported=attempt.reported,
    )
    if attempt.hint is not None:
        message.hint = attempt.hint.text
        message.category = attempt.hint.category.value
        message.error_keys.extend(attempt.hint.keys)
        message.hint_rule = attempt.hint.rule or ""
    if attempt.ended_at is not None:
        message.ended_at.CopyFrom(timestamp_from_microseconds(attempt.ended_at))
    if attempt.response is not None and attempt.state is AttemptState.FAILED:
        decision = decode_answer(attempt.response, None, ()).decision
        if decision is not None:
            message.decision.CopyFrom(rollback_decision(decision))
    return message


def state_entry(namespace: str, entry: CommittedEntry) -> pb.StateEntry:
    """Return a key of committed state."""
    return pb.StateEntry(
        namespace=namespace,
        key=entry.key.removeprefix(f"{namespace}/"),
        value_json=entry.value or "",
        version=entry.version,
        found=entry.value is not None,
    )
