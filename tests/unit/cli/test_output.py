"""JSON and text on stdout."""

import json
from datetime import datetime, timedelta, timezone
from types import MappingProxyType

from tests.support.sample_records import NOON, TRANSACTION_ID, attempt, jump, summary

from agenttx.records import StepStatus
from agenttx_server.cli.output import print_json, print_json_line, printable


def test_records_become_objects_with_the_names_of_their_fields(capsys):
    print_json({"transactions": [summary()], "more": False})
    (entry,) = json.loads(capsys.readouterr().out)["transactions"]
    assert entry["transaction_id"] == TRANSACTION_ID
    assert entry["status"] == "ACTIVE"
    assert entry["metadata"] == {"order": "9001"}
    assert entry["created_at"] == "2026-07-03T12:00:00.000000Z"
    assert entry["ended_at"] is None


def test_records_in_records_too(capsys):
    print_json(attempt(1, decision=jump()))
    decision = json.loads(capsys.readouterr().out)["decision"]
    assert decision["strategy"] == "DEPENDENCY_JUMP"
    assert decision["path"][0] == {"step_id": 10, "key": "customer_id", "source": "ERROR_KEY"}


def test_values_keep_their_exactness(capsys):
    print_json_line({"big": 2**64 - 1, "float": 1e22, "text": "ä\u2028\x00", "null": None})
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "big": 18446744073709551615,
        "float": 1e22,
        "text": "ä\u2028\x00",
        "null": None,
    }


def test_times_are_utc_and_mappings_of_any_kind_are_objects(capsys):
    there = NOON.astimezone(timezone(timedelta(hours=9)))
    print_json_line({"at": there, "of": MappingProxyType({"a": StepStatus.SUCCESS})})
    assert json.loads(capsys.readouterr().out) == {
        "at": "2026-07-03T12:00:00.000000Z",
        "of": {"a": "SUCCESS"},
    }
    assert isinstance(there, datetime)


def test_printable_leaves_text_alone_and_shows_what_a_terminal_would_obey():
    assert printable("naïve → 日本 ✓") == "naïve → 日本 ✓"
    assert printable("a\nb\tc\r") == "a b c "
    assert printable("\x1b[31m\x07\u202e\udc80") == "\\x1b[31m\\x07\\u202e\\udc80"
