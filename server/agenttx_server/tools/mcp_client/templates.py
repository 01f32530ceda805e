"""Arguments of an undo call, made of what the call was given and what it returned."""

from __future__ import annotations

import re
from typing import Any

from agenttx_server.engine import json_values

__all__ = ["TemplateFailed", "filled", "needs_result"]

_PLACE = re.compile(r"\$\{(arguments|result)((?:\.[A-Za-z0-9_-]+)*)\}")


class TemplateFailed(Exception):
    """A place leads to nothing; the message names it."""


def needs_result(template: Any) -> bool:
    """Whether a template can be filled only once the call has returned."""
    match template:
        case str():
            return any(match[1] == "result" for match in _PLACE.finditer(template))
        case dict():
            return any(needs_result(value) for value in template.values())
        case list():
            return any(needs_result(value) for value in template)
    return False


def filled(template: Any, arguments: Any, result: Any) -> Any:
    """Return a template with its places filled; a string that is one place becomes its value, with its type.

    Raises:
        TemplateFailed: a place leads to nothing.
    """
    sources = {"arguments": arguments, "result": result}
    match template:
        case str():
            whole = _PLACE.fullmatch(template)
            if whole is not None:
                return _at(sources, whole)
            return _PLACE.sub(lambda place: _text(_at(sources, place)), template)
        case dict():
            return {key: filled(value, arguments, result) for key, value in template.items()}
        case list():
            return [filled(value, arguments, result) for value in template]
    return template


def _at(sources: dict[str, Any], place: re.Match[str]) -> Any:
    value = sources[place[1]]
    for segment in filter(None, place[2].split(".")):
        if isinstance(value, dict) and segment in value:
            value = value[segment]
        elif isinstance(value, list) and segment.isdecimal() and int(segment) < len(value):
            value = value[int(segment)]
        else:
            raise TemplateFailed(f"{place[0]} leads to nothing")
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_values.canonical(value)
