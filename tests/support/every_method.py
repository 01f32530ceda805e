"""Every method of every service, from the descriptors: called with any request and any credentials.

    for method in METHODS:
        answer = await call(channel, method, request(method, {"transaction_id": "t"}), token)

Requests are filled by the names of their fields, so that a method which is added is called as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status

from agenttx.v1 import audit_pb2, graph_pb2, lineage_pb2, tool_pb2, transaction_pb2

__all__ = ["METHODS", "Answer", "AnyMethod", "call", "request"]

SECONDS = 20.0


@dataclass(frozen=True)
class AnyMethod:
    """A method under one of its paths."""

    path: str
    descriptor: MethodDescriptor

    @property
    def name(self) -> str:
        """``Service/Method``, as in the table of roles."""
        return f"{self.descriptor.containing_service.name}/{self.descriptor.name}"


@dataclass(frozen=True)
class Answer:
    """How a call ended: its code, the reason, metadata and RetryInfo of a refusal, the first message otherwise."""

    code: grpc.StatusCode
    reason: str = ""
    metadata: Mapping[str, str] | None = None
    message: Any = None
    retry_seconds: float = 0.0


def _all() -> list[AnyMethod]:
    files = (transaction_pb2, graph_pb2, lineage_pb2, audit_pb2, tool_pb2)
    found = [
        AnyMethod(f"/{service.full_name}/{method.name}", method)
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    reflection = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].methods[0]
    paths = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
    return [*found, *(AnyMethod(f"/{path}/ServerReflectionInfo", reflection) for path in paths)]


METHODS = _all()


def request(method: AnyMethod, values: Mapping[str, str], more: Mapping[str, Any] | None = None) -> Message:
    """Return a request with the fields of text that it has of ``values``, on every level, and ``more``, as JSON."""
    message = message_factory.GetMessageClass(method.descriptor.input_type)()
    if more:
        ParseDict(dict(more), message)
    if method.descriptor.name != "Connect":
        _fill(message, values, depth=2)
    return message


def _fill(message: Message, values: Mapping[str, str], depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated or field.containing_oneof is not None:
            continue
        if field.message_type is not None:
            if depth and field.message_type.name in ("ExecuteStepRequest", "StartRunRequest"):
                _fill(getattr(message, field.name), values, depth - 1)
        elif field.name in values and field.type == field.TYPE_STRING:
            setattr(message, field.name, values[field.name])


async def call(
    channel: grpc.aio.Channel,
    method: AnyMethod,
    sent: Message,
    token: str = "",
    metadata: tuple[tuple[str, str], ...] | None = None,
) -> Answer:
    """Call a method with one request and return its first answer, or how it was refused."""
    if metadata is None:
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
    kind = (method.descriptor.client_streaming, method.descriptor.server_streaming)
    make = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }[kind]
    output = message_factory.GetMessageClass(method.descriptor.output_type)
    callable_ = make(
        method.path,
        request_serializer=type(sent).SerializeToString,
        response_deserializer=output.FromString,
    )
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                if kind == (False, False):
                    return _answered(await callable_(sent, metadata=metadata))
                if kind == (False, True):
                    stream: Any = callable_(sent, metadata=metadata)
                else:
                    stream = callable_(iter([sent]), metadata=metadata)
                first = await stream.read()
                if first is grpc.aio.EOF:
                    return Answer(await stream.code())
                stream.cancel()
                return _answered(first)
            except grpc.aio.AioRpcError as refused:
                status = rpc_status.from_call(refused)
                if status is None and kind[0] and refused.code() is grpc.StatusCode.INTERNAL:
                    # The client's library made that up: it was still sending when the server refused the call.
                    continue
                return _refused(status) if status is not None else Answer(refused.code())


def _answered(message: Any) -> Answer:
    # A step of a stream is refused inside it, and the stream goes on.
    error = getattr(message, "error", None)
    if error is not None and "error" in message.DESCRIPTOR.fields_by_name and message.HasField("error"):
        return _refused(status_pb2.Status(code=error.code, message=error.message, details=error.details))
    return Answer(grpc.StatusCode.OK, message=message)


def _refused(status: status_pb2.Status) -> Answer:
    code = next(one for one in grpc.StatusCode if one.value[0] == status.code)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details:
        for known in (info, retry):
            if detail.Is(known.DESCRIPTOR):
                detail.Unpack(known)
    wait = retry.retry_delay.ToTimedelta().total_seconds()
    return Answer(code, info.reason, dict(info.metadata), retry_seconds=wait)
