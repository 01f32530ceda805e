"""Reading a JSON object field by field, saying where something is wrong and what is not known."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

from agenttx_server.engine.json_values import LARGEST_INTEGER, JsonValue
from agenttx_server.graphs.errors import DefinitionRefused

__all__ = ["Fields"]

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)


class Fields:
    """The fields of one object. Every one asked for is known; :meth:`close` refuses the others.

    All methods raise DefinitionRefused with the place of what is wrong.
    """

    def __init__(self, value: JsonValue, where: str) -> None:
        if not isinstance(value, dict):
            raise DefinitionRefused(where or "the graph", "is an object")
        self._value = value
        self._where = where
        self._known: set[str] = set()

    def place(self, name: str) -> str:
        """The place of a field; of the object itself for an empty name."""
        if not name:
            return self._where or "the graph"
        return f"{self._where}.{name}" if self._where else name

    def has(self, name: str) -> bool:
        """Whether the field is there."""
        self._known.add(name)
        return name in self._value

    def value(self, name: str, default: JsonValue) -> JsonValue:
        """The field whatever it is."""
        self._known.add(name)
        return self._value.get(name, default)

    def text(self, name: str, default: str | None = None) -> str:
        """A string; required without a default."""
        value = self.value(name, default)
        if not isinstance(value, str):
            raise DefinitionRefused(self.place(name), "is a string" if name in self._value else "is required")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A bool."""
        value = self.value(name, default)
        if not isinstance(value, bool):
            raise DefinitionRefused(self.place(name), "is true or false")
        return value

    def count(self, name: str, default: int | None = None) -> int | None:
        """An integer from 0."""
        value = self.value(name, default)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_INTEGER:
            raise DefinitionRefused(self.place(name), "is an integer from 0")
        return value

    def number(self, name: str, default: float) -> float:
        """A number."""
        value = self.value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise DefinitionRefused(self.place(name), "is a number")
        return float(value)

    def choice(self, name: str, kind: type[ChoiceT], default: ChoiceT) -> ChoiceT:
        """One of an enumeration's words."""
        value = self.value(name, default.value)
        try:
            return kind(str(value))
        except ValueError:
            words = ", ".join(member.value for member in kind)
            raise DefinitionRefused(self.place(name), f"is one of {words}") from None

    def texts(self, name: str) -> tuple[str, ...]:
        """An array of strings; none where it is missing."""
        return tuple(self._text_item(item, self.place(name)) for item in self._array(name))

    def mapping(self, name: str) -> dict[str, str]:
        """An object of strings; none where it is missing."""
        value = self.value(name, {})
        if not isinstance(value, dict):
            raise DefinitionRefused(self.place(name), "is an object of strings")
        return {key: self._text_item(item, f"{self.place(name)}.{key}") for key, item in value.items()}

    def object(self, name: str) -> Fields | None:
        """An object; None where it is missing."""
        return Fields(self._value[name], self.place(name)) if self.has(name) else None

    def objects(self, name: str) -> list[Fields]:
        """An array of objects; none where it is missing."""
        return [Fields(item, f"{self.place(name)}[{index}]") for index, item in enumerate(self._array(name))]

    def ignore(self, *names: str) -> None:
        """Know fields that are not read."""
        self._known.update(names)

    def close(self) -> None:
        """Refuse fields that nobody asked for."""
        unknown = sorted(self._value.keys() - self._known)
        if unknown:
            raise DefinitionRefused(self.place(unknown[0]), "is no field here")

    def _array(self, name: str) -> list[Any]:
        value = self.value(name, [])
        if not isinstance(value, list):
            raise DefinitionRefused(self.place(name), "is an array")
        return value

    @staticmethod
    def _text_item(item: JsonValue, where: str) -> str:
        if not isinstance(item, str):
            raise DefinitionRefused(where, "holds strings only")
        return item
