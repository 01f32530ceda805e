"""Records of the SDK as a server might have answered them, for what shows them to people."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from agenttx.records import (
    AttemptState,
    CrashPolicy,
    Decision,
    DependencyEdge,
    DependencyGraph,
    DependencyKind,
    DependencyNode,
    EffectClass,
    Isolation,
    OnConflict,
    OnUndoFailure,
    PassedOverRung,
    PathElement,
    PathSource,
    Policy,
    RejectedCalls,
    StepAttempt,
    Strategy,
    TransactionInfo,
    TransactionStatus,
    TransactionSummary,
)

NOON = datetime(2026, 7, 3, 12, tzinfo=UTC)
TRANSACTION_ID = "01a22c85-0960-71d6-9856-be0873b4f88a"


def attempt(step_id: int = 1, **fields: Any) -> StepAttempt:
    """A completed attempt; any field can be given."""
    started = fields.get("started_at", NOON + timedelta(seconds=step_id))
    sample = StepAttempt(
        step_id=step_id,
        sub_step=0,
        attempt=1,
        epoch=1,
        generation=1,
        group_first_step=step_id,
        tool_name="kv.put",
        effect_class=EffectClass.TRANSACTIONAL,
        state=AttemptState.COMPLETED,
        rewound=False,
        request_id="r",
        arguments={"key": "a"},
        arguments_json='{"key":"a"}',
        output={"key": "a"},
        raw_context="",
        hint="",
        hint_rule="",
        category="",
        error_keys=(),
        raw_error="",
        dependencies=(),
        decision=None,
        idempotency_key="",
        tries=1,
        started_at=started,
        ended_at=started + timedelta(milliseconds=12) if started else None,
        record_ids=(),
    )
    return replace(sample, **fields)


def jump(failed_step: int = 10, target_step: int = 3, **fields: Any) -> Decision:
    """A jump from a failure to its cause, over step 6."""
    sample = Decision(
        strategy=Strategy.DEPENDENCY_JUMP,
        failed_step=failed_step,
        target_step=target_step,
        error_keys=("customer_id",),
        traced_key="customer_id",
        path=(
            PathElement(failed_step, "customer_id", PathSource.ERROR_KEY),
            PathElement(6, "customer_id", PathSource.EXPLICIT_EDGE),
            PathElement(target_step, "customer_id", PathSource.EXPLICIT_EDGE),
        ),
        attempt=1,
        cost=failed_step - target_step + 1,
        budget_total=80,
        budget_spent_before=0,
        budget_left=72,
        passed_over=(),
    )
    return replace(sample, **fields)


def backtrack(failed_step: int = 4, target_step: int = 3) -> Decision:
    """A backtrack, because no dependency carries the key."""
    passed_over = (PassedOverRung(Strategy.DEPENDENCY_JUMP, 0, "no earlier step gave 'key'"),)
    return jump(
        failed_step,
        target_step,
        strategy=Strategy.LOCAL_BACKTRACK,
        path=(),
        traced_key="",
        passed_over=passed_over,
    )


def node(step_id: int, tool_name: str = "kv.put", **fields: Any) -> DependencyNode:
    """A step of a graph."""
    return replace(DependencyNode(step_id, 0, 1, tool_name, AttemptState.COMPLETED), **fields)


def edge(from_step: int, source_key: str, to_step: int, target_key: str, **fields: Any) -> DependencyEdge:
    """A dependency by reference; ``kind`` can be given."""
    sample = DependencyEdge(from_step, to_step, 0, source_key, target_key, DependencyKind.EXPLICIT)
    return replace(sample, **fields)


def owner_graph() -> DependencyGraph:
    """A value under three names: made as ``id`` by 2, passed on as ``owner_id`` by 5, used as ``user_id`` by 9."""
    return DependencyGraph(
        nodes=(node(2, "create_user"), node(5, "lookup_owner"), node(9, "insert_order")),
        edges=(edge(2, "id", 5, "user"), edge(5, "owner_id", 9, "user_id"), edge(2, "name", 9, "name")),
    )


def summary(**fields: Any) -> TransactionSummary:
    """An open transaction in short; any field can be given."""
    sample = TransactionSummary(
        transaction_id=TRANSACTION_ID,
        status=TransactionStatus.ACTIVE,
        agent_id="order-desk",
        metadata={"order": "9001"},
        next_step_id=7,
        steps_completed=6,
        generation=2,
        global_resets=0,
        created_at=NOON,
        updated_at=NOON,
        ended_at=None,
        abort_reason="",
        pending_effects=0,
        dead_effects=0,
        failed_compensations=(),
        rollback_incomplete=False,
        continues_after_undo_failure=False,
        owned_by_run="",
    )
    return replace(sample, **fields)


def details(**fields: Any) -> TransactionInfo:
    """An open transaction in full; any field can be given."""
    sample = TransactionInfo(
        transaction_id=TRANSACTION_ID,
        status=TransactionStatus.ACTIVE,
        agent_id="order-desk",
        metadata={"order": "9001"},
        next_step_id=7,
        generation=1,
        epoch=1,
        steps_completed=6,
        furthest_step=6,
        constraints=(),
        context=(),
        context_truncated=False,
        global_resets=0,
        replayed_steps=0,
        replay_budget=36,
        budget_spent=0,
        pending_effects=0,
        policy=Policy(2, 1, 2.0, OnConflict.ABORT, OnUndoFailure.HOLD, RejectedCalls.BACKTRACK),
        isolation=Isolation.READ_COMMITTED,
        crash_policy=CrashPolicy.RESUME,
        created_at=NOON,
        updated_at=NOON,
        ended_at=None,
        deadline_at=None,
        idle_timeout_seconds=900,
        step_timeout_seconds=30,
        abort_reason="",
        commit_version=0,
        rollback_incomplete=False,
        continues_after_undo_failure=False,
        failed_compensations=(),
        kept_effects=(),
        running_steps=(),
        owned_by_run="",
    )
    return replace(sample, **fields)
