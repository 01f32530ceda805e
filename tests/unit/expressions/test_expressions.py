"""Expressions: what is accepted, what is answered, and what a hostile one may cost."""

from __future__ import annotations

from typing import Any

import pytest

from agenttx_server.expressions import (
    MAX_TEXT_LENGTH,
    EvaluationFailed,
    ExpressionInvalid,
    Kind,
    Result,
    compile_expression,
)

S = {"s": Kind.OBJECT}
BOTH = {"state": Kind.OBJECT, "result": Kind.ANY}


def answer(text: str, result: Result = Result.BOOL, **fields: Any) -> Any:
    return compile_expression(text, S, result).evaluate({"s": fields})


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("s.n == 3.0", {"n": 3}, True),
        ("s.n == 3", {"n": 3.0}, True),
        ("s.n == 3", {"n": "3"}, False),
        ("s.n == 1", {"n": True}, False),
        ("s.n > 2", {"n": 2.5}, True),
        ("s.n == 9223372036854775807", {"n": 2**63 - 1}, True),
        ("s.n == 18446744073709551615u", {"n": 2**64 - 1}, True),
        ("s.n > 9223372036854775807", {"n": 2**64 - 1}, True),
        ("s.n == -9223372036854775808", {"n": -(2**63)}, True),
        ("s.n == s.m", {"n": 2**53 + 1, "m": 2**53}, False),
        ("s.flag == true", {"flag": True}, True),
        ("s.x == null", {"x": None}, True),
        ("s.x != 'a'", {"x": None}, True),
        ("has(s.x)", {}, False),
        ("has(s.x)", {"x": None}, True),
        ("has(s.x) && s.x > 1", {}, False),
        ("s.x > 1 || true", {}, True),
        ("s.x.y > 1 && false", {"x": None}, False),
        ("s.items.exists(i, i.price > 10)", {"items": [{"price": 5}, {"price": 11}]}, True),
        ("'b' in s.tags", {"tags": ["a", "b"]}, True),
        ("s.name.matches('^[a-z]+$')", {"name": "abc"}, True),
        ("s['odd name'] == 1", {"odd name": 1}, True),
        ("size(s) == 2", {"a": 1, "b": 2}, True),
        ("s.a[1].b == 'x' // why", {"a": [0, {"b": "x"}]}, True),
    ],
)
def test_an_expression_answers_for_its_values(text: str, fields: dict[str, Any], expected: bool) -> None:
    assert answer(text, **fields) is expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("en", "undeclared reference to 'en'"),
        ("s.language == en", "undeclared reference to 'en'"),
        ("s.flag", "compare it"),
        ("s == null", "no matching overload"),
        ("s.n = 3", "column 5"),
        ("s.n ==", "column 7"),
        ("", "column 1"),
        ("1 == 'a'", "no matching overload"),
        ("'a'", "gives string, not a bool"),
        ("s.n + 1", "gives int"),
        ("s.name.replace('a', 'b') == 'x'", "undeclared reference to 'replace'"),
        ("(" * 40 + "true" + ")" * 40, "nested deeper than 32"),
        ("1" + "+1" * 3000 + " == 1", "longer than"),
        ("1" + "+1" * 300 + " == 1", "nested deeper than 32"),
        ("s.n == 'a\0b'", "U+0000"),
        ("s.n == '\ud800'", "surrogate"),
        ("s.l" + ".map(x, x)" * 9 + ".size() == 1", "comprehensions"),
    ],
)
def test_what_is_no_bool_expression_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(ExpressionInvalid) as refused:
        compile_expression(text, S)

    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_refusal_says_line_and_column() -> None:
    with pytest.raises(ExpressionInvalid) as refused:
        compile_expression("s.a == 1 &&\n  nothing == 2", S)

    assert (refused.value.line, refused.value.column) == (2, 3)


@pytest.mark.parametrize(
    ("text", "fields", "reason"),
    [
        ("s.n > 2", {}, "missing"),
        ("s.n > 2", {"n": None}, "overload"),
        ("s.n < 'a'", {"n": 1}, "overload"),
        ("s.n + 1 > 0", {"n": 2**63 - 1}, "overflow"),
        ("s.n / 0 == 1", {"n": 1}, "zero"),
        ("s.n == 1", {"n": 2**64}, "not JSON"),
        ("s.a.b == 1", {"a": {"b": "x\0y"}}, "'s.a' holds a text with U+0000"),
        ("s.a == 'x'", {"a": "\udfff"}, "not JSON"),
        ("s.l.all(x, x >= 0)", {"l": list(range(10_001))}, "iterations"),
    ],
)
def test_no_answer_is_an_error_of_its_own(text: str, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(EvaluationFailed, match=reason.replace("+", r"\+")):
        answer(text, **fields)


def test_an_error_shows_no_value() -> None:
    with pytest.raises(EvaluationFailed) as failed:
        answer("s.names[s.secret] == 1", names={}, secret="hunter2")

    assert "hunter2" not in str(failed.value)


def test_a_text_that_the_library_would_cut_is_not_compared() -> None:
    # The library reads texts up to their first U+0000: 'admin\0x' would be 'admin'.
    with pytest.raises(EvaluationFailed):
        answer("s.role == 'admin'", role="admin\0x")


def test_backslashes_before_u0000_are_only_text() -> None:
    assert answer(r"s.path == 'C:\\u0000'", path="C:\\u0000") is True


def test_a_null_object_is_empty() -> None:
    skipped = compile_expression("has(s.n)", S)

    assert skipped.evaluate({"s": None}) is False


def test_values_that_are_no_object_and_missing_ones_are_errors() -> None:
    expression = compile_expression("s.n == 1", S)

    with pytest.raises(EvaluationFailed, match="not an object"):
        expression.evaluate({"s": [1]})
    with pytest.raises(EvaluationFailed, match="'s' has no value"):
        expression.evaluate({})


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("state.kind", {"kind": "tool"}, "tool"),
        ("state.done", {"done": True}, True),
        ("state.n > 1 ? 'many' : 'few'", {"n": 2}, "many"),
        ("result", {}, "r"),
    ],
)
def test_a_label_is_a_string_or_a_bool(text: str, values: dict[str, Any], expected: object) -> None:
    expression = compile_expression(text, BOTH, Result.LABEL)

    assert expression.evaluate({"state": values, "result": "r"}) == expected


