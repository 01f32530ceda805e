"""What must hold of the records, edges and events of a run (docs/lineage.md): every breach, named."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from agenttx_server.engine.frozen import dataclass
from agenttx_server.lineage.identity import content_hash
from agenttx_server.lineage.records import (
    EdgeKind,
    EventType,
    Record,
    RecordEdge,
    RecordEvent,
    Unprocessed,
)

__all__ = ["Breach", "verify_lineage"]


@dataclass(frozen=True, slots=True)
class Breach:
    """One thing that does not hold. ``code`` is the same for the same rule; ``subject`` is a record's target_id."""

    code: str
    subject: str
    message: str


def verify_lineage(
    records: Sequence[Record],
    edges: Iterable[RecordEdge],
    events: Iterable[RecordEvent],
    consumers: Callable[[str], Sequence[str]] | None = None,
    *,
    content_grows: bool = True,
) -> list[Breach]:
    """Check whole roots: all records of each, with their edges and live events.

    Args:
        records: the live ones.
        edges: of these records.
        events: those that count: none of attempts that were rewound.
        consumers: the actions that depend on an action, to check that every input has its event; None, or what fails
            before it got there: that is not asked.
        content_grows: whether a record has all namespaces of its parent, as in pipelines.
    """
    return list(_Verification(records, edges, events, content_grows).breaches(consumers))


