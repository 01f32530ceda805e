"""The function that makes a row of a record, written out for one class of records.

A step makes four rows of some eighty fields. Looked up by name in loops they cost three times what they cost in a
function that names them, so that function is written as text and compiled once a class, as ``dataclasses``
does. Its text holds names of fields of our own classes and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

__all__ = ["Column", "compiled_row"]


_MOST_KEPT: Final = 16_384


@dataclass(frozen=True, slots=True)
class Column:
    """A field with a column of its own, and what of it is stored.

    The driver takes exact types fast and looks for an adapter for any other: of an enumeration's member its value is
    stored, a flag as 0 or 1, and with ``is_json`` canonical JSON, NULL for an empty value.
    """

    name: str
    is_enum: bool = False
    is_bool: bool = False
    is_json: bool = False

    @property
    def expression(self) -> str:
        """What is stored of the field ``name`` of ``record``."""
        field = f"record.{self.name}"
        if self.is_json:
            return f"to_json({field}) if {field} else None"
        if self.is_enum:
            return f"{field}._value_"  # what `value` looks up in Python
        if self.is_bool:
            return f"1 if {field} else 0"
        return field


class KeptJson:
    """JSON of a value that comes again and again as the same object, like the policy in a transaction's every write."""

    def __init__(self, to_json: Callable[[Any], str]) -> None:
        self._to_json = to_json
        # By identity; the value is held, so that its identity is no other's.
        self._kept: dict[int, tuple[object, orjson.Fragment]] = {}

    def __call__(self, value: object) -> orjson.Fragment:
        """Return a value's JSON, to stand in a larger one."""
        kept = self._kept.get(id(value))
        if kept is not None and kept[0] is value:
            return kept[1]
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        fragment = orjson.Fragment(self._to_json(value))
        self._kept[id(value)] = value, fragment
        return fragment


def compiled_row(
    columns: Sequence[Column],
    rest: Sequence[tuple[str, Any]] | None,
    to_json: Callable[[Any], str],
    kept: Collection[str] = (),
) -> Callable[[Any], list[Any]]:
    """Return a function from a record to its row: the columns, and behind them the ``rest``.

    ``rest`` are further fields with their defaults: canonical JSON of those that differ is one more value; None is that
    there is no such value. ``kept`` are those of the rest whose JSON is kept.
    """
    known: dict[str, Any] = {"to_json": to_json, "kept_json": KeptJson(to_json)}
    lines = ["def row(record):"]
    values = [column.expression for column in columns]
    if rest is not None:
        lines.append(" rest = {}")
        for number, (name, default) in enumerate(rest):
            known[f"default_{number}"] = default
            lines.append(f" value = record.{name}")
            lines.append(f" if value is not default_{number} and value != default_{number}:")
            lines.append(f"  rest['{name}'] = {'kept_json(value)' if name in kept else 'value'}")
        values.append("to_json(rest) if rest else '{}'")
    lines.append(f" return [{', '.join(f'({value})' for value in values)}]")
    exec("\n".join(lines), known)  # noqa: S102 - names of fields of our own classes
    row: Callable[[Any], list[Any]] = known["row"]
    return row
