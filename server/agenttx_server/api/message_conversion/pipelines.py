"""Requests and answers about pipelines and their runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from google.protobuf.struct_pb2 import Struct

from agenttx.v1 import lineage_pb2 as pb
from agenttx_server.api.message_conversion.enumerations import to_wire
from agenttx_server.api.message_conversion.lineage import check_identifier
from agenttx_server.api.message_conversion.request_reader import PageRequest, RequestReader
from agenttx_server.api.message_conversion.values import json_from_struct, timestamp_from_microseconds
from agenttx_server.engine.errors import FieldViolation, InvalidRequest
from agenttx_server.engine.json_values import JsonValue, ValueRefused, load, parse
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.lineage.limits import MAX_DOCUMENT_BYTES
from agenttx_server.lineage.violations import Violation
from agenttx_server.pipelines.checking import SentPipeline
from agenttx_server.pipelines.library import Registered, Validation
from agenttx_server.pipelines.progress import Progress
from agenttx_server.pipelines.records import (
    ActionCounts,
    InputState,
    PipelineRunStatus,
    PipelineVersionPage,
    PipelineVersionRecord,
)
from agenttx_server.pipelines.run_coordinator import Row
from agenttx_server.pipelines.run_reading import RunListing, RunView

__all__ = [
    "get_request",
    "get_response",
    "later_request",
    "list_request",
    "list_response",
    "nothing_sent",
    "register_response",
    "row_progress",
    "rows_of",
    "run_id_of",
    "run_message",
    "run_progress",
    "run_request",
    "runs_request",
    "runs_response",
    "sent_pipeline",
    "validate_response",
]

_LONGEST_NAME_BYTES: Final = 512
_LONGEST_PATH_BYTES: Final = 1024
_LONGEST_REASON_BYTES: Final = 1024
_LARGEST_ROW_BYTES: Final = 1 << 20

Sent = pb.ValidatePipelineRequest | pb.RegisterPipelineRequest | pb.RunPipelineRequest


def sent_pipeline(request: Sent) -> SentPipeline:
    """Return the pipeline of a request, whichever field it came in. Raises InvalidRequest."""
    reader = RequestReader()
    sent = _sent(request, reader)
    reader.check()
    return sent


def _sent(request: Sent, reader: RequestReader) -> SentPipeline:
    check_identifier(
        reader, "default_name", request.default_name, required=False, longest_bytes=_LONGEST_NAME_BYTES
    )
    name = request.default_name
    if request.HasField("definition"):
        return SentPipeline(document=_document(request.definition, reader), name=name)
    if not request.definition_text:
        reader.refuse("definition", "is missing")
    reader.name("definition_text", request.definition_text, MAX_DOCUMENT_BYTES)
    return SentPipeline(text=request.definition_text, name=name)


def get_request(request: pb.GetPipelineRequest) -> None:
    """Check which pipeline is asked for."""
    reader = RequestReader()
    check_identifier(reader, "name", request.name, longest_bytes=_LONGEST_NAME_BYTES)
    check_identifier(reader, "version", request.version, required=False)
    reader.check()


def list_request(request: pb.ListPipelinesRequest) -> PageRequest:
    """Return which page is asked for."""
    reader = RequestReader()
    check_identifier(reader, "name", request.name, required=False, longest_bytes=_LONGEST_NAME_BYTES)
    page = reader.page(request.page_size, request.page_token)
    reader.check()
    return page


def run_request(request: pb.RunPipelineRequest) -> SentPipeline | None:
    """Check the first message of a run; return the pipeline that it brought, None where it names one."""
    reader = RequestReader()
    check_identifier(reader, "request_id", request.request_id, required=False)
    sent = None
    if request.WhichOneof("pipeline") == "name":
        check_identifier(reader, "name", request.name, longest_bytes=_LONGEST_NAME_BYTES)
        check_identifier(reader, "version", request.version, required=False)
    else:
        if request.version:
            reader.refuse("version", "is of a registered pipeline; set name")
        sent = _sent(request, reader)
    reader.check()
    return sent


def rows_of(request: pb.RunPipelineRequest, first: int) -> list[Row]:
    """Return the rows of a message, the first of which is row ``first`` of the run. Raises InvalidRequest."""
    reader = RequestReader()
    found = [_row(row, f"rows[{first + index}]", reader) for index, row in enumerate(request.rows)]
    reader.check()
    return found


def later_request(request: pb.RunPipelineRequest) -> None:
    """Check that a message behind the first one brings rows only. Raises InvalidRequest."""
    reader = RequestReader()
    for field in ("pipeline", "version", "request_id", "detach", "default_name"):
        if request.WhichOneof("pipeline") if field == "pipeline" else getattr(request, field):
            reader.refuse(field, "belongs to the first message of a stream")
    reader.check()


def runs_request(
    request: pb.ListPipelineRunsRequest,
) -> tuple[frozenset[PipelineRunStatus], PageRequest]:
    """Return which runs are asked for."""
    reader = RequestReader()
    check_identifier(reader, "pipeline", request.pipeline, required=False, longest_bytes=_LONGEST_NAME_BYTES)
    statuses = set()
    for index, number in enumerate(request.statuses):
        status = reader.enumeration(f"statuses[{index}]", PipelineRunStatus, number)
        if status is not None:
            statuses.add(status)
        elif number == 0:
            reader.refuse(f"statuses[{index}]", "is unspecified")
    page = reader.page(request.page_size, request.page_token)
    reader.check()
    return frozenset(statuses), page


def run_id_of(
    request: pb.GetPipelineRunRequest | pb.ResumePipelineRunRequest | pb.CancelPipelineRunRequest,
) -> str:
    """Return which run is meant."""
    reader = RequestReader()
    check_identifier(reader, "run_id", request.run_id)
    if isinstance(request, pb.CancelPipelineRunRequest):
        reader.name("reason", request.reason, _LONGEST_REASON_BYTES)
    reader.check()
    return request.run_id


# --- answers --------------------------------------------------------------------------------------


def validate_response(validation: Validation) -> pb.ValidatePipelineResponse:
    """Tell what was found."""
    return pb.ValidatePipelineResponse(
        valid=validation.checked.is_valid,
        violations=_violations(validation.checked.violations),
        version=validation.version,
        name=validation.checked.definition.name,
        order=validation.order,
    )


def register_response(registered: Registered) -> pb.RegisterPipelineResponse:
    """Tell what is registered."""
    return pb.RegisterPipelineResponse(
        pipeline=_version(registered.record),
        violations=_violations(registered.checked.violations),
        existed=registered.existed,
    )


def get_response(record: PipelineVersionRecord) -> pb.GetPipelineResponse:
    """Tell a version with its document."""
    return pb.GetPipelineResponse(pipeline=_version(record), definition_json=record.definition)


def list_response(page: PipelineVersionPage) -> pb.ListPipelinesResponse:
    """Tell a page of versions."""
    return pb.ListPipelinesResponse(pipelines=map(_version, page.versions), next_page_token=page.next_cursor)


def run_message(view: RunView) -> pb.PipelineRun:
    """Tell how far a run is."""
    run = view.run
    return pb.PipelineRun(
        run_id=run.run_id,
        pipeline=run.pipeline,
        version=run.version,
        status=to_wire(run.status),
        cancel_requested=view.cancel_requested,
        rows=run.input_count,
        rows_committed=view.committed,
        rows_failed=view.failed,
        rows_running=view.running,
        reason=run.reason,
        counts=_counts(run.counts),
        created_at=timestamp_from_microseconds(MicrosecondsUtc(run.created_at)),
        updated_at=timestamp_from_microseconds(MicrosecondsUtc(run.updated_at)),
    )


def run_progress(view: RunView, *, last: bool) -> pb.PipelineProgress:
    """Tell how a run stands."""
    return pb.PipelineProgress(run=run_message(view), last=last)


def row_progress(progress: Progress) -> pb.PipelineProgress:
    """Tell that a row has ended."""
    ended = progress.ended
    return pb.PipelineProgress(
        row=pb.PipelineRowEnded(
            run_id=progress.run_id,
            place=progress.place,
            transaction_id=progress.transaction_id,
            committed=ended.state is InputState.COMMITTED,
            reason=ended.reason,
            counts=_counts(ended.counts),
        )
    )


def runs_response(listing: RunListing) -> pb.ListPipelineRunsResponse:
    """Tell a page of runs."""
    return pb.ListPipelineRunsResponse(
        runs=map(run_message, listing.runs), next_page_token=listing.next_cursor
    )


def _violations(found: Iterable[Violation]) -> list[pb.PipelineViolation]:
    return [
        pb.PipelineViolation(code=item.code, where=item.where, message=item.message, warning=item.is_warning)
        for item in found
    ]


def _version(record: PipelineVersionRecord) -> pb.PipelineVersion:
    return pb.PipelineVersion(
        name=record.name,
        version=record.version,
        description=record.description,
        actions=record.action_count,
        registered_at=timestamp_from_microseconds(MicrosecondsUtc(record.registered_at)),
    )


def _counts(counts: Iterable[ActionCounts]) -> list[pb.PipelineActionCounts]:
    return [
        pb.PipelineActionCounts(
            action=item.action,
            processed=item.processed,
            skipped=item.skipped,
            filtered=item.filtered,
            dropped=item.dropped,
            failed=item.failed,
            blocked=item.blocked,
        )
        for item in counts
    ]


# --- rows and definitions -------------------------------------------------------------------------


def _row(row: pb.PipelineRow, where: str, reader: RequestReader) -> Row:
    check_identifier(
        reader,
        f"{where}.relative_path",
        row.relative_path,
        required=False,
        longest_bytes=_LONGEST_PATH_BYTES,
    )
    field = f"{where}.row_json"
    if len(row.row_json.encode()) > _LARGEST_ROW_BYTES:
        reader.refuse(field, f"is longer than {_LARGEST_ROW_BYTES:,} bytes")
        return Row({})
    try:
        value = parse(row.row_json)
    except ValueRefused as refused:
        reader.refuse(field, str(refused))
        return Row({})
    if not isinstance(value, dict):
        reader.refuse(field, "is no JSON object")
        return Row({})
    return Row(value, row.relative_path)


def _document(message: pb.PipelineDefinition, reader: RequestReader) -> JsonValue:
    """The document that a message stands for: unset fields are left out, as its author would."""
    document: dict[str, Any] = {"pipeline": message.name}
    if message.description:
        document["description"] = message.description
    _choose(
        document, "transaction", pb.PipelineTransaction, message.transaction, "definition.transaction", reader
    )
    if message.max_concurrency:
        document["max_concurrency"] = message.max_concurrency
    document["actions"] = [
        _action(action, f"definition.actions[{index}]", reader)
        for index, action in enumerate(message.actions)
    ]
    return document


def _action(message: pb.PipelineAction, where: str, reader: RequestReader) -> dict[str, Any]:
    document: dict[str, Any] = {"name": message.name}
    for name in ("tool", "prompt"):
        if getattr(message, name):
            document[name] = getattr(message, name)
    if message.dependencies:
        document["dependencies"] = list(message.dependencies)
    if message.HasField("args"):
        document["args"] = _object(message.args, f"{where}.args", reader)
    if message.HasField("metadata"):
        document["metadata"] = _object(message.metadata, f"{where}.metadata", reader)
    if message.HasField("guard"):
        guard: dict[str, Any] = {"condition": message.guard.condition}
        _choose(
            guard, "on_false", pb.PipelineOnFalse, message.guard.on_false, f"{where}.guard.on_false", reader
        )
        document["guard"] = guard
    if message.HasField("context_scope"):
        document["context_scope"] = _scope(message.context_scope)
    if message.reduce_by:
        document["reduce"] = {"by": message.reduce_by}
    if message.HasField("versions"):
        versions = message.versions
        document["versions"] = {
            "param": versions.param or "i",
            "range": [versions.first, versions.last],
            "mode": "sequential" if versions.sequential else "parallel",
        }
    for name, kind in _CHOICES.items():
        _choose(document, name, kind, getattr(message, name), f"{where}.{name}", reader)
    microseconds = reader.duration(message, "timeout", shown=f"{where}.timeout")
    if microseconds is not None:
        document["timeout_seconds"] = microseconds / 1_000_000
    return document


_CHOICES: Final[Mapping[str, Any]] = {
    "granularity": pb.PipelineGranularity,
    "on_multiple": pb.PipelineOnMultiple,
    "on_empty": pb.PipelineOnEmpty,
    "on_failed_branch": pb.PipelineOnFailedBranch,
    "on_failure": pb.PipelineOnFailure,
}


def _choose(
    document: dict[str, Any], name: str, kind: Any, number: int, where: str, reader: RequestReader
) -> None:
    """Write the word of an enumeration's value; a number that it does not have is refused."""
    if number == 0:
        return
    if number not in kind.values():
        reader.refuse(where, f"is {number}, which is no value of {kind.DESCRIPTOR.name}")
        return
    # The first value is …_UNSPECIFIED, and tells the prefix.
    prefix = kind.Name(0).removesuffix("UNSPECIFIED")
    document[name] = kind.Name(number).removeprefix(prefix).lower()


def _scope(message: pb.PipelineContextScope) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    if message.observe or message.observe_nothing:
        scope["observe"] = list(message.observe)
    if message.passthrough:
        scope["passthrough"] = list(message.passthrough)
    if message.drop:
        scope["drop"] = list(message.drop)
    return scope


def _object(struct: Struct, where: str, reader: RequestReader) -> JsonValue:
    text, violations = json_from_struct(struct, where)
    reader.violations += violations
    return {} if violations else load(text)


def nothing_sent() -> InvalidRequest:
    """A stream ended before it said what to run."""
    return InvalidRequest((FieldViolation("pipeline", "is missing: the stream has no message"),))
