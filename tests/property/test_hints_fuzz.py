"""Any text gives one bounded, printable, repeatable line, and never an exception."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st
from tests.support.error_samples import error_samples

from agenttx_server.engine.hints import bound, clean, explain, from_structured, mask_secrets
from agenttx_server.engine.hints.rules import DEFAULT_RULES
from agenttx_server.engine.records import HintCategory

_RAWS = [sample.raw for sample in error_samples()]
_WORDS = sorted({trigger for rule in DEFAULT_RULES for trigger in rule.triggers})
_PIECES = st.one_of(
    st.sampled_from(_WORDS),
    st.sampled_from(
        [
            "\n",
            '"',
            "'",
            "`",
            "(",
            ")",
            "{",
            "}",
            "[",
            "]",
            ": ",
            "=",
            "\\",
            "\x1b[31m",
            "Caused by: ",
            "\tat a.b(C.java:1)\n",
        ]
    ),
    st.text(max_size=8),
)
_HOSTILE = st.lists(_PIECES, max_size=120).map(" ".join)


@st.composite
def _mutated(draw: st.DrawFn) -> str:
    raw = draw(st.sampled_from(_RAWS))
    start = draw(st.integers(0, len(raw)))
    end = draw(st.integers(start, min(len(raw), start + 40)))
    return raw[:start] + draw(st.text(alphabet=string.printable, max_size=12)) + raw[end:]


def _check(text: str) -> None:
    hint = clean(text)
    assert hint.text.startswith("Hint: ")
    assert len(hint.text) <= 240
    assert hint.text.isprintable()
    hint.text.encode("utf-8")
    assert isinstance(hint.category, HintCategory)
    assert all(key and key.isprintable() and len(key) <= 128 for key in hint.keys)
    assert clean(text) == hint
    assert explain(text).hint == hint


@given(st.text())
def test_any_text(text: str) -> None:
    _check(text)


@given(_HOSTILE)
def test_any_mix_of_trigger_words(text: str) -> None:
    _check(text)


@given(_mutated())
def test_any_damaged_sample(text: str) -> None:
    _check(text)


@given(st.text(alphabet=st.characters(), max_size=400), st.integers(256, 600))
def test_bound_holds_its_limit(text: str, limit: int) -> None:
    assert len(bound(text * 3, limit).encode("utf-8")) <= limit


@given(st.text())
def test_masking_is_total_and_settles(text: str) -> None:
    once = mask_secrets(text)
    assert mask_secrets(once) == once


@given(st.text(max_size=20), st.text(), st.one_of(st.none(), st.text(), st.lists(st.text(), max_size=20)))
def test_structured_errors_are_bounded(category: str, message: str, key: str | list[str] | None) -> None:
    hint = from_structured(category, message, key)
    assert hint.text.startswith("Hint: ")
    assert len(hint.text) <= 240
    assert hint.text.isprintable()


@given(
    st.from_regex(r"[A-Za-z0-9]{16,40}", fullmatch=True),
    st.sampled_from(["password", "api_key", "clientSecret", "X-Auth-Token"]),
)
def test_no_secret_under_a_secret_name_passes(secret: str, name: str) -> None:
    for text in (
        f"{name}={secret}",
        f'{{"{name}": "{secret}"}}',
        f"https://x.test/?a=1&{name}={secret}",
        f"--{name}={secret}",
    ):
        assert secret not in mask_secrets(text)
        assert secret not in clean(f"RuntimeError: call failed: {text}").text
