"""Messages of a worker's connection between the wire and the tools layer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from agenttx.v1 import tool_pb2 as pb
from agenttx_server.api.message_conversion.effects import effect
from agenttx_server.api.message_conversion.request_reader import RequestReader
from agenttx_server.api.message_conversion.values import (
    duration_from_microseconds,
    microseconds_from_duration,
    timestamp_from_microseconds,
)
from agenttx_server.engine import json_values
from agenttx_server.engine.errors import FieldViolation, InvalidRequest
from agenttx_server.engine.records import EffectClass, MicrosecondsUtc, ToolDescription, ToolLocation
from agenttx_server.worker_messages import (
    CancelCall,
    Command,
    ContextAnswer,
    ContextRequest,
    Delete,
    DeliverCall,
    Done,
    EffectId,
    Entries,
    Failure,
    FunctionCall,
    Get,
    Interrupt,
    LiveServer,
    MakeStep,
    Offer,
    OfferedTool,
    Outcome,
    Output,
    Put,
    RegisterUndo,
    Scan,
    StageEffect,
    Succeeded,
    ToolCall,
    Touch,
    UndoCall,
    Unknown,
    Value,
    Waits,
)

__all__ = [
    "call_event",
    "command",
    "context_request",
    "offer",
    "out_of_turn",
    "outcome",
    "server_list",
    "welcome",
]

DEFAULT_CONCURRENCY = 16
MAX_CONCURRENCY = 10_000
MAX_TOOLS = 1_000
MAX_CHANNELS = 1_000
MAX_FUNCTIONS = 10_000
MAX_READS = 1_000
MAX_EVENT_BYTES = 64 << 10
MAX_UNDO_NAMES = 100
MAX_RETRIES = 5
MAX_SCHEMA_BYTES = 256 << 10
MAX_DESCRIPTION_BYTES = 64 << 10
MAX_WORKER_NAME_BYTES = 256
MAX_CHANNEL_BYTES = 128
MAX_RAW_ERROR_BYTES = 256 << 10
MAX_MESSAGE_CHARACTERS = 4096
MAX_KEYS = 32

_NAME = re.compile(r"[A-Za-z0-9_.:/@-]{1,128}")


# --- from a worker -----------------------------------------------------------------------


def offer(hello: pb.WorkerHello) -> Offer:
    """Return what a worker offers; raise InvalidRequest with all that is wrong with it."""
    reader = RequestReader()
    reader.name("hello.worker_name", hello.worker_name, MAX_WORKER_NAME_BYTES)
    reader.name("hello.sdk", hello.sdk, MAX_WORKER_NAME_BYTES)
    for field, count, limit in (
        ("tools", len(hello.tools), MAX_TOOLS),
        ("channels", len(hello.channels), MAX_CHANNELS),
        ("functions", len(hello.functions), MAX_FUNCTIONS),
        ("concurrency", hello.concurrency, MAX_CONCURRENCY),
    ):
        if count > limit:
            reader.refuse(f"hello.{field}", f"is {count}; the limit is {limit}")
    reader.check()
    tools = [_tool(reader, f"hello.tools[{index}]", tool) for index, tool in enumerate(hello.tools)]
    names = [tool.name for tool in hello.tools]
    undo_names = [undo_name for tool in hello.tools for undo_name in tool.undo_names]
    given_names = {
        "tools": names,
        "undo_names": undo_names,
        "channels": list(hello.channels),
        "functions": list(hello.functions),
    }
    for field, given in given_names.items():
        if twice := next((name for name, times in Counter(given).items() if times > 1), None):
            reader.refuse(f"hello.{field}", f"holds '{twice[:64]}' twice")
    for index, function in enumerate(hello.functions):
        if not _NAME.fullmatch(function):
            reader.refuse(
                f"hello.functions[{index}]", "is not 1 to 128 characters of A-Z a-z 0-9 _ . : / @ -"
            )
    for index, channel in enumerate(hello.channels):
        if not channel:
            reader.refuse(f"hello.channels[{index}]", "is empty")
        reader.name(f"hello.channels[{index}]", channel, MAX_CHANNEL_BYTES)
    reader.check()
    return Offer(
        hello.worker_name,
        hello.sdk,
        tuple(tool for tool in tools if tool is not None),
        tuple(hello.channels),
        hello.concurrency or DEFAULT_CONCURRENCY,
        tuple(hello.functions),
    )


def _tool(reader: RequestReader, field: str, tool: pb.WorkerTool) -> OfferedTool | None:
    for part, name in (("name", tool.name), *(("undo_names", undo_name) for undo_name in tool.undo_names)):
        if not _NAME.fullmatch(name):
            reader.refuse(f"{field}.{part}", "is not 1 to 128 characters of A-Z a-z 0-9 _ . : / @ -")
    reader.name(f"{field}.description", tool.description, MAX_DESCRIPTION_BYTES)
    effect_class = reader.enumeration(f"{field}.effect_class", EffectClass, tool.effect_class)
    if effect_class is None:
        reader.refuse(f"{field}.effect_class", "is unspecified; say what the tool promises")
        return None
    if tool.retries > MAX_RETRIES:
        reader.refuse(f"{field}.retries", f"is {tool.retries}; the limit is {MAX_RETRIES}")
    if tool.retries and effect_class in (EffectClass.COMPENSATABLE, EffectClass.IRREVERSIBLE):
        reader.refuse(f"{field}.retries", f"is set, but {effect_class} tools are not repeated in place")
    if len(tool.undo_names) > MAX_UNDO_NAMES:
        reader.refuse(f"{field}.undo_names", f"are {len(tool.undo_names)}; the limit is {MAX_UNDO_NAMES}")
    if tool.restartable and effect_class.acts_outside:
        reader.refuse(f"{field}.restartable", f"is set, but a {effect_class} tool acts outside itself")
    if tool.undo_names and not effect_class.acts_outside:
        reader.refuse(f"{field}.undo_names", f"are given, but {effect_class} tools have nothing to undo")
    timeout = reader.duration(tool, "timeout", shown=f"{field}.timeout")
    return OfferedTool(
        ToolDescription(
            name=tool.name,
            description=tool.description,
            arguments_schema=_schema(reader, f"{field}.arguments_schema_json", tool.arguments_schema_json),
            effect_class=effect_class,
            location=ToolLocation.WORKER,
            timeout_us=timeout or None,
            retries=tool.retries,
            undo_names=tuple(sorted(tool.undo_names)),
            needs_approval=tool.needs_approval,
            restartable=tool.restartable,
            emits_records=tool.emits_records,
        ),
        tool.concurrency,
    )


def _schema(reader: RequestReader, field: str, text: str) -> str:
    if len(text) > MAX_SCHEMA_BYTES:
        reader.refuse(field, f"is longer than {MAX_SCHEMA_BYTES} bytes")
        return "{}"
    try:
        schema = json_values.parse(text or "{}")
    except json_values.ValueRefused as refused:
        reader.refuse(field, f"is not plain JSON at {refused}")
        return "{}"
    if not isinstance(schema, dict):
        reader.refuse(field, "is no JSON object")
    return json_values.canonical(schema)


def outcome(message: pb.CallOutcome) -> Outcome:
    """Return what became of a call."""
    kind = message.WhichOneof("outcome")
    reads = tuple(message.reads[:MAX_READS])
    if kind == "output_json":
        return Succeeded(message.output_json, reads)
    if kind == "failure":
        return replace(_failure(message.failure), reads=reads)
    if kind == "unknown":
        return Unknown(message.unknown[:MAX_MESSAGE_CHARACTERS] or "the worker did not say why")
    out_of_turn("outcome", "has no outcome set")


def _failure(message: pb.CallFailure) -> Failure:
    wait = None
    if message.HasField("retry_after"):
        try:
            wait = microseconds_from_duration(message.retry_after) / 1_000_000
        except ValueError:
            wait = None
    return Failure(
        category=message.category,
        message=message.message[:MAX_MESSAGE_CHARACTERS],
        keys=tuple(key[:256] for key in message.keys[:MAX_KEYS]),
        raw_error=message.raw_error[-MAX_RAW_ERROR_BYTES:],
        permanent=message.permanent,
        retry_after_seconds=wait,
        not_called=message.not_called,
        failed_sub_step=message.failed_sub_step,
    )


def call_event(message: pb.CallEvent) -> tuple[int, str, str]:
    """Return an event of a run: its call, its name, its data. Raises InvalidRequest for one that can't be kept."""
    reader = RequestReader()
    if not message.name:
        reader.refuse("event.name", "is empty")
    reader.name("event.name", message.name, 128)
    data = "null"
    if len(message.data_json) > MAX_EVENT_BYTES:
        reader.refuse("event.data_json", f"is longer than {MAX_EVENT_BYTES} bytes")
    else:
        try:
            data = json_values.canonical(json_values.parse(message.data_json or "null"))
        except json_values.ValueRefused as refused:
            reader.refuse("event.data_json", f"is not plain JSON at {refused}")
    reader.check()
    return message.call_id, message.name, data


