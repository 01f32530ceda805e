"""Text made safe to store and to show: bounded, without terminal codes, on one line."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["RAW_LIMIT_BYTES", "bound", "clip", "clip_middle", "one_line", "without_terminal_codes"]

RAW_LIMIT_BYTES: Final = 64 * 1024
_GAP: Final = "\n[... {} characters left out ...]\n"
_GAP_ROOM: Final = 64
_UNSTORABLE: Final = re.compile(r"[\x00\ud800-\udfff]")

_CODES_LIMIT: Final = 4000
_TERMINAL_CODE: Final = re.compile(
    r"(?:\x1b|\\x1b|\\u001[bB]|\\033|\\e(?=\[)|\x9b)"
    r"(?:\[[0-9;:?<=>]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,400}(?:\x07|\x1b\\)|[@-Z\\^_])?"
)
# Colour codes whose escape character was lost on the way; `rate(x[5m])` is not one.
_ORPHAN_COLOUR: Final = re.compile(r"\[(?:\d{1,3};){0,4}\d{1,3}m(?!\])")


def without_terminal_codes(text: str) -> str:
    """``text`` without ANSI sequences, real, escaped (``\\x1b[31m``) or beheaded (``[31m``)."""
    if (
        "\x1b" in text
        or "\x9b" in text
        or "\\x1b" in text
        or "\\u001" in text
        or "\\033" in text
        or "\\e[" in text
    ):
        if text.count("\x1b") > _CODES_LIMIT:
            text = text.replace("\x1b", "")  # no terminal prints this; the orphans' pattern takes the colours
        text = _TERMINAL_CODE.sub("", text)
    if "m" in text and "[" in text:
        text = _ORPHAN_COLOUR.sub("", text)
    return text


def one_line(text: str) -> str:
    """``text`` with every run of white space as one space and no unprintable character.

    Line and paragraph separators count as white space; direction marks, zero-width characters
    and lone surrogates are dropped.
    """
    text = " ".join(text.split())
    if not text.isprintable():
        text = "".join(character for character in text if character.isprintable())
    return text


def clip(text: str, limit: int) -> str:
    """The first ``limit`` characters at most, ending in ``…`` where something was cut."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)].rstrip() + "…"


def clip_middle(text: str, limit: int) -> str:
    """At most ``limit`` characters: two thirds from the head and the rest from the tail."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head - 3
    return f"{text[:head].rstrip()} … {text[len(text) - tail :].lstrip()}" if tail > 8 else clip(text, limit)


def bound(raw: str, limit: int = RAW_LIMIT_BYTES) -> str:
    """``raw`` in at most ``limit`` bytes of UTF-8, head and tail kept, the gap marked.

    U+0000 and lone surrogates, which databases and protobuf refuse, become U+FFFD.
    Raises :exc:`ValueError` for a limit under 256.
    """
    if limit < 256:
        raise ValueError(f"limit is {limit}; at least 256 bytes are needed to keep a head and a tail")
    if len(raw) <= limit:
        whole = _utf8(raw)
        if len(whole) <= limit:
            return whole.decode("utf-8")
    # A character is at least one byte: what lies further in than `limit` from both ends is never kept.
    room = (limit - _GAP_ROOM) // 2
    head = _utf8(raw[:limit])[:room].decode("utf-8", "ignore")
    tail = _utf8(raw[-limit:])[-room:].decode("utf-8", "ignore")
    return head + _GAP.format(len(raw) - len(head) - len(tail)) + tail


def _utf8(text: str) -> bytes:
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text).encode("utf-8")
