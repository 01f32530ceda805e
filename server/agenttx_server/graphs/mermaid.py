"""A graph as a Mermaid flowchart. Deterministic; names and labels can't leave their place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from agenttx_server.graphs.definition import END, START, GraphDefinition, Node, SubgraphBinding

__all__ = ["to_mermaid"]


def to_mermaid(graph: GraphDefinition) -> str:
    """Draw a graph: nodes by name; then direct, conditional and waiting edges and commands, in order."""
    ids = _ids(graph)
    lines = ["flowchart TD", "    START([START])", "    END([END])"]
    lines += (f"    {ids[node.name]}{_box(node)}" for node in graph.nodes)
    lines += (f"    {line}" for line in _edges(graph, ids))
    return "\n".join(lines) + "\n"


def _edges(graph: GraphDefinition, ids: Mapping[str, str]) -> Iterator[str]:
    for edge in graph.edges:
        yield f"{_id(ids, edge.source)} --> {_id(ids, edge.target)}"
    for conditional in graph.conditional_edges:
        for route in conditional.routes:
            source, target = _id(ids, conditional.source), _id(ids, route.target)
            yield f"{source} -- {_edge_label(route.label)} --> {target}"
    for waiting in graph.waiting_edges:
        for member in waiting.members:
            yield f"{_id(ids, member)} -. barrier .-> {_id(ids, waiting.target)}"
    for node in graph.nodes:
        for destination in node.destinations or ():
            yield f"{_id(ids, node.name)} -. goto .-> {_id(ids, destination)}"


def _ids(graph: GraphDefinition) -> dict[str, str]:
    """An id for each node: its name with other characters replaced, numbered where that collides."""
    ids: dict[str, str] = {}
    taken: set[str] = set()
    for name in dict.fromkeys(node.name for node in graph.nodes):
        plain = "n_" + re.sub(r"[^A-Za-z0-9_]", "_", name)
        chosen, number = plain, 2
        while chosen in taken:
            chosen, number = f"{plain}_{number}", number + 1
        taken.add(chosen)
        ids[name] = chosen
    return ids


def _id(ids: Mapping[str, str], name: str) -> str:
    # A graph that isn't sound may lead to what isn't there; it is drawn all the same.
    return {START: "START", END: "END"}.get(name) or ids.get(name, "missing")


def _box(node: Node) -> str:
    text = _text(node.label or node.name)
    return f'[["{text}"]]' if isinstance(node.binding, SubgraphBinding) else f'["{text}"]'


_PLAIN_LABEL: Final = re.compile(r"[A-Za-z0-9_]+(?:[ .][A-Za-z0-9_]+)*")
_ENTITIES: Final = str.maketrans(
    {'"': "&quot;", "&": "&amp;", "<": "&lt;", ">": "&gt;", "`": "&#96;", "#": "&#35;"}
)


def _edge_label(label: str) -> str:
    return label if _PLAIN_LABEL.fullmatch(label) else f'"{_text(label)}"'


def _text(text: str) -> str:
    line = "".join(character if character.isprintable() else " " for character in text)
    return line.translate(_ENTITIES)