def context_request(message: pb.ContextRequest) -> ContextRequest:
    """Return what a call's code asks."""
    match message.WhichOneof("request"):
        case "get":
            return Get(message.get.key)
        case "scan":
            return Scan(message.scan.prefix, message.scan.after, message.scan.limit)
        case "put":
            return Put(message.put.key, message.put.value_json)
        case "delete":
            return Delete(message.delete.key)
        case "register_undo":
            asked = message.register_undo
            return RegisterUndo(asked.undo_name, asked.arguments_json or "{}", asked.idempotency_key)
        case "stage_effect":
            staged = message.stage_effect
            return StageEffect(staged.channel, staged.payload_json, staged.idempotency_key)
        case "touch":
            return Touch(message.touch.key, message.touch.writes)
        case "step":
            return _make_step(message.step)
        case "interrupt":
            return Interrupt(message.interrupt.payload_json or "null")
        case _:
            out_of_turn("context", "has no request set")


def _make_step(message: pb.ContextStep) -> MakeStep:
    reader = RequestReader()
    timeout = reader.duration(message, "timeout", shown="context.step.timeout")
    reader.check()
    return MakeStep(message.tool_name, message.arguments_json or "{}", timeout or None)


def out_of_turn(field: str, problem: str) -> NoReturn:
    """Refuse a message."""
    raise InvalidRequest((FieldViolation(field, problem),))


