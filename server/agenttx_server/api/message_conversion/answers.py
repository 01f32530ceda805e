"""From what the engine answers to response messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.rpc import status_pb2

from agenttx.v1 import event_pb2
from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.message_conversion.approvals import approval
from agenttx_server.api.message_conversion.enumerations import to_wire
from agenttx_server.api.message_conversion.values import (
    duration_from_microseconds,
    struct_from_json,
    timestamp_from_microseconds,
)
from agenttx_server.engine.records import (
    Decision,
    Edge,
    EffectClass,
    EventRecord,
    KeptEffect,
    PathElement,
    Strategy,
    ToolDescription,
    TransactionId,
    UndoRecord,
)
from agenttx_server.engine.requests import (
    BeginAnswer,
    CommitAnswer,
    GraphView,
    RewindAnswer,
    RootCause,
    StepAnswer,
    StepStatus,
    compensation_id,
)

__all__ = [
    "begin_response",
    "commit_response",
    "dependency",
    "effect_class",
    "fill_plain_success",
    "fit_structs",
    "graph_response",
    "kept_effect",
    "pending_undo",
    "rewind_fields",
    "rollback_decision",
    "rollback_response",
    "root_cause_response",
    "step_error",
    "step_response",
    "tool_description",
    "transaction_event",
]

_SUCCESS = to_wire(StepStatus.SUCCESS)
_NONE = to_wire(Strategy.NONE)


def begin_response(answer: BeginAnswer) -> pb.BeginTransactionResponse:
    """Return the answer of BeginTransaction."""
    return pb.BeginTransactionResponse(
        transaction_id=answer.transaction_id,
        next_step_id=answer.next_step_id,
        generation=answer.generation,
    )


def step_response(answer: StepAnswer, *, as_struct: bool) -> pb.ExecuteStepResponse:
    """Return the answer to one step; with the output as a Struct too if the request had one."""
    if not as_struct:
        plain = pb.ExecuteStepResponse()
        if fill_plain_success(plain, answer):
            return plain
    response = pb.ExecuteStepResponse(
        status=_SUCCESS if answer.status is StepStatus.SUCCESS else to_wire(answer.status),
        output_json=answer.output or "",
        strategy=_NONE if answer.strategy is Strategy.NONE else to_wire(answer.strategy),
        next_step_id=answer.next_step_id,
        constraints=answer.constraints,
        dependencies=[dependency(edge) for edge in answer.dependencies],
        replayed=answer.replayed,
        attempt=answer.attempt,
        generation=answer.generation,
        rewound=answer.rewound,
        output_omitted=answer.output_omitted,
    )
    if answer.approval is not None and answer.status is StepStatus.AWAITING_APPROVAL:
        response.approval.CopyFrom(approval(answer.approval))
    if as_struct and answer.output is not None:
        output = struct_from_json(answer.output)
        if output is not None:
            response.output.CopyFrom(output)
    if answer.status is not StepStatus.SUCCESS or answer.decision is not None:
        _add_failure(response, answer)
    return response


def fill_plain_success(response: pb.ExecuteStepResponse, answer: StepAnswer) -> bool:
    """Fill an empty response, which may be part of a larger message, if an answer is what nearly every step's is; return whether.

    Set one by one, and a part in its place: in the keywords of a constructor a message is made aside and copied.
    """
    if not _is_plain_success(answer):
        return False
    response.status = _SUCCESS
    response.strategy = _NONE
    if answer.output:
        response.output_json = answer.output
    response.next_step_id = answer.next_step_id
    response.attempt = answer.attempt
    response.generation = answer.generation
    if answer.constraints:
        response.constraints.extend(answer.constraints)
    for edge in answer.dependencies:
        part = response.dependencies.add()
        part.from_step = edge.from_step
        part.source_key = edge.source_key
        part.target_key = edge.target_key
        part.kind = to_wire(edge.kind)
    return True


def _is_plain_success(answer: StepAnswer) -> bool:
    """Whether an answer is what nearly every step's is: of the fields that it may have it has the fewest."""
    return (
        answer.status is StepStatus.SUCCESS
        and answer.strategy is Strategy.NONE
        and answer.decision is None
        and answer.approval is None
        and not answer.replayed
        and not answer.rewound
        and not answer.output_omitted
    )


