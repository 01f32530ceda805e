"""References become values and explicit edges, or a hint that names what is wrong."""

import pytest

from agenttx_server.engine.json_values import MISSING
from agenttx_server.engine.records import DependencyKind, Edge, HintCategory
from agenttx_server.engine.references import Resolution, UnresolvedReference, contains_reference, resolve

OUTPUTS = {
    1: {
        "id": "u-7",
        "n": 3,
        "pi": 1.0,
        "none": None,
        "yes": True,
        "rows": [{"sku": "A"}, {"sku": "B"}],
        "": "empty",
    },
    2: {"by_year": {"2024": 9, "01": "padded"}, "nested": {"a": {"b": [10, [20]]}}, "text": "${steps.1.id}"},
    3: [5, 6],
    4: None,
}


def resolved(arguments, step_id=9, first=None, **more) -> Resolution:
    return resolve(
        arguments,
        step_id=step_id,
        first_invisible_step=first or step_id,
        output_of=lambda step: OUTPUTS.get(step, MISSING),
        **more,
    )


def edge(producer: int, source_key: str, target_key: str) -> Edge:
    return Edge(producer, 9, source_key, target_key, DependencyKind.EXPLICIT)


def refused(arguments, **more) -> UnresolvedReference:
    with pytest.raises(UnresolvedReference) as error:
        resolved(arguments, **more)
    assert error.value.message.startswith("Hint: ")
    assert len(error.value.message) <= 240
    assert error.value.message.isprintable()
    return error.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${steps.1.id}", "u-7"),
        ("${steps.1.n}", 3),
        ("${steps.1.none}", None),
        ("${steps.1.yes}", True),
        ("${steps.1.rows}", [{"sku": "A"}, {"sku": "B"}]),
        ("${steps.1.rows.1.sku}", "B"),
        ("${steps.2.by_year.2024}", 9),
        ("${steps.2.by_year.01}", "padded"),
        ("${steps.2.nested.a.b.1.0}", 20),
        ("${steps.3}", [5, 6]),
        ("${steps.3.1}", 6),
        ("${steps.4}", None),
    ],
)
def test_a_string_that_is_one_reference_becomes_the_value_with_its_type(text, value):
    answer = resolved({"field": text}).value["field"]
    assert answer == value
    assert type(answer) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("user ${steps.1.id}!", "user u-7!"),
        ("${steps.1.id}${steps.1.n}", "u-73"),
        ("${steps.1.pi} ${steps.1.yes} ${steps.1.none}", "1.0 true null"),
        ("rows: ${steps.1.rows}", 'rows: [{"sku":"A"},{"sku":"B"}]'),
        (" ${steps.1.n}", " 3"),
        ("$${steps.99.id} and ${steps.1.id}", "${steps.99.id} and u-7"),
        ("${steps.1.n}\n", "3\n"),
    ],
)
def test_inside_a_longer_string_it_becomes_text(text, value):
    assert resolved({"field": text}).value == {"field": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$${steps.1.id}", "${steps.1.id}"),
        ("$$${steps.1.id}", "$${steps.1.id}"),
        ("$${anything}", "${anything}"),
        ("$${", "${"),
        ("cost $5, ${HOME}, $$, ${}, ${step.1.id}, ${stepsize}, ${steps_1}", None),
        ("${name", None),
        ("$steps.1.id", None),
        ("steps.1.id}", None),
    ],
)
def test_escapes_and_other_dollar_signs_are_text_and_make_no_edge(text, value):
    assert resolved({"field": text}) == Resolution({"field": text if value is None else value}, ())


def test_a_value_put_in_is_not_read_again():
    assert resolved({"field": "${steps.2.text}", "more": "x ${steps.2.text}"}).value == {
        "field": "${steps.1.id}",
        "more": "x ${steps.1.id}",
    }


def test_keys_are_never_references():
    assert resolved({"${steps.99.id}": 1}) == Resolution({"${steps.99.id}": 1}, ())


def test_each_reference_makes_one_edge_under_the_keys_of_both_sides():
    arguments = {
        "user": "${steps.1.id}",
        "again": ["${steps.1.id}", ["and ${steps.1.id} ${steps.1.n}"], {"deep": "${steps.1.rows.0.sku}"}],
        "first_row": "${steps.1.rows.0}",
        "all": "${steps.3}",
        "second": "${steps.3.1}",
        "year": "${steps.2.by_year.2024}",
    }
    assert resolved(arguments).edges == tuple(
        sorted(
            [
                edge(1, "id", "user"),
                edge(1, "id", "again"),
                edge(1, "n", "again"),
                edge(1, "sku", "deep"),
                edge(1, "rows", "first_row"),
                edge(3, "all", "all"),
                edge(3, "second", "second"),
                edge(2, "by_year", "year"),
            ]
        )
    )