# --- to a worker -------------------------------------------------------------------------


def welcome(
    server_id: str,
    servers: Sequence[LiveServer],
    silence_limit_seconds: float,
    idle_silence_limit_seconds: float,
    output_limit_bytes: int,
) -> pb.ConnectResponse:
    """Return the answer to a hello. A worker is to be heard three times in the time that it may be silent."""
    return pb.ConnectResponse(
        welcome=pb.ServerWelcome(
            server_id=server_id,
            servers=server_list(servers).servers,
            heartbeat_interval=duration_from_microseconds(round(silence_limit_seconds / 3 * 1_000_000)),
            silence_limit=duration_from_microseconds(round(silence_limit_seconds * 1_000_000)),
            output_limit_bytes=output_limit_bytes,
            idle_heartbeat_interval=duration_from_microseconds(
                round(idle_silence_limit_seconds / 3 * 1_000_000)
            ),
        )
    )


def server_list(servers: Sequence[LiveServer]) -> pb.ConnectResponse:
    """Return which servers there are."""
    listed = [pb.ServerAddress(server_id=server.server_id, address=server.address) for server in servers]
    return pb.ConnectResponse(servers=pb.ServerList(servers=listed))


def command(told: Command, now: MicrosecondsUtc) -> pb.ConnectResponse:
    """Return what a worker is told; ``now`` is what a call's deadline counts from."""
    message = _command(told, now)
    if isinstance(told, ToolCall | FunctionCall | UndoCall | DeliverCall) and told.trace is not None:
        message.traceparent = told.trace.get("traceparent", "")
        message.tracestate = told.trace.get("tracestate", "")
    return message