def _add_failure(response: pb.ExecuteStepResponse, answer: StepAnswer) -> None:
    if answer.hint is not None:
        response.clean_hint = answer.hint.text
        response.error_category = answer.hint.category.value
    response.rollback_to_step = answer.rollback_to_step
    response.context_reset = answer.context_reset
    response.rollback_latency_ms = answer.rollback_latency_ms
    response.abort_reason = answer.abort_reason
    response.compensation_errors.extend(answer.compensation_errors)
    if answer.decision is not None:
        response.decision.CopyFrom(rollback_decision(answer.decision))
    response.rollback_incomplete = answer.rollback_incomplete
    response.kept_effects.extend(map(kept_effect, answer.kept_effects))
    response.pending_undo.extend(map(pending_undo, answer.pending_undo))


def fit_structs(responses: Sequence[pb.ExecuteStepResponse], limit_bytes: int) -> None:
    """Leave the Structs out where the answer would be larger than a message may be.

    A Struct takes up to six times the space of its JSON, which the answer has anyway.
    """
    if not any(response.HasField("output") for response in responses):
        return
    if sum(response.ByteSize() for response in responses) > limit_bytes:
        for response in responses:
            response.ClearField("output")


def step_error(status: status_pb2.Status) -> pb.StepError:
    """Return an RPC error in its form on a stream."""
    return pb.StepError(code=status.code, message=status.message, details=status.details)


def dependency(edge: Edge) -> pb.Dependency:
    """Return an edge as its consumer sees it."""
    return pb.Dependency(
        from_step=edge.from_step,
        source_key=edge.source_key,
        target_key=edge.target_key,
        kind=to_wire(edge.kind),
    )


def kept_effect(kept: KeptEffect) -> pb.KeptEffect:
    """Return an effect that stays."""
    return pb.KeptEffect(
        step_id=kept.step_id,
        tool_name=kept.tool_name,
        attempt=kept.attempt,
        effect_class=to_wire(kept.effect_class),
        reason=kept.reason,
        sub_step=kept.sub_step,
    )


def pending_undo(undo: UndoRecord) -> pb.PendingUndo:
    """Return an undo action that the agent has to do now."""
    return pb.PendingUndo(
        compensation_id=compensation_id(undo),
        step_id=undo.step_id,
        attempt=undo.attempt,
        tool_name=undo.tool_name,
        action=undo.undo_name,
        arguments_json=undo.arguments,
        idempotency_key=undo.idempotency_key,
    )


def rollback_decision(decision: Decision) -> pb.RollbackDecision:
    """Return a decision with what is left of the budget after it."""
    return pb.RollbackDecision(
        strategy=to_wire(decision.strategy),
        failed_step=decision.failed_step,
        target_step=decision.target_step,
        error_keys=decision.error_keys,
        traced_key=decision.error_key or "",
        path=path_elements(decision.path),
        attempt=decision.failure_number,
        cost=decision.cost,
        budget_total=decision.budget_total,
        budget_spent_before=decision.budget_spent_before,
        budget_left=_budget_left(decision),
        passed_over=[
            pb.PassedOverRung(
                strategy=to_wire(rung.strategy), target_step=rung.target_step, reason=rung.reason
            )
            for rung in decision.passed_over
        ],
    )


def _budget_left(decision: Decision) -> int:
    if decision.strategy is Strategy.GLOBAL_RESET:
        return decision.budget_total  # The new epoch begins with nothing spent.
    return max(decision.budget_total - decision.budget_spent_before - decision.cost, 0)


def path_elements(path: Iterable[PathElement]) -> list[pb.RootCausePathElement]:
    """Return a root cause's path."""
    return [
        pb.RootCausePathElement(step_id=element.step_id, key=element.key, source=to_wire(element.source))
        for element in path
    ]


