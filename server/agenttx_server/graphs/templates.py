"""Argument templates of nodes: ``${state.path}``, ``${arg.path}``, ``${constraints}``, and ``${result.path}``.

A text that is exactly one reference becomes the value with its type; inside a longer text a string is
put in as it is, any other value as canonical JSON. ``$${`` is the text ``${``. Other ``${…}`` that name
none of the roots are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from agenttx_server.engine.json_values import MISSING, JsonValue, Missing, canonical

__all__ = ["TemplateUnresolved", "at_path", "channels_read", "fill", "output_path"]

_SEGMENT: Final = r"[A-Za-z0-9_-]+"
_PLACE: Final = re.compile(r"\$\$\{|\$\{(?P<root>state|arg|constraints)(?P<path>(?:\." + _SEGMENT + r")*)\}")
_OUTPUT: Final = re.compile(r"\$\{result(?P<path>(?:\." + _SEGMENT + r")*)\}")


class TemplateUnresolved(Exception):
    """A reference to what isn't there. ``reference`` is its text, ``key`` the missing segment."""

    def __init__(self, reference: str, key: str) -> None:
        super().__init__(f"{reference} has no value: there is no '{key}'")
        self.reference = reference
        self.key = key


def output_path(template: str) -> tuple[str, ...] | None:
    """The path of ``${result.path}``; None if the text is something else."""
    match = _OUTPUT.fullmatch(template)
    return None if match is None else tuple(match["path"].split(".")[1:])


def at_path(value: JsonValue | Missing, path: tuple[str, ...]) -> JsonValue | Missing:
    """The value at a path; digits index arrays. MISSING if there is none."""
    for segment in path:
        if isinstance(value, dict):
            value = value.get(segment, MISSING)
        elif isinstance(value, list) and segment.isdecimal() and int(segment) < len(value):
            value = value[int(segment)]
        else:
            return MISSING
    return value


def channels_read(template: JsonValue) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield (channel, the path below it, the argument's field) for each ``${state.…}`` in a template, in order."""
    yield from _channels_read(template, "")


def fill(
    template: JsonValue,
    *,
    state: Mapping[str, JsonValue],
    arg: JsonValue | Missing = MISSING,
    constraints: tuple[str, ...] = (),
) -> JsonValue:
    """Replace the references in a template. The result shares nothing that a tool may change.

    Raises:
        TemplateUnresolved: at the first reference that has no value.
    """
    roots: dict[str, JsonValue | Missing] = {
        "state": dict(state),
        "arg": arg,
        "constraints": list(constraints),
    }
    return _filled(template, roots)


def _filled(template: JsonValue, roots: Mapping[str, JsonValue | Missing]) -> JsonValue:
    if isinstance(template, str):
        return _filled_text(template, roots)
    if isinstance(template, list):
        return [_filled(item, roots) for item in template]
    if isinstance(template, dict):
        return {key: _filled(item, roots) for key, item in template.items()}
    return template


def _filled_text(template: str, roots: Mapping[str, JsonValue | Missing]) -> JsonValue:
    whole = _PLACE.fullmatch(template)
    if whole is not None and whole["root"] is not None:
        return _value_of(whole, roots)

    def text_of(match: re.Match[str]) -> str:
        if match["root"] is None:
            return "${"
        value = _value_of(match, roots)
        return value if isinstance(value, str) else canonical(value)

    return _PLACE.sub(text_of, template)


def _value_of(match: re.Match[str], roots: Mapping[str, JsonValue | Missing]) -> JsonValue:
    path = tuple(match["path"].split(".")[1:])
    value = at_path(roots[match["root"]], path)
    if value is MISSING:
        missing = next(
            (
                path[: n + 1][-1]
                for n in range(len(path))
                if at_path(roots[match["root"]], path[: n + 1]) is MISSING
            ),
            match["root"],
        )
        raise TemplateUnresolved(match[0], missing)
    return value


def _channels_read(template: JsonValue, field: str) -> Iterator[tuple[str, tuple[str, ...], str]]:
    if isinstance(template, str):
        for match in _PLACE.finditer(template):
            path = tuple((match["path"] or "").split(".")[1:])
            if match["root"] == "state" and path:
                yield path[0], path[1:], field or path[-1]
    elif isinstance(template, list):
        for item in template:
            yield from _channels_read(item, field)
    elif isinstance(template, dict):
        for key, item in template.items():
            yield from _channels_read(item, key)
