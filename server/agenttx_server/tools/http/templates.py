"""Templates in requests: ``${secret.NAME}``, and in undo requests what was answered and what was asked.

    ${secret.STRIPE_KEY}            a secret of the server's settings
    ${response.body.items.0.id}     a value of the answer's JSON body; digits index arrays
    ${response.headers.location}    a header of the answer
    ${response.status}              its status
    ${arguments.body.customer}      a value of the step's own arguments
    ${idempotency_key}              the step's Idempotency-Key
    ${$}                            a dollar sign

A text is read once, from the left: what is put in is never read again, so that an answer that holds
``${secret.…}`` gets nothing. What a reference to an earlier step put in was written by whoever answered that
step: the engine hands it over with its dollar signs as ``${$}`` (engine/references.py), so it is no template.
A text that is exactly one template becomes the value, of whatever type. Any
other ``${…}`` is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from agenttx_server.engine.json_values import canonical

__all__ = ["BadTemplate", "MissingValue", "fill", "names_in", "value_at", "without_escapes"]

_KINDS: Final = r"secret|response|arguments|idempotency_key"
_TEMPLATE: Final = re.compile(
    r"\$\{(?P<name>(?:secret|response|arguments)(?:\.[A-Za-z0-9_-]+)+|idempotency_key|\$)\}"
    rf"|\$\{{\s*(?:{_KINDS})(?![A-Za-z0-9_-])[^}}]{{0,200}}\}}?"
)
_DOLLAR: Final = "$"
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")

Lookup = Callable[[str], Any]


class BadTemplate(ValueError):
    """A ``${…}`` that means to be a template and is none; the message is one line."""


class MissingValue(LookupError):
    """Something asked for that is not there; ``name`` is the whole template, ``key`` its last segment."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        self.key = name.rpartition(".")[2]


def names_in(value: Any) -> Iterator[str]:
    """Return what the templates of a JSON value name, as often as they do. Raises BadTemplate."""
    if isinstance(value, str):
        for match in _TEMPLATE.finditer(value):
            name = _name(match)
            if name != _DOLLAR:
                yield name
    elif isinstance(value, dict):
        for item in value.values():
            yield from names_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from names_in(item)


def fill(value: Any, lookup: Lookup, encode: Callable[[str, int], str] | None = None) -> Any:
    """Return a JSON value with its templates filled in.

    Args:
        value: texts in it are read; names of fields are not.
        lookup: returns what a template names, any JSON value.
        encode: given what goes into a text and where, returns how it is written there.

    Raises:
        BadTemplate, and what ``lookup`` raises.
    """
    if isinstance(value, str):
        whole = _TEMPLATE.fullmatch(value)
        if whole is not None and encode is None:
            name = _name(whole)
            return _DOLLAR if name == _DOLLAR else lookup(name)

        def written(match: re.Match[str]) -> str:
            name = _name(match)
            if name == _DOLLAR:
                return _DOLLAR
            found = lookup(name)
            text = found if isinstance(found, str) else canonical(found)
            return text if encode is None else encode(text, match.start())

        return _TEMPLATE.sub(written, value)
    if isinstance(value, dict):
        return {name: fill(item, lookup, encode) for name, item in value.items()}
    if isinstance(value, list):
        return [fill(item, lookup, encode) for item in value]
    return value


def value_at(name: str, roots: Mapping[str, Any]) -> Any:
    """Return what a dotted name leads to. Raises MissingValue."""
    first, *path = name.split(".")
    if first not in roots:
        raise MissingValue(name)
    value = roots[first]
    for segment in path:
        if isinstance(value, Mapping) and segment in value:
            value = value[segment]
        elif isinstance(value, list) and _INDEX.fullmatch(segment) and int(segment) < len(value):
            value = value[int(segment)]
        else:
            raise MissingValue(name)
    return value


def without_escapes(value: Any) -> Any:
    """Return a JSON value with every ``${$}`` as the dollar sign that it is, for where it is not filled in."""
    if isinstance(value, str):
        return value.replace("${$}", _DOLLAR)
    if isinstance(value, dict):
        return {name: without_escapes(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_escapes(item) for item in value]
    return value


def _name(match: re.Match[str]) -> str:
    name = match["name"]
    if name is None:
        raise BadTemplate(
            f"'{match[0][:60]}' is no template; there are ${{secret.NAME}}, ${{response.body.…}}, "
            "${response.headers.…}, ${response.status}, ${arguments.…} and ${idempotency_key}"
        )
    return str(name)
