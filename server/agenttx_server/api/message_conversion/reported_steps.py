"""ReportStep and AcknowledgeUndo between the wire and the engine: what the agent ran, and undid, itself."""

from __future__ import annotations

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.message_conversion.answers import pending_undo, step_response
from agenttx_server.api.message_conversion.compensations import compensation
from agenttx_server.api.message_conversion.request_reader import RequestReader
from agenttx_server.engine.errors import FieldViolation
from agenttx_server.engine.records import EffectClass
from agenttx_server.engine.requests import (
    AcknowledgeUndoRequest,
    AgentUndo,
    CompensationAnswer,
    StepAnswer,
    StepCall,
    StepReport,
    StepRequest,
)

__all__ = ["acknowledge_request", "acknowledge_response", "report_request", "report_response"]


def report_request(
    message: pb.ReportStepRequest, principal: str
) -> tuple[StepRequest, tuple[FieldViolation, ...]]:
    """Return what ReportStep tells, and what is wrong with its fields so far: the engine finds the rest."""
    reader = RequestReader()
    outcome = message.WhichOneof("outcome")
    if outcome is None:
        reader.refuse("outcome", "is unset; give output_json, or error where it failed")
    report = StepReport(
        effect_class=reader.enumeration("effect_class", EffectClass, message.effect_class),
        output_json=None if outcome == "error" else message.output_json,
        error=message.error,
        undo=tuple(AgentUndo(undo.action, undo.arguments_json or "{}") for undo in message.undo_actions),
    )
    request = StepRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        step_id=message.step_id,
        call=StepCall(
            tool_name=message.tool_name,
            arguments_json=message.arguments_json or "{}",
            raw_context=message.raw_context,
            request_id=message.request_id,
            report=report,
        ),
        generation=message.generation if message.HasField("generation") else None,
        principal=principal,
    )
    return request, tuple(reader.violations)


def report_response(answer: StepAnswer) -> pb.ReportStepResponse:
    """Return the answer of ReportStep."""
    return pb.ReportStepResponse(result=step_response(answer, as_struct=False))


def acknowledge_request(message: pb.AcknowledgeUndoRequest, principal: str) -> AcknowledgeUndoRequest:
    """Return what AcknowledgeUndo tells."""
    reader = RequestReader()
    request = AcknowledgeUndoRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        compensation_id=message.compensation_id,
        error=message.error,
        request_id=message.request_id,
        principal=principal,
    )
    reader.check()
    return request


def acknowledge_response(answer: CompensationAnswer) -> pb.AcknowledgeUndoResponse:
    """Return the answer of AcknowledgeUndo."""
    return pb.AcknowledgeUndoResponse(
        compensation=compensation(answer.transaction_id, answer.undo, answer.state),
        rollback_incomplete=answer.rollback_incomplete,
        next_step_id=answer.next_step_id,
        generation=answer.generation,
        pending_undo=map(pending_undo, answer.pending_undo),
    )
