"""References by value: how a step's argument says "what step N returned".

A reference is text in an argument, `${steps.N}` or `${steps.N.a.b.0}`. The server replaces it with the value and
records the dependency, which is how a late failure is traced to the step that caused it. A string that is exactly one
reference becomes the referenced JSON value with its type; inside a longer string it is interpolated. `$${` stands for
a literal `${`.

Plain strings are sent as they are, so that references which a model wrote itself work. Text that comes from elsewhere
(users, files, web pages) goes through `literal`, or it could read outputs of earlier steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Reference", "literal", "parse_path"]

_SEGMENT = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Reference:
    """A value in the output of an earlier step; `str()` of it is the reference text.

    Usable anywhere in a step's arguments and inside f-strings: `f"Invoice for {user.ref('name')}"`.

    Attributes:
        step_id: The step that produces the value, from 1.
        path: The way into its output, outermost first; digits index arrays; empty is the whole output.
    """

    step_id: int
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "${" + ".".join(("steps", str(self.step_id), *self.path)) + "}"

    def __format__(self, form: str) -> str:
        return format(str(self), form)

    def ref(self, *path: str | int) -> Reference:
        """Return the reference to a value further down."""
        return Reference(self.step_id, self.path + parse_path(*path))


def parse_path(*path: str | int) -> tuple[str, ...]:
    """Split `"a.b.0"` (or `"a", "b", 0`) into segments.

    Raises:
        ValueError: a segment is not made of `A-Z a-z 0-9 _ -`; such a key can't be referenced.
    """
    segments = [segment for part in path for segment in str(part).split(".")]
    for segment in segments:
        if not _SEGMENT.fullmatch(segment):
            raise ValueError(
                f"{segment!r} can't be part of a reference: segments are made of A-Z a-z 0-9 _ - "
                "and separated by dots; refer to the value above it instead"
            )
    return tuple(segments)


def literal(text: str) -> str:
    """Escape text so that nothing in it is taken for a reference; the tool receives it unchanged.

    Example:
        `tx.step("kv.put", key="note", value=agenttx.literal(user_text))`
    """
    return text.replace("${", "$${")
