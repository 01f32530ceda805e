"""One search for many words finds what a search for each of them finds, where letters are rare and where not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenttx_server.engine.hints.word_search import WordSearch

_ROWS = {"k": "token key sk_ sk- gsk_", "p": "pass otp pypi-", "v": "cvv cvc dop_v1_"}
_OTHERS = "ssn auth"
_WORDS = tuple(word.encode() for words in (*_ROWS.values(), _OTHERS) for word in words.split())
_PIECES = st.sampled_from(
    [*_WORDS, *(word[:-1] for word in _WORDS), b"k", b"p", b"v", b"a", b" ", b"k" * 40, b"x" * 400]
)


def _one_by_one(text: bytes) -> dict[bytes, list[int]]:
    found = {word: [place for place in range(len(text)) if text.startswith(word, place)] for word in _WORDS}
    return {word: places for word, places in found.items() if places}


@given(st.lists(_PIECES, max_size=60).map(b"".join))
def test_all_words_are_found_where_they_stand(text: bytes) -> None:
    found = WordSearch(_ROWS, _OTHERS).find(text, 100_000)

    assert {word: list(places) for word, places in found.items() if places} == _one_by_one(text)


@pytest.mark.parametrize("text", [b"token " * 500, b"ssn " * 500, b"kkkk" * 500 + b"key " * 500])
def test_more_than_the_limit_is_told_as_more(text: bytes) -> None:
    found = WordSearch(_ROWS, _OTHERS).find(text, 100)

    assert 100 < sum(map(len, found.values())) <= 202


def test_a_word_without_its_letter_is_refused() -> None:
    with pytest.raises(ValueError, match="not found"):
        WordSearch({"k": "auth"})
