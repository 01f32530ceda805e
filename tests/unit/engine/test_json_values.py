"""What an agent sends arrives exactly or is refused, naming the place; our own text is one text for one value."""

import collections
import dataclasses
import datetime
import enum
import uuid

import orjson
import pytest

from agenttx_server.engine.json_values import MAX_DEPTH, ValueRefused, canonical, load, parse


def nested(depth: int, innermost: object = 1) -> object:
    for _ in range(depth):
        innermost = [innermost]
    return innermost


# --- parse --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9007199254740993", 2**53 + 1),
        ("9223372036854775808", 2**63),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("12345678901234567890.5", 12345678901234567890.5),
        ("1e2", 100.0),
        ("1e-400", 0.0),
        ('""', ""),
        ('"a\\u0000b"', "a\0b"),
        ('"\\ud83c\\udf89"', "🎉"),
        ('"🎉"', "🎉"),
        ('"12345678901234567890"', "12345678901234567890"),
        ('{"1": 1, "01": 2}', {"1": 1, "01": 2}),
        ('{"": 1}', {"": 1}),
        (" \t\r\n[ ] ", []),
        ('"[[[[{{{{"', "[[[[{{{{"),
    ],
)
def test_every_value_arrives_exactly(text, value):
    assert parse(text) == value
    assert type(parse(text)) is type(value)


def test_one_and_one_point_zero_and_minus_zero_stay_apart():
    assert [type(number) for number in parse("[1, 1.0]")] == [int, float]
    assert canonical(parse("[1, 1.0, -0.0, 0.0]")) == "[1,1.0,-0.0,0.0]"


@pytest.mark.parametrize(
    ("text", "path", "key", "reason"),
    [
        ('{"a": {"b": [1, NaN]}}', "$.a.b[1]", "b", "NaN"),
        ("[-Infinity]", "$[0]", None, "-Infinity"),
        ("Infinity", "$", None, "Infinity"),
        ('{"n": 18446744073709551616}', "$.n", "n", "integer outside"),
        ('{"n": -9223372036854775809}', "$.n", "n", "integer outside"),
        ('{"n": 1180591620717411303424}', "$.n", "n", "integer outside"),
        ('{"n": 1e400}', "$.n", "n", "too large for a double"),
        ('{"n": -1E+400}', "$.n", "n", "too large for a double"),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "$.b.c", "c", "twice"),
        ('[{"a": 1, "\\u0061": 2}]', "$[0].a", "a", "twice"),
        ('{"s": ["\\ud83c"]}', "$.s[0]", "s", "lone surrogate"),
        ('{"s": "\\uDF89\\ud83c"}', "$.s", "s", "lone surrogate"),
        ('{"s": "\ud83c"}', "$.s", "s", "lone surrogate"),
        ('{"a": {"\\ud83c": 1}}', '$.a["\\ud83c"]', "a", "lone surrogate"),
        ('{"odd key\\n": {"": [NaN]}}', '$["odd key\\n"][""][0]', "", "NaN"),
        ('{"a": {"x": [[NaN]]}, "a": 1}', "$.a", "a", "twice"),
        ('{"a": [NaN], "b": 1e400}', "$.a[0]", "a", "NaN"),
    ],
)
def test_what_would_change_on_its_way_is_refused_where_it_stands(text, path, key, reason):
    with pytest.raises(ValueRefused) as refused:
        parse(text)
    assert refused.value.path == path
    assert refused.value.key == key
    assert reason in refused.value.reason
    assert str(refused.value) == f"{path}: {refused.value.reason}"


def test_numbers_that_int_itself_refuses_are_refused_with_their_path():
    with pytest.raises(ValueRefused, match=r"^\$\.n: integer outside"):
        parse('{"n": ' + "9" * 5000 + "}")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "line 1, column 1"),
        ('{"a":\n  }', "line 2, column 3"),
        ('{"a": 1} x', "line 1, column 10"),
        ("{'a': 1}", "line 1, column 2"),
        ('{"a": 1,}', "line 1, column 9"),
        ('"\n"', "line 1, column 2"),
        ("[1, NaN", "line 1, column 8"),
        ("01", "line 1, column 2"),
        ("\ufeff1", "line 1, column 1"),
    ],
)
def test_text_that_is_no_json_is_refused_with_line_and_column(text, where):
    with pytest.raises(ValueRefused) as refused:
        parse(text)
    assert refused.value.path == "$"
    assert refused.value.reason.startswith("not JSON: ")
    assert refused.value.reason.endswith(where)


def test_a_hundred_levels_are_read_and_one_more_is_refused():
    assert parse("[" * 100 + "]" * 100) == nested(99, [])
    with pytest.raises(ValueRefused, match="nested deeper than 100"):
        parse("[" * 101 + "]" * 101)


@pytest.mark.parametrize(
    "text", ["[" * 1_000_000, '{"a":' * 1_000_000, "[" * 500 + '"' + "]" * 500, '["\\"' * 500]
)
def test_deep_text_reaches_no_recursing_parser(text):
    with pytest.raises(ValueRefused):
        parse(text)


