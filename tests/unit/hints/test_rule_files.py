"""A deployment's own rules: read, checked at start, and told in one line what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agenttx_server.engine.hints import Cleaner, FileRefused, load_cleaner, load_rules_file
from agenttx_server.engine.records import HintCategory

_RULE = {
    "name": "billing.credit_limit",
    "category": "resource_exhausted",
    "pattern": "credit limit {limit} of {account} is used up",
    "says": "account {account} has used up its credit limit of {limit}",
    "advice": "Ask for a smaller amount.",
    "keys": ["account"],
}


def _file(folder: Path, rules: object, name: str = "rules.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"rules": rules}), encoding="utf-8")
    return path


def test_a_rule_from_json_is_applied(tmp_path: Path) -> None:
    loaded = load_rules_file(_file(tmp_path, [_RULE]))

    hint = Cleaner(loaded.rules).clean("LedgerError: credit limit 400 EUR of ACC-7 is used up since noon")

    assert hint.rule == "billing.credit_limit"
    assert hint.category is HintCategory.RESOURCE_EXHAUSTED
    assert hint.keys == ("ACC-7",)
    assert (
        hint.text == "Hint: account ACC-7 has used up its credit limit of 400 EUR. Ask for a smaller amount."
    )


def test_a_rule_from_toml_is_applied(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        '[[rules]]\nname = "depot.closed"\ncategory = "conflict"\npattern = "depot {depot} is closed until {time}"\n'
        'says = "depot {depot} is closed until {time}"\n',
        encoding="utf-8",
    )

    hint = Cleaner(load_rules_file(path).rules).clean("sorry, depot D-4 is closed until 06:00")

    assert hint.rule == "depot.closed"
    assert "D-4" in hint.text
    assert "06:00" in hint.text


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"category": "nonsense"}, "unknown category 'nonsense'; known are foreign_key_violation, "),
        ({"pattern": "{limit} is used up"}, "must begin with literal text"),
        ({"pattern": "credit {a}{b}"}, "between two gaps"),
        ({"pattern": "credit {a} and {a}"}, "named twice"),
        ({"pattern": "creditlimit{limit}"}, "whole word"),
        ({"says": "{nothing}"}, "{nothing} is no gap"),
        ({"keys": ["nothing"]}, "{nothing} is no gap"),
        ({"keys": "account"}, "`keys` is no list"),
        ({"name": "Bad Name"}, "lower-case"),
        ({"says": ""}, "`says` must be"),
        ({"pattern": 7}, "`pattern` is no text"),
        ({"colour": "red"}, "unknown key 'colour'"),
    ],
)
def test_a_faulty_rule_is_named_in_one_line(tmp_path: Path, change: dict[str, object], fault: str) -> None:
    path = _file(tmp_path, [_RULE | change])

    with pytest.raises(FileRefused) as raised:
        load_rules_file(path)

    assert fault in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("rules.json", "{", "not valid JSON"),
        ("rules.toml", "= 1", "not valid TOML"),
        ("rules.json", "[]", "a JSON object is expected"),
        ("rules.json", '{"rules": [7]}', "is no table"),
    ],
)
def test_a_faulty_file_is_named_in_one_line(tmp_path: Path, name: str, text: str, fault: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")

    with pytest.raises(FileRefused, match=fault) as raised:
        load_rules_file(path)

    assert "\n" not in str(raised.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileRefused, match="No such file"):
        load_rules_file(tmp_path / "none.toml")


def test_a_name_used_twice_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileRefused, match="used twice"):
        load_rules_file(_file(tmp_path, [_RULE, _RULE]))


def test_a_rule_named_like_a_built_in_one_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path, [_RULE | {"name": "postgres.lock_not_available"}])

    with pytest.raises(FileRefused, match=r"rules\.json: two rules are named 'postgres\.lock_not_available'"):
        load_cleaner(path)
