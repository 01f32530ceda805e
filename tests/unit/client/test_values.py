import enum
import json
import math
from collections import OrderedDict
from decimal import Decimal
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenttx import InvalidValue, StepOutcome, StepStatus
from agenttx.references import Reference
from agenttx.values import MAX_DEPTH, decode_json, encode_arguments

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def identical(one: object, other: object) -> bool:
    """Equality that tells 1 from 1.0 and 0.0 from -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return one == other


@given(value=JSON)
def test_what_can_be_sent_comes_back_identical(value):
    text = encode_arguments({"value": value})

    assert identical(decode_json(text)["value"], value)
    assert identical(json.loads(text)["value"], value)


@pytest.mark.parametrize(
    "value",
    [
        2**53 + 1,
        2**63,
        2**64 - 1,
        -(2**63),
        -0.0,
        1.0,
        1,
        1e308,
        5e-324,
        "",
        "a\u0000b",
        "\U0001f600",
        "12345678901234567890",
    ],
)
def test_values_that_others_round_or_drop_are_exact(value):
    assert identical(decode_json(encode_arguments({"": [value]}))[""][0], value)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (2**64, "integer_range"),
        (2**70, "integer_range"),
        (-(2**63) - 1, "integer_range"),
        (float("nan"), "not_finite"),
        (float("inf"), "not_finite"),
        (float("-inf"), "not_finite"),
        ("\ud83c", "surrogate"),
        ({"\udc00": 1}, "surrogate"),
        (b"bytes", "not_json"),
        (Decimal("1.5"), "not_json"),
        ({1, 2}, "not_json"),
        ({1: "integer key"}, "not_json"),
        (object(), "not_json"),
    ],
)
def test_what_cannot_be_sent_exactly_is_refused_naming_its_path(value, rule):
    with pytest.raises(InvalidValue) as refusal:
        encode_arguments({"items": [0, {"price": value}]})

    assert refusal.value.rule == rule
    assert refusal.value.path == "items.1.price"
    assert str(refusal.value).startswith("items.1.price: ")
    assert isinstance(refusal.value, ValueError)


def test_nesting_is_counted_as_the_server_counts_it():
    def nested(levels: int) -> object:
        value: object = 1
        for _ in range(levels):
            value = [value]
        return value

    encode_arguments({"value": nested(MAX_DEPTH - 1)})
    with pytest.raises(InvalidValue, match="deeper than 100") as refusal:
        encode_arguments({"value": nested(MAX_DEPTH)})
    assert refusal.value.rule == "too_deep"


def test_a_value_that_holds_itself_is_refused_and_does_not_recurse_for_ever():
    endless: list[object] = []
    endless.append(endless)

    with pytest.raises(InvalidValue, match="deeper than 100"):
        encode_arguments({"value": endless})


def test_subclasses_and_other_mappings_are_sent_as_what_they_are():
    class Colour(enum.StrEnum):
        RED = "red"

    class Size(enum.IntEnum):
        BIG = 3

    text = encode_arguments(
        {
            "a": Colour.RED,
            "b": Size.BIG,
            "c": OrderedDict(x=1),
            "d": MappingProxyType({"y": (1, 2)}),
            "e": True,
        }
    )

    assert json.loads(text) == {"a": "red", "b": 3, "c": {"x": 1}, "d": {"y": [1, 2]}, "e": True}


def test_references_and_outcomes_become_reference_text_wherever_they_stand():
    outcome = StepOutcome("tx", 3, "tool", StepStatus.SUCCESS, {"id": 1})

    text = encode_arguments(
        {"a": Reference(2, ("id",)), "b": [{"c": outcome}], "d": f"x {outcome.ref('id')}"}
    )

    assert json.loads(text) == {"a": "${steps.2.id}", "b": [{"c": "${steps.3}"}], "d": "x ${steps.3.id}"}


def test_long_integers_in_outputs_are_not_rounded():
    assert decode_json('{"n":123456789012345678901234567890}') == {"n": 123456789012345678901234567890}
    assert decode_json("") is None
