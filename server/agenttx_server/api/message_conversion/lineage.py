"""Requests and answers about records and their ancestry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agenttx.v1 import lineage_pb2 as pb
from agenttx_server.api.message_conversion.enumerations import to_wire
from agenttx_server.api.message_conversion.request_reader import LONGEST_ID_BYTES, PageRequest, RequestReader
from agenttx_server.api.message_conversion.values import timestamp_from_microseconds
from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.lineage.ports import KeptEvent, KeptRecord, RecordPage
from agenttx_server.lineage.records import EdgeKind, RecordEdge, Unprocessed
from agenttx_server.lineage.tracing import Direction, draw_mermaid, draw_tree
from agenttx_server.pipelines.exporting import ExportForm
from agenttx_server.pipelines.lineage_reading import TracedRecord, Verified

__all__ = [
    "Asked",
    "TraceAsked",
    "check_identifier",
    "edge_message",
    "event_message",
    "events_request",
    "export_request",
    "get_request",
    "listed",
    "record_message",
    "records_request",
    "related_request",
    "trace_request",
    "trace_response",
    "verify_request",
    "verify_response",
]

_LARGEST_TRACE: Final = 5_000
_USUAL_TRACE: Final = 1_000
_MOST_BREACHES: Final = 100

_DIRECTIONS: Final = {
    pb.TRACE_DIRECTION_UNSPECIFIED: Direction.ANCESTORS,
    pb.TRACE_DIRECTION_ANCESTORS: Direction.ANCESTORS,
    pb.TRACE_DIRECTION_DESCENDANTS: Direction.DESCENDANTS,
    pb.TRACE_DIRECTION_BOTH: Direction.BOTH,
}

_FORMS: Final = {
    pb.LINEAGE_EXPORT_FORMAT_UNSPECIFIED: ExportForm.RECORDS,
    pb.LINEAGE_EXPORT_FORMAT_RECORDS: ExportForm.RECORDS,
    pb.LINEAGE_EXPORT_FORMAT_PROV_JSON: ExportForm.PROV_JSON,
    pb.LINEAGE_EXPORT_FORMAT_OPENLINEAGE: ExportForm.OPENLINEAGE,
}
_UNPROCESSED: Final = {
    None: pb.UNPROCESSED_REASON_UNSPECIFIED,
    Unprocessed.GUARD_SKIP: pb.UNPROCESSED_REASON_GUARD_SKIP,
    Unprocessed.UPSTREAM_UNPROCESSED: pb.UNPROCESSED_REASON_UPSTREAM_UNPROCESSED,
}
_EDGE_KINDS: Final = {
    EdgeKind.DERIVE: pb.RECORD_EDGE_KIND_DERIVE,
    EdgeKind.MERGE: pb.RECORD_EDGE_KIND_MERGE,
    EdgeKind.REDUCE: pb.RECORD_EDGE_KIND_REDUCE,
    EdgeKind.AGGREGATE: pb.RECORD_EDGE_KIND_AGGREGATE,
}

Related = pb.ListSiblingsRequest | pb.ListAncestorsRequest | pb.ListDescendantsRequest | pb.ListByRootRequest


@dataclass(frozen=True, slots=True)
class Asked:
    """Which records are asked for, and which page of them."""

    target_id: str
    transaction_id: str
    page: PageRequest


@dataclass(frozen=True, slots=True)
class TraceAsked:
    """What is traced, and which way."""

    target_id: str
    transaction_id: str
    direction: Direction
    limit: int


def check_identifier(
    reader: RequestReader,
    field: str,
    text: str,
    *,
    required: bool = True,
    longest_bytes: int = LONGEST_ID_BYTES,
) -> None:
    """Refuse what is no id: empty, too long, or with a control character, which no id has."""
    if required and not text:
        reader.refuse(field, "is empty")
    reader.name(field, text, longest_bytes)
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text.replace("\0", "")):
        reader.refuse(field, "contains a control character")


def get_request(request: pb.GetRecordRequest) -> None:
    """Check which record is asked for."""
    reader = RequestReader()
    check_identifier(reader, "target_id", request.target_id)
    check_identifier(reader, "transaction_id", request.transaction_id, required=False)
    reader.check()


def records_request(request: pb.ListRecordsRequest) -> PageRequest:
    """Check which records are asked for: those of a run, of one action or of all, or of a content."""
    reader = RequestReader()
    for field in ("run_id", "action", "source_guid", "transaction_id"):
        check_identifier(reader, field, getattr(request, field), required=False)
    if request.source_guid:
        for field in ("run_id", "action"):
            if getattr(request, field):
                reader.refuse(field, "is set beside source_guid; set run_id and action, or source_guid")
    elif not request.run_id:
        reader.refuse("run_id", "is empty")
    page = reader.page(request.page_size, request.page_token)
    reader.check()
    return page


def related_request(request: Related) -> Asked:
    """Return whose relatives are asked for."""
    reader = RequestReader()
    if isinstance(request, pb.ListByRootRequest):
        field, target_id = "root_target_id", request.root_target_id
    else:
        field, target_id = "target_id", request.target_id
    check_identifier(reader, field, target_id)
    check_identifier(reader, "transaction_id", request.transaction_id, required=False)
    page = reader.page(request.page_size, request.page_token)
    reader.check()
    return Asked(target_id, request.transaction_id, page)


def trace_request(request: pb.TraceRecordRequest) -> TraceAsked:
    """Return what is traced."""
    reader = RequestReader()
    check_identifier(reader, "target_id", request.target_id)
    check_identifier(reader, "transaction_id", request.transaction_id, required=False)
    direction = _DIRECTIONS.get(request.direction)
    if direction is None:
        reader.refuse("direction", f"is {request.direction}, which is no value of TraceDirection")
    if request.format not in pb.TraceFormat.values():
        reader.refuse("format", f"is {request.format}, which is no value of TraceFormat")
    if request.max_records > _LARGEST_TRACE:
        reader.refuse("max_records", f"is {request.max_records}; the limit is {_LARGEST_TRACE}")
    reader.check()
    assert direction is not None
    return TraceAsked(
        request.target_id, request.transaction_id, direction, request.max_records or _USUAL_TRACE
    )


def events_request(request: pb.ListRecordEventsRequest) -> PageRequest:
    """Check whose events are asked for."""
    reader = RequestReader()
    check_identifier(reader, "target_id", request.target_id, required=False)
    check_identifier(reader, "transaction_id", request.transaction_id, required=False)
    if bool(request.target_id) == bool(request.transaction_id):
        reader.refuse("target_id", "or transaction_id is to be set, and not both")
    page = reader.page(request.page_size, request.page_token)
    reader.check()
    return page


def verify_request(request: pb.VerifyLineageRequest) -> PageRequest:
    """Return which rows are checked."""
    reader = RequestReader()
    check_identifier(reader, "run_id", request.run_id)
    page = reader.page(request.page_size, request.page_token)
    reader.check()
    return page


def export_request(request: pb.ExportLineageRequest) -> ExportForm:
    """Return how the lineage of a run is wanted."""
    reader = RequestReader()
    check_identifier(reader, "run_id", request.run_id)
    form = _FORMS.get(request.format)
    if form is None:
        reader.refuse("format", f"is {request.format}, which is no value of LineageExportFormat")
    reader.check()
    assert form is not None
    return form


def record_message(kept: KeptRecord, *, omit_content: bool = False) -> pb.LineageRecord:
    """Tell a record."""
    record = kept.record
    message = pb.LineageRecord(
        target_id=record.target_id,
        run_id=kept.run_id,
        pipeline=kept.pipeline,
        action=record.action,
        source_guid=record.source_guid,
        root_target_id=record.root_target_id,
        node_id=record.node_id,
        lineage=record.lineage,
        lineage_sources=record.lineage_sources,
        version_correlation_id=record.version_correlation_id,
        content_json="" if omit_content else canonical(dict(record.content)),
        content_hash=record.content_hash,
        unprocessed=_UNPROCESSED[record.unprocessed],
        blocked_by=record.blocked_by,
        relative_path=record.relative_path,
        transaction_id=kept.transaction_id,
        step_id=kept.step_id,
        sequence=kept.sequence,
    )
    if record.parent_target_id:
        message.parent_target_id = record.parent_target_id
    return message


def listed(page: RecordPage, *, omit_content: bool) -> list[pb.LineageRecord]:
    """Tell a page of records."""
    return [record_message(kept, omit_content=omit_content) for kept in page.records]


def edge_message(edge: RecordEdge) -> pb.RecordEdge:
    """Tell an edge."""
    return pb.RecordEdge(
        child=edge.child, parent=edge.parent, ordinal=edge.ordinal, kind=_EDGE_KINDS[edge.kind]
    )


def event_message(kept: KeptEvent) -> pb.RecordEvent:
    """Tell what became of an input."""
    event = kept.event
    return pb.RecordEvent(
        input_id=event.input_id,
        action=event.action,
        type=to_wire(event.type),
        reason=event.reason.value,
        outputs=event.outputs,
        detail=event.detail,
        run_id=kept.run_id,
        transaction_id=kept.transaction_id,
        step_id=kept.step_id,
        rewound=kept.is_rewound,
        occurred_at=timestamp_from_microseconds(MicrosecondsUtc(kept.occurred_at)),
    )


def trace_response(traced: TracedRecord, form: int) -> pb.TraceRecordResponse:
    """Tell a trace, or draw it."""
    answer = pb.TraceRecordResponse(
        record=record_message(traced.record, omit_content=True),
        events=map(event_message, traced.events),
        truncated=traced.trace.truncated,
    )
    if form == pb.TRACE_FORMAT_TREE:
        answer.text = draw_tree(traced.trace)
    elif form == pb.TRACE_FORMAT_MERMAID:
        answer.text = draw_mermaid(traced.trace)
    else:
        answer.records.extend(record_message(kept, omit_content=True) for kept in traced.others)
        answer.edges.extend(map(edge_message, traced.trace.edges))
    return answer


def verify_response(verified: Verified) -> pb.VerifyLineageResponse:
    """Tell what does not hold."""
    shown: Sequence[pb.LineageBreach] = [
        pb.LineageBreach(code=breach.code, target_id=breach.subject, message=breach.message)
        for breach in verified.breaches[:_MOST_BREACHES]
    ]
    return pb.VerifyLineageResponse(
        breaches=shown,
        breach_count=len(verified.breaches),
        rows=verified.rows,
        records=verified.records,
        next_page_token=verified.next_cursor,
    )
