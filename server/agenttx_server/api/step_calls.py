"""A step's call between the wire and the engine, for single calls, groups and streams alike.

``Struct`` is converted value by value in Python: megabytes of it take long enough to be noticed by
everybody, so large ones are converted on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.answer_sizes import AnswerSizes
from agenttx_server.api.message_conversion import answers, requests
from agenttx_server.engine.requests import GroupRequest, StepAnswer, StepRequest

__all__ = ["answer_group", "answer_step", "read_group", "read_step"]

LARGE_BYTES = 64 << 10


async def read_step(
    message: pb.ExecuteStepRequest, principal: str, sizes: AnswerSizes, *, generation_required: bool = False
) -> StepRequest:
    """Return what a step's request asks; raise InvalidRequest with everything wrong with it."""
    if message.HasField("arguments") and message.arguments.ByteSize() > LARGE_BYTES:
        return await asyncio.to_thread(
            requests.step_request,
            message,
            principal,
            sizes.struct_output_bytes,
            generation_required=generation_required,
        )
    return requests.step_request(
        message, principal, sizes.struct_output_bytes, generation_required=generation_required
    )


async def answer_step(
    message: pb.ExecuteStepRequest, answer: StepAnswer, sizes: AnswerSizes
) -> pb.ExecuteStepResponse:
    """Return the answer to a step, with its output as a Struct if the request had one and it fits."""
    if not message.HasField("arguments"):
        return answers.step_response(answer, as_struct=False)
    (response,) = await _with_structs([(answer, True)], sizes)
    return response


async def read_group(message: pb.ExecuteStepGroupRequest, principal: str, sizes: AnswerSizes) -> GroupRequest:
    """Return what a group's request asks; raise InvalidRequest with everything wrong with it."""
    if message.ByteSize() > LARGE_BYTES:
        return await asyncio.to_thread(requests.group_request, message, principal, sizes.struct_output_bytes)
    return requests.group_request(message, principal, sizes.struct_output_bytes)


async def answer_group(
    message: pb.ExecuteStepGroupRequest, members: Sequence[StepAnswer], sizes: AnswerSizes
) -> pb.ExecuteStepGroupResponse:
    """Return the answers to a group's members."""
    answered = [
        (answer, member.HasField("arguments"))
        for answer, member in zip(members, message.members, strict=True)
    ]
    return pb.ExecuteStepGroupResponse(responses=await _with_structs(answered, sizes))


async def _with_structs(
    answered: Sequence[tuple[StepAnswer, bool]], sizes: AnswerSizes
) -> list[pb.ExecuteStepResponse]:
    if sum(len(answer.output or "") for answer, as_struct in answered if as_struct) > LARGE_BYTES:
        return await asyncio.to_thread(_responses, answered, sizes)
    return _responses(answered, sizes)


def _responses(
    answered: Sequence[tuple[StepAnswer, bool]], sizes: AnswerSizes
) -> list[pb.ExecuteStepResponse]:
    responses = [answers.step_response(answer, as_struct=as_struct) for answer, as_struct in answered]
    answers.fit_structs(responses, sizes.message_bytes)
    return responses
