"""What is asked about runs, as the graph runtime takes it.

Every function raises InvalidRequest with all violations of the message, and NotSupported for what is not served yet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.message_conversion.request_reader import PageRequest, RequestReader
from agenttx_server.engine.json_values import MISSING, JsonValue, Missing, ValueRefused, parse
from agenttx_server.engine.limits import LARGEST_DURATION_US
from agenttx_server.graphs.limits import MAX_STATE_BYTES
from agenttx_server.graphs.node_results import Target
from agenttx_server.graphs.runs.ports import RunFilter
from agenttx_server.graphs.runs.records import CommitPolicy, Durability, Pairs, RequestRecord, RunStatus
from agenttx_server.graphs.runs.requests import (
    Amendment,
    InputPolicy,
    ResumeRequest,
    RetryRequest,
    RunLimits,
    StartRequest,
)

__all__ = [
    "CancelAsked",
    "DrainAsked",
    "LabelledRuns",
    "cancel_request",
    "channels",
    "drain_request",
    "fingerprint",
    "list_runs_request",
    "request_of",
    "resume_request",
    "retry_request",
    "run_id_of",
    "start_request",
    "targets",
    "thread_id_of",
]

LONGEST_ID_BYTES = 128
LONGEST_NAME_BYTES = 512
LONGEST_THREAD_BYTES = 256
LONGEST_REASON_BYTES = 1024
MOST_LABELS = 64
LONGEST_LABEL_BYTES = 1024
MOST_TARGETS = 10_000
MOST_ANSWERS = 10_000
_DURABILITIES = {
    pb.CHECKPOINT_DURABILITY_SYNC: Durability.SYNC,
    pb.CHECKPOINT_DURABILITY_ASYNC: Durability.ASYNC,
    pb.CHECKPOINT_DURABILITY_EXIT: Durability.EXIT,
}
_COMMIT_POLICIES = {
    pb.RUN_COMMIT_POLICY_COMPLETION: CommitPolicy.COMPLETION,
    pb.RUN_COMMIT_POLICY_INTERRUPT: CommitPolicy.INTERRUPT,
}
_RECURSION_LIMIT = 100_000
_MAX_TOTAL_STEPS = 1_000_000
_MAX_CONCURRENCY = 1_000


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """CancelRun."""

    run_id: str
    rollback: bool
    reason: str
    request: RequestRecord | None = None


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """DrainRun."""

    run_id: str
    grace_us: int | None
    request: RequestRecord | None = None


@dataclass(frozen=True, slots=True)
class LabelledRuns:
    """ListRuns: which runs, with the labels that each must have."""

    which: RunFilter
    labels: Pairs
    page: PageRequest


def start_request(message: pb.StartRunRequest, principal: str) -> StartRequest:
    """Return what StartRun asks."""
    reader = RequestReader()
    reader.identifier("request_id", message.request_id, LONGEST_ID_BYTES)
    reader.name("graph", message.graph, LONGEST_NAME_BYTES)
    if not message.graph:
        reader.refuse("graph", "is empty")
    reader.name("version", message.version, LONGEST_ID_BYTES)
    reader.identifier("thread_id", message.thread_id, LONGEST_THREAD_BYTES)
    given = channels("input_json", message.input_json, reader)
    goto = targets("goto", message.goto, reader)
    limits = _limits(message.options, reader)
    metadata = _labels("options.metadata", message.options.metadata, reader)
    reader.name("checkpoint_id", message.checkpoint_id, LONGEST_NAME_BYTES)
    reader.known("input_policy", pb.InputPolicy, message.input_policy)
    reader.known("pending_interrupts", pb.PendingInterruptPolicy, message.pending_interrupts)
    reader.known("on_busy", pb.BusyThreadPolicy, message.on_busy)
    if message.checkpoint_id and not message.thread_id:
        reader.refuse("checkpoint_id", "is of a thread; name the thread")
    reader.check()
    return StartRequest(
        message.graph,
        message.version,
        message.thread_id,
        given,
        goto,
        limits,
        metadata,
        message.request_id,
        fingerprint(message),
        principal,
        message.checkpoint_id,
        InputPolicy.RESET if message.input_policy == pb.INPUT_POLICY_RESET else InputPolicy.MERGE,
        discards_interrupts=message.pending_interrupts == pb.PENDING_INTERRUPT_POLICY_DISCARD,
        queues=message.on_busy == pb.BUSY_THREAD_POLICY_QUEUE,
        allows_graph_change=message.allow_graph_change,
    )


def resume_request(message: pb.ResumeRunRequest, principal: str) -> ResumeRequest:
    """Return what ResumeRun asks."""
    reader = RequestReader()
    thread_id = _thread_of_change(message, reader)
    has_value = message.HasField("value_json")
    value = _value("value_json", message.value_json, reader) if has_value else None
    if has_value and message.values_json:
        reader.refuse("values_json", "is set beside value_json; set one of them")
    if len(message.values_json) > MOST_ANSWERS:
        reader.refuse("values_json", f"has {len(message.values_json)} entries; the limit is {MOST_ANSWERS}")
    values = {
        name: _value(f"values_json[{name[:64]}]", text, reader)
        for name, text in sorted(message.values_json.items())[:MOST_ANSWERS]
    }
    limits = _limits(message.options, reader)
    amendment = _amendment(message, (), reader)
    reader.check()
    return ResumeRequest(
        thread_id,
        value,
        has_value,
        values,
        limits,
        amendment,
        message.version,
        message.allow_graph_change,
        request_id=message.request_id,
        fingerprint=fingerprint(message),
        principal=principal,
    )


def retry_request(message: pb.RetryRunRequest, principal: str) -> RetryRequest:
    """Return what RetryRun asks."""
    reader = RequestReader()
    thread_id = _thread_of_change(message, reader)
    limits = _limits(message.options, reader)
    amendment = _amendment(message, message.discard_task_ids, reader)
    reader.check()
    return RetryRequest(
        thread_id,
        limits,
        amendment,
        message.version,
        message.allow_graph_change,
        request_id=message.request_id,
        fingerprint=fingerprint(message),
        principal=principal,
    )


def cancel_request(message: pb.CancelRunRequest, principal: str) -> CancelAsked:
    """Return what CancelRun asks."""
    reader = RequestReader()
    run_id = _run_id(message.run_id, reader)
    reader.identifier("request_id", message.request_id, LONGEST_ID_BYTES)
    reader.name("reason", message.reason, LONGEST_REASON_BYTES)
    reader.check()
    request = request_of("CancelRun", message, principal)
    return CancelAsked(run_id, message.rollback, message.reason, request)


def drain_request(message: pb.DrainRunRequest, principal: str) -> DrainAsked:
    """Return what DrainRun asks."""
    reader = RequestReader()
    run_id = _run_id(message.run_id, reader)
    reader.identifier("request_id", message.request_id, LONGEST_ID_BYTES)
    grace = reader.duration(message, "grace")
    reader.check()
    return DrainAsked(run_id, grace, request_of("DrainRun", message, principal))


def run_id_of(message: pb.GetRunRequest) -> str:
    """Return which run is asked about."""
    reader = RequestReader()
    run_id = _run_id(message.run_id, reader)
    reader.check()
    return run_id


def thread_id_of(text: str, reader: RequestReader) -> str:
    """Return a thread's id."""
    if not text:
        reader.refuse("thread_id", "is empty")
    reader.identifier("thread_id", text, LONGEST_THREAD_BYTES)
    return text


