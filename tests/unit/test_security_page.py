"""docs/security.md names a test for each defence: the tests are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (REPOSITORY / "docs/security.md").read_text())


def test_there_are_some():
    assert len(NAMED) > 20


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_defence_has_the_test_that_is_named(file: str, test: str):
    found = (REPOSITORY / file).read_text()
    assert not test or re.search(rf"^(async )?def {test}\(", found, re.MULTILINE)
