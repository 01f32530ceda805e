"""Records of graph runs as rows of :mod:`.run_schema`, and the statements that write some by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Table, bindparam, select

from agenttx_server.engine.ports import ExtraOperation, ExtraRows, ExtraRowsRefused, ExtraValue
from agenttx_server.graphs.runs.ports import RunChange
from agenttx_server.graphs.runs.records import (
    CachedAnswer,
    CheckpointRecord,
    EmbeddedCheckpoint,
    EventRecord,
    InterruptRecord,
    RequestRecord,
    RunRecord,
    StopRequest,
    TaskRecord,
    ThreadRecord,
    ValueRecord,
)
from agenttx_server.store.extra_tables import write_extra
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.record_codec import RecordCodec
from agenttx_server.store.run_schema import graph_checkpoints, graph_runs, graph_threads

__all__ = [
    "CACHED",
    "CHECKPOINT",
    "EMBEDDED",
    "EVENT",
    "INTERRUPT",
    "REQUEST",
    "RUN",
    "STOP",
    "TASK",
    "THREAD",
    "VALUE",
    "extra_rows",
    "write_rows",
]

THREAD = RecordCodec(ThreadRecord, ("thread_id", "principal", "graph", "run_id", "updated_at"), details=True)
RUN = RecordCodec(
    RunRecord,
    (
        "run_id",
        "principal",
        "thread_id",
        "graph",
        "parent_run_id",
        "status",
        "server_id",
        "created_at",
    ),
    details=True,
)
CHECKPOINT = RecordCodec(CheckpointRecord, ("thread_id", "number", "source"), details=True)
EMBEDDED = RecordCodec(EmbeddedCheckpoint, ("thread_id", "namespace", "number", "state"), details=True)
VALUE = RecordCodec(
    ValueRecord, ("thread_id", "channel", "number", "previous", "value", "origins"), details=False
)
TASK = RecordCodec(
    TaskRecord,
    (
        "run_id",
        "superstep",
        "ordinal",
        "task_id",
        "thread_id",
        "node",
        "state",
        "arg",
        "answer",
        "started_at",
        "ended_at",
    ),
    details=True,
)
INTERRUPT = RecordCodec(
    InterruptRecord,
    (
        "interrupt_id",
        "run_id",
        "thread_id",
        "superstep",
        "task_id",
        "ordinal",
        "payload",
        "state",
        "answer",
    ),
    details=True,
)
# The sequence is the database's to give: it is read in front of these, and not written.
EVENT = RecordCodec(
    EventRecord,
    (
        "run_id",
        "offset",
        "kind",
        "occurred_at",
        "thread_id",
        "root_run_id",
        "graph",
        "namespace",
        "superstep",
        "node",
        "task_id",
        "payload",
        "sequence",
    ),
    details=False,
)
REQUEST = RecordCodec(
    RequestRecord, ("principal", "request_id", "method", "fingerprint", "run_id"), details=False
)
CACHED = RecordCodec(
    CachedAnswer,
    ("cache_key", "thread_id", "graph", "node", "answer", "created_at", "expires_at"),
    details=False,
)
STOP = RecordCodec(StopRequest, ("run_id", "kind", "reason", "invocation"), details=False)


class _Part(NamedTuple):
    field: str
    table: str
    codec: RecordCodec[Any]
    operation: ExtraOperation


_INSERT, _UPSERT, _REQUIRE = ExtraOperation.INSERT, ExtraOperation.UPSERT, ExtraOperation.REQUIRE
_UNCHANGED = ExtraOperation.UNCHANGED
_PARTS: Final = (
    _Part("threads", "graph_threads", THREAD, _UPSERT),
    _Part("runs", "graph_runs", RUN, _UPSERT),
    _Part("checkpoints", "graph_checkpoints", CHECKPOINT, _INSERT),
    _Part("rolled_back", "graph_checkpoints", CHECKPOINT, _UPSERT),
    _Part("embedded", "graph_embedded_checkpoints", EMBEDDED, _INSERT),
    _Part("embedded_rolled_back", "graph_embedded_checkpoints", EMBEDDED, _UPSERT),
    _Part("values", "graph_values", VALUE, _INSERT),
    _Part("tasks", "graph_tasks", TASK, _UPSERT),
    _Part("interrupts", "graph_interrupts", INTERRUPT, _UPSERT),
    _Part("requests", "graph_requests", REQUEST, _INSERT),
    _Part("cached", "graph_node_cache", CACHED, _UPSERT),
    _Part("stops", "graph_stops", STOP, _UPSERT),
    _Part("events", "graph_events", EVENT, _INSERT),
)


def extra_rows(change: RunChange) -> list[ExtraRows]:
    """Return a change as rows that a write set carries."""
    required: dict[str, Sequence[Sequence[ExtraValue]]] = {
        "graph_threads": [(thread_id,) for thread_id in change.standing_threads],
        "graph_runs": [(run_id,) for run_id in change.standing_runs],
        "graph_checkpoints": change.standing_checkpoints,
    }
    return [
        *(ExtraRows(table, _REQUIRE, keys) for table, keys in required.items() if keys),
        # Their last column is what records are not told apart by here: its form grows.
        *(
            ExtraRows("graph_threads", _UNCHANGED, [THREAD.row(thread)[:-1] for thread in threads])
            for threads in (change.unchanged_threads,)
            if threads
        ),
        *(
            ExtraRows(part.table, part.operation, [_row(part, record) for record in records])
            for part in _PARTS
            if (records := getattr(change, part.field))
        ),
    ]


def _row(part: _Part, record: Any) -> list[Any]:
    row = part.codec.row(record)
    if part.codec is RUN:
        return [*row, record.waits_until]
    return row[:-1] if part.codec is EVENT else row


def write_rows(calls: WriteCalls, rows: Iterable[ExtraRows]) -> None:
    """Write rows inside a write transaction of their own, in the order given. Raises ExtraRowsRefused."""
    for item in rows:
        if item.operation is _UNCHANGED:
            continue  # compared whole before, by whoever writes them by themselves
        if item.operation is _REQUIRE:
            _require(calls, item)
            continue
        write_extra(calls, item.table, item.operation, item.rows)


def _require(calls: WriteCalls, item: ExtraRows) -> None:
    query, names = _REQUIRED[item.table]
    for key in item.rows:
        if not calls.rows(query, **dict(zip(names, key, strict=True))):
            raise ExtraRowsRefused(f"a row of {item.table} is not there")


def _required(table: Table) -> tuple[PreparedQuery, Sequence[str]]:
    key = list(table.primary_key)
    matches = [column == bindparam(column.name) for column in key]
    # Kept from being deleted until this is durable.
    query = select(*key).where(*matches).with_for_update(read=True, key_share=True)
    return PreparedQuery(query), [column.name for column in key]


_REQUIRED: Final = {table.name: _required(table) for table in (graph_threads, graph_runs, graph_checkpoints)}