def list_runs_request(message: pb.ListRunsRequest, principal: str) -> LabelledRuns:
    """Return what ListRuns asks."""
    reader = RequestReader()
    reader.name("graph", message.graph, LONGEST_NAME_BYTES)
    reader.identifier("thread_id", message.thread_id, LONGEST_THREAD_BYTES)
    statuses = {reader.enumeration("statuses", RunStatus, number) for number in message.statuses}
    labels = _labels("metadata", message.metadata, reader)
    page = reader.page(message.page_size, message.page_token)
    reader.check()
    which = RunFilter(
        principal,
        message.graph,
        message.thread_id,
        frozenset(status for status in statuses if status is not None),
        message.include_children,
    )
    return LabelledRuns(which, labels, page)


def _thread_of_change(message: pb.ResumeRunRequest | pb.RetryRunRequest, reader: RequestReader) -> str:
    reader.identifier("request_id", message.request_id, LONGEST_ID_BYTES)
    reader.name("version", message.version, LONGEST_ID_BYTES)
    return thread_id_of(message.thread_id, reader)


def _amendment(
    message: pb.ResumeRunRequest | pb.RetryRunRequest, discard: Sequence[str], reader: RequestReader
) -> Amendment:
    if len(discard) > MOST_TARGETS:
        reader.refuse("discard_task_ids", f"has {len(discard)} entries; the limit is {MOST_TARGETS}")
    for place, task_id in enumerate(discard[:MOST_TARGETS]):
        reader.name(f"discard_task_ids[{place}]", task_id, LONGEST_NAME_BYTES)
    update = channels("update_json", message.update_json, reader)
    return Amendment(update, targets("goto", message.goto, reader), tuple(discard[:MOST_TARGETS]))


