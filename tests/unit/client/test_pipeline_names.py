"""What is taken for the name of a pipeline, and what for its text."""

from __future__ import annotations

import pytest

from agenttx.pipeline_operations import RunSending


@pytest.mark.parametrize(
    ("text", "is_name"),
    [
        ("catalog", True),
        ("a catalog-2 of a:b", True),
        ("-dash", True),
        ("pipeline: [", False),
        ("pipeline:", False),
        ("- name: a", False),
        (" {", False),
        ("[]", False),
        ("a\nb", False),
    ],
)
def test_a_document_of_one_line_is_no_name(text: str, is_name: bool):
    (sent,) = RunSending(text, [], "", "r", "").requests()
    assert (sent.name, sent.definition_text) == ((text, "") if is_name else ("", text))
