"""References under random input: the value referred to, the edges that say so, or a hint."""

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agenttx_server.engine.json_values import MISSING, canonical
from agenttx_server.engine.records import DependencyKind, Edge
from agenttx_server.engine.references import Resolution, UnresolvedReference, contains_reference, resolve
from agenttx_server.tools.http.templates import fill

segments = st.from_regex(r"[A-Za-z0-9_-]{1,4}", fullmatch=True)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
outputs = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(segments, inner, max_size=3),
    max_leaves=12,
)


@st.composite
def referred(draw: st.DrawFn) -> tuple[int, Any, list[str], Any]:
    """A step, its output, and a way to some value in it."""
    output = draw(outputs)
    way: list[str] = []
    value = output
    while isinstance(value, dict | list) and value and draw(st.booleans()):
        if isinstance(value, dict):
            key = draw(st.sampled_from(sorted(value)))
            way.append(key)
            value = value[key]
        else:
            index = draw(st.integers(0, len(value) - 1))
            way.append(str(index))
            value = value[index]
    return draw(st.integers(1, 99)), output, way, value


def reference(step: int, way: list[str]) -> str:
    return "${" + ".".join(["steps", str(step), *way]) + "}"


def resolved(arguments, output_by_step):
    return resolve(
        arguments,
        step_id=100,
        first_invisible_step=100,
        output_of=lambda step: output_by_step.get(step, MISSING),
    )


@given(referred(), segments.filter(lambda key: not key.isdigit()))
def test_a_reference_brings_its_value_exactly_and_one_edge(found, field):
    step, output, way, value = found
    answer = resolved({"deep": [{field: ["x", reference(step, way)]}]}, {step: output})
    assert canonical(answer.value) == canonical({"deep": [{field: ["x", value]}]})
    source_key = next((segment for segment in reversed(way) if not segment.isdigit()), field)
    assert answer.edges == (Edge(step, 100, source_key, field, DependencyKind.EXPLICIT),)


@given(referred(), st.text(max_size=5), st.text(max_size=5))
def test_inside_text_it_is_text(found, before, after):
    step, output, way, value = found
    assume(not before.endswith("$") and "${" not in before + after and before + after)
    answer = resolved({"field": before + reference(step, way) + after}, {step: output})
    assert answer.value == {"field": before + (value if isinstance(value, str) else canonical(value)) + after}


@given(
    st.lists(
        st.sampled_from(["$", "{", "}", "steps", ".", "1", "id", " ", "${steps.1.id}", "é"]), max_size=12
    ).map("".join)
)
def test_an_escaped_text_is_that_text(text):
    escaped = text.replace("${", "$${")
    answer = resolved({"field": [escaped]}, {1: {"id": "u-7"}})
    assert answer.value == {"field": [text]}
    assert answer.edges == ()


pieces = st.sampled_from(
    [
        "$",
        "${",
        "$${",
        "}",
        "steps",
        "${steps.1",
        ".id",
        ".0",
        ".",
        "${steps.2}",
        "${steps.7.x}",
        " ",
        "\n",
        "x",
        "[1]",
        "9" * 30,
    ]
) | st.text(max_size=3)
texts = st.lists(pieces, max_size=10).map("".join)
arguments = st.recursive(
    texts | scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def outcome(*args: Any, **more: Any) -> tuple[Resolution | None, UnresolvedReference | None]:
    try:
        return resolve(*args, **more), None
    except UnresolvedReference as error:
        return None, error


@given(arguments, st.integers(1, 4))
def test_any_arguments_resolve_or_fail_with_one_line(given_arguments, first_invisible_step):
    known = {1: {"id": [1, {"id": "x"}]}, 2: None, 3: 7}
    asked: list[int] = []

    def output_of(step: int) -> Any:
        asked.append(step)
        return known.get(step, MISSING)

    answer, error = outcome(
        given_arguments, step_id=4, first_invisible_step=first_invisible_step, output_of=output_of
    )

    edges = answer.edges if answer else error.edges
    if error:
        assert error.message.startswith("Hint: ")
        assert len(error.message) <= 240
        assert error.message.isprintable()
        assert (error.key is None) == (error.producer is None)
        if error.producer is not None:
            assert error.producer in known
            assert Edge(error.producer, 4, error.key, error.key, DependencyKind.EXPLICIT) in error.edges
    elif not contains_reference(canonical(given_arguments)):
        assert answer.value == given_arguments
        assert edges == ()
    assert all(step < first_invisible_step for step in asked)
    assert list(edges) == sorted(set(edges))
    assert {edge.from_step for edge in edges} <= set(asked) & set(known)


@given(referred(), segments)
def test_a_missing_key_names_the_producer(found, segment):
    step, output, way, value = found
    present = (isinstance(value, dict) and segment in value) or (
        isinstance(value, list)
        and segment.isdigit()
        and str(int(segment)) == segment
        and int(segment) < len(value)
    )
    assume(not present)
    with pytest.raises(UnresolvedReference) as error:
        resolved({"field": reference(step, [*way, segment, "more"])}, {step: output})
    assert error.value.producer == step
    named = [each for each in [*way, segment] if not each.isdigit()]
    assert error.value.key == (named[-1] if named else "field")


# --- for tools that read templates of their own ---------------------------------------------


def read_by_tool(value: Any) -> Any:
    """What such a tool makes of arguments; TEMPLATE for what it takes for a template."""
    if isinstance(value, str):
        return fill(value, lambda name: f"TEMPLATE({name})", lambda text, _: text)
    if isinstance(value, dict):
        return {key: read_by_tool(item) for key, item in value.items()}
    if isinstance(value, list):
        return [read_by_tool(item) for item in value]
    return value


hostile = st.lists(
    st.sampled_from(["$", "{", "}", "${", "$$", "${$}", "secret.A", "${secret.A}", "idempotency_key", "a"]),
    max_size=8,
).map("".join)
written = st.lists(
    st.sampled_from(["x ", "$", "$${", "{", "${secret.A}", "${steps.1}", "${steps.2.a}", "${steps.2}"]),
    max_size=8,
).map("".join)


@given(written, hostile, hostile)
def test_what_is_put_in_is_data_to_a_tool_that_reads_templates(text, first, second):
    """Put in where it stands, however it is cut up, it comes out as it was; templates of the text count."""
    assume("${{" not in text and not re.search(r"\$\{(secret\.A[^}]|x|\$)", text))
    outputs = {1: first, 2: {"a": second, "${secret.A}": [first]}}
    steps = {1: first, 2: canonical(outputs[2])}

    def as_meant(place: re.Match[str]) -> str:
        match place[0]:
            case "$${":
                return "${"
            case "${secret.A}":
                return "TEMPLATE(secret.A)"
            case "${steps.2.a}":
                return second
            case other:
                return steps[int(other[8])]

    meant = re.sub(r"\$\$\{|\$\{secret\.A\}|\$\{steps\.[12](\.a)?\}", as_meant, text)
    made = resolve(
        [text + " ", text],
        step_id=100,
        first_invisible_step=100,
        output_of=lambda step: outputs.get(step, MISSING),
        reads_templates=True,
    ).value
    assert read_by_tool(made[0]) == meant + " "
    assert read_by_tool(made[1]) == (outputs[2] if text == "${steps.2}" else meant)
