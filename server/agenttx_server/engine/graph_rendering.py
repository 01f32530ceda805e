"""The dependency graph as text: Mermaid, DOT, JSON.

Tool names and keys come from users. In Mermaid every character that is not a letter, a digit
or one of a few signs becomes a numeric entity, so that no label can end its quotes, start
a directive or carry markup; in DOT quotes and backslashes are escaped and control
characters are blanks. Steps that an edge names but the view doesn't hold are drawn as
bare numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.records import DependencyKind, Edge
from agenttx_server.engine.requests import GraphView, RootCause

__all__ = ["dot", "mermaid", "to_json"]


def mermaid(view: GraphView, root_cause: RootCause | None = None) -> str:
    """A Mermaid flowchart; implicit edges are dotted, the root and the path to it coloured."""
    lines = ["flowchart TD"]
    for step_id, name in _labels(view):
        lines.append(f'  s{step_id}["{_mermaid_text(name)}"]')
    for edge in view.edges:
        arrow = "-->" if edge.kind is DependencyKind.EXPLICIT else "-.->"
        lines.append(f'  s{edge.from_step} {arrow}|"{_mermaid_text(_edge_label(edge))}"| s{edge.to_step}')
    root, way = _highlighted(view, root_cause)
    if way:
        lines.append("  classDef way stroke:#c60,stroke-width:3px")
        lines.append(f"  class {','.join(f's{step_id}' for step_id in way)} way")
    if root is not None:
        lines.append("  classDef root fill:#fdd,stroke:#c00,stroke-width:3px")
        lines.append(f"  class s{root} root")
    return "\n".join(lines) + "\n"


def dot(view: GraphView, root_cause: RootCause | None = None) -> str:
    """A DOT digraph; implicit edges are dashed, the root and the path to it coloured."""
    root, way = _highlighted(view, root_cause)
    lines = ["digraph dependencies {", '  node [shape=box, fontname="sans-serif"];']
    for step_id, name in _labels(view):
        style = ""
        if step_id == root:
            style = ', color="#cc0000", style=filled, fillcolor="#ffdddd"'
        elif step_id in way:
            style = ', color="#cc6600"'
        lines.append(f"  s{step_id} [label={_dot_text(name)}{style}];")
    for edge in view.edges:
        style = "" if edge.kind is DependencyKind.EXPLICIT else ", style=dashed"
        lines.append(f"  s{edge.from_step} -> s{edge.to_step} [label={_dot_text(_edge_label(edge))}{style}];")
    return "\n".join([*lines, "}"]) + "\n"


def to_json(view: GraphView, root_cause: RootCause | None = None) -> str:
    """Canonical JSON: ``nodes``, ``edges`` and, if one is given, ``root_cause``."""
    graph: dict[str, object] = {
        "nodes": [
            {
                "step_id": node.step_id,
                "attempt": node.attempt,
                "tool_name": node.tool_name,
                "effect_class": None if node.effect_class is None else str(node.effect_class),
                "state": str(node.state),
            }
            for node in view.nodes
        ],
        "edges": [
            {
                "from_step": edge.from_step,
                "to_step": edge.to_step,
                "source_key": edge.source_key,
                "target_key": edge.target_key,
                "kind": str(edge.kind),
            }
            for edge in view.edges
        ],
    }
    if root_cause is not None:
        graph["root_cause"] = {
            "step_id": root_cause.step_id,
            "path": [{"step_id": element.step_id, "key": element.key} for element in root_cause.path],
        }
    return canonical(graph)


def _labels(view: GraphView) -> Iterator[tuple[int, str]]:
    names = {node.step_id: f"{node.step_id} {node.tool_name}" for node in view.nodes}
    for edge in view.edges:
        for step_id in (edge.from_step, edge.to_step):
            names.setdefault(step_id, str(step_id))
    return iter(sorted(names.items()))


def _edge_label(edge: Edge) -> str:
    return edge.source_key if edge.source_key == edge.target_key else f"{edge.source_key} → {edge.target_key}"


def _highlighted(view: GraphView, root_cause: RootCause | None) -> tuple[int | None, list[int]]:
    """The root, and the other steps of the path, as far as the drawing holds them."""
    if root_cause is None or root_cause.step_id is None:
        return None, []
    drawn = {step_id for step_id, _ in _labels(view)}
    way = {element.step_id for element in root_cause.path} & drawn - {root_cause.step_id}
    return (root_cause.step_id if root_cause.step_id in drawn else None), sorted(way)


_MERMAID_SAFE: Final = frozenset(" _-.,/→")
_LONGEST_LABEL: Final = 120


def _mermaid_text(text: str) -> str:
    return "".join(
        character if character.isalnum() or character in _MERMAID_SAFE else f"#{ord(character)};"
        for character in _one_line(text)
    )


def _dot_text(text: str) -> str:
    escaped = _one_line(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _one_line(text: str) -> str:
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line) <= _LONGEST_LABEL else line[: _LONGEST_LABEL - 1] + "…"
