"""Records of a plain transaction: what each step's output is and came of, made when it commits. Pure.

    steps = StepLineage(transaction_id)
    for attempt, is_rewound in attempts:        # by step, then by attempt, as the history lists them
        steps.add(attempt, is_rewound)
    change = steps.change(principal, committed_at)

The tool is the action. A record holds its own output alone: what it came of is a record of its own, and copies of
it in all that is below would be quadratic in a chain of steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import JsonValue, canonical, load
from agenttx_server.engine.records import AttemptRecord, AttemptState, DependencyKind
from agenttx_server.lineage.definition import SOURCE
from agenttx_server.lineage.identity import content_hash, correlation_id, derived_id, root_id, source_guid
from agenttx_server.lineage.ledger import Batch, as_namespace
from agenttx_server.lineage.ports import KeptBatch, KeptEvent, RecordChange, RecordCommit
from agenttx_server.lineage.records import EdgeKind, EventType, Reason, Record, RecordEdge, RecordEvent

__all__ = ["StepLineage"]

_PLACES_PER_STEP: Final = 1 << 24
_RANK: Final = {
    EventType.DROP: 0,
    EventType.FAIL: 1,
    EventType.MODIFY: 2,
    EventType.FORK: 3,
    EventType.JOIN: 4,
}


@dataclass(frozen=True, slots=True)
class _Made:
    """What an attempt that succeeded gave, in the generation in which it ran. Without content."""

    generation: int
    records: tuple[Record, ...]


class StepLineage:
    """Collects the records of one transaction, step by step."""

    def __init__(self, transaction_id: str) -> None:
        self._id = transaction_id
        self._made: dict[int, list[_Made]] = {}
        self._occurrences: Counter[str] = Counter()
        self._batches: list[tuple[int, int, Batch]] = []
        self._live: dict[tuple[str, str], tuple[int, RecordEvent]] = {}
        self._rewound: list[tuple[AttemptRecord, RecordEvent]] = []

    def add(self, attempt: AttemptRecord, is_rewound: bool) -> None:
        """Take in an attempt; those that neither succeeded nor failed leave nothing."""
        if attempt.state is AttemptState.FAILED:
            detail = attempt.hint.text if attempt.hint else "it failed"
            for parent in self._parents(attempt):
                event = RecordEvent(
                    attempt.tool_name, parent.target_id, EventType.FAIL, Reason.ERROR, detail=detail[:500]
                )
                self._account(attempt, is_rewound, event)
        elif attempt.state is AttemptState.COMPLETED:
            self._succeeded(attempt, is_rewound)

    def change(self, principal: str, committed_at: int) -> RecordChange:
        """Return what is written with the transaction's commit."""

        def kept(step_id: int, attempt: int, batch: Batch) -> KeptBatch:
            place = step_id * _PLACES_PER_STEP
            return KeptBatch(batch, self._id, "", self._id, step_id, place, attempt, committed_at)

        batches = [kept(*made) for made in self._batches]
        batches += [kept(step_id, 0, Batch(events=(event,))) for step_id, event in self._live.values()]
        rewound = [
            KeptEvent(
                event, self._id, self._id, attempt.step_id, attempt.attempt, committed_at, is_rewound=True
            )
            for attempt, event in self._rewound
        ]
        commit = RecordCommit(self._id, self._id, "", committed_at, principal)
        return RecordChange(batches, [commit], rewound_events=rewound)

    # --- an attempt -----------------------------------------------------------------------------------

    def _succeeded(self, attempt: AttemptRecord, is_rewound: bool) -> None:
        parents = self._parents(attempt)
        rows = _rows(attempt)
        records = [
            self._record(attempt, parents, row, place, len(rows), is_rewound)
            for place, row in enumerate(rows)
        ]
        bare = tuple(_without_content(record) for record in records)
        self._made.setdefault(attempt.step_id, []).append(_Made(attempt.generation, bare))
        if not is_rewound:
            kind = EdgeKind.DERIVE if len(parents) == 1 else EdgeKind.REDUCE
            edges = [
                RecordEdge(record.target_id, parent.target_id, ordinal, kind)
                for record in records
                for ordinal, parent in enumerate(parents)
            ]
            batch = Batch(tuple(records), tuple(edges))
            self._batches.append((attempt.step_id, attempt.attempt, batch))
        outputs = tuple(record.target_id for record in records)
        for output in outputs if not parents else ():
            # Of no action: the same tool may take it in a later step.
            event = RecordEvent(SOURCE, output, EventType.RECEIVE, outputs=(output,))
            self._account(attempt, is_rewound, event)
        reason = Reason.NONE if outputs else Reason.ON_EMPTY
        kind_of = (
            EventType.JOIN if len(parents) > 1 else EventType.FORK if len(rows) > 1 else EventType.MODIFY
        )
        for parent in parents:
            happened = kind_of if outputs else EventType.DROP
            event = RecordEvent(attempt.tool_name, parent.target_id, happened, reason, outputs)
            self._account(attempt, is_rewound, event)

    def _parents(self, attempt: AttemptRecord) -> list[Record]:
        """What the steps that it refers to gave, as they stood when it ran. Equal values alone are no descent."""
        steps = sorted({edge.from_step for edge in attempt.edges if edge.kind is DependencyKind.EXPLICIT})
        found: list[Record] = []
        for step in steps:
            standing = [made for made in self._made.get(step, ()) if made.generation <= attempt.generation]
            found += standing[-1].records if standing else ()
        return found

    def _record(
        self,
        attempt: AttemptRecord,
        parents: Sequence[Record],
        row: JsonValue,
        place: int,
        count: int,
        is_rewound: bool,
    ) -> Record:
        tool, own = attempt.tool_name, as_namespace(row)
        made_by = (attempt.step_id, attempt.attempt)
        target_id = root_id(self._id, attempt.step_id, "record", attempt.attempt, place)
        node_id = f"{tool}_{derived_id(self._id, 'node', *made_by)}{f'_{place}' if count > 1 else ''}"
        first = parents[0] if parents else None
        if first is not None:
            guid = first.source_guid
        else:
            text = canonical(own)
            guid = source_guid(own, self._occurrences[text])
            # What was undone is not there: the same output again is the first of its kind.
            self._occurrences[text] += not is_rewound
        return Record(
            action=tool,
            source_guid=guid,
            target_id=target_id,
            parent_target_id=first.target_id if first is not None else "",
            root_target_id=first.root_target_id if first is not None else target_id,
            node_id=node_id,
            lineage=(*(first.lineage if first is not None else ()), node_id),
            content={tool: own},
            content_hash=content_hash(own),
            lineage_sources=tuple(parent.node_id for parent in parents) if len(parents) > 1 else (),
            version_correlation_id=correlation_id(guid, tool, place) if count > 1 else "",
        )

    def _account(self, attempt: AttemptRecord, is_rewound: bool, event: RecordEvent) -> None:
        if is_rewound:
            self._rewound.append((attempt, event))
            return
        key = (event.action, event.input_id)
        if key in self._live:
            # The same tool took it again, in another step: one event, with all that came of it.
            event = _together(self._live[key][1], event)
        self._live[key] = (attempt.step_id, event)


def _together(one: RecordEvent, other: RecordEvent) -> RecordEvent:
    stronger = max(one, other, key=lambda event: _RANK[event.type])
    outputs = (*one.outputs, *other.outputs)
    kind = EventType.FORK if stronger.type is EventType.MODIFY and len(outputs) > 1 else stronger.type
    return RecordEvent(one.action, one.input_id, kind, stronger.reason, outputs, stronger.detail)


def _rows(attempt: AttemptRecord) -> list[JsonValue]:
    output = load(attempt.output or "null")
    rows = output.get("records") if attempt.emits_records and isinstance(output, dict) else None
    return rows if isinstance(rows, list) else [output]


def _without_content(record: Record) -> Record:
    return Record(
        record.action,
        record.source_guid,
        record.target_id,
        record.parent_target_id,
        record.root_target_id,
        record.node_id,
        record.lineage,
        {},
        record.content_hash,
    )
