"""CancelStep and ResolveStep between the wire and the engine."""

from __future__ import annotations

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.message_conversion import answers
from agenttx_server.api.message_conversion.enumerations import to_wire
from agenttx_server.api.message_conversion.request_reader import RequestReader
from agenttx_server.engine.records import StepResolution
from agenttx_server.engine.requests import (
    CancelStepAnswer,
    CancelStepRequest,
    ResolveStepAnswer,
    ResolveStepRequest,
)

__all__ = ["cancel_request", "cancel_response", "resolve_request", "resolve_response"]


def cancel_request(message: pb.CancelStepRequest, principal: str) -> CancelStepRequest:
    """Return what CancelStep asks."""
    reader = RequestReader()
    if not message.step_id:
        reader.refuse("step_id", "is 0; steps are numbered from 1")
    request = CancelStepRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        step_id=message.step_id,
        reason=message.reason,
        request_id=message.request_id,
        generation=message.generation if message.HasField("generation") else None,
        principal=principal,
    )
    reader.check()
    return request


def cancel_response(answer: CancelStepAnswer) -> pb.CancelStepResponse:
    """Return CancelStep's answer."""
    return pb.CancelStepResponse(
        state=to_wire(answer.state), next_step_id=answer.next_step_id, generation=answer.generation
    )


def resolve_request(message: pb.ResolveStepRequest, principal: str) -> ResolveStepRequest:
    """Return what ResolveStep asks."""
    reader = RequestReader()
    if not message.step_id:
        reader.refuse("step_id", "is 0; steps are numbered from 1")
    resolution = reader.enumeration("resolution", StepResolution, message.resolution)
    if message.resolution == pb.STEP_RESOLUTION_UNSPECIFIED:
        reader.refuse("resolution", "is unset; say SUCCEEDED, FAILED or RETRY")
    request = ResolveStepRequest(
        transaction_id=reader.transaction_id(message.transaction_id),
        step_id=message.step_id,
        resolution=resolution or StepResolution.FAILED,
        output_json=message.output_json,
        error=message.error,
        sub_step=message.sub_step,
        request_id=message.request_id,
        generation=message.generation if message.HasField("generation") else None,
        principal=principal,
    )
    reader.check()
    return request


def resolve_response(answer: ResolveStepAnswer) -> pb.ResolveStepResponse:
    """Return ResolveStep's answer."""
    response = pb.ResolveStepResponse(next_step_id=answer.next_step_id, generation=answer.generation)
    if answer.result is not None:
        response.result.CopyFrom(answers.step_response(answer.result, as_struct=False))
    return response
