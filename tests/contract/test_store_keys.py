"""Prefix ranges, request keys and cursors, for any text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agenttx_server.store.cursors import decode_cursor, encode_cursor
from agenttx_server.store.keys import prefix_end, request_key

LAST = "\U0010ffff"
edges = st.sampled_from(["\0", "/", "\x7f", "\ud7ff", "\ue000", "\uffff", "\U00010000", LAST, "a"])
texts = st.text(st.characters(exclude_categories=("Cs",)) | edges, max_size=6)


@given(prefix=texts, other=texts, tail=texts)
@example(prefix="\ud7ff", other="\ue000", tail="")
@example(prefix=f"a{LAST}", other="b", tail=LAST)
def test_a_prefix_is_exactly_a_range(prefix: str, other: str, tail: str) -> None:
    end = prefix_end(prefix)
    for key in (prefix, prefix + tail, other, other + tail, prefix[:-1] + other):
        assert (key >= prefix and (end is None or key < end)) == key.startswith(prefix)
    if end is not None:
        end.encode()  # it can be stored


@given(texts.filter(bool))
def test_request_keys_fit_a_column(request_id: str) -> None:
    key = request_key(request_id)
    assert key is not None
    assert -(2**63) <= key < 2**63
    assert key == request_key(request_id)


def test_an_empty_request_id_has_no_key() -> None:
    assert request_key("") is None
    assert request_key("a") != request_key("b")


@given(st.tuples(st.integers(-(2**63), 2**63 - 1), texts))
def test_a_cursor_is_its_position(position: tuple[int, str]) -> None:
    cursor = encode_cursor("listing", *position)
    assert cursor.isascii()
    assert decode_cursor("listing", cursor, int, str) == position
    for kind, types in (("other", (int, str)), ("listing", (str, int)), ("listing", (int,))):
        with pytest.raises(ValueError, match="cursor"):
            decode_cursor(kind, cursor, *types)


@given(st.text(max_size=30))
def test_any_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        decode_cursor("listing", text, int, str)


def test_true_is_no_number() -> None:
    with pytest.raises(ValueError, match="cursor"):
        decode_cursor("listing", encode_cursor("listing", True), int)


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_a_number_that_the_database_can_not_hold_is_no_position(number: int) -> None:
    cursor = encode_cursor("listing", number)
    with pytest.raises(ValueError, match="cursor"):
        decode_cursor("listing", cursor, int)
