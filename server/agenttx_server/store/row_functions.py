"""The function that makes a row of a record, written out for one class of records.

A step makes four rows of some eighty fields. Looked up by name in loops they cost three times what they cost in a
function that names them, so that function is written as text and compiled once a class, as ``dataclasses``
does. Its text holds names of fields of our own classes and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Column", "compiled_row"]


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


def compiled_row(
    columns: Sequence[Column], rest: Sequence[tuple[str, Any]] | None, to_json: Callable[[Any], str]
) -> Callable[[Any], list[Any]]:
    """Return a function from a record to its row: the columns, and behind them the ``rest``.

    ``rest`` are further fields with their defaults: canonical JSON of those that differ is one more value; None is that
    there is no such value.
    """
    known: dict[str, Any] = {"to_json": to_json}
    lines = ["def row(record):"]
    values = [column.expression for column in columns]
    if rest is not None:
        lines.append(" rest = {}")
        for number, (name, default) in enumerate(rest):
            known[f"default_{number}"] = default
            lines.append(f" value = record.{name}")
            lines.append(f" if value is not default_{number} and value != default_{number}:")
            lines.append(f"  rest['{name}'] = value")
        values.append("to_json(rest) if rest else '{}'")
    lines.append(f" return [{', '.join(f'({value})' for value in values)}]")
    exec("\n".join(lines), known)  # noqa: S102 - names of fields of our own classes
    row: Callable[[Any], list[Any]] = known["row"]
    return row
