"""From facts to the one line the agent reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from .injection import LEFT_OUT, speaks_to_agent, without_instructions
from .masking import is_secret_name, mask_secrets
from .plain_text import clip, clip_middle, one_line

__all__ = [
    "HINT_LIMIT",
    "PREFIX",
    "SAID_NOTHING",
    "VALUE_LIMIT",
    "Facts",
    "fill",
    "hint_line",
    "key_names",
    "safe_message",
    "shown",
]

PREFIX: Final = "Hint: "
SAID_NOTHING: Final = "The tool failed and said nothing"
HINT_LIMIT: Final = 240  # characters, prefix included
VALUE_LIMIT: Final = 64  # a longer value is left out: it could be a secret, and it is no help
_PLACE_LIMIT: Final = 140  # paths, URLs and messages are places and prose, not values
_MESSAGE_LIMIT: Final = 800
_KEY_LIMIT: Final = 128
_KEYS_LIMIT: Final = 16

_FIELD: Final = re.compile(r"\{(\w+)\}")
_PLACES: Final = (
    "path",
    "url",
    "host",
    "place",
    "resource",
    "target",
    "message",
    "line",
    "detail",
    "fields",
    "sentence",
    "said",
    "why",
    "what",
    "complaint",
    "text",
    "name",
)
_OPAQUE: Final = re.compile(r"(?<![A-Za-z0-9+/=_\-])[A-Za-z0-9+/=_\-]{65,4000}")
_LONG_QUOTE: Final = re.compile(r"(\"[^\"\s]{65,2000}\"|'[^'\s]{65,2000}')")
_QUOTES: Final = "\"'`«»“”‘’„‚‹›「」《》『』[]"
_INDEX: Final = re.compile(r"\[(\d{1,9})\]")
_SENTENCE_END: Final = (".", "!", "?", "…")


def safe_message(text: str, limit: int = _MESSAGE_LIMIT) -> str:
    """A message that may be repeated: on one line, masked, without instructions and long opaque values."""
    text = without_instructions(mask_secrets(text[: limit * 2]))
    text = one_line(text)
    if len(text) > VALUE_LIMIT:
        text = _OPAQUE.sub(_without_opaque, text)
        text = _LONG_QUOTE.sub(_without_long_quote, text)
    return clip(text, limit)


def _without_opaque(match: re.Match[str]) -> str:
    value = match[0]
    # Long paths and dashed names are places; a run of 40 or more without separators is a value.
    return value if ("/" in value or "-" in value or "_" in value) and _longest_run(value) < 40 else "…"


def _longest_run(value: str) -> int:
    return max(len(piece) for piece in re.split(r"[/_\-]", value))


def _without_long_quote(match: re.Match[str]) -> str:
    value = match[0]
    return value if "/" in value or "\\" in value or "." in value else f"{value[0]}…{value[0]}"


def shown(name: str, value: str | None, key: str | None = None) -> str | None:
    """``value`` as it may be shown for the fact ``name``; None if it must be left out."""
    if value is None or name == "category":
        return None
    if name == "advice":
        return value
    is_place = name.startswith(_PLACES)
    text = one_line(value)
    if not is_place:
        text = text.strip(_QUOTES + " ") or text
    if not text:
        return None
    if name.startswith("value") and (len(text) > VALUE_LIMIT or (key is not None and is_secret_name(key))):
        return None
    if is_place:
        return safe_message(text, _PLACE_LIMIT * 2)
    if len(text) > VALUE_LIMIT * 2 or speaks_to_agent(text):
        return None
    return mask_secrets(text)


class Facts:
    """The facts of one match, made safe to show when a template first asks for them."""

    __slots__ = ("_key", "_raw", "_shown")

    def __init__(self, raw: Mapping[str, str | None], key: str | None) -> None:
        self._raw, self._key = raw, key
        self._shown: dict[str, str | None] = {}

    def get(self, name: str) -> str | None:
        """The fact ``name`` as it may be shown; None if it is unknown or must be left out."""
        if name not in self._shown:
            self._shown[name] = shown(name, self._raw.get(name), self._key)
        return self._shown[name]


def fill(templates: tuple[str, ...], facts: Facts) -> str:
    """The first template all of whose fields are known, filled; the last one, with nothing in its gaps, otherwise."""
    for template in templates:
        if all(facts.get(field) for field in _FIELD.findall(template)):
            break
    return _FIELD.sub(lambda match: facts.get(match[1]) or "", template)


def key_names(raw: str) -> tuple[str, ...]:
    """The names in ``raw``: split at commas, without quotes, each path's last name that is no index.

    >>> key_names('"tenant_id", slug')
    ('tenant_id', 'slug')
    >>> key_names("lines[0].quantity")
    ('quantity',)
    """
    names: list[str] = []
    for piece in raw.split(","):
        piece = _INDEX.sub(r".\1", piece.strip())
        segments = [segment.strip(_QUOTES + "() $#") for segment in re.split(r"[./]|::", piece)]
        named = [
            segment
            for segment in segments
            if segment and not segment.isdigit() and segment not in ("[]", "*", "-")
        ]
        if named:
            name = one_line(named[-1])
            if name and len(name) <= _KEY_LIMIT and name not in names:
                names.append(name)
    return tuple(names[:_KEYS_LIMIT])


def hint_line(says: str, advice: str) -> str:
    """``Hint: <says>. <advice>`` in at most :data:`HINT_LIMIT` characters; advice gives way last."""
    says = one_line(says).strip(" ,;:")
    if not says or says == LEFT_OUT:
        says = f"The tool failed {LEFT_OUT}" if says else SAID_NOTHING
    advice = one_line(advice)
    if says.endswith(("..", "...")):
        says = says.rstrip(".")
    if not says.endswith(_SENTENCE_END):
        says += "."
    room = HINT_LIMIT - len(PREFIX)
    if advice:
        advice = clip(advice, 110)
        if len(says) + 1 + len(advice) > room:
            says = clip_middle(says, room - len(advice) - 1)
        return f"{PREFIX}{says} {advice}"
    return PREFIX + clip_middle(says, room)
