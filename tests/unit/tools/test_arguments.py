"""What a tool's arguments may be: validated strictly, refused in one message, never converted."""

import datetime
import enum
import json
import threading
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agenttx.tools import ArgumentsRefused
from agenttx_server import tools
from agenttx_server.engine.records import HintCategory
from agenttx_server.tools import Tool, ToolCallContext, ToolDefinitionError, tool


def taking(annotation: Any) -> Tool[..., Any]:
    def function(value): ...

    function.__annotations__["value"] = annotation
    return tool("test.tool", effects="read_only")(function)


def validate(declared: Tool[..., Any], arguments: Any) -> dict[str, Any]:
    return declared.parameters.validate(arguments)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 5),
        (int, 2**63),
        (int, -(2**63)),
        (int, 2**53 + 1),
        (float, 1.5),
        (float, 1),
        (float, -0.0),
        (str, ""),
        (str, "a\x00b"),
        (bool, True),
        (None, None),
        (Any, None),
        (Any, {"a": [1, 1.0, None]}),
        (list, [1, "a"]),
        (list[int], []),
        (dict, {"": 1}),
        (dict[str, Any], {"1": 1, "01": 2}),
        (str | None, None),
        (int | str, "5"),
        (Literal["a", "b"], "b"),
        (Annotated[int, Field(ge=1)], 1),
    ],
)
def test_a_value_of_the_type_is_passed_as_the_very_object_that_was_sent(annotation, value):
    assert validate(taking(annotation), {"value": value})["value"] is value


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "5", "argument 'value' must be an integer, not a string"),
        (int, 1.0, "argument 'value' must be an integer, not a number with a decimal point"),
        (int, True, "argument 'value' must be an integer, not a boolean"),
        (int, None, "argument 'value' must be an integer, not null"),
        (float, "1.5", "argument 'value' must be a number, not a string"),
        (float, True, "argument 'value' must be a number, not a boolean"),
        (str, 5, "argument 'value' must be a string, not an integer"),
        (str, None, "argument 'value' must be a string, not null"),
        (bool, 1, "argument 'value' must be true or false, not an integer"),
        (bool, "true", "argument 'value' must be true or false, not a string"),
        (list[int], {"0": 1}, "argument 'value' must be an array, not an object"),
        (dict[str, int], [1], "argument 'value' must be an object, not an array"),
        (list[int], [1, "2"], "argument 'value.1' must be an integer, not a string"),
        (dict[str, int], {"a": "x"}, "argument 'value.a' must be an integer, not a string"),
        (
            int | str,
            1.5,
            "argument 'value' must be an integer or a string, not a number with a decimal point",
        ),
        (Literal["a", "b"], "c", "argument 'value' must be 'a' or 'b'"),
        (Annotated[int, Field(ge=1)], 0, "argument 'value' must be greater than or equal to 1"),
        (Annotated[str, Field(min_length=2)], "x", "argument 'value' must have at least 2 characters"),
    ],
)
def test_nothing_is_converted(annotation, value, message):
    with pytest.raises(ArgumentsRefused) as refused:
        validate(taking(annotation), {"value": value})

    assert str(refused.value).startswith(message)
    assert refused.value.category == HintCategory.INVALID_VALUE
    assert "value" in refused.value.keys


@tool("test.charge", effects="read_only")
def charge(amount_cents: int, customer_id: str, note: str = "", tags: list[str] | None = None): ...


def test_all_problems_are_told_at_once_in_the_order_of_the_parameters():
    with pytest.raises(ArgumentsRefused) as refused:
        validate(charge, {"zzz": 1, "tags": ["a", 1], "customer": "c-1", "amount_cents": "5"})

    assert str(refused.value) == (
        "argument 'amount_cents' must be an integer, not a string; missing argument 'customer_id'; "
        "argument 'tags.1' must be a string, not an integer; unknown argument 'customer' "
        "(did you mean 'customer_id'?); unknown argument 'zzz' (accepted: amount_cents, customer_id, note, tags)"
    )
    assert refused.value.keys == ("amount_cents", "customer_id", "tags", "customer", "zzz")
    assert refused.value.category == HintCategory.INVALID_VALUE


def test_a_missing_argument_has_its_own_category():
    with pytest.raises(ArgumentsRefused) as refused:
        validate(charge, {"amount_cents": 5})

    assert refused.value.category == HintCategory.MISSING_ARGUMENT
    assert refused.value.keys == ("customer_id",)


def test_values_are_never_repeated_in_a_refusal():
    with pytest.raises(ArgumentsRefused) as refused:
        validate(charge, {"amount_cents": "hunter2", "customer_id": ["hunter2"], "note": {"hunter2": 1}})

    assert "hunter2" not in str(refused.value)


def test_optional_arguments_that_were_not_sent_are_left_to_the_function():
    assert validate(charge, {"amount_cents": 1, "customer_id": "c"}) == {
        "amount_cents": 1,
        "customer_id": "c",
    }


@pytest.mark.parametrize("arguments", [[], "x", 1, None, True])
def test_arguments_are_an_object(arguments):
    with pytest.raises(ArgumentsRefused, match="must be a JSON object"):
        validate(charge, arguments)


