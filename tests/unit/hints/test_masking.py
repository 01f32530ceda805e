"""Secrets do not pass; the words around them do."""

from __future__ import annotations

import pytest

from agenttx_server.engine.hints import clean, mask_secrets
from agenttx_server.engine.hints.masking import is_secret_name

_PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq\nq0aZ==\n-----END RSA PRIVATE KEY-----"

_SECRETS = [
    ("postgresql://app:Sup3rS3cret@db.test:5432/app", "Sup3rS3cret"),
    ("mysql://root:p%40ss@db.test/app", "p%40ss"),
    ("https://ghp_abcdefghijklmnop1234@github.com/x.git", "ghp_abcdefghijklmnop1234"),
    ("Authorization: Bearer abcdef0123456789ABCDEF", "abcdef0123456789ABCDEF"),
    ("authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA=="),
    ("Cookie: session=abc123def456; theme=dark", "abc123def456"),
    ("Set-Cookie: sid=9f8e7d; HttpOnly", "9f8e7d"),
    (f"bad key: {_PEM} (unsupported)", "MIIEpAIBAAKCAQEA7bq"),
    ("password=hunter2 user=app", "hunter2"),
    ("password: hunter2", "hunter2"),
    ('{"api_key": "0a1b2c3d4e"}', "0a1b2c3d4e"),
    ("{'client_secret': 's3cr3t-value'}", "s3cr3t-value"),
    ("{ clientSecret: 's3cr3t-value' }", "s3cr3t-value"),
    ('{\\"token\\": \\"tok-77-abc\\"}', "tok-77-abc"),
    ("PGPASSWORD=hunter2 psql", "hunter2"),
    ("tidecalc --token abc123 --all", "abc123"),
    ("tidecalc --api-key=abc123", "abc123"),
    ("GET /v1?api_key=9f8e7d6c&x=1", "9f8e7d6c"),
    ("https://s3.test/x?X-Amz-Signature=deadbeef01&y=2", "deadbeef01"),
    ("key sk-proj-abcd1234efgh5678 was refused", "abcd1234efgh5678"),
    ("sk_live_9a8b7c6d5e4f3a2b", "9a8b7c6d5e4f3a2b"),
    ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    ("AIzaSyA1234567890abcdefghijk", "AIzaSyA1234567890abcdefghijk"),
    ("xoxb-123456789012-abcdef", "xoxb-123456789012-abcdef"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJzdWIiOiIxIn0"),
    ("glpat-abcdefghij1234567890", "glpat-abcdefghij1234567890"),
]


@pytest.mark.parametrize(("text", "secret"), _SECRETS)
def test_secret_is_masked_in_raw_text(text: str, secret: str) -> None:
    masked = mask_secrets(text)

    assert secret not in masked
    assert "***" in masked


@pytest.mark.parametrize(("text", "secret"), _SECRETS)
def test_secret_is_not_in_the_hint(text: str, secret: str) -> None:
    assert secret not in clean(f"RuntimeError: request failed: {text}").text
    assert secret not in clean(text).text


@pytest.mark.parametrize(
    "text",
    [
        "password: Field required",
        "token is missing",
        "The token has expired",
        "password must have at least 12 characters",
        "{'password': ['This field is required.']}",
        "Key (customer_id)=(c-9) is not present",
        "KeyError: 'dock_no'",
        "Unexpected token 'N' in JSON",
        "https://crm.test/api/members/M-5512?page=2",
        "key: value",
        "foreign key constraint fails",
        "author: Ada",
        "monkey=7",
    ],
)
def test_text_without_a_secret_is_left_alone(text: str) -> None:
    assert mask_secrets(text) == text


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "apiKey",
        "api_key",
        "X-Auth-Token",
        "client_secret",
        "DB_PASSWORD",
        "Authorization",
        "PASSWORD ",
    ],
)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["customer_id", "key", "monkey", "tokens_used", "author", "passenger", "pinned", "spin"]
)
def test_plain_names(name: str) -> None:
    assert not is_secret_name(name)


def test_value_under_a_secret_column_is_left_out() -> None:
    hint = clean(
        'ERROR: duplicate key value violates unique constraint "u"\nDETAIL: Key (api_key)=(0a1b2c) already exists.'
    )

    assert hint.keys == ("api_key",)
    assert "0a1b2c" not in hint.text


def test_long_values_are_left_out() -> None:
    hint = clean(
        f'ERROR: duplicate key value violates unique constraint "u"\nDETAIL: Key (blob)=({"a1" * 40}) already exists.'
    )

    assert hint.keys == ("blob",)
    assert "a1a1" not in hint.text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('{"password": "hunter2abc', '{"password": "***"'),
        ("token=" + "a" * 9000 + " end", "token=*** end"),
        ("Authorization: Token abcdef123456", "Authorization: Token ***"),
        ("Cookie: a=b; c=d\nnext line", "Cookie: ***\nnext line"),
        ("https://x-token:***@git.test/a", "https://x-token:***@git.test/a"),
        ("İ password=abc", "İ password=***"),
        ('password = "a b c" z', 'password = "***" z'),
    ],
)
def test_a_secret_is_masked_to_its_end_and_no_further(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked


@pytest.mark.parametrize(
    "unit", ["password=hunter2\n", "://u:hunter2@h ", "--token hunter2 ", "key ssn pin "]
)
def test_nothing_leaks_from_a_text_made_of_secrets(unit: str) -> None:
    assert "hunter2" not in mask_secrets((unit * 8000)[:65536] + " password=hunter2")
