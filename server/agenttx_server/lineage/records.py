"""What is kept of a run: records, the edges between them, and what became of every input. Frozen."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import JsonValue

__all__ = ["EdgeKind", "EventType", "Reason", "Record", "RecordEdge", "RecordEvent", "Unprocessed", "to_json"]


class Unprocessed(StrEnum):
    """Why a record's action was not called for it."""

    GUARD_SKIP = "guard_skip"
    UPSTREAM_UNPROCESSED = "upstream_unprocessed"


class EdgeKind(StrEnum):
    """How a record came of another: of it alone, of a merge, of a group, or of all that a FILE tool received."""

    DERIVE = "derive"
    MERGE = "merge"
    REDUCE = "reduce"
    AGGREGATE = "aggregate"


class EventType(StrEnum):
    """What became of an input."""

    RECEIVE = "RECEIVE"
    FORK = "FORK"
    MODIFY = "MODIFY"
    JOIN = "JOIN"
    ROUTE = "ROUTE"
    DROP = "DROP"
    FAIL = "FAIL"
    REPLAY = "REPLAY"


class Reason(StrEnum):
    """Why, where the type alone does not say."""

    NONE = ""
    GUARD_SKIP = "guard_skip"
    GUARD_FILTER = "guard_filter"
    FILTERED_BRANCH = "filtered_branch"
    TOOL_DROPPED = "tool_dropped"
    ON_EMPTY = "on_empty"
    NO_GROUP = "no_group"
    ERROR = "error"
    UPSTREAM_UNPROCESSED = "upstream_unprocessed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One record, told apart by identity and never by what it holds. The fields are those of docs/lineage.md.

    Attributes:
        action: whose output it is; ``source`` for an ingested row.
        parent_target_id: empty on roots.
        lineage: node_ids of the actions passed through, its own last.
        lineage_sources: the own node_id of each contributor; empty where there is one only.
        version_correlation_id: empty where it has none.
        content: one namespace an action; null where it was not processed.
        unprocessed: None on processed records.
        blocked_by: on ``upstream_unprocessed``: the action that failed.
        relative_path: the input file that its root came from; empty where rows name none.
        content_hash: SHA-256 of the canonical JSON of its own namespace, in hexadecimal.
    """

    action: str
    source_guid: str
    target_id: str
    parent_target_id: str
    root_target_id: str
    node_id: str
    lineage: tuple[str, ...]
    content: Mapping[str, Any]
    content_hash: str
    lineage_sources: tuple[str, ...] = ()
    version_correlation_id: str = ""
    unprocessed: Unprocessed | None = None
    blocked_by: str = ""
    relative_path: str = ""

    @property
    def is_root(self) -> bool:
        """Whether it has no parent."""
        return not self.parent_target_id


@dataclass(frozen=True, slots=True)
class RecordEdge:
    """``child`` came of ``parent``, its ``ordinal``-th contributor from 0."""

    child: str
    parent: str
    ordinal: int
    kind: EdgeKind


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """What became of the record ``input_id`` in ``action``; ``outputs`` are the records that it went into."""

    action: str
    input_id: str
    type: EventType
    reason: Reason = Reason.NONE
    outputs: tuple[str, ...] = ()
    detail: str = ""


def to_json(record: Record) -> dict[str, JsonValue]:
    """The full record object. Keys that have no value are absent, never null."""
    written: dict[str, Any] = {
        "source_guid": record.source_guid,
        "target_id": record.target_id,
        "root_target_id": record.root_target_id,
        "node_id": record.node_id,
        "lineage": list(record.lineage),
        "content": dict(record.content),
    }
    if record.parent_target_id:
        written["parent_target_id"] = record.parent_target_id
    if record.lineage_sources:
        written["lineage_sources"] = list(record.lineage_sources)
    if record.version_correlation_id:
        written["version_correlation_id"] = record.version_correlation_id
    if record.unprocessed is not None:
        written["unprocessed"] = record.unprocessed.value
    if record.blocked_by:
        written["blocked_by"] = record.blocked_by
    return written
