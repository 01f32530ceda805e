"""Names: DUPLICATE_NODE, RESERVED_NAME, INVALID_NAME, CHANNEL_REDEFINED."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from agenttx_server.graphs.definition import GraphDefinition, SubgraphBinding
from agenttx_server.graphs.findings import Finding, found
from agenttx_server.graphs.limits import MAX_NAME_LENGTH

__all__ = ["check_names", "is_reserved", "name_fault"]

_SEPARATORS: Final = ":|/#"
"""They separate the parts of namespaces, task ids and event filters."""


def check_names(graph: GraphDefinition) -> Iterator[Finding]:
    """Check the names of the graph, its nodes and its channels."""
    yield from _check(graph.name, "graph")
    for node in graph.nodes:
        yield from _check(node.name, f"node {node.name}")
        if isinstance(node.binding, SubgraphBinding) and node.binding.state_key:
            yield from _check(node.binding.state_key, f"node {node.name}, state_key")
    for channel in graph.channels:
        yield from _check(channel.name, f"channel {channel.name}")
    for name, count in Counter(node.name for node in graph.nodes).items():
        if count > 1:
            yield found("DUPLICATE_NODE", f"node {name}", f"{count} nodes are named '{name}'")
    for name, count in Counter(channel.name for channel in graph.channels).items():
        if count > 1:
            yield found("CHANNEL_REDEFINED", f"channel {name}", f"channel '{name}' is declared {count} times")


def is_reserved(name: str) -> bool:
    """Whether a name begins and ends with two underscores."""
    return name.startswith("__") and name.endswith("__")


def name_fault(name: str) -> str | None:
    """What is wrong with a name, apart from being reserved."""
    if not name.strip():
        return "a name is empty or blank"
    if len(name) > MAX_NAME_LENGTH:
        return f"a name has at most {MAX_NAME_LENGTH} characters, this one {len(name)}"
    for character in name:
        if character in _SEPARATORS:
            return f"'{character}' can't be in a name"
        if ord(character) < 32 or 127 <= ord(character) < 160 or 0xD800 <= ord(character) < 0xE000:
            return "a control character can't be in a name"
    return None


def _check(name: str, where: str) -> Iterator[Finding]:
    if is_reserved(name):
        yield found("RESERVED_NAME", where, f"'{name}': names of the form __…__ are reserved")
        return
    fault = name_fault(name)
    if fault is not None:
        yield found("INVALID_NAME", where, fault)
