"""What can be asked about records, as operations for either client."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from enum import StrEnum
from typing import Any, TypeVar

from agenttx import lineage_records as records
from agenttx.message_conversion import number_of
from agenttx.methods import (
    GET_RECORD,
    LIST_ANCESTORS,
    LIST_BY_ROOT,
    LIST_DESCENDANTS,
    LIST_RECORD_EVENTS,
    LIST_RECORDS,
    LIST_SIBLINGS,
    TRACE_RECORD,
    VERIFY_LINEAGE,
)
from agenttx.operation import Operation, invoke
from agenttx.reads import Page
from agenttx.sendable_text import sends_text
from agenttx.v1 import lineage_pb2 as pb
from agenttx.values import count, decode_json, member

__all__ = [
    "by_root",
    "draw",
    "events",
    "export_request",
    "get_record",
    "list_records",
    "related",
    "trace",
    "verified",
    "verify_page",
]

E = TypeVar("E", bound=StrEnum)

RELATED = {
    "siblings": (LIST_SIBLINGS, pb.ListSiblingsRequest),
    "ancestors": (LIST_ANCESTORS, pb.ListAncestorsRequest),
    "descendants": (LIST_DESCENDANTS, pb.ListDescendantsRequest),
}


def get_record(target_id: str, transaction_id: str) -> Operation[records.Record]:
    """Read a record with its edges."""
    request = pb.GetRecordRequest(target_id=target_id, transaction_id=transaction_id)
    answer = yield from invoke(GET_RECORD, request)
    return _record(answer.record, tuple(map(_edge, answer.edges)))


def list_records(
    token: str,
    *,
    run_id: str = "",
    action: str = "",
    source_guid: str = "",
    transaction_id: str,
    content: bool,
    page_size: int,
) -> Operation[Page[records.Record]]:
    """Read one page of an action's records, or of those of a content."""
    request = pb.ListRecordsRequest(
        run_id=run_id,
        action=action,
        source_guid=source_guid,
        transaction_id=transaction_id,
        omit_content=not content,
        page_size=count("page_size", page_size),
        page_token=token,
    )
    return _page((yield from invoke(LIST_RECORDS, request)))


def related(
    token: str, *, how: str, target_id: str, transaction_id: str, content: bool, page_size: int
) -> Operation[Page[records.Record]]:
    """Read one page of a record's siblings, ancestors or descendants."""
    method, message = RELATED[how]
    request: Any = message(
        target_id=target_id,
        transaction_id=transaction_id,
        omit_content=not content,
        page_size=count("page_size", page_size),
        page_token=token,
    )
    return _page((yield from invoke(method, request)))  # type: ignore[arg-type]


def by_root(
    token: str, *, root_target_id: str, transaction_id: str, content: bool, page_size: int
) -> Operation[Page[records.Record]]:
    """Read one page of a root's records."""
    request = pb.ListByRootRequest(
        root_target_id=root_target_id,
        transaction_id=transaction_id,
        omit_content=not content,
        page_size=count("page_size", page_size),
        page_token=token,
    )
    return _page((yield from invoke(LIST_BY_ROOT, request)))


def trace(
    target_id: str, direction: records.TraceDirection | str, max_records: int, transaction_id: str
) -> Operation[records.RecordTrace]:
    """Trace a record."""
    request = _trace_request(target_id, direction, max_records, transaction_id)
    answer = yield from invoke(TRACE_RECORD, request)
    return records.RecordTrace(
        _record(answer.record),
        tuple(_record(item) for item in answer.records),
        tuple(map(_edge, answer.edges)),
        tuple(map(_event, answer.events)),
        answer.truncated,
    )


def draw(
    target_id: str,
    form: records.TraceFormat | str,
    direction: records.TraceDirection | str,
    max_records: int,
    transaction_id: str,
) -> Operation[str]:
    """Have a trace drawn."""
    request = _trace_request(target_id, direction, max_records, transaction_id)
    chosen = member("form", records.TraceFormat, form)
    request.format = number_of(pb.TraceFormat, "TRACE_FORMAT_", chosen)
    return (yield from invoke(TRACE_RECORD, request)).text


