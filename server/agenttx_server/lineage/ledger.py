"""What has been made of one unit of work, root or run: records, the edges between them, and what became of every input.

Whoever makes records (:class:`.dataflow.Dataflow`) says of which inputs and why; here they get their ids, lineage and events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import JsonValue, canonical
from agenttx_server.lineage.definition import SOURCE, Action
from agenttx_server.lineage.flows import Descent, Flow, FlowState, Input
from agenttx_server.lineage.identity import (
    content_hash,
    correlation_id,
    derived_id,
    id_beside,
    root_id,
    source_guid,
)
from agenttx_server.lineage.merging import Ancestry
from agenttx_server.lineage.records import (
    EdgeKind,
    EventType,
    Reason,
    Record,
    RecordEdge,
    RecordEvent,
    Unprocessed,
)
from agenttx_server.lineage.topology import Topology

__all__ = ["Batch", "Ledger", "as_namespace", "shared"]


@dataclass(frozen=True, slots=True)
class Batch:
    """What came of it since it was last taken. An event may come again with more outputs: the later one stands."""

    records: tuple[Record, ...] = ()
    edges: tuple[RecordEdge, ...] = ()
    events: tuple[RecordEvent, ...] = ()


_RANK = {
    EventType.DROP: 0,
    EventType.FAIL: 1,
    EventType.ROUTE: 2,
    EventType.MODIFY: 3,
    EventType.FORK: 4,
    EventType.JOIN: 5,
    EventType.RECEIVE: 6,
    EventType.REPLAY: 0,
}


class Ledger:
    """The records, edges and events of one unit of work. Ids are derived of the run, the action, the input and a salt."""

    def __init__(self, topology: Topology, run_id: str) -> None:
        self._run_id = run_id
        self._ancestry = Ancestry(topology)
        self._flows: dict[str, dict[int, list[Flow]]] = {SOURCE: {}}
        self._paths: dict[str, str] = {}
        self._records: list[Record] = []
        self._edges: list[RecordEdge] = []
        self._changed: dict[tuple[str, str], None] = {}
        self._events: dict[tuple[str, str], RecordEvent] = {}

    def receive(
        self, row: Mapping[str, Any], occurrence: int, *, relative_path: str = "", place: int = 0
    ) -> Record:
        """Ingest a row, the ``place``-th of the run. ``occurrence`` counts identical rows before it."""
        guid = source_guid(dict(row), occurrence)
        target_id = root_id(self._run_id, place, SOURCE, guid)
        node_id = f"{SOURCE}_{derived_id(self._run_id, 'node', SOURCE, place, guid)}"
        record = Record(
            action=SOURCE,
            source_guid=guid,
            target_id=target_id,
            parent_target_id="",
            root_target_id=target_id,
            node_id=node_id,
            lineage=(node_id,),
            content={SOURCE: dict(row)},
            content_hash=content_hash(dict(row)),
            relative_path=relative_path,
        )
        self._keep(record, (), None, EdgeKind.DERIVE, guid)
        self._flows[SOURCE].setdefault(place, []).append(_live(record))
        self._account(SOURCE, record, EventType.RECEIVE, Reason.NONE, (record,))
        return record

    def absorb(self, other: Ledger) -> None:
        """Have what another flow of the same run made stand behind what was absorbed. Its records are not taken again.

        In time of what is absorbed alone, so that many can be; nothing may have been made here by then.
        """
        for action, slots in other._flows.items():
            mine = self._flows.setdefault(action, {})
            first = len(mine)
            for number, ordinal in enumerate(sorted(slots)):
                mine[first + number] = slots[ordinal]
        self._paths.update(other._paths)
        self._ancestry.absorb(other._ancestry)

    def flows(self, action: str) -> list[Flow]:
        """What an action gave, in the order of its inputs."""
        slots = self._flows.get(action, {})
        return [flow for ordinal in sorted(slots) for flow in slots[ordinal]]

    def records(self, action: str) -> list[Record]:
        """An action's own records, in the order of its inputs."""
        return [flow.record for flow in self.flows(action) if flow.record is not None]

    def ancestors(self, record: Record, action: str) -> tuple[Record, ...]:
        """The records of an action that a record came of; itself if it is one."""
        return tuple(item for item in self._ancestry.at(record, action) if item.action == action)

    def events(self) -> list[RecordEvent]:
        """What became of every input so far."""
        return list(self._events.values())

    def take(self) -> Batch:
        """What is new since this was last asked."""
        batch = Batch(
            tuple(self._records), tuple(self._edges), tuple(self._events[key] for key in self._changed)
        )
        self._records, self._edges, self._changed = [], [], {}
        return batch

    # --- for who makes records ------------------------------------------------------------------

    def _make(
        self,
        action: Action,
        ordinal: int,
        item: Input,
        own: JsonValue,
        salt: tuple[str | int, ...],
        suffix: str,
        *,
        row: int = 0,
        fans: bool = False,
        seed: str = "",
        unprocessed: Unprocessed | None = None,
        blocked_by: str = "",
    ) -> Record:
        primary = item.primary
        place = (action.name, primary.target_id, ordinal, *salt)
        # Rows of one result share a node, whichever input each is of.
        node = derived_id(self._run_id, "node", action.name, seed or primary.target_id, ordinal, salt[0])
        node_id = f"{action.name}_{node}{suffix}"
        path = self._paths[primary.target_id]
        correlation = correlation_id(path, action.base or action.name, row) if action.base or fans else ""
        is_many = len(item.contributors) > 1
        record = Record(
            action=action.name,
            source_guid=primary.source_guid,
            target_id=id_beside(primary.target_id, self._run_id, *place),
            parent_target_id=primary.target_id,
            root_target_id=primary.root_target_id,
            node_id=node_id,
            lineage=(*item.lineage, node_id),
            lineage_sources=tuple(r.node_id for r in item.contributors) if is_many else (),
            version_correlation_id=correlation,
            content={**item.content, action.name: own},
            content_hash=content_hash(own),
            unprocessed=unprocessed,
            blocked_by=blocked_by,
            relative_path=primary.relative_path,
        )
        kind = EdgeKind.DERIVE if not is_many else EdgeKind.MERGE if item.is_merge else EdgeKind.REDUCE
        self._keep(record, item.contributors, item.descent, kind, correlation or path)
        failed = unprocessed is Unprocessed.UPSTREAM_UNPROCESSED
        self._flows[action.name].setdefault(ordinal, []).append(
            Flow(action.name, FlowState.FAILED, (record,), record, record.content, blocked_by)
            if failed
            else _live(record)
        )
        return record

    def _aggregate(
        self,
        action: Action,
        ordinal: int,
        inputs: Sequence[Input],
        data: JsonValue,
        place: int,
        suffix: str,
        salt: str,
        occurrences: dict[str, int],
    ) -> Record:
        own = as_namespace(data)
        text = canonical(own)
        guid = source_guid(own, occurrences.get(text, 0))
        occurrences[text] = occurrences.get(text, 0) + 1
        contributors = tuple(dict.fromkeys(r for item in inputs for r in item.contributors))
        seed = inputs[0].primary.target_id
        target_id = id_beside(seed, self._run_id, action.name, "aggregate", seed, ordinal, salt, place)
        node_id = (
            f"{action.name}_{derived_id(self._run_id, 'node', action.name, seed, ordinal, salt)}{suffix}"
        )
        record = Record(
            action=action.name,
            source_guid=guid,
            target_id=target_id,
            parent_target_id="",
            root_target_id=target_id,
            node_id=node_id,
            lineage=(node_id,),
            lineage_sources=tuple(r.node_id for r in contributors),
            content={**shared(inputs), action.name: own},
            content_hash=content_hash(own),
            relative_path=inputs[0].primary.relative_path,
        )
        self._keep(record, contributors, None, EdgeKind.AGGREGATE, guid)
        self._flows[action.name].setdefault(ordinal, []).append(_live(record))
        return record

    def _carry(
        self, action: str, ordinal: int, item: Input, state: FlowState, *, blocked_by: str = ""
    ) -> None:
        content = {**item.content, action: None}
        flow = Flow(action, state, item.origins, item.descent, content, blocked_by)
        self._flows[action].setdefault(ordinal, []).append(flow)

    def _keep(
        self,
        record: Record,
        parents: tuple[Record, ...],
        descent: Descent | None,
        kind: EdgeKind,
        path: str,
    ) -> None:
        self._records.append(record)
        self._paths[record.target_id] = path
        self._ancestry.add(record, descent)
        self._edges += [
            RecordEdge(record.target_id, parent.target_id, ordinal, kind)
            for ordinal, parent in enumerate(parents)
        ]

    def _account(
        self,
        action: str,
        record: Record,
        kind: EventType,
        reason: Reason,
        outputs: tuple[Record, ...],
        detail: str = "",
    ) -> None:
        key = (action, record.target_id)
        ids = tuple(output.target_id for output in outputs)
        before = self._events.get(key)
        if before is not None:
            # It takes part in several inputs of the action: one event, which says the most that became of it.
            if _RANK[before.type] >= _RANK[kind]:
                kind, reason, detail = before.type, before.reason, before.detail or detail
            ids = tuple(dict.fromkeys((*before.outputs, *ids)))
        self._events[key] = RecordEvent(action, record.target_id, kind, reason, ids, detail[:500])
        self._changed[key] = None


def _live(record: Record) -> Flow:
    return Flow(record.action, FlowState.LIVE, (record,), record, record.content)


def as_namespace(row: JsonValue) -> dict[str, Any]:
    """What a tool answered as the namespace of its action."""
    return row if isinstance(row, dict) else {"value": row}


def shared(inputs: Sequence[Input]) -> dict[str, Any]:
    """The namespaces that are equal in all inputs."""
    first = inputs[0].content
    return {
        name: value
        for name, value in first.items()
        if all(name in item.content and _is_equal(item.content[name], value) for item in inputs[1:])
    }


def _is_equal(one: JsonValue, other: JsonValue) -> bool:
    # Python's own == holds true, 1 and 1.0 to be equal.
    return one is other or (one == other and canonical(one) == canonical(other))
