"""A graph as Graphviz DOT. Deterministic."""

from __future__ import annotations

from collections.abc import Iterator

from agenttx_server.graphs.definition import END, START, GraphDefinition, Node, SubgraphBinding

__all__ = ["to_dot"]


def to_dot(graph: GraphDefinition) -> str:
    """Draw a graph; conditional edges have their labels, joins are dashed, commands dotted."""
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        '  node [shape=box, fontname="sans-serif"];',
        f"  {_quoted(START)} [label=START, shape=oval];",
        f"  {_quoted(END)} [label=END, shape=oval];",
    ]
    lines += (f"  {_quoted(node.name)} [{_attributes(node)}];" for node in graph.nodes)
    lines += (f"  {line};" for line in _edges(graph))
    return "\n".join([*lines, "}"]) + "\n"


def _attributes(node: Node) -> str:
    shape = ", peripheries=2" if isinstance(node.binding, SubgraphBinding) else ""
    return f"label={_quoted(node.label or node.name)}{shape}"


def _edges(graph: GraphDefinition) -> Iterator[str]:
    for edge in graph.edges:
        yield f"{_quoted(edge.source)} -> {_quoted(edge.target)}"
    for conditional in graph.conditional_edges:
        for route in conditional.routes:
            yield f"{_quoted(conditional.source)} -> {_quoted(route.target)} [label={_quoted(route.label)}]"
    for waiting in graph.waiting_edges:
        for member in waiting.members:
            yield f"{_quoted(member)} -> {_quoted(waiting.target)} [label=barrier, style=dashed]"
    for node in graph.nodes:
        for destination in node.destinations or ():
            yield f"{_quoted(node.name)} -> {_quoted(destination)} [label=goto, style=dotted]"


def _quoted(text: str) -> str:
    line = "".join(character if character.isprintable() else " " for character in text)
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
