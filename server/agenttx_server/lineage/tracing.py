"""Records with the edges between them, in order and drawn: as a tree of text, or as a flowchart for Mermaid. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from agenttx_server.engine.frozen import dataclass
from agenttx_server.lineage.records import EdgeKind, Record, RecordEdge

__all__ = ["Direction", "Trace", "draw_mermaid", "draw_tree", "in_order"]

_MAX_LINES = 20_000


class Direction(StrEnum):
    """Which way a record is traced."""

    ANCESTORS = "ANCESTORS"
    DESCENDANTS = "DESCENDANTS"
    BOTH = "BOTH"


@dataclass(frozen=True, slots=True)
class Trace:
    """``record`` with ``others``; ``edges`` are those between them."""

    record: Record
    others: Sequence[Record]
    edges: Sequence[RecordEdge]
    direction: Direction
    truncated: bool = False


def in_order(records: Sequence[Record], edges: Sequence[RecordEdge]) -> list[Record]:
    """Put records behind all that they came of; those of one depth by action and target_id."""
    parents: dict[str, list[str]] = {record.target_id: [] for record in records}
    for edge in edges:
        if edge.child in parents and edge.parent in parents:
            parents[edge.child].append(edge.parent)
    depths: dict[str, int] = {}
    for target_id in parents:
        stack = [target_id]
        while stack:
            top = stack[-1]
            missing = [] if top in depths else [one for one in parents[top] if one not in depths]
            if missing:
                stack += missing
            else:
                stack.pop()
                depths[top] = max((depths[one] + 1 for one in parents[top]), default=0)
    return sorted(records, key=lambda record: (depths[record.target_id], record.action, record.target_id))


def draw_tree(trace: Trace) -> str:
    """Draw a trace as lines of text: what it came of, or what came of it, is indented below a record.

    A record that several ways lead to is drawn once; where it comes again it says so, and nothing is below it.
    """
    downwards = trace.direction is not Direction.ANCESTORS
    records = {record.target_id: record for record in (trace.record, *trace.others)}
    below: dict[str, list[RecordEdge]] = {target_id: [] for target_id in records}
    has_above = set()
    for edge in sorted(trace.edges, key=lambda edge: (edge.child, edge.ordinal)):
        upper, lower = (edge.parent, edge.child) if downwards else (edge.child, edge.parent)
        below[upper].append(edge)
        has_above.add(lower)
    if downwards:
        place = {
            record.target_id: number
            for number, record in enumerate(in_order(list(records.values()), trace.edges))
        }
        for edges in below.values():
            edges.sort(key=lambda edge: place[edge.child])
    tops = [target_id for target_id in records if target_id not in has_above]
    lines: list[str] = []
    drawn: set[str] = set()
    for top in tops:
        lines += _branch(records, below, top, downwards, drawn, trace.record.target_id)
        if len(lines) > _MAX_LINES:
            break
    if trace.truncated or len(lines) > _MAX_LINES:
        lines = [*lines[:_MAX_LINES], "… and more"]
    return "\n".join(lines) + "\n"


def _branch(
    records: Mapping[str, Record],
    below: Mapping[str, Sequence[RecordEdge]],
    top: str,
    downwards: bool,
    drawn: set[str],
    traced: str,
) -> Iterator[str]:
    # A stack and not recursion: what is stored may be deeper than it should.
    stack: list[tuple[str, str, str, str]] = [(top, "", "", "")]
    while stack:
        target_id, lead, branch, note = stack.pop()
        record = records[target_id]
        again = target_id in drawn
        mark = "  ◀" if target_id == traced and not again else ""
        yield f"{lead}{branch}{_label(record)}{note}{'  (above)' if again else ''}{mark}"
        if again:
            continue
        drawn.add(target_id)
        deeper = lead + {"": "", "├── ": "│   ", "└── ": "    "}[branch]
        edges = below[target_id]
        for number in range(len(edges) - 1, -1, -1):
            edge = edges[number]
            following = edge.child if downwards else edge.parent
            kind = "" if edge.kind is EdgeKind.DERIVE else f"  {edge.kind.value}"
            stack.append((following, deeper, "└── " if number == len(edges) - 1 else "├── ", kind))


def draw_mermaid(trace: Trace) -> str:
    """Draw a trace as a flowchart, from what came first to what came last. Deterministic."""
    records = in_order([trace.record, *trace.others], trace.edges)
    ids = {record.target_id: f"r{number}" for number, record in enumerate(records)}
    lines = ["flowchart TD"]
    for record in records:
        text = f"{_plain(record.action)}<br/>{_plain(record.target_id)}"
        shape = f'(["{text}"])' if record.is_root else f'["{text}"]'
        lines.append(f"    {ids[record.target_id]}{shape}")
    for edge in sorted(trace.edges, key=lambda edge: (edge.child, edge.ordinal)):
        arrow = "-->" if edge.kind is EdgeKind.DERIVE else f"-- {edge.kind.value} -->"
        lines.append(f"    {ids[edge.parent]} {arrow} {ids[edge.child]}")
    lines.append(f"    style {ids[trace.record.target_id]} stroke-width:3px")
    if trace.truncated:
        lines.append("    %% and more")
    return "\n".join(lines) + "\n"


def _label(record: Record) -> str:
    why = "" if record.unprocessed is None else f"  {record.unprocessed.value}"
    blocked = f" by {record.blocked_by}" if record.blocked_by else ""
    return f"{_plain(record.action)} {_plain(record.target_id)}{why}{blocked}"


def _plain(text: str) -> str:
    """Nothing that leaves its place in a line or in a drawing; names of actions and ids hold nothing else anyway."""
    return "".join(character if character.isalnum() or character in "_-." else "_" for character in text)
