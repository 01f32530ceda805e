"""Scripts read these keys: they may become more, but none may go or change its name."""

from __future__ import annotations

import dataclasses

import pytest

from agenttx import records, run_events

PROMISED = {
    records.TransactionSummary: """transaction_id status agent_id metadata next_step_id steps_completed generation
        global_resets created_at updated_at ended_at abort_reason pending_effects dead_effects failed_compensations
        rollback_incomplete continues_after_undo_failure owned_by_run recovery_problem""",
    records.TransactionInfo: """transaction_id status agent_id metadata next_step_id generation epoch steps_completed
        furthest_step constraints context context_truncated global_resets replayed_steps replay_budget budget_spent
        pending_effects policy isolation crash_policy created_at updated_at ended_at deadline_at abort_reason commit_version
        rollback_incomplete failed_compensations kept_effects running_steps recovery_problem""",
    records.StepAttempt: """step_id sub_step attempt epoch generation group_first_step tool_name effect_class state rewound
        request_id arguments arguments_json output raw_context hint hint_rule category error_keys raw_error dependencies
        decision idempotency_key tries started_at ended_at""",
    records.Decision: """strategy failed_step target_step error_keys traced_key path attempt cost budget_total
        budget_spent_before budget_left passed_over""",
    records.PathElement: "step_id key source",
    records.Dependency: "from_step source_key target_key kind",
    records.DependencyNode: "step_id sub_step attempt tool_name state",
    records.DependencyEdge: "from_step to_step to_sub_step source_key target_key kind",
    records.RootCause: "step_id path",
    records.Event: """sequence transaction_id type step_id sub_step attempt generation occurred_at payload""",
    run_events.GraphEvent: """offset sequence kind run_id root_run_id thread_id graph namespace superstep node task_id
        payload occurred_at""",
    records.Tool: "name description arguments_schema effect_class location timeout_seconds retries blocking",
    records.RewindResult: """next_step_id generation compensations_run compensation_errors kept_effects
        rollback_incomplete plan""",
    records.RewindPlan: """steps undo_actions state_keys staged_effects truncated steps_total undo_actions_total
        state_writes_total staged_effects_total""",
    records.Compensation: """compensation_id transaction_id step_id sub_step attempt tool_name sequence action arguments
        state tries hint category late_effect raw_error idempotency_key registered_at updated_at resolution note""",
    records.CompensationResult: "compensation rollback_incomplete next_step_id generation",
    records.CancelStepResult: "state next_step_id generation",
    records.ResolveStepResult: "outcome next_step_id generation",
    records.Effect: """effect_id transaction_id step_id sub_step attempt sequence channel payload idempotency_key state
        delivery_attempts last_error staged_at ready_at next_attempt_at settled_at""",
    records.RollbackResult: "compensations_run compensation_errors kept_effects rollback_incomplete",
}


@pytest.mark.parametrize("record", PROMISED, ids=lambda record: record.__name__)
def test_promised_keys_are_there(record):
    there = {field.name for field in dataclasses.fields(record)}
    assert set(PROMISED[record].split()) - there == set()
