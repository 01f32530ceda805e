"""YAML (and so JSON) text of a pipeline as a JSON value, in bounded work.

Library: PyYAML's safe loader. What it would let pass is refused: a key said twice, anchors (a few bytes of them stand for
gigabytes), and more than the bounds. Dates stay the text that they were written as.
"""

from __future__ import annotations

from typing import Any

import yaml

from agenttx_server.engine.json_values import JsonValue, ValueRefused, canonical, load
from agenttx_server.lineage.limits import MAX_DOCUMENT_BYTES

__all__ = ["YamlRefused", "read_yaml"]

_MAX_DEPTH = 50


class YamlRefused(Exception):
    """The text is no YAML that stands for one JSON value; ``message`` is one line with the place."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Safe, without dates and anchors, and strict about keys."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise YamlRefused(f"{_place(self.peek_event())}: anchors and aliases are not read")
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise YamlRefused(f"nested deeper than {_MAX_DEPTH}")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise YamlRefused(f"{_place(key_node)}: merge keys are not read")
            if not isinstance(key_node, yaml.ScalarNode):
                raise YamlRefused(f"{_place(key_node)}: a key is a text")
            if key_node.value in seen:
                raise YamlRefused(f"{_place(key_node)}: the key '{key_node.value[:60]}' is said twice")
            seen.add(key_node.value)
        return dict(super().construct_mapping(node, deep=deep))


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(text: str) -> JsonValue:
    """Read one document.

    Raises:
        YamlRefused: with line and column where there is one.
    """
    if len(text.encode("utf-8", "replace")) > MAX_DOCUMENT_BYTES:
        raise YamlRefused(f"longer than {MAX_DOCUMENT_BYTES:,} bytes")
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        place = f"{_mark(error.problem_mark)}: " if error.problem_mark is not None else ""
        raise YamlRefused(f"{place}{error.problem or 'no YAML'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlRefused(str(error).partition("\n")[0][:200]) from None
    try:
        return load(canonical(value))
    except ValueRefused as refused:
        raise YamlRefused(f"is no JSON: {refused}") from None


def _place(marked: Any) -> str:
    return _mark(marked.start_mark)


def _mark(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
