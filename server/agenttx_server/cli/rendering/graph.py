"""The dependency graph in the terminal: the steps in order, under each what it took from where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.text import Text

from agenttx.records import (
    DependencyEdge,
    DependencyGraph,
    DependencyKind,
    DependencyNode,
    PathElement,
    RootCause,
)
from agenttx_server.cli.rendering.decisions import path_text
from agenttx_server.cli.rendering.tables import cell

__all__ = ["graph_tree"]

_PATH_STYLE = "bold yellow"
_ROOT_STYLE = "bold red"


@dataclass(frozen=True, slots=True)
class _Highlight:
    """The steps and edges of the way to a root cause."""

    root: int = 0
    steps: frozenset[int] = frozenset()
    edges: frozenset[tuple[int, int, str]] = frozenset()

    @classmethod
    def of(cls, cause: RootCause | None) -> _Highlight:
        if cause is None:
            return cls()
        # Without the consumer's key: where a value was passed through, its path needn't name the input.
        edges = [
            (producer.step_id, consumer.step_id, _folded(producer.key))
            for consumer, producer in pairwise(cause.path)
        ]
        return cls(cause.step_id, frozenset(element.step_id for element in cause.path), frozenset(edges))

    def holds(self, edge: DependencyEdge) -> bool:
        return (edge.from_step, edge.to_step, _folded(edge.source_key)) in self.edges


def graph_tree(graph: DependencyGraph, cause: RootCause | None = None) -> RenderableType:
    """Return the graph as small trees, a step each, in order; the way to the root cause is marked.

    Args:
        graph: The graph.
        cause: The root cause to mark, with its path; None for none.
    """
    highlight = _Highlight.of(cause)
    sources = _edges_by_consumer(graph.edges)
    width = max((len(_number(node)) for node in graph.nodes), default=1)
    lines: list[RenderableType] = []
    for node in graph.nodes:
        lines.append(_step_label(node, highlight, width))
        lines += _branches(sources.get((node.step_id, node.sub_step), ()), highlight, " " * (width + 1))
    if any(edge.kind is DependencyKind.IMPLICIT for edge in graph.edges):
        lines.append(Text("\n→ by reference, ⇢ found by equal values", style="dim"))
    if cause is not None:
        lines.append(_cause_line(cause.path))
    return Group(*lines)


def _branches(edges: Sequence[DependencyEdge], highlight: _Highlight, indent: str) -> Iterator[Text]:
    for index, edge in enumerate(edges, 1):
        guide = "└─ " if index == len(edges) else "├─ "
        yield Text.assemble(indent, (guide, "dim"), _edge_label(edge, on_path=highlight.holds(edge)))


def _step_label(node: DependencyNode, highlight: _Highlight, width: int) -> Text:
    label = Text.assemble((_number(node).rjust(width), "bold"), " ", cell(node.tool_name))
    if node.attempt > 1:
        label.append(f" (try {node.attempt})", "dim")
    if node.state != "COMPLETED":
        label.append(f" {node.state}", "cyan")
    if node.step_id == highlight.root:
        label.stylize(_ROOT_STYLE)
        label.append("  ◀ root cause", _ROOT_STYLE)
    elif node.step_id in highlight.steps:
        label.stylize(_PATH_STYLE)
    return label


def _number(node: DependencyNode) -> str:
    return f"{node.step_id}.{node.sub_step}" if node.sub_step else str(node.step_id)


def _edge_label(edge: DependencyEdge, *, on_path: bool) -> Text:
    arrow = "→" if edge.kind is DependencyKind.EXPLICIT else "⇢"
    label = cell(f"{edge.from_step}.{edge.source_key} {arrow} {edge.target_key}")
    if on_path:
        label.stylize(_PATH_STYLE)
        label.append("  ◀", _PATH_STYLE)
    return label


def _cause_line(path: Iterable[PathElement]) -> Text:
    return Text.assemble("\nroot cause: ", cell(path_text(tuple(path)), _PATH_STYLE))


def _edges_by_consumer(edges: Iterable[DependencyEdge]) -> Mapping[tuple[int, int], list[DependencyEdge]]:
    by_consumer: dict[tuple[int, int], list[DependencyEdge]] = {}
    for edge in edges:
        by_consumer.setdefault((edge.to_step, edge.to_sub_step), []).append(edge)
    return by_consumer


def _folded(key: str) -> str:
    """Return a key as the search compares it: ASCII case ignored."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in key)