def test_a_label_of_another_type_is_refused_when_it_is_known() -> None:
    with pytest.raises(ExpressionInvalid, match="gives int, not a string or a bool"):
        compile_expression("1 + 1", BOTH, Result.LABEL)
    with pytest.raises(EvaluationFailed, match="gives an integer, not a string or a bool"):
        compile_expression("state.n", BOTH, Result.LABEL).evaluate({"state": {"n": 1}, "result": None})


@pytest.mark.parametrize("value", [None, 1, 1.5, 2**64 - 1, "x", [1, {"a": [None]}], {"b": True}])
def test_a_json_value_comes_back_as_it_was(value: object) -> None:
    given = answer("s.v", Result.JSON, v=value)

    assert given == value
    assert type(given) is type(value)


@pytest.mark.parametrize(
    "text", ["b'a'", "type(1)", "timestamp(0)", "{1: 2}", "double('NaN')", "[duration('1s')]"]
)
def test_what_json_cannot_say_is_no_json_value(text: str) -> None:
    with pytest.raises(EvaluationFailed, match="JSON"):
        answer(text, Result.JSON)


def test_only_what_the_text_names_is_looked_at() -> None:
    expression = compile_expression("s.n == 1 && 's.other' != \"result\"", {**S, **BOTH})

    assert expression.variables == {"s"}
    assert expression.fields_of("s") == {"n"}
    assert expression.fields_of("state") == frozenset()
    assert expression.evaluate({"s": {"n": 1, "unused": object()}, "state": object()}) is True


@pytest.mark.parametrize(
    "text", ["size(s) > 0 || s.n == 1", "s['n'] == 1", "s.size() == 1", ".s.n == 1", "[s][0].n == 1"]
)
def test_a_variable_used_whole_is_handed_over_whole(text: str) -> None:
    expression = compile_expression(text, S)

    assert expression.fields_of("s") is None
    assert expression.evaluate({"s": {"n": 1}}) is True


HOSTILE = {
    "joined texts": "[s.t, s.t]" + ".map(x, x+x+x+x+x+x+x+x)" * 7 + ".size() == 2",
    "nested lists": "[s.t]" + ".map(x, [x,x,x,x,x,x,x,x])" * 8 + " == s.l",
    "a text a turn": "s.l.all(x, s.t.size() > 0)",
    "a text a turn by its literal": "[s.t].all(t, s.l.all(x, t.size() > 0))",
    "cubic": "s.l.all(x, s.l.all(y, s.l.all(z, s.t != 'a')))",
    "a search": "s.t.contains(s.u)",
    "a comparison a turn": "s.l.exists(x, s.m == s.l)",
    "named often": "[s.l].all(x, " + " && ".join(["x == s.m"] * 200) + ")",
    "regular expressions": r"s.l.all(x, s.u.matches('(\\pL{500}|a){2}'))",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_expression_is_refused_before_it_costs_anything(text: str) -> None:
    # Each takes from seconds to hours, or all memory, once it is begun.
    values = {
        "t": "a" * 1_000_000,
        "u": "a" * 400_000 + "b",
        "l": list(range(9_000)),
        "m": list(range(9_000)),
    }

    with pytest.raises(EvaluationFailed, match="too large"):
        answer(text, **values)


def test_wide_but_honest_work_is_done() -> None:
    items = [{"price": number, "kind": "book", "note": "x" * 80} for number in range(9_000)]

    assert answer("s.items.all(i, i.price >= 0 && i.kind in ['book', s.other])", items=items, other="pen")
    assert answer("s.hay.contains('needle')", hay="hay" * 500_000 + "needle")


def test_an_expression_as_long_as_may_be_is_compiled() -> None:
    text = " || ".join(["s.n == 1"] * 300)

    assert len(text) <= MAX_TEXT_LENGTH
    assert answer(text, n=2) is False
