"""Where in a text a secret, or the name of one, could begin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .word_search import WordSearch

__all__ = ["DENSITY_LIMIT", "Beginnings", "Span", "find_beginnings", "moved"]

Span = tuple[int, int]

# Names, Authorization schemes and beginnings of tokens, in lower case.
_WORDS: Final = WordSearch(
    {
        "j": "jwt eyj",
        "x": "xox xapp-",
        "w": "pwd whsec_",
        "v": "cvv cvc hvs. dop_v1_",
        "k": "token cookie key sk_ pk_ rk_ sk- pk- rk-",
        "g": "sign digest negotiate gho_ ghp_ ghr_ ghs_ ghu_ gsk_ github_pat_ glpat- sg.",
        "p": "pass pin otp npm_ pypi- shp",
    },
    "ssn session secret credential auth bearer basic hf_ dckr_pat_ ya29.",
)
_NAMES: Final = frozenset(
    b"pass pin otp ssn session secret token cookie sign digest negotiate pwd jwt auth cvv cvc bearer basic credential".split()
)
_KEY: Final = b"key"  # a secret's name only with the word before it
# Few texts have many capital letters: these are looked for as they are.
_CAPITALS: Final = WordSearch({"A": "AKIA ASIA AROA AIDA AIza"})
_OWNER: Final = re.compile(r"(?:private|shared|api|access|account|encryption)[_-]?\Z")
_OWNER_ENDS: Final = ("e", "d", "i", "s", "t", "n", "_", "-")
_OWNER_LIMIT: Final = 11
# No error has more beginnings of secrets and their names than this.
DENSITY_LIMIT: Final = 2000


@dataclass(frozen=True, slots=True)
class Beginnings:
    """Positions from left to right; none are given where ``dense``: there are more than :data:`DENSITY_LIMIT`.

    ``lowered`` is the text in lower case, letter for letter in ASCII: any other letter is a question mark.
    """

    lowered: str
    tokens: Sequence[int]
    names: Sequence[int]
    dense: bool


def find_beginnings(text: str) -> Beginnings:
    """Where the token formats of well-known providers begin in ``text``, and names that may be secrets'."""
    letters = _ascii_in_place(text)
    searched = letters.lower()
    lowered = searched.decode("ascii")
    found = _WORDS.find(searched, DENSITY_LIMIT)
    capitals = _CAPITALS.find(letters, DENSITY_LIMIT)
    if sum(map(len, (*found.values(), *capitals.values()))) > DENSITY_LIMIT:
        return Beginnings(lowered, (), (), True)
    tokens = [place for places in capitals.values() for place in places]
    names: list[int] = []
    for word, places in found.items():
        if word == _KEY:
            names += _owned(places, lowered)
        else:
            (names if word in _NAMES else tokens).extend(places)
    return Beginnings(lowered, sorted(tokens), sorted(names), False)


def _owned(keys: Iterable[int], lowered: str) -> Iterator[int]:
    """Where the names begin that end in ``key`` and are secrets' only with the word before it."""
    for key in keys:
        before = lowered[max(key - _OWNER_LIMIT, 0) : key]
        if before.endswith(_OWNER_ENDS) and (owner := _OWNER.search(before)):
            yield key - len(before) + owner.start()


def _ascii_in_place(text: str) -> bytes:
    """``text`` letter for letter in ASCII, in which a search is fast whatever else stands in the text.

    Two letters that aren't ASCII have a lower case that is.
    """
    if not text.isascii():
        text = text.replace("İ", "I").replace("\N{KELVIN SIGN}", "K")
    return text.encode("ascii", "replace")


def moved(positions: Sequence[int], spans: Sequence[Span], mask: str) -> Sequence[int]:
    """The ``positions`` outside ``spans`` as they are once every span is replaced by ``mask``."""
    if not spans:
        return positions
    kept: list[int] = []
    index = shift = 0
    for position in positions:
        while index < len(spans) and spans[index][1] <= position:
            start, end = spans[index]
            shift += len(mask) - (end - start)
            index += 1
        if index == len(spans) or position < spans[index][0]:
            kept.append(position + shift)
    return kept