def events(
    token: str, *, target_id: str, transaction_id: str, page_size: int
) -> Operation[Page[records.RecordEvent]]:
    """Read one page of what became of inputs."""
    request = pb.ListRecordEventsRequest(
        target_id=target_id,
        transaction_id=transaction_id,
        page_size=count("page_size", page_size),
        page_token=token,
    )
    answer = yield from invoke(LIST_RECORD_EVENTS, request)
    return Page(tuple(map(_event, answer.events)), answer.next_page_token)


def verify_page(token: str, *, run_id: str) -> Operation[Page[records.LineageVerification]]:
    """Check the next rows of a run."""
    request = pb.VerifyLineageRequest(run_id=run_id, page_token=token)
    answer = yield from invoke(VERIFY_LINEAGE, request)
    found = records.LineageVerification(
        answer.rows,
        answer.records,
        tuple(records.LineageBreach(item.code, item.target_id, item.message) for item in answer.breaches),
        answer.breach_count,
    )
    return Page((found,), answer.next_page_token)


def verified(pages: Iterable[records.LineageVerification]) -> records.LineageVerification:
    """Put the pages of a check together."""
    found = list(pages)
    return records.LineageVerification(
        sum(page.rows for page in found),
        sum(page.records for page in found),
        tuple(breach for page in found for breach in page.breaches),
        sum(page.breach_count for page in found),
    )


@sends_text
def export_request(run_id: str, form: records.LineageExportFormat | str) -> pb.ExportLineageRequest:
    """Ask for a run's lineage as text."""
    chosen = member("form", records.LineageExportFormat, form)
    return pb.ExportLineageRequest(
        run_id=run_id, format=number_of(pb.LineageExportFormat, "LINEAGE_EXPORT_FORMAT_", chosen)
    )


def _trace_request(
    target_id: str, direction: records.TraceDirection | str, max_records: int, transaction_id: str
) -> pb.TraceRecordRequest:
    return pb.TraceRecordRequest(
        target_id=target_id,
        transaction_id=transaction_id,
        direction=number_of(
            pb.TraceDirection, "TRACE_DIRECTION_", member("direction", records.TraceDirection, direction)
        ),
        max_records=count("max_records", max_records),
    )


def _page(answer: Any) -> Page[records.Record]:
    return Page(tuple(_record(item) for item in answer.records), answer.next_page_token)


def _record(message: pb.LineageRecord, edges: tuple[records.RecordEdge, ...] = ()) -> records.Record:
    return records.Record(
        target_id=message.target_id,
        run_id=message.run_id,
        pipeline=message.pipeline,
        action=message.action,
        source_guid=message.source_guid,
        parent_target_id=message.parent_target_id if message.HasField("parent_target_id") else None,
        root_target_id=message.root_target_id,
        node_id=message.node_id,
        lineage=tuple(message.lineage),
        lineage_sources=tuple(message.lineage_sources),
        version_correlation_id=message.version_correlation_id,
        content=decode_json(message.content_json) or {},
        content_hash=message.content_hash,
        unprocessed=_word(
            records.UnprocessedReason, pb.UnprocessedReason, "UNPROCESSED_REASON_", message.unprocessed
        ),
        blocked_by=message.blocked_by,
        relative_path=message.relative_path,
        transaction_id=message.transaction_id,
        step_id=message.step_id,
        sequence=message.sequence,
        edges=edges,
    )


def _edge(message: pb.RecordEdge) -> records.RecordEdge:
    kind = _word(records.RecordEdgeKind, pb.RecordEdgeKind, "RECORD_EDGE_KIND_", message.kind)
    return records.RecordEdge(message.child, message.parent, message.ordinal, kind)


def _event(message: pb.RecordEvent) -> records.RecordEvent:
    return records.RecordEvent(
        message.input_id,
        message.action,
        _word(records.RecordEventType, pb.RecordEventType, "RECORD_EVENT_TYPE_", message.type),
        message.reason,
        tuple(message.outputs),
        message.detail,
        message.run_id,
        message.transaction_id,
        message.step_id,
        message.rewound,
        message.occurred_at.ToDatetime(tzinfo=UTC),
    )


def _word(kind: type[E], wire: Any, prefix: str, number: int) -> E:
    """The word of a number; UNSPECIFIED for one that this version doesn't know."""
    try:
        return kind(wire.Name(number).removeprefix(prefix))
    except ValueError:
        return kind("UNSPECIFIED")