def test_the_key_of_a_nested_problem_is_the_field_that_brought_the_value_then_the_argument():
    class Line(BaseModel):
        product_id: str

    with pytest.raises(ArgumentsRefused) as refused:
        validate(taking(list[Line]), {"value": [{"product_id": 5}]})

    assert refused.value.keys == ("product_id", "value")


class Colour(enum.Enum):
    RED = "red"


class Person(BaseModel):
    name: str
    born: datetime.date


def test_types_that_json_lacks_are_built_from_their_json_form():
    assert validate(taking(datetime.date), {"value": "2024-02-29"}) == {"value": datetime.date(2024, 2, 29)}
    assert validate(taking(Colour), {"value": "red"}) == {"value": Colour.RED}
    person = validate(taking(Person), {"value": {"name": "Ada", "born": "1815-12-10"}})["value"]
    assert person == Person(name="Ada", born=datetime.date(1815, 12, 10))


def test_they_are_strict_too():
    with pytest.raises(ArgumentsRefused, match=r"argument 'value.name' must be a string"):
        validate(taking(Person), {"value": {"name": 5, "born": "1815-12-10"}})


def test_beside_a_built_argument_the_plain_ones_stay_what_was_sent():
    @tool("test.mixed", effects="read_only")
    def mixed(day: datetime.date, anything: Any, ratio: float): ...

    anything = {"a": 1, "b": 1.0}
    values = validate(mixed, {"day": "2024-02-29", "anything": anything, "ratio": 1})

    assert values["anything"] is anything
    assert type(values["ratio"]) is int
    with pytest.raises(ArgumentsRefused, match="argument 'ratio' must be a number, not a string"):
        validate(mixed, {"day": "2024-02-29", "anything": 1, "ratio": "1"})


@pytest.mark.parametrize(
    "name", ["schema", "copy", "json", "model_config", "model_fields", "self", "class_", "_x"]
)
def test_an_argument_may_have_any_name(name):
    namespace: dict[str, Any] = {}
    exec(f"def function({name}: int): ...", namespace)
    declared = tool("test.tool", effects="read_only")(namespace["function"])

    assert validate(declared, {name: 1}) == {name: 1}
    assert list(declared.parameters.json_schema()["properties"]) == [name]


def test_the_schema_says_what_the_hints_and_the_docstring_say():
    @tool("test.charge", effects="read_only")
    async def documented(
        ctx, amount_cents: Annotated[int, Field(ge=0)], currency: Literal["eur", "usd"] = "eur"
    ):
        """Charge.

        Args:
            amount_cents: in cents.
        """

    assert json.loads(documented.describe().arguments_schema) == {
        "type": "object",
        "properties": {
            "amount_cents": {"type": "integer", "minimum": 0, "description": "in cents."},
            "currency": {"type": "string", "enum": ["eur", "usd"], "default": "eur"},
        },
        "required": ["amount_cents"],
        "additionalProperties": False,
    }


def test_an_untyped_argument_takes_any_value():
    @tool("test.any", effects="read_only")
    def untyped(ctx, key): ...

    assert validate(untyped, {"key": [None]}) == {"key": [None]}


def test_a_context_annotated_with_a_name_that_is_only_imported_for_type_checking_does_not_matter():
    namespace: dict[str, Any] = {}
    exec(
        "from __future__ import annotations\ndef function(ctx: NotImportedContext, count: int): ...",
        namespace,
    )

    assert tool("test.tool", effects="read_only")(namespace["function"]).parameters.names == ("count",)


def test_a_first_parameter_of_a_contexts_type_is_the_context_whatever_its_name():
    def by_class(call: ToolCallContext, count: int): ...

    def by_name(call: "tools.BlockingToolCallContext", count: int): ...

    def second(count: int, ctx): ...

    for function, names, context_name in (
        (by_class, ("count",), "call"),
        (by_name, ("count",), "call"),
        (second, ("count", "ctx"), None),
    ):
        parameters = tool("test.tool", effects="read_only")(function).parameters
        assert (parameters.names, parameters.context_name) == (names, context_name)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def function(*args): ...", "'args' can't be passed by name"),
        ("def function(**more): ...", "'more' can't be passed by name"),
        ("def function(a, /): ...", "'a' can't be passed by name"),
        (
            "from __future__ import annotations\ndef function(a: Nowhere): ...",
            "the type of 'a' can't be resolved",
        ),
        ("class Opaque: ...\ndef function(a: Opaque): ...", "Opaque"),
        ("class Opaque: ...\ndef function() -> Opaque: ...", "has no JSON form"),
        ("def function():\n    yield 1", "is a generator"),
        ("async def function():\n    yield 1", "is a generator"),
    ],
)
def test_a_function_that_can_be_no_tool_is_refused_in_one_line(source, message):
    namespace: dict[str, Any] = {}
    exec(source, namespace)

    with pytest.raises(ToolDefinitionError) as refused:
        tool("test.tool", effects="read_only")(namespace["function"])

    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("function", [threading.get_ident, 5, None])
def test_what_has_no_readable_parameters_is_refused(function):
    with pytest.raises(ToolDefinitionError, match="parameters can't be read"):
        tool("test.tool", effects="read_only")(function)
