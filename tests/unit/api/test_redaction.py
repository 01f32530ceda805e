"""What an auditor is shown of texts."""

from __future__ import annotations

import json

import pytest

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.redaction import _redact, redacted

KEY = "sk-live-0123456789abcdefghij"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"user":"ann","password":"hunter2"}', {"user": "ann", "password": "***"}),
        ('{"a":[{"api_key":{"id":1,"key":"x"}}]}', {"a": [{"api_key": "***"}]}),
        (json.dumps({"note": f"use {KEY} now"}), {"note": "use *** now"}),
        ('{"token":null,"secret":true,"pin":1234}', {"token": None, "secret": True, "pin": "***"}),
        (json.dumps({"inner": '{"password":"hunter2"}'}), {"inner": '{"password":"***"}'}),
        ('{"key":"db/password","value":{"x":"hunter2"}}', {"key": "db/password", "value": "***"}),
        ('{"name":"api_key","value":"hunter2"}', {"name": "api_key", "value": "***"}),
        ('{"key":"colour","value":"red"}', {"key": "colour", "value": "red"}),
        ('{"max_tokens":5,"monkey":"x"}', {"max_tokens": 5, "monkey": "x"}),
    ],
)
def test_values_under_secret_names_and_known_tokens_are_left_out_of_json(text: str, shown: object):
    assert json.loads(redacted(text)) == shown


def test_what_holds_no_secret_stays_to_the_last_character():
    for text in ('{"b" : 1,  "a":[1.50]}', "plain", "", "{no json", '"quoted"'):
        assert redacted(text) == text


def test_other_texts_are_looked_through_for_secrets():
    assert "hunter2" not in redacted("connect: password=hunter2 refused")
    assert "hunter2" not in redacted('{"password":"hunter2"')  # JSON that was cut


def test_depth_is_bounded():
    deep = "[" * 150 + '"x"' + "]" * 150
    assert '"x"' not in redacted(deep)


@pytest.mark.parametrize(("key", "shown"), [("users/ann/password", '"***"'), ("colour", '"hunter2"')])
def test_an_entry_of_state_is_left_out_by_its_key(key: str, shown: str):
    entry = pb.StateEntry(namespace="kv", key=key, value_json='"hunter2"', found=True)
    _redact(entry)
    assert (entry.key, entry.value_json) == (key, shown)
