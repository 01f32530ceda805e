"""Records, edges and events as rows of :mod:`.record_schema`, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agenttx_server.engine.ports import ExtraOperation, ExtraRows, ExtraValue
from agenttx_server.lineage.ledger import Batch
from agenttx_server.lineage.ports import KeptBatch, KeptEvent, KeptRecord, RecordChange
from agenttx_server.lineage.records import (
    EdgeKind,
    EventType,
    Reason,
    Record,
    RecordEdge,
    RecordEvent,
    Unprocessed,
    to_json,
)
from agenttx_server.store.record_codec import canonical_json, parse_json

__all__ = ["edge_of", "event_of", "extra_rows", "record_of"]

_Row = list[ExtraValue]


def extra_rows(change: RecordChange) -> list[ExtraRows]:
    """Return a change as rows that a write set carries: a statement a table, whatever it holds."""
    insert, upsert, delete = ExtraOperation.INSERT, ExtraOperation.UPSERT, ExtraOperation.DELETE
    # Of several rows with one key the last: PostgreSQL refuses to change a row twice in one statement.
    by_key = {tuple(row[:3]): row for batch in change.batches for row in _events(batch)}
    by_key |= {tuple(row[:3]): row for row in map(_event_row, change.rewound_events)}
    events = list(by_key.values())
    parts: list[tuple[str, ExtraOperation, list[_Row]]] = [
        ("records", delete, [[item.record.target_id] for item in change.rewound]),
        ("record_edges", delete, [[edge.child, edge.ordinal] for edge in change.rewound_edges]),
        ("records", insert, [row for batch in change.batches for row in _records(batch)]),
        ("record_edges", insert, [row for batch in change.batches for row in _edges(batch.batch)]),
        ("record_events", upsert, events),
        (
            "record_commits",
            insert,
            [[c.transaction_id, c.run_id, c.pipeline, c.committed_at, c.principal] for c in change.commits],
        ),
    ]
    return [ExtraRows(table, operation, rows) for table, operation, rows in parts if rows]


def _records(kept: KeptBatch) -> Iterator[_Row]:
    for place, record in enumerate(kept.batch.records):
        yield [
            record.target_id,
            kept.run_id,
            record.action,
            kept.first_sequence + place,
            record.parent_target_id,
            record.root_target_id,
            record.source_guid,
            kept.transaction_id,
            kept.step_id,
            kept.pipeline,
            record.relative_path,
            record.content_hash,
            canonical_json(to_json(record)),
        ]


def _edges(batch: Batch) -> Iterator[_Row]:
    for edge in batch.edges:
        yield [edge.child, edge.ordinal, edge.parent, edge.kind.value]


def _events(kept: KeptBatch) -> Iterator[_Row]:
    for event in kept.batch.events:
        yield _event_row(
            KeptEvent(event, kept.run_id, kept.transaction_id, kept.step_id, kept.attempt, kept.occurred_at)
        )


def _event_row(kept: KeptEvent) -> _Row:
    event = kept.event
    return [
        event.input_id,
        event.action,
        kept.attempt,
        kept.run_id,
        kept.transaction_id,
        kept.step_id,
        event.type.value,
        event.reason.value,
        canonical_json(list(event.outputs)),
        event.detail,
        kept.occurred_at,
        int(kept.is_rewound),
    ]


def record_of(row: Sequence[Any]) -> KeptRecord:
    """Read a row of ``records``."""
    (
        target_id,
        run_id,
        action,
        sequence,
        parent,
        root,
        guid,
        transaction_id,
        step_id,
        pipeline,
        path,
        digest,
        data,
    ) = row
    # Texts and numbers come as they are, and go by their places: to make sure of each cost as much as reading it.
    fields = parse_json(data)
    get = fields.get
    unprocessed = get("unprocessed")
    record = Record(
        action,
        guid,
        target_id,
        parent,
        root,
        fields["node_id"],
        tuple(fields["lineage"]),
        fields["content"],
        digest,
        tuple(get("lineage_sources", ())),
        get("version_correlation_id", ""),
        None if unprocessed is None else Unprocessed(unprocessed),
        get("blocked_by", ""),
        path,
    )
    return KeptRecord(record, run_id, pipeline, transaction_id, step_id, sequence)


def edge_of(row: Sequence[Any]) -> RecordEdge:
    """Read a row of ``record_edges``."""
    child, ordinal, parent, kind = row
    return RecordEdge(str(child), str(parent), int(ordinal), EdgeKind(kind))


def event_of(row: Sequence[Any]) -> KeptEvent:
    """Read a row of ``record_events``."""
    (
        input_id,
        action,
        attempt,
        run_id,
        transaction_id,
        step_id,
        kind,
        reason,
        outputs,
        detail,
        at,
        rewound,
    ) = row
    event = RecordEvent(
        str(action),
        str(input_id),
        EventType(kind),
        Reason(reason),
        tuple(parse_json(str(outputs))),
        str(detail),
    )
    return KeptEvent(
        event, str(run_id), str(transaction_id), int(step_id), int(attempt), int(at), bool(rewound)
    )