class _Verification:
    def __init__(
        self,
        records: Sequence[Record],
        edges: Iterable[RecordEdge],
        events: Iterable[RecordEvent],
        content_grows: bool,
    ) -> None:
        self._all = records
        self._content_grows = content_grows
        self._records = {record.target_id: record for record in records}
        self._parents: dict[str, list[RecordEdge]] = defaultdict(list)
        for edge in edges:
            self._parents[edge.child].append(edge)
        self._events = list(events)

    def breaches(self, consumers: Callable[[str], Sequence[str]] | None) -> Iterator[Breach]:
        for target_id, count in Counter(record.target_id for record in self._all).items():
            if count > 1:
                yield Breach("DUPLICATE_TARGET_ID", target_id, f"{count} records have this target_id")
        for record in self._records.values():
            yield from self._of_record(record)
            yield from self._of_edges(record)
        yield from self._cycles()
        yield from self._of_events(consumers)

    def _of_record(self, record: Record) -> Iterator[Breach]:
        def breach(code: str, message: str) -> Breach:
            return Breach(code, record.target_id, message)

        parent = self._records.get(record.parent_target_id) if record.parent_target_id else None
        root = self._records.get(record.root_target_id)
        if record.parent_target_id == record.target_id:
            yield breach("OWN_PARENT", "it is its own parent")
        if record.parent_target_id and parent is None:
            yield breach("NO_PARENT", f"there is no parent {record.parent_target_id}")
        if root is None:
            yield breach("NO_ROOT", f"there is no root {record.root_target_id}")
        elif not root.is_root:
            yield breach("NOT_A_ROOT", f"{record.root_target_id} has a parent")
        if record.is_root and record.root_target_id != record.target_id:
            yield breach("WRONG_ROOT", "it has no parent, and another root than itself")
        if parent is not None and parent.root_target_id != record.root_target_id:
            yield breach("WRONG_ROOT", "its parent has another root")
        if not record.lineage or record.lineage[-1] != record.node_id:
            yield breach("LINEAGE_END", "the last entry of its lineage is not its own node_id")
        if len(set(record.lineage)) < len(record.lineage):
            yield breach("LINEAGE_TWICE", "its lineage names a node twice")
        if record.content_hash != content_hash(record.content.get(record.action)):
            yield breach("CONTENT_CHANGED", "its own namespace is not what content_hash was made of")
        if record.unprocessed is not None and record.content.get(record.action) is not None:
            yield breach("UNPROCESSED_CONTENT", "it was not processed, and its own namespace holds something")
        is_grouped = any(edge.kind is EdgeKind.REDUCE for edge in self._parents.get(record.target_id, ()))
        shares = self._content_grows and not is_grouped
        if parent is not None and shares and not parent.content.keys() <= record.content.keys():
            yield breach("CONTENT_SHRANK", "it lacks a namespace that its parent has")
        if (record.unprocessed is Unprocessed.UPSTREAM_UNPROCESSED) != bool(record.blocked_by):
            yield breach("BLOCKED_BY", "blocked_by belongs to upstream_unprocessed, and to nothing else")

    def _of_edges(self, record: Record) -> Iterator[Breach]:
        edges = sorted(self._parents.get(record.target_id, ()), key=lambda edge: edge.ordinal)
        parents = [edge.parent for edge in edges]
        missing = [parent for parent in parents if parent not in self._records]
        if missing:
            yield Breach("NO_CONTRIBUTOR", record.target_id, f"there is no record {missing[0]}")
            return
        if record.parent_target_id and (not parents or parents[0] != record.parent_target_id):
            yield Breach("PARENT_EDGE", record.target_id, "its first edge is not to its parent")
        if record.is_root and any(edge.kind is not EdgeKind.AGGREGATE for edge in edges):
            yield Breach("PARENT_EDGE", record.target_id, "a root has edges of aggregation only")
        if len(edges) > 1 or record.lineage_sources:
            contributed = tuple(self._records[parent].node_id for parent in parents)
            if contributed != record.lineage_sources:
                yield Breach(
                    "LINEAGE_SOURCES",
                    record.target_id,
                    "lineage_sources are not the nodes of its contributors",
                )
        if record.parent_target_id:
            roots = {
                self._records[edge.parent].root_target_id for edge in edges if edge.kind is EdgeKind.MERGE
            }
            if roots - {record.root_target_id}:
                yield Breach("ROOTS_MERGED", record.target_id, "records of different roots were merged")

    def _cycles(self) -> Iterator[Breach]:
        done: set[str] = set()
        for start in self._records:
            if start in done:
                continue
            path = {start}
            stack = [(start, iter(self._parents.get(start, ())))]
            while stack:
                node, edges = stack[-1]
                edge = next(edges, None)
                if edge is None:
                    stack.pop()
                    path.discard(node)
                    done.add(node)
                elif edge.parent in path:
                    yield Breach("CYCLE", edge.parent, "it is its own ancestor")
                elif edge.parent not in done:
                    path.add(edge.parent)
                    stack.append((edge.parent, iter(self._parents.get(edge.parent, ()))))

    def _of_events(self, consumers: Callable[[str], Sequence[str]] | None) -> Iterator[Breach]:
        keys = Counter((event.action, event.input_id) for event in self._events)
        for (action, input_id), count in keys.items():
            if count > 1:
                yield Breach("EVENT_TWICE", input_id, f"{count} live events of '{action}'")
        listed: Counter[str] = Counter()
        for event in self._events:
            yield from self._of_event(event)
            listed.update(event.outputs)
        for record in self._records.values():
            if not listed[record.target_id]:
                yield Breach("UNLISTED", record.target_id, "no event says where it came from")
            for action in consumers(record.action) if consumers is not None else ():
                if (action, record.target_id) not in keys:
                    yield Breach(
                        "UNACCOUNTED", record.target_id, f"no event says what '{action}' did with it"
                    )

    def _of_event(self, event: RecordEvent) -> Iterator[Breach]:
        if event.input_id not in self._records:
            yield Breach("EVENT_WITHOUT_INPUT", event.input_id, f"an event of '{event.action}' for no record")
        for output in event.outputs:
            record = self._records.get(output)
            if record is None:
                yield Breach("EVENT_WITHOUT_OUTPUT", output, f"an event of '{event.action}' lists no record")
            elif event.type is EventType.RECEIVE:
                if output != event.input_id or not record.is_root:
                    yield Breach(
                        "EVENT_WITHOUT_EDGE", output, "a RECEIVE lists what is no root, or another's"
                    )
            elif event.action != record.action:
                yield Breach(
                    "EVENT_ACTION", output, f"an event of '{event.action}' lists a record of another"
                )
            elif event.input_id not in {edge.parent for edge in self._parents.get(output, ())}:
                yield Breach("EVENT_WITHOUT_EDGE", output, "an event lists it for what it did not come of")
        gives = event.type in (EventType.FORK, EventType.MODIFY, EventType.JOIN, EventType.ROUTE)
        if gives and not event.outputs:
            yield Breach(
                "EVENT_OUTPUTS", event.input_id, f"{event.type.value} of '{event.action}' lists nothing"
            )
        if event.type is EventType.DROP and event.outputs:
            yield Breach("EVENT_OUTPUTS", event.input_id, f"DROP of '{event.action}' lists records")
