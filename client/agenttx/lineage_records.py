"""What the server tells of records and their ancestry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

__all__ = [
    "LineageBreach",
    "LineageExportFormat",
    "LineageVerification",
    "Record",
    "RecordEdge",
    "RecordEdgeKind",
    "RecordEvent",
    "RecordEventType",
    "RecordTrace",
    "TraceDirection",
    "TraceFormat",
    "UnprocessedReason",
]


class UnprocessedReason(StrEnum):
    """Why an action was not called for a record; UNSPECIFIED: it was."""

    UNSPECIFIED = "UNSPECIFIED"
    GUARD_SKIP = "GUARD_SKIP"
    UPSTREAM_UNPROCESSED = "UPSTREAM_UNPROCESSED"


class RecordEdgeKind(StrEnum):
    """How a record came of another: of it alone, of a merge, of a group, or of all that a FILE tool received."""

    UNSPECIFIED = "UNSPECIFIED"
    DERIVE = "DERIVE"
    MERGE = "MERGE"
    REDUCE = "REDUCE"
    AGGREGATE = "AGGREGATE"


class RecordEventType(StrEnum):
    """What became of an input in an action."""

    UNSPECIFIED = "UNSPECIFIED"
    RECEIVE = "RECEIVE"
    FORK = "FORK"
    MODIFY = "MODIFY"
    JOIN = "JOIN"
    ROUTE = "ROUTE"
    DROP = "DROP"
    FAIL = "FAIL"
    REPLAY = "REPLAY"


class TraceDirection(StrEnum):
    """Which way a record is traced: to what it came of, to what came of it, or both."""

    ANCESTORS = "ANCESTORS"
    DESCENDANTS = "DESCENDANTS"
    BOTH = "BOTH"


class TraceFormat(StrEnum):
    """How a trace is drawn."""

    TREE = "TREE"
    MERMAID = "MERMAID"


class LineageExportFormat(StrEnum):
    """How the lineage of a run is written: as records, a line each; as PROV-JSON; as OpenLineage events, a line each."""

    RECORDS = "RECORDS"
    PROV_JSON = "PROV_JSON"
    OPENLINEAGE = "OPENLINEAGE"


@dataclass(frozen=True, slots=True)
class RecordEdge:
    """`child` came of `parent`, its `ordinal`-th contributor from 0."""

    child: str
    parent: str
    ordinal: int
    kind: RecordEdgeKind


@dataclass(frozen=True, slots=True)
class Record:
    """A record.

    Attributes:
        target_id: Its id, never used again.
        run_id: The run that made it.
        pipeline: The pipeline's name.
        action: The action whose output it is; `source` for a row that was ingested.
        source_guid: The same for all records that came of rows with the same content.
        parent_target_id: The record that it came of; None: it is a root.
        root_target_id: Its root.
        node_id: `<action>_<uuid>`.
        lineage: The node_ids of the actions passed through, its own last.
        lineage_sources: The own node_id of each contributor, where there are several.
        version_correlation_id: Equal for versions of one input; empty: it has none.
        content: One namespace an action, null where it was not called; empty where it was left out.
        content_hash: SHA-256 of its own namespace.
        unprocessed: Why its action was not called.
        blocked_by: With UPSTREAM_UNPROCESSED: the action that failed.
        relative_path: The input file that its root came from; empty: rows name none.
        transaction_id: The transaction that made it.
        step_id: The step that made it; 0: none did.
        sequence: Its place among the records of its action in the run.
        edges: To what it came of, in order; of a record that was asked for by its id.
    """

    target_id: str
    run_id: str
    pipeline: str
    action: str
    source_guid: str
    parent_target_id: str | None
    root_target_id: str
    node_id: str
    lineage: tuple[str, ...]
    lineage_sources: tuple[str, ...]
    version_correlation_id: str
    content: Mapping[str, Any]
    content_hash: str
    unprocessed: UnprocessedReason
    blocked_by: str
    relative_path: str
    transaction_id: str
    step_id: int
    sequence: int
    edges: tuple[RecordEdge, ...] = ()

    @property
    def is_root(self) -> bool:
        """Whether it has no parent."""
        return self.parent_target_id is None


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """What became of an input.

    Attributes:
        input_id: The input's target_id.
        action: The action.
        type: What became of it.
        reason: Why, where the type doesn't say; empty: it does.
        outputs: The records that it went into.
        detail: More words, such as an error's hint.
        run_id: The run.
        transaction_id: The transaction.
        step_id: The step; 0: none.
        rewound: Whether it is of an attempt that was rewound, and counts no more.
        occurred_at: When.
    """

    input_id: str
    action: str
    type: RecordEventType
    reason: str
    outputs: tuple[str, ...]
    detail: str
    run_id: str
    transaction_id: str
    step_id: int
    rewound: bool
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class RecordTrace:
    """A record with what it came of or what came of it, all without content.

    Attributes:
        record: The record.
        records: The others, in the order in which they came to be.
        edges: Between all of these.
        events: What became of the record.
        truncated: Whether there are more.
    """

    record: Record
    records: tuple[Record, ...]
    edges: tuple[RecordEdge, ...]
    events: tuple[RecordEvent, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class LineageBreach:
    """Something that must hold of records and does not. `code` is the same for the same rule."""

    code: str
    target_id: str
    message: str


@dataclass(frozen=True, slots=True)
class LineageVerification:
    """What a check of a run found.

    Attributes:
        rows: Rows looked at.
        records: Committed records checked.
        breaches: What does not hold: the first 100 of each page of rows.
        breach_count: How much does not hold.
    """

    rows: int
    records: int
    breaches: tuple[LineageBreach, ...]
    breach_count: int

    @property
    def is_sound(self) -> bool:
        """Whether everything holds."""
        return self.breach_count == 0
