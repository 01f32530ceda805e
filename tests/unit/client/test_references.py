import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenttx import Reference, StepOutcome, StepStatus, literal

OUTCOME = StepOutcome("tx", 4, "tool", StepStatus.SUCCESS, {"id": 7, "items": [{"price": 5}], "none": None})


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), "${steps.4}"),
        (("id",), "${steps.4.id}"),
        (("items.0.price",), "${steps.4.items.0.price}"),
        (("items", 0, "price"), "${steps.4.items.0.price}"),
        (("a_b-C9",), "${steps.4.a_b-C9}"),
    ],
)
def test_a_reference_is_the_text_that_the_server_reads(path, text):
    reference = OUTCOME.ref(*path)

    assert str(reference) == text
    assert f"{reference}" == text
    assert f"{reference:>30}".strip() == text


def test_a_reference_can_be_followed_further_down():
    assert OUTCOME.ref("items").ref(0, "price") == Reference(4, ("items", "0", "price"))


@pytest.mark.parametrize("path", ["", "a b", "a..b", "a}", "ä", "a.", "${steps.1}", "a\n"])
def test_a_key_that_a_reference_cannot_name_is_refused(path):
    with pytest.raises(ValueError, match="can't be part of a reference"):
        OUTCOME.ref(path)


# The rule of the contract, applied leftmost first: an escape gives "${", a reference its value.
TOKEN = re.compile(r"\$\$\{|\$\{steps\.\d+(?:\.[A-Za-z0-9_-]+)*\}")


def as_the_server_reads(text: str) -> str:
    return TOKEN.sub(lambda match: "${" if match[0] == "$${" else "<value>", text)


@given(text=st.text(st.sampled_from("${}$.steps1a ")))
def test_a_literal_arrives_as_it_was_and_never_refers(text):
    assert as_the_server_reads(literal(text)) == text


def test_a_literal_beside_a_reference_keeps_both():
    text = f"{literal('costs ${steps.1.secret}')} for {OUTCOME.ref('id')}"

    assert as_the_server_reads(text) == "costs ${steps.1.secret} for <value>"


def test_an_outcome_behaves_like_its_output():
    assert OUTCOME["id"] == 7
    assert OUTCOME["items"][0]["price"] == 5
    assert "id" in OUTCOME
    assert "other" not in OUTCOME
    assert len(OUTCOME) == 3
    assert list(OUTCOME) == ["id", "items", "none"]
    assert OUTCOME.get("other", 1) == 1
    assert OUTCOME.get("none", 1) is None
    assert OUTCOME.output == {"id": 7, "items": [{"price": 5}], "none": None}


@pytest.mark.parametrize("output", [None, {}, [], 0, ""])
def test_an_outcome_is_true_whatever_its_output(output):
    assert StepOutcome("tx", 1, "tool", StepStatus.SUCCESS, output)
