"""Values as errors print them."""

from __future__ import annotations

import pytest

from agenttx_server.engine.hints.literals import find_bodies, read_literal


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': ['x', None, True, 1.5]}", {"a": ["x", None, True, 1.5]}),
        ("{ code: 'ENOENT', errno: -2 }", {"code": "ENOENT", "errno": -2}),
        ('{ handle: "okoye-b" }', {"handle": "okoye-b"}),
        ("{:a=>1, :b=>'x'}", {"a": 1, "b": "x"}),
        ("{'e': [ErrorDetail(string='Bad.', code='invalid')]}", {"e": ["Bad."]}),
        ("{'w': <Future at 0x7f>, 'x': 1}", {"w": "<Future at 0x7f>", "x": 1}),
        ("{ a: [Object], b: 2 }", {"a": None, "b": 2}),
        (r"{'q': 'it\'s', 'n': 'a\nb'}", {"q": "it's", "n": "a\nb"}),
        ("(535, b'5.7.8 refused')", [535, "5.7.8 refused"]),
        ("{'a': 1, 'b': {'c': 'brok", {"a": 1}),
    ],
)
def test_notation_is_read(text: str, value: object) -> None:
    read = read_literal(text)

    assert read is not None
    assert read[0] == value


@pytest.mark.parametrize("text", ["", "{", "[[[[" * 40, "{'a' 'b'}", ")"])
def test_what_is_no_value_is_refused(text: str) -> None:
    assert read_literal(text) is None


def test_bodies_are_found_inside_text() -> None:
    found = find_bodies("Error code: 429 - {'error': {'code': 'x'}} and {\"b\": 2} done")

    assert [value for _, _, value in found] == [{"error": {"code": "x"}}, {"b": 2}]