def test_brackets_in_strings_are_no_depth():
    for value in (
        {"text": '\\"[[{{\\' * 200, "more": ["]" * 300, "\\"]},
        ["\\", "[" * 200],
        ["\\\\", "[" * 200],
        ['\\"', "[" * 200],
    ):
        assert parse(orjson.dumps(value).decode()) == value


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a": [0, {"b,[": "]", "c": [1]}]}', "$.a[1].c"),
        ('[[], {"a": {}}, {"b": {"c": [2]}}]', "$[2].b.c"),
    ],
)
def test_nesting_too_deep_is_refused_where_the_first_container_too_many_opens(text, path):
    with pytest.raises(ValueRefused) as refused:
        parse(text, max_depth=3)
    assert refused.value.path == path


def test_a_long_path_is_cut_in_the_middle_and_a_long_key_at_its_end():
    with pytest.raises(ValueRefused) as refused:
        parse('{"' + "k" * 500 + '": ' + "[" * 50 + "NaN" + "]" * 50 + "}")
    assert refused.value.path == '$["' + "k" * 64 + '\\u2026"]' + "[0]" * 6 + "…" + "[0]" * 3
    assert refused.value.key == "k" * 500


# --- canonical ----------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Shade(enum.StrEnum):
    DARK = "dark"


class Level(enum.IntEnum):
    HIGH = 3


class NotANumber(float, enum.Enum):
    NAN = float("nan")


class Text(str):
    __slots__ = ()


class Real(float):
    pass


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Record:
    a: int = 1


def test_canonical_text_has_sorted_keys_and_no_blanks():
    assert canonical({"b": [1, 1.0, None, True], "a": {"ä": "é\n", "Z": 2}}) == (
        '{"a":{"Z":2,"ä":"é\\n"},"b":[1,1.0,null,true]}'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, (2, [3])), "[1,[2,[3]]]"),
        (Point(1, 2), "[1,2]"),
        (collections.OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        (collections.defaultdict(list, a=[1]), '{"a":[1]}'),
        (Text("a"), '"a"'),
        (Real(1.5), "1.5"),
        (Shade.DARK, '"dark"'),
        ({Shade.DARK: Level.HIGH}, '{"dark":3}'),
        (-0.0, "-0.0"),
        (2**64 - 1, "18446744073709551615"),
        (-(2**63), "-9223372036854775808"),
        ([None, 1.5, float(2**53)], "[null,1.5,9007199254740992.0]"),
    ],
)
def test_tuples_and_subclasses_of_json_types_are_what_they_are(value, text):
    assert canonical(value) == text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "NaN and Infinity"),
        (float("inf"), "NaN and Infinity"),
        (-float("inf"), "NaN and Infinity"),
        (Real("nan"), "NaN and Infinity"),
        (NotANumber.NAN, "NaN and Infinity"),
        (2**64, "integer outside"),
        (-(2**63) - 1, "integer outside"),
        ("\ud83c", "lone surrogate"),
        (Text("\ud83c"), "lone surrogate"),
        ({"\ud83c": 1}, "lone surrogate"),
        ({1: 2}, "one here is int"),
        ({None: 2}, "one here is NoneType"),
        (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "datetime is not"),
        (datetime.date(2024, 1, 1), "date is not"),
        (uuid.UUID(int=0), "UUID is not"),
        (Record(), "Record is not"),
        (b"x", "bytes is not"),
        ({1, 2}, "set is not"),
        (Colour.RED, "Colour is not"),
        (orjson.Fragment(b"{"), "Fragment is not"),
        (object(), "object is not"),
    ],
)
@pytest.mark.parametrize("null_beside", [False, True])
def test_what_is_no_json_is_refused_where_it_stands(value, reason, null_beside):
    with pytest.raises(ValueRefused) as refused:
        canonical({"fine": [None if null_beside else 0], "rows": [1, {"bad": value}]})
    assert refused.value.path.startswith("$.rows[1].bad")
    assert refused.value.key == "bad"
    assert reason in refused.value.reason


def test_nan_is_never_written_as_null():
    assert orjson.dumps(float("nan")) == b"null"
    with pytest.raises(ValueRefused, match=r"^\$\[1\]: NaN"):
        canonical(["null", float("nan")])


def test_depth_counts_the_same_in_values_and_in_text():
    deepest = nested(MAX_DEPTH - 1, [])
    assert parse(canonical(deepest)) == deepest
    for too_deep in (nested(MAX_DEPTH, []), nested(MAX_DEPTH + 1), nested(500), {"a": nested(100)}):
        with pytest.raises(ValueRefused, match="nested deeper than 100"):
            canonical(too_deep)


def test_a_cycle_is_refused():
    cycle: list[object] = []
    cycle.append({"again": cycle})
    with pytest.raises(ValueRefused, match="nested deeper than 100"):
        canonical(cycle)


def test_two_spellings_of_one_key_are_refused():
    class Strange(str):
        __slots__ = ()

        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            return self is other

    with pytest.raises(ValueRefused, match=r"^\$\.a: the key stands twice"):
        canonical({"a": 1, Strange("a"): 2})


def test_canonical_text_is_read_back_exactly():
    text = '{"big":18446744073709551615,"half":0.5,"minus":-0.0,"one":1,"real":1.0,"text":"a\\u0000🎉"}'
    assert canonical(load(text)) == text
