"""Bounding, terminal codes, one line."""

from __future__ import annotations

import pytest

from agenttx_server.engine.hints import bound
from agenttx_server.engine.hints.plain_text import (
    RAW_LIMIT_BYTES,
    clip_middle,
    one_line,
    without_terminal_codes,
)


def test_short_text_is_unchanged() -> None:
    assert bound("KeyError: 'x'\n") == "KeyError: 'x'\n"


@pytest.mark.parametrize("character", ["a", "é", "漢", "😀"])
@pytest.mark.parametrize("length", [70_000, 200_000])
def test_long_text_keeps_head_and_tail_within_the_limit(character: str, length: int) -> None:
    raw = "HEAD" + character * length + "TAIL"

    bounded = bound(raw)

    assert len(bounded.encode()) <= RAW_LIMIT_BYTES
    assert bounded.startswith("HEAD")
    assert bounded.endswith("TAIL")
    assert "characters left out" in bounded


def test_what_databases_refuse_is_replaced() -> None:
    assert bound("a\x00b\ud800c") == "a\ufffdb\ufffdc"


def test_a_limit_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="256"):
        bound("x", limit=10)


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[31mred\x1b[0m",
        "\\x1b[31mred\\x1b[0m",
        "\\u001b[1;31mred\\u001b[0m",
        "[31mred[0m",
        "\x1b]8;;http://x\x07red\x1b]8;;\x07",
    ],
)
def test_terminal_codes_go(text: str) -> None:
    assert without_terminal_codes(text) == "red"


def test_what_only_looks_like_a_code_stays() -> None:
    assert without_terminal_codes("rate(http_requests[5m])") == "rate(http_requests[5m])"


def test_one_line_has_no_control_and_no_direction_characters() -> None:
    assert one_line("a\r\n\tb\u2028c\u202ed\u200be\x07") == "a b cde"


def test_clip_middle_keeps_both_ends() -> None:
    clipped = clip_middle("start " + "x" * 500 + " end", 60)

    assert len(clipped) <= 60
    assert clipped.startswith("start")
    assert clipped.endswith("end")
