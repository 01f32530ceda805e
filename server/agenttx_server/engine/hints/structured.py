"""Hints from errors that already say their category and key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agenttx_server.engine.records import Hint, HintCategory

from .vocabulary import ADVICE
from .wording import PREFIX, hint_line, key_names, safe_message

__all__ = ["STRUCTURED_RULE", "from_structured"]

STRUCTURED_RULE: Final = "structured"
_KEYS_LIMIT: Final = 16


def from_structured(category: str, message: str, key: str | Sequence[str] | None = None) -> Hint:
    """The hint of an error that a tool, or this server, reports as {category, message, key}.

    Nothing is parsed out of ``message``; it is bounded, brought to one line and masked. An unknown
    category counts as ``unknown``. Of a key given as a path (``lines.0.sku``) the last name is kept.
    """
    try:
        kind = HintCategory(category)
    except ValueError:
        kind = HintCategory.UNKNOWN
    given = [] if key is None else [key] if isinstance(key, str) else list(key)
    keys: list[str] = []
    for name in given[:_KEYS_LIMIT]:
        # A comma in one given key is part of its name.
        last = key_names(name.replace(",", "\x00"))
        keys += [found.replace("\x00", ",") for found in last if found not in keys]
    said = safe_message(message.removeprefix(PREFIX))
    if not said:
        said = f"{kind.value.replace('_', ' ')}" + (f": {', '.join(keys[:4])}" if keys else "")
    return Hint(hint_line(said, "" if _advises(said) else ADVICE[kind]), kind, STRUCTURED_RULE, tuple(keys))


def _advises(said: str) -> bool:
    """Whether the message is more than one sentence and so most likely says what to do itself."""
    return ". " in said
