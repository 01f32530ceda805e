"""Arguments of actions: ``${namespace.path}`` over the namespaces of a record.

The rules are those of step references: a text that is exactly one reference becomes the value with its type; inside a
longer text a string is put in as it is, any other value as canonical JSON; ``$${`` is the text ``${``; digits index arrays.
A whole namespace is ``${namespace}``. Values that are put in are not read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from agenttx_server.engine.json_values import MISSING, JsonValue, Missing, canonical

__all__ = ["ArgumentUnresolved", "at_path", "fill", "references_in"]

_PLACE: Final = re.compile(r"\$\$\{|\$\{(?P<root>[A-Za-z_][A-Za-z0-9_]*)(?P<path>(?:\.[A-Za-z0-9_-]+)*)\}")


class ArgumentUnresolved(Exception):
    """A reference to what isn't there. ``message`` is one line; ``key`` the missing segment."""

    def __init__(self, reference: str, key: str) -> None:
        self.message = f"{reference[:60]} has no value: there is no '{key[:60]}'"
        super().__init__(self.message)
        self.key = key


def references_in(template: JsonValue) -> Iterator[tuple[str, ...]]:
    """Yield the path of every reference, its namespace first, in order."""
    if isinstance(template, str):
        for match in _PLACE.finditer(template):
            if match["root"] is not None:
                yield (match["root"], *match["path"].split(".")[1:])
    elif isinstance(template, dict):
        for item in template.values():
            yield from references_in(item)
    elif isinstance(template, list):
        for item in template:
            yield from references_in(item)


def fill(template: JsonValue, namespaces: Mapping[str, Any]) -> JsonValue:
    """Return the template with its references replaced.

    Raises:
        ArgumentUnresolved: a reference that has no value here.
    """
    if isinstance(template, str):
        return _filled_text(template, namespaces)
    if isinstance(template, dict):
        return {key: fill(item, namespaces) for key, item in template.items()}
    if isinstance(template, list):
        return [fill(item, namespaces) for item in template]
    return template


def at_path(value: JsonValue | Missing, path: tuple[str, ...]) -> JsonValue | Missing:
    """The value at a path; MISSING if there is none."""
    for segment in path:
        if isinstance(value, dict):
            value = value.get(segment, MISSING)
        elif isinstance(value, list) and segment.isdecimal() and int(segment) < len(value):
            value = value[int(segment)]
        else:
            return MISSING
    return value


def _filled_text(text: str, namespaces: Mapping[str, Any]) -> JsonValue:
    whole = _PLACE.fullmatch(text)
    if whole is not None and whole["root"] is not None:
        return _value(whole, namespaces)

    def put(match: re.Match[str]) -> str:
        if match["root"] is None:
            return "${"
        value = _value(match, namespaces)
        return value if isinstance(value, str) else canonical(value)

    return _PLACE.sub(put, text)


def _value(match: re.Match[str], namespaces: Mapping[str, Any]) -> JsonValue:
    reference, path = match.group(), tuple(match["path"].split(".")[1:])
    if match["root"] not in namespaces:
        raise ArgumentUnresolved(reference, match["root"])
    value: JsonValue | Missing = namespaces[match["root"]]
    for segment in path:
        value = at_path(value, (segment,))
        if isinstance(value, Missing):
            raise ArgumentUnresolved(reference, segment)
    assert not isinstance(value, Missing)
    return value