def _command(told: Command, now: MicrosecondsUtc) -> pb.ConnectResponse:
    match told:
        case ToolCall():
            left = round(max(told.seconds_left, 0.0) * 1_000_000)
            return pb.ConnectResponse(
                call=pb.ToolCall(
                    call_id=told.call_id,
                    tool_name=told.tool_name,
                    arguments_json=told.arguments,
                    transaction_id=told.transaction_id,
                    agent_id=told.agent_id,
                    step_id=told.step_id,
                    attempt=told.attempt,
                    idempotency_key=told.idempotency_key,
                    deadline=timestamp_from_microseconds(MicrosecondsUtc(now + left)),
                    fence=told.fence,
                    time_left=duration_from_microseconds(left),
                    metadata_json=told.metadata,
                )
            )
        case FunctionCall():
            left = round(max(told.seconds_left, 0.0) * 1_000_000)
            return pb.ConnectResponse(
                function=pb.FunctionCall(
                    call_id=told.call_id,
                    function_name=told.function_name,
                    told_json=told.told,
                    transaction_id=told.transaction_id,
                    agent_id=told.agent_id,
                    step_id=told.step_id,
                    attempt=told.attempt,
                    idempotency_key=told.idempotency_key,
                    deadline=timestamp_from_microseconds(MicrosecondsUtc(now + left)),
                    fence=told.fence,
                    time_left=duration_from_microseconds(left),
                )
            )
        case UndoCall(call_id, undo_name, arguments, context):
            return pb.ConnectResponse(
                undo=pb.UndoCall(
                    call_id=call_id,
                    undo_name=undo_name,
                    arguments_json=arguments,
                    transaction_id=context.transaction_id,
                    agent_id=context.agent_id,
                    step_id=context.step_id,
                    attempt=context.attempt,
                    idempotency_key=context.idempotency_key,
                )
            )
        case DeliverCall(call_id, transaction_id, record):
            return pb.ConnectResponse(
                deliver=pb.DeliverCall(call_id=call_id, effect=effect(transaction_id, record))
            )
        case CancelCall(call_id, reason):
            return pb.ConnectResponse(cancel=pb.CancelCall(call_id=call_id, reason=reason))
        case ContextAnswer():
            return pb.ConnectResponse(context=_context_answer(told))


def _context_answer(told: ContextAnswer) -> pb.ContextAnswer:
    message = pb.ContextAnswer(request_id=told.request_id)
    match told.answer:
        case Done():
            message.done.SetInParent()
        case Value(value):
            message.value.CopyFrom(pb.ContextValue(found=value is not None, value_json=value or ""))
        case Entries(entries, is_cut):
            message.entries.CopyFrom(
                pb.ContextEntries(
                    entries=[pb.ContextEntryValue(key=key, value_json=value) for key, value in entries],
                    is_cut=is_cut,
                )
            )
        case EffectId(effect_id):
            message.effect_id = effect_id
        case Output(output):
            message.output_json = output
        case Waits():
            message.waits.SetInParent()
        case Failure():
            failure = told.answer
            message.failure.CopyFrom(
                pb.CallFailure(
                    category=failure.category,
                    message=failure.message,
                    keys=failure.keys,
                    failed_sub_step=failure.failed_sub_step,
                )
            )
        case closed:
            message.closed = closed.why or "the call is over"
    return message
