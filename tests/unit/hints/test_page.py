"""docs/hints.md: its examples give what it says, its table has every category."""

from __future__ import annotations

import json
import re
from pathlib import Path

from agenttx_server.engine.hints import clean, load_cleaner
from agenttx_server.engine.records import HintCategory

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "hints.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_rules_file_turns_its_error_into_its_hint(tmp_path: Path) -> None:
    (rules,) = _blocks("toml")
    error, line = _blocks("text")
    (tmp_path / "rules.toml").write_text(rules, encoding="utf-8")

    hint = load_cleaner(tmp_path / "rules.toml").clean(error)

    assert hint.text == line.strip()
    assert (hint.category, hint.keys) == (HintCategory.CONFLICT, ("pickup_day",))


def test_the_sample_of_the_built_in_rule_holds() -> None:
    (block,) = _blocks("json")
    sample = json.loads(block)

    hint = clean(sample["raw"])

    assert (hint.category, hint.rule, hint.keys) == (sample["category"], sample["rule"], ())
    assert "berths" in hint.text


def test_every_category_is_described() -> None:
    described = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)

    assert described == [category.value for category in HintCategory]
