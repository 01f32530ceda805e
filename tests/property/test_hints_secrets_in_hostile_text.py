"""A secret anywhere in a text made to be slow is still masked: shortcuts must not lose one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenttx_server.engine.hints import clean, mask_secrets
from agenttx_server.engine.hints.secret_beginnings import find_beginnings

_SECRET = "aB3dE5gH7jK9mN1pQ3sT5vW7"
_PASSAGES = (
    f"password={_SECRET}", f'"api_key": "{_SECRET}"', f"'clientSecret': '{_SECRET}'", f"PGPASSWORD={_SECRET}",
    f"X-Auth-Token: {_SECRET}", f"private_key={_SECRET}", f"sharedKey={_SECRET}", f"account-key={_SECRET}",
    f"encryption_key: {_SECRET}", f"signing_key={_SECRET}", f"session_id={_SECRET}", f"cvv={_SECRET}", f"otp={_SECRET}",
    f"ssn={_SECRET}", f"jwt={_SECRET}", f"pin: {_SECRET}", f"db_pwd={_SECRET}", f"credentials={_SECRET}",
    f"to\N{KELVIN SIGN}en={_SECRET}", f"sİgnature={_SECRET}",
    f"Authorization: Bearer {_SECRET}", f"Authorization: Basic {_SECRET}", f"Token {_SECRET}", f"Cookie: a={_SECRET}",
    f"tidecalc --token {_SECRET}", f"x --my-own-api-key {_SECRET}",
    f"postgresql://app:{_SECRET}@db/x", f"https://{_SECRET}@host/", f"-----BEGIN PRIVATE KEY-----{_SECRET}",
    *(start + _SECRET for start in (
        "sk-", "sk_live_", "pk_", "rk_", "rk-", "gho_", "ghp_", "ghu_", "github_pat_", "glpat-", "gsk_", "xoxb-", "xapp-",
        "AIza", "ya29.", "eyJ", "npm_", "pypi-", "hf_", "dckr_pat_", "hvs.", "whsec_",
    )),
    "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "shpat_0123456789abcdef0123", "dop_v1_" + "0a" * 20,
    "SG.aaaaaaaaaaaaaaaaaaaa.bbbbbbbbbbbbbbbbbbbb",
)  # fmt: skip
_NOISE = (
    *"pass token key cookie= sk- AKIA eyJ hf_ ghp_ --a-a- :// @ -----BEGIN".split(),
    *(
        " ",
        "\n",
        '"',
        "'",
        ": ",
        "=",
        "{",
        "}",
        "\\",
        "\x1b[31m",
        "é",
        "İ",
        "列",
        "a",
        "a" * 50,
        "***",
        "  File ",
    ),
)


def _shows_a_secret(passage: str, text: str) -> bool:
    secret = _SECRET if _SECRET in passage else passage
    return secret in text


_NOISES = st.lists(st.sampled_from(_NOISE), max_size=12).map("".join)


@given(_NOISES, st.sampled_from(_PASSAGES), _NOISES, st.integers(0, 2500))
def test_a_secret_between_hostile_words_is_masked(
    before: str, passage: str, after: str, repeats: int
) -> None:
    hostile = (before * repeats)[:40_000] + " \n" + passage + "\n " + (after * repeats)[:20_000]

    assert not _shows_a_secret(passage, mask_secrets(hostile))
    assert not _shows_a_secret(passage, clean(hostile).text)


@pytest.mark.parametrize("passage", _PASSAGES)
@pytest.mark.parametrize("around", ["x\n", "--a-a- {[ =: ", "列İé ://", "https://a:b@c sk-aaaaaaaaaaaa "])
def test_each_kind_of_secret_is_masked_deep_in_a_long_text(passage: str, around: str) -> None:
    noise = (around * 400)[:4000]

    assert not _shows_a_secret(passage, mask_secrets(f"{noise} \n{passage}\n {noise}"))


@given(
    st.lists(st.sampled_from(_PASSAGES), min_size=1, max_size=8), st.sampled_from(["\n", " ", " é\n", "; "])
)
def test_each_of_many_secrets_is_masked(passages: list[str], between: str) -> None:
    masked = mask_secrets(between.join(passages))

    assert not any(_shows_a_secret(passage, masked) for passage in passages)


def test_positions_hold_in_wide_text() -> None:
    text = "列İ\N{KELVIN SIGN} password=x 列 ghp_aaaa api_key=y"

    found = find_beginnings(text)

    assert [text[start:].split("=")[0].split(" ")[0] for start in found.names] == ["password", "api_key"]
    assert [text[start : start + 4] for start in found.tokens] == ["ghp_"]


def test_no_other_letter_has_a_lower_case_in_ascii() -> None:
    found = [chr(code) for code in range(128, 0x110000) if any(c < "\x80" for c in chr(code).lower())]

    assert found == ["İ", "\N{KELVIN SIGN}"]