def test_at_the_top_level_no_field_holds_the_reference():
    assert resolved("${steps.1.id}") == Resolution("u-7", (edge(1, "id", ""),))
    assert resolved(["${steps.3}"]) == Resolution([[5, 6]], (edge(3, "", ""),))


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (
            "${steps.1.user_id}",
            "user_id",
            "Hint: Step 1 output has no 'user_id'. Re-run step 1 so it returns 'user_id', or fix the reference.",
        ),
        (
            "as text: ${steps.1.rows.0.price.eur}",
            "price",
            "Hint: Step 1 output has no 'rows.0.price'. Re-run step 1 so it returns 'rows.0.price', or fix the "
            "reference.",
        ),
    ],
)
def test_a_missing_key_leads_to_the_producer(text, key, message):
    error = refused({"user": "${steps.3.0}", "who": text})
    assert error.message == message
    assert (error.key, error.producer) == (key, 1)
    assert error.edges == (edge(1, key, key), edge(3, "user", "user"))
    assert error.category is HintCategory.UNRESOLVED_REFERENCE


@pytest.mark.parametrize(
    ("text", "key", "path"),
    [
        ("${steps.1.rows.2}", "rows", "rows.2"),
        ("${steps.1.rows.01}", "rows", "rows.01"),
        ("${steps.1.rows.-1}", "-1", "rows.-1"),
        ("${steps.1.rows.99999999999999999999}", "rows", "rows.99999999999999999999"),
        ("${steps.1.id.0}", "id", "id.0"),
        ("${steps.1.none.x}", "x", "none.x"),
        ("${steps.3.7}", "who", "7"),
        ("${steps.4.id}", "id", "id"),
    ],
)
def test_an_index_that_is_not_there_is_known_by_its_array(text, key, path):
    error = refused({"who": text})
    assert error.key == key
    assert f"has no '{path}'" in error.message
    assert error.edges[0].source_key == error.edges[0].target_key == key


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("${steps.99.id}", "refers to step 99, and step 9 sees only steps before step 7"),
        ("${steps.9.id}", "refers to its own step"),
        ("${steps.8}", "refers to step 8, and step 9 sees only steps before step 7"),
        ("${steps.7}", "refers to step 7, and step 9 sees only steps before step 7"),
        ("${steps.6.id}", "refers to step 6, which has not completed"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "inside {} text", "and ${{steps.1.id}} {}"])
def test_a_step_that_has_no_output_here_is_named_and_leaves_no_edge(reference, words, around):
    error = refused({"list": [{"field": around.format(reference)}]}, first=7)
    assert f"'{reference}' {words}" in error.message
    assert error.reference == reference
    assert (error.key, error.producer) == (None, None)
    assert {each.from_step for each in error.edges} <= {1}


def test_siblings_of_a_group_are_invisible_even_when_they_have_completed():
    assert "sees only steps before step 3" in refused({"field": "${steps.3.0}"}, first=3).message


@pytest.mark.parametrize(
    "text",
    [
        "${steps}",
        "${steps.}",
        "${steps.id}",
        "${steps.0.id}",
        "${steps.01.id}",
        "${steps.1.}",
        "${steps.1..id}",
        "${steps.1.a b}",
        "${steps.1.é}",
        "${steps[1].id}",
        "${ steps.1.id }",
        "${steps.1.id",
        "${steps.12345678901.id}",
    ],
)
def test_a_malformed_reference_fails_and_is_quoted(text):
    for around in ("{}", "see {}"):
        error = refused({"field": around.format(text)})
        assert f"'{text}' is not a reference" in error.message
        assert (error.key, error.edges) == (None, ())


def test_a_long_or_many_lined_reference_is_quoted_in_one_short_line():
    error = refused({"field": "${steps.1 \n\t" + "x" * 1000})
    assert error.reference == "${steps.1 " + "x" * 49 + "…"
    assert len(refused({"field": "${steps.1." + "k" * 1000 + "}"}).message) <= 240


def test_a_short_text_cannot_ask_for_more_than_the_limit():
    fine = resolved({"rows": ["${steps.1.rows}"] * 4, "text": "${steps.1.id}" * 9}, max_resolved_size=127)
    assert len(fine.value["rows"]) == 4
    error = refused({"rows": ["${steps.1.rows}"] * 4, "text": "${steps.1.id}" * 9}, max_resolved_size=126)
    assert error.category is HintCategory.RESOURCE_EXHAUSTED
    assert (error.key, error.producer) == (None, None)


def test_the_quick_look_misses_nothing_that_resolve_would_touch():
    for text in ("${steps.1.id}", "a $${ b", "${ steps.1}", "${steps"):
        assert contains_reference(text)
    assert not contains_reference("costs $5 {really}")