def _run_id(text: str, reader: RequestReader) -> str:
    if not text:
        reader.refuse("run_id", "is empty; StartRun gives one")
    reader.name("run_id", text, LONGEST_ID_BYTES)
    return text


def _value(field: str, text: str, reader: RequestReader) -> JsonValue:
    try:
        return parse(text)
    except ValueRefused as error:
        reader.refuse(field, str(error))
        return None


def channels(field: str, text: str, reader: RequestReader) -> Mapping[str, JsonValue] | None:
    """A JSON object of channels, no larger than a state may be; None for an empty text."""
    if not text:
        return None
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_STATE_BYTES:
        reader.refuse(field, f"is {size} bytes long; a state has at most {MAX_STATE_BYTES}")
        return None
    value = _value(field, text, reader)
    if value is not None and not isinstance(value, dict):
        reader.refuse(field, "is no JSON object of channels")
        return None
    if value is None and not reader.violations:
        reader.refuse(field, "is no JSON object of channels")
    return value


def targets(field: str, messages: Iterable[pb.GraphTarget], reader: RequestReader) -> tuple[Target, ...]:
    """Read where to go; a target may have an argument of its own."""
    found = []
    for place, message in enumerate(messages):
        if place == MOST_TARGETS:
            reader.refuse(field, f"has more than {MOST_TARGETS} entries")
            break
        where = f"{field}[{place}]"
        if not message.node:
            reader.refuse(f"{where}.node", "is empty")
        reader.name(f"{where}.node", message.node, LONGEST_ID_BYTES)
        arg: JsonValue | Missing = MISSING
        if message.HasField("arg_json"):
            arg = _value(f"{where}.arg_json", message.arg_json, reader)
        found.append(Target(message.node, arg))
    return tuple(found)


def _limits(message: pb.RunOptions, reader: RequestReader) -> RunLimits:
    deadline = reader.duration(message, "deadline", shown="options.deadline")
    reader.known("options.durability", pb.CheckpointDurability, message.durability)
    reader.known("options.commit", pb.RunCommitPolicy, message.commit)
    if deadline is not None and not 0 < deadline <= LARGEST_DURATION_US:
        reader.refuse("options.deadline", "must be more than 0 and at most 10 years")
    return RunLimits(
        _limit("recursion_limit", message.recursion_limit, _RECURSION_LIMIT, reader),
        _limit("max_total_steps", message.max_total_steps, _MAX_TOTAL_STEPS, reader),
        _limit("max_concurrency", message.max_concurrency, _MAX_CONCURRENCY, reader),
        deadline,
        _wait_timeout(message, reader),
        _DURABILITIES.get(message.durability),
        _COMMIT_POLICIES.get(message.commit),
    )


def _wait_timeout(message: pb.RunOptions, reader: RequestReader) -> int | None:
    length = reader.duration(message, "wait_timeout", shown="options.wait_timeout")
    if length is not None and not 0 <= length <= LARGEST_DURATION_US:
        reader.refuse("options.wait_timeout", "must be at least 0, which is for ever, and at most 10 years")
    return length


def _limit(name: str, value: int, largest: int, reader: RequestReader) -> int | None:
    if value > largest:
        reader.refuse(f"options.{name}", f"is {value}; the limit is {largest}")
    return value or None


def _labels(field: str, labels: Mapping[str, str], reader: RequestReader) -> Pairs:
    if len(labels) > MOST_LABELS:
        reader.refuse(field, f"has {len(labels)} entries; the limit is {MOST_LABELS}")
    for name, value in labels.items():
        reader.identifier(f"{field}[{name[:64]}]", name, LONGEST_ID_BYTES)
        reader.name(f"{field}[{name[:64]}]", value, LONGEST_LABEL_BYTES)
    return tuple(sorted(labels.items()))


def request_of(
    method: str,
    message: pb.RewindRunRequest | pb.CancelRunRequest | pb.DrainRunRequest | pb.DeleteThreadRequest,
    principal: str,
) -> RequestRecord | None:
    """What a request is known by when it is sent again; None for one without an id. Its run is told later."""
    if not message.request_id:
        return None
    return RequestRecord(principal, message.request_id, method, fingerprint(message), "")


def fingerprint(message: Message) -> str:
    """The identity of a request: all that it asks, but for how long its caller waits."""
    asked = type(message)()
    asked.CopyFrom(message)
    for name in ("request_id", "wait", "cancel_on_disconnect"):
        if name in asked.DESCRIPTOR.fields_by_name:
            asked.ClearField(name)
    return hashlib.sha256(asked.SerializeToString(deterministic=True)).hexdigest()[:32]
