"""Rules that say which calls a person is asked about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agenttx_server.engine.operator_files import FileRefused
from agenttx_server.tools.approval_rules import ApprovalRules, load_approval_rules


@pytest.fixture
def rules(tmp_path: Path) -> Any:
    def load(*entries: Any) -> ApprovalRules:
        path = tmp_path / "approvals.json"
        path.write_text(json.dumps({"approvals": list(entries)}))
        return load_approval_rules(path)

    return load


def test_the_first_rule_that_holds_gives_the_reason(rules: Any) -> None:
    loaded = rules(
        {"tools": "payments.*", "when": "args.amount > 100", "reason": "more than 100"},
        {"tools": ["payments.pay", "mail.send"], "reason": "always"},
    )
    assert loaded.why("payments.pay", {"amount": 101}) == "more than 100"
    assert loaded.why("payments.pay", {"amount": 100}) == "always"
    assert loaded.why("payments.refund", {"amount": 100}) == ""
    assert loaded.why("mail.send", {}) == "always"
    assert loaded.why("kv.put", {"amount": 1_000}) == ""


@pytest.mark.parametrize("arguments", [{}, {"amount": "a lot"}, {"amount": None}, [1], "text", None, 7])
def test_a_rule_that_cannot_be_judged_asks(rules: Any, arguments: Any) -> None:
    loaded = rules({"tools": "pay", "when": "args.amount > 100", "reason": "more than 100"})
    assert loaded.why("pay", arguments).startswith("more than 100 (asked because it can't be judged: ")


def test_arguments_are_left_as_they_are(rules: Any) -> None:
    loaded = rules({"tools": "*", "when": "size(args.items) > 1 && tool == 'pay'"})
    arguments = {"items": [1, {"a": 2}]}
    assert loaded.why("pay", arguments) == "size(args.items) > 1 && tool == 'pay'"
    assert arguments == {"items": [1, {"a": 2}]}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"tools": "pay", "when": "args.amount >"}, "approvals 1: `when`: line 1"),
        ({"tools": "pay", "when": "args.amount"}, "gives whatever the field holds, not a bool"),
        ({"tools": "pay", "when": "user.name == 'x'"}, "approvals 1: `when`"),
        ({"tools": "pay", "when": 3}, "`when` is an expression"),
        ({"tools": []}, "`tools` is a tool's name"),
        ({"when": "true"}, "`tools` is a tool's name"),
        ({"tools": "pay me"}, "'pay me' is no tool's name"),
        ({"tools": "pay", "reason": "two\nlines"}, "`reason` is one line"),
        ({"tools": "pay", "if": "true"}, "unknown key 'if'; known are tools, when, reason"),
        ("pay", "is no table"),
    ],
)
def test_a_rule_that_can_t_be_used_is_named_with_its_fault(rules: Any, entry: Any, told: str) -> None:
    with pytest.raises(FileRefused) as refused:
        rules(entry)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.toml", "[[approvals]\n", "not valid TOML"),
        ("a.json", "{", "not valid JSON"),
        ("a.json", "[]", "a JSON object is expected"),
        ("a.toml", 'other = 1\n[[approvals]]\ntools = "pay"\n', "'other' means nothing here"),
    ],
)
def test_a_file_that_can_t_be_used_is_named(tmp_path: Path, name: str, text: str, told: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(FileRefused, match=name) as refused:
        load_approval_rules(path)
    assert told in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileRefused, match=r"none\.toml can't be read: No such file"):
        load_approval_rules(tmp_path / "none.toml")
