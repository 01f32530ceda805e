"""The file of secrets, and how secrets are kept out of what is shown."""

import base64
import json
import re
from html import escape
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenttx_server.engine.operator_files import FileRefused
from agenttx_server.http_hosts import HostPattern
from agenttx_server.http_secrets import Secret, SecretRefused, Secrets, load_secrets

HOSTS = (HostPattern.parse("api.test"),)
PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=8, max_size=40)


def loaded(tmp_path, text):
    path = tmp_path / "secrets.toml"
    path.write_text(text)
    path.chmod(0o600)
    return load_secrets(path)


def test_values_come_from_the_file_a_variable_or_another_file(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "from-the-variable")
    (tmp_path / "key").write_text("from-the-file\n")
    secrets = loaded(
        tmp_path,
        '[A]\nvalue = "from-the-table"\nhosts = ["api.test"]\n'
        '[B]\nenv = "MY_KEY"\nhosts = ["api.test"]\n[C]\nfile = "key"\nhosts = ["api.test"]\n',
    )

    assert [secrets.value_for(name, "https", "api.test", 443) for name in "ABC"] == [
        "from-the-table",
        "from-the-variable",
        "from-the-file",
    ]


def test_a_secret_is_for_its_hosts_only():
    secrets = Secrets([Secret("A", "value-of-a", HOSTS)])

    for origin in (("http", "api.test", 80), ("https", "other.test", 443), ("https", "api.test", 8443)):
        with pytest.raises(SecretRefused):
            secrets.value_for("A", *origin)
    with pytest.raises(SecretRefused, match="no secret 'B'"):
        secrets.value_for("B", "https", "api.test", 443)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[A]\nhosts = ['a.b']", "needs one of value, env and file"),
        ("[A]\nvalue = 'long-enough'\nenv = 'X'\nhosts = ['a.b']", "needs one of value, env and file"),
        ("[A]\nvalue = 'long-enough'", "`hosts` is missing"),
        ("[A]\nvalue = 'long-enough'\nhosts = []", "1 or more are needed"),
        ("[A]\nvalue = 'long-enough'\nhosts = ['a b']", "is no host"),
        ("[A]\nvalue = 'hidden!'\nhosts = ['a.b']", "is not 8 to 16,384 printable"),
        ("[A]\nvalue = 'hidden-ä-value'\nhosts = ['a.b']", "is not 8 to 16,384 printable"),
        ("[A]\nenv = 'NOT_SET_ANYWHERE'\nhosts = ['a.b']", "'NOT_SET_ANYWHERE' is not set"),
        ("[A]\nfile = 'absent'\nhosts = ['a.b']", "can't be read"),
        ("[A]\nvalue = 'long-enough'\nhost = ['a.b']", "unknown key 'host'"),
        ("A = 'hidden-value'", "is no table"),
        ("['a b']\nvalue = 'long-enough'\nhosts = ['a.b']", "a secret's name is"),
        ("[A]\nvalue = hidden-value", "is not valid TOML, at line 2, column 9"),
    ],
)
def test_a_file_that_can_not_be_used_is_told_without_a_value(tmp_path, text, message):
    with pytest.raises(ValueError, match=r"secrets\.toml") as refused:
        loaded(tmp_path, text)

    assert message in str(refused.value)
    assert "hidden" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_values_that_others_may_read_are_refused_and_places_of_values_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv("A_KEY", "value-of-the-variable")
    path = tmp_path / "secrets.toml"
    path.write_text("[A]\nenv = 'A_KEY'\nhosts = ['a.b']")
    path.chmod(0o644)
    assert load_secrets(path).mask("value-of-the-variable") == "***"

    path.write_text("[A]\nvalue = 'hidden-value'\nhosts = ['a.b']")
    with pytest.raises(FileRefused, match="mode 0644: chmod 600") as refused:
        load_secrets(path)
    assert "hidden" not in str(refused.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        load_secrets(tmp_path / "absent.toml")


def lower_percent(value):
    return re.sub("%..", lambda found: found[0].lower(), quote(value, safe=""))


FORMS = {
    "itself": str,
    "percent": lambda value: quote(value, safe=""),
    "percent, in part": quote,
    "percent, lower case": lower_percent,
    "form": quote_plus,
    "json": lambda value: json.dumps(value)[1:-1],
    "json, escaped slashes": lambda value: json.dumps(value)[1:-1].replace("/", "\\/"),
    "html": escape,
    "html, numbers": lambda value: "".join(c if c.isalnum() else f"&#{ord(c)};" for c in value),
    "utf-16": lambda value: value.encode("utf-16-le").decode(),
    "hexadecimal": lambda value: value.encode().hex(),
    "hexadecimal, upper case": lambda value: value.encode().hex().upper(),
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64, unpadded": lambda value: base64.b64encode(value.encode()).decode().rstrip("="),
    "base64, url": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
}


@pytest.mark.parametrize("form", FORMS)
@given(value=PRINTABLE, before=st.text(max_size=10), after=st.text(max_size=10))
def test_no_form_of_a_secret_is_left_in_a_text(form, value, before, after):
    secrets = Secrets([Secret("A", value, HOSTS)])
    written = FORMS[form](value)

    masked = secrets.mask(f"{before}{written}{after}")

    assert "***" in masked
    assert written not in masked or written in "***"
    assert value not in masked or value in "***"


@pytest.mark.parametrize("form", FORMS)
def test_what_stands_around_a_secret_stays(form):
    secrets = Secrets([Secret("A", "s3cr3t/Key+A?B=zz9 <\"\\'>", HOSTS)])
    written = FORMS[form]("s3cr3t/Key+A?B=zz9 <\"\\'>")

    assert secrets.mask(f"[{written}]").replace("\0", "") == "[***]"


@given(PRINTABLE, st.binary(max_size=7), st.binary(max_size=7))
def test_a_secret_within_what_is_in_base64_is_masked(value, before, after):
    secrets = Secrets([Secret("A", value, HOSTS)])
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        masked = secrets.mask(encode(before + value.encode() + after).decode())

        assert "***" in masked
        # What is left is of what stands beside it, in groups of four.
        assert len(masked) - 3 <= len(encode(before)) + len(encode(after)) + 4


def test_bytes_are_masked():
    secrets = Secrets([Secret("A", "value-of-a", HOSTS)])

    assert secrets.mask_bytes(b"\0\xffvalue-of-a\0") == b"\0\xff***\0"


def test_a_secret_of_digits_is_masked_as_a_number():
    secrets = Secrets([Secret("PIN", "83729104551", HOSTS)])

    assert secrets.mask_json({"pin": 83729104551, "as": [83729104551.0, -83729104551], "n": 8372910455}) == {
        "pin": "***",
        "as": ["***.0", "-***"],
        "n": 8372910455,
    }
    assert secrets.mask_json([True, None, 1.5]) == [True, None, 1.5]


@given(PRINTABLE)
def test_a_secret_in_a_url_is_named_and_comes_back(value):
    secrets = Secrets([Secret("A", value, HOSTS)])
    url = f"https://api.test/bot{quote(value, safe='')}/42"

    named = secrets.named(url)

    assert named is None or named.replace("${secret.A}", quote(value, safe="")) == url


def test_a_url_that_holds_a_secret_in_another_form_is_not_named():
    secrets = Secrets([Secret("A", "value-of-a", HOSTS)])

    assert secrets.named("https://api.test/value-of-a/42") == "https://api.test/${secret.A}/42"
    assert secrets.named("https://api.test/" + base64.b64encode(b"value-of-a").decode()) is None


def test_masking_takes_linear_time():
    secrets = Secrets([Secret("A", "\\" * 40 + "x", HOSTS)])

    assert secrets.mask("\\" * 100_000 + "y") == "\\" * 100_000 + "y"


def test_json_is_masked_in_values_and_names():
    secrets = Secrets([Secret("A", "value-of-a", HOSTS)])

    assert secrets.mask_json({"a": ["x value-of-a", 1, None], "value-of-a": True}) == {
        "a": ["x ***", 1, None],
        "***": True,
    }


def test_of_two_secrets_one_within_the_other_the_longer_is_masked():
    secrets = Secrets([Secret("A", "12345678", HOSTS), Secret("B", "12345678-and-more", HOSTS)])

    assert secrets.mask("12345678-and-more") == "***"


def test_a_secret_is_not_shown_by_its_object():
    assert "value-of-a" not in repr(Secret("A", "value-of-a", HOSTS))
