"""How much of a value a model is shown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["MOST_ARGUMENT_BYTES", "Shown", "compact", "cut", "fits", "shown"]

MOST_OUTPUT_BYTES = 16 * 1024
"""About 4,000 tokens: more fills a model's context with one answer."""
MOST_ARGUMENT_BYTES = 4 * 1024
PREVIEW_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class Shown:
    """A JSON value, or how it begins where it is too large."""

    value: Any
    cut: str | None
    size: int


def shown(value: Any, most_bytes: int = MOST_OUTPUT_BYTES) -> Shown:
    """Return a value as it may be shown. Sizes are bytes of compact JSON."""
    text = _dumped(value)
    if len(text) <= most_bytes:
        return Shown(value, None, len(text))
    # A character has at most four bytes; what is cut in its middle is left out.
    head = text[: 4 * PREVIEW_CHARACTERS].decode("utf-8", "ignore")[:PREVIEW_CHARACTERS]
    return Shown(None, head + "…", len(text))


def fits(value: Any, most_bytes: int = MOST_ARGUMENT_BYTES) -> bool:
    """Whether a value is small enough to be repeated in an answer."""
    return len(_dumped(value)) <= most_bytes


def compact(value: Any) -> str:
    """Return a value as compact JSON, as it may stand in a sentence."""
    return _dumped(value).decode()


def cut(text: str, most: int) -> str:
    """Return a text on one line, of so many characters at most."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _dumped(value: Any) -> bytes:
    # Not orjson: what a model gives may hold integers beyond 64 bits, which are refused elsewhere, in words.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode(
        "utf-8", "replace"
    )