def effect_class(known: EffectClass | None) -> pb.EffectClass.ValueType:
    """Return a tool's effect class; unspecified where there is no such tool."""
    number: pb.EffectClass.ValueType = pb.EFFECT_CLASS_UNSPECIFIED if known is None else to_wire(known)
    return number


def rewind_fields(answer: RewindAnswer) -> pb.RewindResponse:
    """Return the answer of Rewind, but for the plan of a dry run."""
    return pb.RewindResponse(
        next_step_id=answer.next_step_id,
        generation=answer.generation,
        compensations_run=answer.compensations_run,
        compensation_errors=answer.compensation_errors,
        kept_effects=[kept_effect(kept) for kept in answer.kept_effects],
        rollback_incomplete=answer.rollback_incomplete,
        pending_undo=map(pending_undo, answer.pending_undo),
    )


def rollback_response(answer: RewindAnswer) -> pb.RollbackTransactionResponse:
    """Return the answer of RollbackTransaction."""
    return pb.RollbackTransactionResponse(
        rolled_back=not answer.rollback_incomplete,
        next_step_id=answer.next_step_id,
        compensations_run=answer.compensations_run,
        compensation_errors=answer.compensation_errors,
        generation=answer.generation,
        kept_effects=[kept_effect(kept) for kept in answer.kept_effects],
        rollback_incomplete=answer.rollback_incomplete,
        pending_undo=map(pending_undo, answer.pending_undo),
    )


def commit_response(answer: CommitAnswer) -> pb.CommitTransactionResponse:
    """Return the answer of CommitTransaction."""
    return pb.CommitTransactionResponse(
        committed=True,
        steps_committed=answer.steps_committed,
        effects_dispatched=answer.effects_dispatched,
        dispatch_errors=answer.dispatch_errors,
        effects_pending=answer.effects_pending,
        keys_published=answer.keys_published,
        commit_version=answer.commit_version,
    )


def graph_response(graph: GraphView) -> pb.GetDependencyGraphResponse:
    """Return a dependency graph as messages."""
    return pb.GetDependencyGraphResponse(
        nodes=[
            pb.DependencyGraphNode(
                step_id=node.step_id,
                tool_name=node.tool_name,
                attempt=node.attempt,
                state=to_wire(node.state),
                effect_class=effect_class(node.effect_class),
            )
            for node in graph.nodes
        ],
        edges=[
            pb.DependencyGraphEdge(
                from_step=edge.from_step,
                to_step=edge.to_step,
                source_key=edge.source_key,
                target_key=edge.target_key,
                kind=to_wire(edge.kind),
                to_sub_step=edge.to_sub_step,
            )
            for edge in graph.edges
        ],
    )


def root_cause_response(cause: RootCause) -> pb.FindRootCauseResponse:
    """Return the answer of FindRootCause."""
    return pb.FindRootCauseResponse(
        found=cause.step_id is not None,
        root_step=cause.step_id or 0,
        path=path_elements(cause.path),
    )


def tool_description(tool: ToolDescription) -> pb.ToolDescription:
    """Return what is known of a tool."""
    message = pb.ToolDescription(
        name=tool.name,
        description=tool.description,
        arguments_schema_json=tool.arguments_schema,
        effect_class=to_wire(tool.effect_class),
        location=to_wire(tool.location),
        retries=tool.retries,
        blocking=tool.blocking,
        needs_approval=tool.needs_approval,
        restartable=tool.restartable,
        emits_records=tool.emits_records,
    )
    if tool.timeout_us is not None:
        message.timeout.CopyFrom(duration_from_microseconds(tool.timeout_us))
    return message


def transaction_event(transaction_id: TransactionId, event: EventRecord) -> event_pb2.TransactionEvent:
    """Return one event."""
    return event_pb2.TransactionEvent(
        sequence=event.sequence,
        transaction_id=transaction_id,
        type=to_wire(event.type),
        step_id=event.step_id,
        attempt=event.attempt,
        occurred_at=timestamp_from_microseconds(event.occurred_at),
        payload_json=event.payload,
        generation=event.generation,
        sub_step=event.sub_step,
    )
