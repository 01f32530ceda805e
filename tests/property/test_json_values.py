"""JSON values under random input: exact or refused with the path, never anything else."""

import json
import math
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agenttx_server.engine import json_values
from agenttx_server.engine.json_values import (
    LARGEST_INTEGER,
    SMALLEST_INTEGER,
    ValueRefused,
    canonical,
    load,
    parse,
    parse_canonical,
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(SMALLEST_INTEGER, LARGEST_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from([2**53 + 1, 2.0**53, -0.0, 0, 1, 1.0, "null", "NaN", '"', "\\", "\0", "[[", "🎉", ""])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=25,
)


def exact(value: Any) -> Any:
    """A form in which 1, 1.0 and True, and 0.0 and −0.0, are not equal."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    if isinstance(value, float):
        return ("float", value, math.copysign(1.0, value))
    return (type(value).__name__, value)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(item) for key, item in reversed(value.items())}
    if isinstance(value, list):
        return [reordered(item) for item in value]
    return value


@given(values)
def test_canonical_text_is_read_back_exactly(value):
    text = canonical(value)
    assert exact(parse(text)) == exact(value)
    assert exact(load(text)) == exact(value)
    assert canonical(parse(text)) == text


@given(values, st.booleans(), st.sampled_from([None, 0, 3]))
def test_however_the_text_is_written_the_value_arrives(value, ensure_ascii, indent):
    assert exact(parse(json.dumps(value, ensure_ascii=ensure_ascii, indent=indent))) == exact(value)


@given(values)
def test_the_order_of_keys_makes_no_difference(value):
    assert canonical(reordered(value)) == canonical(value)


@given(values)
def test_canonical_text_is_what_the_standard_library_would_read(value):
    assert exact(json.loads(canonical(value))) == exact(value)


# --- refused, and where -------------------------------------------------------------------

FLAWS = [
    ("NaN", math.nan),
    ("-Infinity", -math.inf),
    ("18446744073709551616", 2**64),
    ("-9223372036854775809", -(2**63) - 1),
    ('"\\ud83c"', "\ud83c"),
    ('"\\udf89 \\ud83c"', "\udf89 \ud83c"),
]
TEXT_ONLY_FLAWS = ["1e400", "-1e309", "9" * 400, "9" * 5000, '{"k":1,"k":1}']

plain_keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,5}", fullmatch=True)
ways = st.lists(plain_keys | st.integers(0, 2), max_size=7)


def buried(flaw: Any, way: list[str | int], beside: Any) -> Any:
    """The flaw at the end of a way down, with sound values beside it."""
    value = flaw
    for step in reversed(way):
        if isinstance(step, int):
            value = [beside] * step + [value, beside]
        else:
            value = {f"{step}0": beside, step: value}
    return value


def path_of(way: list[str | int]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in way)


def key_of(way: list[str | int]) -> str | None:
    return next((step for step in reversed(way) if isinstance(step, str)), None)


@given(st.sampled_from(FLAWS), ways, values)
def test_a_value_that_is_no_json_is_refused_where_it_stands(flaw, way, beside):
    value = buried(flaw[1], way, beside)
    with pytest.raises(ValueRefused) as refused:
        canonical(value)
    assert (refused.value.path, refused.value.key) == (path_of(way), key_of(way))


@given(st.sampled_from([text for text, _ in FLAWS] + TEXT_ONLY_FLAWS), ways, values)
def test_a_text_with_a_flaw_is_refused_where_it_stands(flaw, way, beside):
    marked = json.dumps(buried("@flaw@", way, beside))
    if marked.count('"@flaw@"') != 1:
        return
    with pytest.raises(ValueRefused) as refused:
        parse(marked.replace('"@flaw@"', flaw))
    twice = flaw.startswith("{")
    assert refused.value.path == path_of([*way, "k"] if twice else way)
    assert refused.value.key == ("k" if twice else key_of(way))


# --- whatever comes -----------------------------------------------------------------------

jsonish = st.lists(
    st.sampled_from(
        [
            *'{}[],:"\\ \n01.-eE+',
            "null",
            "true",
            "NaN",
            "Infinity",
            '"a"',
            '"b":',
            "\\u",
            "\\ud83c",
            "\ud83c",
            "1e999",
            "\0",
        ]
    )
    | st.text(max_size=3),
    max_size=40,
).map("".join)


def read(text: str) -> tuple[Any, ValueRefused | None]:
    try:
        return parse(text), None
    except ValueRefused as refused:
        return None, refused


@given(jsonish | st.text(st.characters(exclude_categories=[]), max_size=60) | values.map(json.dumps))
@example("[" * 100_000)
@example("[" * 100_000 + '"')
@example('{"a":' * 100_000)
@example("[" * 100_000 + "]" * 100_000)
@example('"' + "\\" * 9)
@example("-")
@example("9" * 5000)
@example("-" + "9" * 5000)
@example("1e" + "9" * 5000)
@example("[" * 200 + '"\\\\' + '"' + "]" * 200)
def test_reading_any_text_gives_a_value_or_a_refusal(text):
    value, refusal = read(text)
    if refusal is not None:
        assert refusal.path.startswith("$")
        assert refusal.path.isprintable()
        return
    # What is read, a strict reader reads the same.
    assert exact(orjson.loads(text)) == exact(value)
    assert exact(load(canonical(value))) == exact(value)


compact = values.map(lambda value: orjson.dumps(value).decode())
pieces = st.sampled_from(
    [
        *["1", "-0", "-0.0", "1.0", "1e2", "1E2", "0.1", "5e-324", "0.1000000000000000055"],
        *["18446744073709551615", "18446744073709551616", "-9223372036854775808", "-9223372036854775809"],
        *['"\\/"', '"\\u0041"', '"\\ud800"'],
    ]
)


@given(
    compact
    | jsonish
    | pieces
    | st.lists(pieces, max_size=3).map(lambda items: f"[{','.join(items)}]")
    | st.lists(st.tuples(st.sampled_from("ab"), pieces | compact), max_size=3).map(
        lambda pairs: "{" + ",".join(f'"{key}":{item}' for key, item in pairs) + "}"
    )
)
def test_the_short_way_of_reading_takes_only_what_the_strict_one_takes_and_as_the_same(text):
    known = json_values._read_compact(text)

    if known is not None:
        strictly = json_values._parse_strictly(text)
        assert exact(known[0]) == exact(strictly)
        assert known[1] == canonical(strictly)


@given(compact)
def test_compact_text_is_read_the_short_way(text):
    assert json_values._read_compact(text) is not None
    assert parse_canonical(text) == (parse(text), canonical(parse(text)))


@given(st.integers(0, 130), st.integers(0, 130), st.sampled_from(["", "1", '"]]]}}}"', '"\\"[[["']))
def test_depth_is_counted_alike_by_the_scan_the_reader_and_the_writer(arrays, objects, innermost):
    text = "[" * arrays + '{"k":' * objects + (innermost or "null") + "}" * objects + "]" * arrays
    if arrays + objects <= 100:
        assert canonical(parse(text)) == text
    else:
        with pytest.raises(ValueRefused, match="nested deeper than 100"):
            parse(text)
        if arrays + objects < 250:
            with pytest.raises(ValueRefused, match="nested deeper than 100"):
                canonical(orjson.loads(text))
